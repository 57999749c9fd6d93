"""The supervisor's end, with a child that SIGKILL does not end: real processes, small enough not to count as a system.

A disk that hangs is not at hand here. A debugger has the same effect: until it lets go, the kernel does not report the
death of the traced process to its parent, so a `waitpid` without WNOHANG blocks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import SystemClock
from appliance.base.layout import box_name
from appliance.runtime.children import Child, ChildState
from appliance.runtime.preflight import prepare_box
from appliance.runtime.run_options import RunOptions
from appliance.shm.counters import Counters
from lab.running_box import eventually
from services.supervisor.supervisor import Supervisor

PTRACE_SEIZE = 0x4206
PR_SET_PTRACER = 0x59616D61
WRITER = "log-writer@d0"


class HurriedClock(SystemClock):
    """While `is_hurried()`, each reading is half a second later: a deadline passes without a wait."""

    def __init__(self) -> None:
        self._ahead_ms = 0
        self.is_hurried: Callable[[], bool] = lambda: True

    def monotonic_ms(self) -> int:
        self._ahead_ms += 500 if self.is_hurried() else 0
        return super().monotonic_ms() + self._ahead_ms


def _forked(until_ready: Callable[[], object]) -> int:
    """Fork a process that calls `until_ready` and then waits for a signal; returns its pid."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            until_ready()
            os.write(writing, b".")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    is_ready = os.read(reading, 1)
    os.close(reading)
    if not is_ready:
        os.waitpid(pid, 0)
        pytest.skip("this machine lets no process trace another")
    return pid


class TracedChild:
    """A child whose death its parent does not see before `release`."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)

        def allow() -> None:
            os.setpgid(0, 0)
            libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)

        def trace() -> None:
            if libc.ptrace(PTRACE_SEIZE, self.pid, None, None):
                os._exit(1)

        self.pid = _forked(allow)
        self.tracer = _forked(trace)

    def release(self) -> None:
        if self.tracer:
            os.kill(self.tracer, signal.SIGKILL)
            os.waitpid(self.tracer, 0)
            self.tracer = 0

    def is_reaped(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False


@pytest.fixture
def traced() -> Iterator[TracedChild]:
    child = TracedChild()
    yield child
    child.release()
    if not child.is_reaped():
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
def supervisor(tmp_path: Path, clock: HurriedClock) -> Supervisor:
    settings, state = tmp_path / "m.toml", str(tmp_path / "state")
    settings.write_text(f'[box]\ndata = ["{tmp_path}/d0"]\nstate = "{state}"\nzookeeper = "127.0.0.1:1"\n')
    prepared = prepare_box(RunOptions(config=str(settings)), SystemClock(), list, f"{tmp_path}/{box_name(state)}")
    return Supervisor(prepared, clock, lambda _state: None)


@pytest.fixture
def before() -> Iterator[dict[int, Any]]:
    """Handlers of the signals that `Supervisor.run` handles, which are in place again after the test."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield handlers
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def stop_request(before: dict[int, Any]) -> Iterator[None]:
    """Sends SIGTERM as soon as `Supervisor.run` handles it, and keeps its poller awake: its clock does not wait."""
    requests = [signal.SIGTERM]
    supervisor_pid = os.getpid()

    def on_alarm(_number: int, _frame: object) -> None:
        if os.getpid() != supervisor_pid:
            return  # the alarm came just before a fork
        if requests and signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]:
            try:
                requests.pop()  # atomic: an alarm may interrupt the handler of the one before
            except IndexError:
                return
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_failure_of_the_supervisor_ends_although_a_killed_child_does_not_end(
    supervisor: Supervisor, traced: TracedChild, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor.children[WRITER].on_started(traced.pid, 0, 0)
    supervisor.close()
    assert f"{WRITER} (pid {traced.pid}) cannot be killed" in capfd.readouterr().err
    assert not os.path.exists(supervisor.layout.runtime_directory), "nothing else is left"


def test_a_child_that_a_stop_left_behind_is_reaped_when_it_ends(
    supervisor: Supervisor, clock: HurriedClock, traced: TracedChild, stop_request: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """The controller stops after the log-writer. Here it lets the traced process go, and ends when that was reaped."""

    def release(_number: int, _frame: object) -> None:
        os.kill(traced.tracer, signal.SIGKILL)
        eventually(traced.is_reaped, "the supervisor reaps it")
        os._exit(0)

    controller = _forked(lambda: (os.setpgid(0, 0), signal.signal(signal.SIGTERM, release)))
    writer = Child(WRITER)
    writer.on_started(traced.pid, 0, 0)
    supervisor.children = {WRITER: writer, "controller": Child("controller")}
    supervisor.children["controller"].on_started(controller, 0, 0)
    clock.is_hurried = lambda: bool(writer.pid)
    assert supervisor.run() == 0
    messages = capfd.readouterr().err
    assert f"{WRITER} (pid {traced.pid}) cannot be killed" in messages
    assert f"detached process {WRITER} (pid {traced.pid}) has ended" in messages and traced.is_reaped()
    assert "controller did not stop" not in messages


def test_a_child_whose_ready_message_was_dropped_is_found_to_serve(supervisor: Supervisor, before: dict[int, Any], capfd: pytest.CaptureFixture[str]) -> None:
    def serve() -> None:
        os.setpgid(0, 0)
        Counters.create_or_adopt(supervisor.layout, "controller", 1, 1).set_state("serving")

    controller = Child("controller")
    controller.on_started(_forked(serve), 0, 0)
    supervisor.children = {"controller": controller}

    def stop() -> None:
        eventually(lambda: controller.state is ChildState.SERVING, "the supervisor sees it")
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    assert supervisor.run() == 0
    stopper.join()
    assert "controller serves after" in capfd.readouterr().err
