"""The two commands of the README on a machine on which nothing is installed. Takes half an hour and several hundred MB of downloads."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from lab.bare_machine import BareMachine, missing
from lab.running_box import ROOT

pytestmark = [pytest.mark.system, pytest.mark.deep]

LOGS = ROOT / ".venv" / "log"
RUN_SECONDS, TEST_SECONDS = 1_200.0, 7_200.0
START_AND_STOP = """
cd /root/millrace
./install.sh run --kafka-port 0 --syslog-port 0 --http-port 0 --ingest-port 0 & pid=$!
exec 2>&1
until grep -q '^millrace ready' /root/output; do kill -0 $pid || exit 1; sleep 1; done
kill -TERM $pid
wait $pid
"""
EXPECTED = re.compile(r"^long campaigns|has a stage for it$|kernel|modprobe")
"""Reasons to skip that are none of the machine's."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareMachine]:
    if reason := missing():
        pytest.skip(reason)
    machine = BareMachine(tmp_path_factory.mktemp("bare") / "root")
    machine.make()
    machine.clone(ROOT, "/root/millrace")
    yield machine
    machine.remove()


def run(machine: BareMachine, script: str, seconds: float, name: str) -> str:
    """The output of a script that has to succeed; it stays below .venv/log."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"bare-machine-{name}.log"
    code = machine.run(script, seconds, log)
    output = log.read_text(errors="replace")
    assert code == 0, f"exit code {code}; {log} ends with:\n{output[-3000:]}"
    return output


def test_run_installs_what_is_missing_and_serves(bare: BareMachine) -> None:
    run(bare, f"( {START_AND_STOP} ) >/root/output 2>&1; code=$?; cat /root/output; exit $code", RUN_SECONDS, "run")


def test_every_test_passes_and_nothing_is_skipped_but_long_campaigns(bare: BareMachine) -> None:
    output = run(bare, "cd /root/millrace && ./install.sh test", TEST_SECONDS, "test")
    passed = next(line for line in reversed(output.splitlines()) if line.startswith("PASSED: "))
    skipped = [reason for reason in passed.partition("; skipped: ")[2].split("; ") if reason]
    assert [reason for reason in skipped if not EXPECTED.search(reason)] == []
