"""librdkafka's own tests against boxes, a number at a time: each does what `librdkafka.toml` says. An hour, so with --deep only, where it is built."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from lab.running_box import RunningBox, start_box
from tests.judges import kafka_home, librdkafka
from tests.judges.expectations import problems, read_expectations

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.deep]

EXPECTATIONS = read_expectations("librdkafka")
SECONDS = 1800.0
ADMIN = "0081"


def _numbers(group: str) -> dict[str, dict[str, str]]:
    """Tests of one number, which run together."""
    return {number: dict(tests) for number, tests in groupby(EXPECTATIONS[group].items(), key=lambda item: item[0][:4])}


def _start(tmp_path_factory: pytest.TempPathFactory, auto_create: bool) -> Iterator[RunningBox]:
    if reason := librdkafka.missing() or kafka_home.missing():
        pytest.skip(reason)
    settings = {**librdkafka.BOX_SETTINGS, "auto.create.topics.enable": auto_create}
    box = start_box(tmp_path_factory.mktemp("judged") / "box", settings=settings)
    yield box
    box.stop()
    assert box.leftovers() == []


@pytest.fixture(scope="module")
def judged_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    yield from _start(tmp_path_factory, True)


@pytest.fixture(scope="module")
def careful_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """Creates only requested topics."""
    yield from _start(tmp_path_factory, False)


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-6000:]


@pytest.mark.parametrize("number", _numbers("default"))
def test_every_test_of_the_number_does_what_is_expected_of_it(judged_box: RunningBox, tmp_path: Path, number: str) -> None:
    results = librdkafka.run_number(judged_box.bootstrap, number, tmp_path, SECONDS)
    assert problems(_numbers("default")[number], results) == [], _end(tmp_path / f"{number}.log")


@pytest.mark.parametrize("subtest", EXPECTATIONS["subtests"])
def test_every_part_of_the_admin_test_does_what_is_expected_of_it(judged_box: RunningBox, tmp_path: Path, subtest: str) -> None:
    results = librdkafka.run_number(judged_box.bootstrap, ADMIN, tmp_path, SECONDS, subtests=subtest)
    log = next(tmp_path.glob("0081*.log"))
    assert f"[ {subtest}" in log.read_text(errors="replace"), "no part of the test has this name"
    assert problems({subtest: EXPECTATIONS["subtests"][subtest]}, {subtest: results["0081_admin"]}) == [], _end(log)


@pytest.mark.parametrize("number", _numbers("noautocreate"))
def test_tests_that_create_their_topics_themselves_do_what_is_expected(careful_box: RunningBox, tmp_path: Path, number: str) -> None:
    expected = _numbers("noautocreate")[number]
    results = librdkafka.run_number(careful_box.bootstrap, number, tmp_path, SECONDS, "noautocreate")
    assert problems(expected, {name: results.get(name, "did not run") for name in expected}) == [], _end(tmp_path / f"{number}.log")
