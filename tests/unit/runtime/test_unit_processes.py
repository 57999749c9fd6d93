"""What a process does for systemd: heart, readiness, when it starts, when it may stop."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import RUNTIME_VARIABLE, BoxLayout
from appliance.base.logging import Logger
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.runtime.systemd import FAILED_STARTS, SystemdNotifier
from appliance.runtime.unit_process import (
    CLOSE_EXTENSION_US,
    GROUP_STOP_MS,
    HELD_NS,
    MANAGER_VARIABLE,
    START_FACTOR,
    STOP_EXTENSION_US,
    SYSTEMD,
    BoxNotPrepared,
    StopTurn,
    UnitHeart,
    await_turn_to_start,
    heart_of,
    rate_text,
    require_box,
    stop_turn_of,
)
from appliance.shm.counters import HEARTBEAT_WORD, Counters
from appliance.shm.mapping import PID_WORD, LayoutMismatch, SharedObject
from lab.scratch_layout import scratch_layout
from tests.unit.base.test_settings import make_box

WATCHDOG_MS = 30_000


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


@pytest.fixture
def unit(layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of systemd's."""
    monkeypatch.setenv(MANAGER_VARIABLE, SYSTEMD)
    monkeypatch.setenv(RUNTIME_VARIABLE, layout.runtime_directory)


class JumpingClock(ManualClock):
    """Advances by itself a little each time it is read, so that a wait takes little real time."""

    def monotonic_ms(self) -> int:
        self.advance_ms(1_000)
        return super().monotonic_ms()


def make_context(layout: BoxLayout, name: str = "acceptor@0", clock: ManualClock | None = None) -> ServiceContext:
    counters = Counters.create_or_adopt(layout, name, 1)
    log = Logger(name, descriptor=os.open(os.devnull, os.O_WRONLY))
    return ServiceContext(layout, make_box(), clock or ManualClock(), counters, Poller(), name, "", 1, SystemdNotifier(counters), log, {})


class Heart:
    """A heart with what it sent."""

    def __init__(self, layout: BoxLayout, kind: str = "acceptor") -> None:
        self.sent: list[str] = []
        self.counters = Counters.create_or_adopt(layout, kind, 1)
        self.notifier = SystemdNotifier(self.counters)
        self.heart = UnitHeart(kind, WATCHDOG_MS, self.notifier, self.counters, self.sent.append)

    def beat(self, seconds: float, words: str = "fine") -> list[str]:
        self.sent.clear()
        self.heart.beat(int(seconds * 1e9), lambda: words)
        return self.sent[0].splitlines() if self.sent else []


def test_a_process_that_starts_asks_for_time_only_while_it_turns(layout: BoxLayout) -> None:
    heart = Heart(layout)
    first = heart.beat(100)
    assert f"EXTEND_TIMEOUT_USEC={WATCHDOG_MS * 1000 * START_FACTOR}" in first and f"WATCHDOG_USEC={WATCHDOG_MS * 1000}" in first
    assert not any(line.startswith("STATUS=") for line in first), "what it says of its start is not covered up"
    assert heart.beat(101) == []
    assert heart.beat(106) == ["WATCHDOG=1", first[-1]]


def test_a_process_that_serves_feeds_the_watchdog_several_times_in_its_period_and_says_how_it_is(layout: BoxLayout) -> None:
    heart = Heart(layout)
    heart.beat(100)
    heart.notifier.ready()
    assert heart.beat(100.1, "2 connections")[-1] == "STATUS=2 connections; 0 B/s out"
    told = [second for second in range(101, 161) if "WATCHDOG=1" in heart.beat(second)]
    assert all(later - earlier <= WATCHDOG_MS / 1000 / 4 for earlier, later in pairwise(told)) and len(told) == 11


def test_a_process_that_stops_asks_for_time_as_long_as_it_turns_and_for_its_last_step(layout: BoxLayout) -> None:
    heart = Heart(layout)
    heart.notifier.ready()
    heart.beat(100)
    heart.sent.clear()
    heart.heart.stopping()
    assert f"EXTEND_TIMEOUT_USEC={STOP_EXTENSION_US}" in heart.sent[0].splitlines()
    told = [second for second in range(101, 131) if f"EXTEND_TIMEOUT_USEC={STOP_EXTENSION_US}" in heart.beat(second)]
    assert len(told) >= 30 * 1_000_000 // STOP_EXTENSION_US * 2 and all((later - earlier) * 1_000_000 < STOP_EXTENSION_US for earlier, later in pairwise(told))
    heart.sent.clear()
    heart.heart.closing()
    assert f"EXTEND_TIMEOUT_USEC={CLOSE_EXTENSION_US}" in heart.sent[0].splitlines()


def test_rates_are_the_rise_of_all_labels_of_a_counter(layout: BoxLayout) -> None:
    heart = Heart(layout, "ingest")
    heart.notifier.ready()
    heart.beat(100)
    heart.counters.counter('ingest.received{transport="udp"}').add(6_000)
    heart.counters.counter('ingest.received{transport="tcp"}').add(4_000)
    heart.counters.counter("ingest.received_otherwise").add(1)
    assert heart.beat(110, "3\nsenders")[-1] == "STATUS=3 senders; 1,000 lines/s"
    assert (rate_text(1_234_000, "B/s in"), rate_text(0, "B/s in"), rate_text(1234, "records/s")) == ("1.23 MB/s in", "0 B/s in", "1,234 records/s")


def test_under_millrace_run_a_process_has_no_heart_and_stops_at_once(layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MANAGER_VARIABLE, raising=False)
    context = make_context(layout)
    assert heart_of(context) is None and stop_turn_of(context) is None
    require_box()
    await_turn_to_start(context, lambda: False)
    assert context.counters.counter(FAILED_STARTS).value == 0


