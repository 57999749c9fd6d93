"""The memory-order argument of appliance/shm/README.md, tried out; each experiment beside a control that must go wrong.

The controls end as soon as they have gone wrong; if one does not, its experiment proves nothing on this machine, and that is a failure.
`MILLRACE_DEEP` makes the experiments eighty times as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import DEEP, ROOT
from tests.system.shared_memory_stress import ENOUGH

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes on one processor never meet"),
]

SECONDS = 160.0 if DEEP else 2.0
CONTROL_SECONDS = 30.0


def run(experiment: str, seconds: float, *broken: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.system.shared_memory_stress", experiment, str(seconds), *broken]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 60, check=False)
    assert finished.returncode == 0, finished.stderr
    result: dict[str, int] = json.loads(finished.stdout)
    print(experiment, *broken, result)
    return result


def test_rows_read_without_their_sequences_are_torn() -> None:
    assert run("rows", CONTROL_SECONDS, "broken")["torn"] >= 1_000


def test_rows_read_with_their_sequences_are_whole() -> None:
    result = run("rows", SECONDS)
    assert result["torn"] == 0 and result["reads"] > max(10_000, result["given_up"])


def test_a_ring_that_publishes_its_tail_first_shows_stale_entries() -> None:
    assert run("ring", CONTROL_SECONDS, "broken")["bad"] >= 100


def test_every_entry_of_a_ring_is_seen_once_in_order_and_whole() -> None:
    result = run("ring", SECONDS)
    assert result["bad"] == 0 and result["seen"] > 10_000


def test_a_doorbell_whose_store_and_load_change_places_loses_wake_ups() -> None:
    assert run("wake_ups", CONTROL_SECONDS, "broken")["lost"] >= ENOUGH


def test_a_doorbell_loses_no_wake_up() -> None:
    result = run("wake_ups", SECONDS)
    assert result["lost"] == 0 and result["slept"] > 1_000
