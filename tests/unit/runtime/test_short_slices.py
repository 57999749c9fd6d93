"""Short slices, asked back from the kernel, in a process of its own because they stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
PROGRAM = """
import os, threading
from appliance.runtime.scheduling import take_short_slices

def slice_ns(thread):
    lines = open(f"/proc/self/task/{thread}/sched").read().splitlines()
    return next((int(line.split(":")[1]) for line in lines if line.startswith("se.slice")), 0)

def in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(slice_ns(threading.get_native_id())))
    thread.start()
    thread.join()
    return found[0]

own = os.getpid()
before = slice_ns(own)
taken = take_short_slices(INHERITS)
print(int(taken), before, slice_ns(own), in_a_thread())
"""


@pytest.mark.slow
@pytest.mark.parametrize("inherits", [False, True])
def test_short_slices_are_for_the_thread_that_asks_and_for_its_own_if_it_says_so(inherits: bool) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM.replace("INHERITS", str(inherits))]
    answer = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    taken, before, own, of_a_thread = map(int, answer.stdout.split())
    if not taken or own == before:
        pytest.skip("this kernel grants no slices, or does not show them")
    assert (own, of_a_thread) == (100_000, 100_000 if inherits else before)