def test_a_process_without_a_box_says_where_to_look(layout: BoxLayout, unit: None) -> None:
    with pytest.raises(BoxNotPrepared, match="millrace-supervisor"):
        require_box()
    Path(layout.box_file).write_text("{}")
    require_box()


def test_restart_delays_grow_while_no_start_serves_and_one_that_serves_resets_them(layout: BoxLayout, unit: None) -> None:
    waited = []
    for _ in range(8):
        clock = JumpingClock()
        context = make_context(layout, clock=clock)
        before = ManualClock.monotonic_ms(clock)
        await_turn_to_start(context, lambda: False)
        waited.append(ManualClock.monotonic_ms(clock) - before)
    assert waited[0] <= 2_000 and waited == sorted(waited) and 5_000 <= waited[-1] <= 8_000
    context.notifier.ready()
    assert context.counters.counter(FAILED_STARTS).value == 0


def test_a_process_that_the_box_has_not_got_does_not_start(layout: BoxLayout, unit: None) -> None:
    with pytest.raises(LayoutMismatch, match="log-writer@gone"):
        await_turn_to_start(make_context(layout, "log-writer@gone"), lambda: False)


class Living:
    """A process that owns counters of a box."""

    def __init__(self, layout: BoxLayout, name: str) -> None:
        program = (
            "import sys; from appliance.base.layout import BoxLayout; from appliance.shm.counters import Counters;"
            f" held = Counters.create_or_adopt(BoxLayout({layout.runtime_directory!r}), {name!r}, 1); print('', flush=True); sys.stdin.read()"
        )
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None and self.process.stdout.readline()
        self._counters_name = layout.shared_memory_name("counters", name)

    def beat(self, now_ns: int) -> None:
        self._store(HEARTBEAT_WORD, now_ns)

    def hide(self) -> None:
        """Have a pid that is not in /proc, like a process in another user namespace."""
        self._store(PID_WORD, 2**22 + 1)

    def _store(self, word: int, value: int) -> None:
        shared = SharedObject.attach(self._counters_name, b"MLRcount", writable=True)
        shared.words[word] = value
        shared.close()

    def end(self) -> None:
        self.process.communicate()


NAMES = make_box().process_names()


def has_come(turn: StopTurn, clock: ManualClock) -> bool:
    clock.advance_ms(100)
    return turn.has_come()


def test_a_process_that_is_stopped_alone_stops_at_once(layout: BoxLayout) -> None:
    clock, living = ManualClock(), Living(layout, "acceptor@0")
    assert has_come(StopTurn(layout, "log-writer@d0", NAMES, clock), clock)
    living.end()


def test_when_all_are_stopped_each_waits_for_those_that_need_it(layout: BoxLayout) -> None:
    Path(layout.stopping_file).touch()
    clock = ManualClock()
    acceptor, reader = Living(layout, "acceptor@0"), Living(layout, "log-reader@d0")
    turns = {name: StopTurn(layout, name, NAMES, clock) for name in ("ingest@0", "coordinator", "log-writer@d0", "controller", "zookeeper")}
    clock.advance_ms(100)
    assert {name: turn.has_come() for name, turn in turns.items()} == dict.fromkeys(turns, False) | {"ingest@0": True}
    acceptor.end()
    clock.advance_ms(100)
    assert [name for name, turn in turns.items() if turn.has_come()] == ["ingest@0", "coordinator", "log-writer@d0"]
    reader.end()
    clock.advance_ms(100)
    assert all(turn.has_come() for turn in turns.values())


def test_one_that_cannot_end_is_not_waited_for_for_ever(layout: BoxLayout) -> None:
    Path(layout.stopping_file).touch()
    clock, living = ManualClock(), Living(layout, "acceptor@0")
    turn = StopTurn(layout, "coordinator", NAMES, clock)
    assert not has_come(turn, clock)
    clock.advance_ms(GROUP_STOP_MS)
    assert has_come(turn, clock)
    living.end()


def test_one_that_its_disk_holds_is_waited_for_a_moment_only(layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(layout.stopping_file).touch()
    clock, living = ManualClock(), Living(layout, "log-writer@d0")
    held: list[int] = []
    monkeypatch.setattr("appliance.runtime.unit_process.is_in_kernel", held.__contains__)
    living.beat(clock.monotonic_ns())
    turn = StopTurn(layout, "controller", NAMES, clock)
    assert not has_come(turn, clock)
    clock.advance_ms(HELD_NS // 1_000_000 + 100)
    assert not turn.has_come(), "it stands still and may end yet"
    held.append(living.process.pid)
    living.beat(clock.monotonic_ns())
    clock.advance_ms(1_100)
    assert not turn.has_come(), "it is in the kernel and turns"
    clock.advance_ms(HELD_NS // 1_000_000)
    assert turn.has_come()
    living.end()


def test_one_that_cannot_be_looked_at_is_waited_for_while_it_turns(layout: BoxLayout) -> None:
    Path(layout.stopping_file).touch()
    clock, living = ManualClock(), Living(layout, "ingest@0")
    living.hide()
    turn = StopTurn(layout, "coordinator", NAMES, clock)
    assert not has_come(turn, clock)
    clock.advance_ms(HELD_NS // 1_000_000 - 1_000)
    living.beat(clock.monotonic_ns())
    clock.advance_ms(1_100)
    assert not turn.has_come()
    clock.advance_ms(HELD_NS // 1_000_000)
    assert turn.has_come()
    living.end()


def test_notifications_reach_the_notify_socket(layout: BoxLayout, unit: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        heart = heart_of(make_context(layout))
        assert heart is not None
        heart.stopping()
        assert systemd.recv(4096).decode().splitlines()[0] == "STOPPING=1"
