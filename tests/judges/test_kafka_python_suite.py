"""kafka-python's integration tests against a box, a module at a time: each of their tests does what `kafka-python.toml` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.running_box import RunningBox
from tests.judges import kafka_python
from tests.judges.expectations import problems, read_expectations

pytestmark = [pytest.mark.system, pytest.mark.slow]

EXPECTATIONS = read_expectations("kafka-python")
SECONDS = 240
WAITS = ("test_ssl_integration",)
"""Its tests wait ten seconds for a TLS that is not there: for long runs."""


@pytest.fixture(scope="module")
def judged_box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    if reason := kafka_python.missing():
        pytest.skip(reason)
    box = start_shared(tmp_path_factory.mktemp("judged") / "box", broker_id=0, settings=kafka_python.BOX_SETTINGS)
    yield box
    box.stop()
    assert box.leftovers() == []


@pytest.mark.parametrize("module", [pytest.param(module, marks=[pytest.mark.deep] if module in WAITS else []) for module in EXPECTATIONS])
def test_every_test_of_the_module_does_what_is_expected_of_it(judged_box: RunningBox, tmp_path: Path, module: str) -> None:
    results = kafka_python.run_module(judged_box.bootstrap, module, tmp_path, SECONDS)
    log = (tmp_path / f"{module}.log").read_text(errors="replace")
    assert problems(EXPECTATIONS[module], results) == [], log[-4000:]
