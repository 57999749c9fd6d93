"""A thread runs, or its start says that it never will: no start waits for ever, whatever memory and tasks are left."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from appliance.runtime.background_thread import BackgroundThread

PREAMBLE = """
import os, resource, signal, sys, threading
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
signal.alarm(60)  # a start that waits for ever
threading.stack_size(1 << 20)

def start():
    ran = threading.Event()
    try:
        thread = BackgroundThread(ran.set, "tried")
        thread.start()
    except ThreadRefused as refusal:
        assert not ran.is_set() and not thread.is_alive()
        return str(refusal)
    thread.join(30)
    assert not thread.is_alive()
    return "ran" if ran.is_set() else "died in its work"
"""


def _in_child(script: str) -> set[str]:
    ended = subprocess.run([sys.executable, "-c", PREAMBLE + script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return set(ended.stdout.splitlines())


def test_a_thread_that_finds_no_memory_to_run_is_refused_and_not_waited_for() -> None:
    """Memory for its stack, and then some KiB more at each attempt: in between the thread is made, and dies before it runs anything."""
    said = _in_child("""
for slack in range(1 << 20, (1 << 20) + (96 << 10), 4096):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + slack, resource.RLIM_INFINITY))
    try:
        outcome = start()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(outcome)
assert start() == "ran"
""")
    assert said >= {"ran", "could not start thread tried: it ended before it could run, for lack of memory"}


def test_a_thread_beyond_the_limit_of_tasks_is_refused_and_started_when_there_are_some() -> None:
    said = _in_child("""
if os.geteuid() == 0:
    os.setresuid(64_321, 64_321, 64_321)
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
print(start())
resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
print(start())
""")
    assert said == {"could not start thread tried: can't start new thread", "ran"}


def test_a_thread_is_alive_until_it_has_ended_and_keeps_nothing_alive() -> None:
    go_on, started = threading.Event(), threading.Event()
    names = []

    def work() -> None:
        names.append(threading.current_thread().name)
        started.set()
        go_on.wait(20)

    thread = BackgroundThread(work, "worker")
    assert not thread.is_alive()
    thread.start()
    assert started.wait(20) and thread.is_alive()
    thread.join(0.01)
    assert thread.is_alive()
    go_on.set()
    thread.join()
    thread.join()
    assert not thread.is_alive() and names == ["worker"]
    gone = weakref.ref(thread)
    del thread
    gc.collect()
    assert gone() is None


def test_what_a_thread_raises_goes_to_the_hook_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: seen.append(told.exc_value))

    def work() -> None:
        raise ZeroDivisionError

    thread = BackgroundThread(work, "worker")
    thread.start()
    thread.join()
    assert not thread.is_alive(), "the hook keeps the traceback"
    assert [type(each) for each in seen] == [ZeroDivisionError]
