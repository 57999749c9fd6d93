"""Sends the watchdog heartbeat and a status line (`systemctl status`) to systemd, from the duty
cycle.

While the process starts, a turn requests more time instead, so that a long recovery is no failure
and a start that hangs is one. The timeout is watchdog.timeout.ms, as under `millrace run`. Owned by
the runner. Weak: rates cover the last few seconds and are not updated while the process makes no
turns.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.runtime.agent import ServiceContext
from appliance.runtime.systemd import SystemdNotifier, notify
from appliance.runtime.unit_mode import is_unit
from appliance.shm.counters import Counters

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
