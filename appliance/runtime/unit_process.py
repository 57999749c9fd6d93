"""Whether systemd or `millrace run` manages this process, and the order in which units stop.

systemd orders starts and stops by the same dependencies. Here all processes start at once, so that
a slow disk delays no other, and stop one kind after the other. So systemd signals all units of a
stop at once, and each continues until the processes that need it have ended.
`millrace-stop-order.service` creates the file that marks a stop of the whole box. A process that
its disk blocks is waited for during `HELD_NS` only. Weak: one that hangs for another reason is
waited for during `GROUP_STOP_MS`.

Sends the watchdog heartbeat and a status line (`systemctl status`) to systemd, from the duty
cycle.

While the process starts, a turn requests more time instead, so that a long recovery is no failure
and a start that hangs is one. The timeout is watchdog.timeout.ms, as under `millrace run`. Owned by
the runner. Weak: rates cover the last few seconds and are not updated while the process makes no
turns.

The first steps of a process under systemd: check that the box is prepared, and wait longer after
each failed start.

systemd restarts units after a fixed time and without a limit, because a disk must not be given up
after some attempts. So the process itself waits if previous incarnations never served. `millrace
run` does both itself. Weak: a process that dies before this point (a damaged installation) is
restarted several times a second.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.runtime.agent import ServiceContext
from appliance.runtime.children import CONTROLLER, ShutdownProgress, is_in_kernel, plan_stop, restart_delay_ms
from appliance.runtime.leftovers import living_pid
from appliance.runtime.systemd import FAILED_STARTS, SystemdNotifier, notify
from appliance.shm.counters import Counters, read_counters
from appliance.shm.mapping import LayoutMismatch

MANAGER_VARIABLE = "MILLRACE_MANAGER"
SYSTEMD = "systemd"
MILLRACE_RUN = "millrace run"
GROUP_STOP_MS = 14_000
"""A little more than TimeoutStopSec of the units in the previous group."""
LOOK_NS = 20_000_000
HELD_NS = 5_000_000_000
"""A process in an uninterruptible wait without a heartbeat for this long is blocked by its disk."""


def is_unit() -> bool:
    return os.environ.get(MANAGER_VARIABLE) == SYSTEMD


class StopTurn:
    """Decides when a process that received a stop request may stop."""

    def __init__(self, layout: BoxLayout, process_name: str, process_names: list[str], clock: Clock) -> None:
        self._layout = layout
        self._clock = clock
        groups = plan_stop(process_names)
        place = next((place for place, group in enumerate(groups) if process_name in group), 0)
        self._before = [name for group in groups[:place] for name in group]
        self._patience_ns = place * GROUP_STOP_MS * 1_000_000
        self._leaving = ShutdownProgress(layout)
        self._until_ns = 0
        self._next_look_ns = 0
        self._next_held_look_ns = 0

    def has_come(self) -> bool:
        """Return whether the process may stop now; cheap enough for each turn."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_look_ns:
            return False
        self._next_look_ns = now_ns + LOOK_NS
        self._until_ns = self._until_ns or now_ns + self._patience_ns
        if (self._before and now_ns >= self._until_ns) or not os.path.exists(self._layout.stopping_file):
            return True
        if not self._leaving.has_left() and living_pid(self._layout, CONTROLLER) and not self._leaving.is_given_up(now_ns):
            return False
        self._before = [name for name in self._before if living_pid(self._layout, name)]
        self._next_held_look_ns = self._next_held_look_ns or now_ns + HELD_NS
        if now_ns >= self._next_held_look_ns:
            self._next_held_look_ns = now_ns + HELD_NS // 5
            self._before = [name for name in self._before if not self._is_held(name, now_ns)]
        return not self._before

    def _is_held(self, name: str, now_ns: int) -> bool:
        snapshot = read_counters(self._layout, name)
        if snapshot is None or now_ns - snapshot.heartbeat_ns <= HELD_NS:
            return False
        # A process in a user namespace of its own cannot be looked at: its silence has to do.
        return not os.path.exists(f"/proc/{snapshot.pid}") or is_in_kernel(snapshot.pid)


def stop_turn_of(context: ServiceContext) -> Callable[[], bool] | None:
    """Return whether a process may stop after a stop request; None for at once, as under `millrace
    run`, which orders the stops."""
    if not is_unit():
        return None
    return StopTurn(context.layout, context.process_name, context.box.process_names(), context.clock).has_come


TELL_NS_MAX = 5_000_000_000
STOP_EXTENSION_US = 15_000_000
CLOSE_EXTENSION_US = 45_000_000
"""Time requested while the process stops and makes turns, and for its last step, which writes
everything to disk.

A process that requests none hangs: systemd waits for it as long as the unit says, and processes
that stop with it wait as well.
"""
START_FACTOR = 10
"""While a process starts (it may recover logs), its heartbeat may be this many watchdog periods
old."""

