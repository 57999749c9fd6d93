"""The load by users (`python -m loadtest users`) against a real box: its counts agree with the box's, and it notices when they do not."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.model import Offset, TopicPartition
from appliance.client.admin import delete_records
from lab.running_box import ROOT, RunningBox, eventually
from loadtest.topics import cluster_of, count_records, make_topic
from loadtest.users.conductor import Conductor
from loadtest.users.crew import Phase
from loadtest.users.ledger import ProcessLedger
from loadtest.users.options import add_options

pytestmark = pytest.mark.system

SECONDS = 3
RUN_SECONDS = 60.0
DELETED = 10


class UsersRun:
    """One run of the command, started at once."""

    def __init__(self, box: RunningBox, directory: Path, *arguments: str) -> None:
        self.report = directory
        ports = ["--syslog-port", str(box.syslog.port), "--http-port", str(box.http.port)]
        command = [
            sys.executable,
            "-m",
            "loadtest",
            "users",
            *arguments,
            "--box",
            box.bootstrap,
            *ports,
            "--report",
            str(directory),
            "--patience",
            "1",
            "--loglevel",
            "INFO",
        ]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def finish(self) -> tuple[int, str]:
        """Exit code and everything it said."""
        try:
            words, _ = self._process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            pytest.fail(f"not over after {RUN_SECONDS:g} s\n{self._process.communicate()[0]}")
        return self._process.returncode, words

    def end(self) -> None:
        """All processes that a test has left; and their output, if it was not read."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdout is not None and not self._process.stdout.closed:
            print(self._process.communicate()[0])

    def rows(self) -> dict[str, dict[str, Any]]:
        """The equations, by the first words of each."""
        rows = json.loads((self.report / "load_verdict.json").read_text())["rows"]
        return {row["flow"].partition(" → ")[0] if not row["flow"].startswith("records stored") else row["flow"].rpartition("-")[2]: row for row in rows}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    box = start_shared(tmp_path_factory.mktemp("users") / "box", settings={"group.initial.rebalance.delay.ms": 0})
    yield box
    assert box.stop() == 0


@pytest.fixture
def start_users(box: RunningBox, tmp_path: Path) -> Iterator[Callable[..., UsersRun]]:
    runs: list[UsersRun] = []

    def start(name: str, *arguments: str) -> UsersRun:
        runs.append(UsersRun(box, tmp_path / name, *arguments))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


def test_what_users_sent_is_what_the_box_stored_and_records_that_vanish_are_missed(box: RunningBox, start_users: Callable[..., UsersRun]) -> None:
    make_topic(box, "kept", 4)
    make_topic(box, "robbed", 1)
    # Both at once, to save time; they share nothing but the box.
    robbed = start_users(
        "robbed", "produce", "--topic", "robbed", "--acks", "1", "--produce-rate", "20", "--users", "1", "--seconds", str(SECONDS), "--processes", "1"
    )
    sound = start_users("sound", "live", "--topic", "kept", "--groups", "2", "--users", "10", "--seconds", str(SECONDS), "--processes", "2")
    with cluster_of(box) as cluster:
        eventually(lambda: count_records(box, "robbed") > DELETED, "records to delete")
        delete_records(cluster, {TopicPartition("robbed", 0): Offset(DELETED)})

    code, words = sound.finish()
    assert code == 0, words
    rows = sound.rows()
    assert set(rows) == {"records acknowledged", "lines by tcp", "lines by udp", "lines received", "lines stored", "g0", "g1"}
    for row in rows.values():
        assert row["given"] == row["arrived"] + row["counted"] > 0, row
    records, lines = count_records(box, "kept"), count_records(box, "syslog")
    assert (rows["records acknowledged"]["given"], rows["lines stored"]["arrived"]) == (records, lines)
    assert rows["g0"]["arrived"] == rows["g1"]["arrived"] == records + lines
    assert (sound.report / "report.html").stat().st_size > 0
    kinds = {line.split(",")[0] for line in (sound.report / "load_stats.csv").read_text().splitlines()}
    assert {"produce", "consume", "syslog-udp", "syslog-tcp"} <= kinds

    code, words = robbed.finish()
    assert code == 1, words
    row = robbed.rows()["records acknowledged"]
    assert (row["missing"], row["given"] - row["arrived"], row["note"]) == (DELETED, DELETED, f"{DELETED} deleted since")
    assert f"DO NOT ADD UP ({DELETED} missing)" in words


def test_a_process_that_has_reported_nothing_is_waited_for_and_missed(box: RunningBox) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    arguments = ["--topic", "silent", "--patience", "0.5", "--http-port", str(box.http.port), "--mix", "produce"]
    options = parser.parse_args(arguments, argparse.Namespace(host=f"kafka://{box.bootstrap}"))
    documents = {Phase.DRAIN: ProcessLedger(is_quiet=True), Phase.CLOSE: ProcessLedger(is_quiet=True, is_closed=True)}

    def run(tells: tuple[Phase, ...]) -> list[str]:
        def on_phase(phase: Phase) -> None:
            if phase in tells:
                conductor.documents["worker"] = documents[phase].document()

        conductor = Conductor(options, {"produce"}, on_phase, lambda: 1)
        conductor.begin()
        conductor.finish(lambda _words: None)
        conductor.close()
        return conductor.verdict([]).troubles

    assert run((Phase.DRAIN, Phase.CLOSE)) == []
    assert run((Phase.CLOSE,)) == ["processes were stopped, or died, before they had reported all their counts"]