RATES: dict[str, tuple[tuple[str, str], ...]] = {
    "acceptor": (("fetch.sendfile_bytes", "B/s out"),),
    "log-writer": (("log_writer.records", "records/s"), ("log_writer.bytes", "B/s in")),
    "ingest": (("ingest.received", "lines/s"),),
}
"""Counters by kind of process whose rates the status line shows, with their units."""


class UnitHeart:
    """Call `beat` once per turn."""

    def __init__(self, process_kind: str, watchdog_ms: int, notifier: SystemdNotifier, counters: Counters, send: Callable[[str], object]) -> None:
        self._rates = RATES.get(process_kind, ())
        self._watchdog_ms = watchdog_ms
        self._notifier = notifier
        self._counters = counters
        self._send = send
        self._tell_ns = min(TELL_NS_MAX, watchdog_ms * 1_000_000 // 4)
        self._next_ns = 0
        self._was_starting = True
        self._is_stopping = False
        self._seen: dict[str, int] = {}
        self._seen_ns = 0

    def beat(self, now_ns: int, status_line: Callable[[], str]) -> None:
        if now_ns >= self._next_ns or (self._was_starting and self._notifier.is_ready):
            self._was_starting = not self._notifier.is_ready
            self._next_ns = now_ns + self._tell_ns
            self._tell(now_ns, status_line)

    @property
    def is_ready(self) -> bool:
        """Whether the process has reported that it serves."""
        return self._notifier.is_ready

    def stopping(self) -> None:
        self._is_stopping = True
        self._send(f"STOPPING=1\nWATCHDOG=1\nEXTEND_TIMEOUT_USEC={STOP_EXTENSION_US}\nSTATUS=stopping")

    def closing(self) -> None:
        """Report that the agent is being closed; no turn follows."""
        self._send(f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={CLOSE_EXTENSION_US}")

    def _tell(self, now_ns: int, status_line: Callable[[], str]) -> None:
        lines = ["WATCHDOG=1"]
        if not self._seen_ns:
            lines.append(f"WATCHDOG_USEC={self._watchdog_ms * 1000}")
        rates = self._measure(now_ns)
        if self._is_stopping:
            lines.append(f"EXTEND_TIMEOUT_USEC={STOP_EXTENSION_US}")
        elif self._notifier.is_ready:
            lines.append("STATUS=" + "; ".join(filter(None, (status_line(), rates))).replace("\n", " "))
        else:
            lines.append(f"EXTEND_TIMEOUT_USEC={self._watchdog_ms * START_FACTOR * 1000}")
        self._send("\n".join(lines))

    def _measure(self, now_ns: int) -> str:
        """Return rates such as "1,203 records/s, 4.2 MB/s in"; "" before the second measurement."""
        seconds = (now_ns - self._seen_ns) / 1e9
        words = []
        for counter, unit in self._rates:
            value = sum(self._counters.counter(label).value for label in self._counters.labels() if label == counter or label.startswith(counter + "{"))
            before = self._seen.get(counter)
            self._seen[counter] = value
            if before is not None and seconds:
                words.append(rate_text(max(0, value - before) / seconds, unit))
        self._seen_ns = now_ns
        return ", ".join(words)


def rate_text(rate: float, unit: str) -> str:
    if not unit.startswith("B/s"):
        return f"{rate:,.0f} {unit}"
    for prefix in ("", "k", "M"):
        if rate < 1000:
            return f"{rate:.3g} {prefix}{unit}"
        rate /= 1000
    return f"{rate:.3g} G{unit}"


def heart_of(context: ServiceContext) -> UnitHeart | None:
    """Return the heart of a process under systemd; None under `millrace run`."""
    notifier = context.notifier
    if not is_unit() or not isinstance(notifier, SystemdNotifier):
        return None
    kind = context.process_name.partition("@")[0]
    return UnitHeart(kind, context.box.integer("watchdog.timeout.ms"), notifier, context.counters, notify)


LOOK_MS = 20


class BoxNotPrepared(MillraceError):
    """There is no box.json: the supervisor has not prepared the box yet."""


def require_box() -> None:
    """Raise BoxNotPrepared if there is no box.json. The supervisor creates it before the first unit
    starts."""
    if is_unit() and not os.path.exists(BoxLayout.from_environment().box_file):
        raise BoxNotPrepared("the box is not prepared; see `systemctl status millrace-supervisor`")


def await_turn_to_start(context: ServiceContext, stops: Callable[[], bool]) -> None:
    """Wait 0.1 s, 0.2 s, … up to 5 s after incarnations that never served. Raises LayoutMismatch
    for a process that the box does not have."""
    if not is_unit():
        return
    if context.process_name not in context.box.process_names():
        raise LayoutMismatch(f"this box has no {context.process_name} (any more); `millrace units apply` removes what is left of it")
    failed = context.counters.counter(FAILED_STARTS)
    delay_ms = restart_delay_ms(failed.value)
    failed.add()
    until_ms = context.clock.monotonic_ms() + delay_ms
    while context.clock.monotonic_ms() < until_ms and not stops():
        select.select([], [], [], LOOK_MS / 1000)
