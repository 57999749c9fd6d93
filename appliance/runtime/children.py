"""The supervisor's children as data: which there are, when one is started again, in which order they stop.

Pure: no process is touched here. Time is an argument, in monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

BACKOFF_MS_FIRST = 100
BACKOFF_MS_MAX = 5_000
"""For a child that dies again and again before it ever serves: what is wrong with it is not healed by haste."""
SERVED_BACKOFF_MS_MAX = 200
"""For a child that served: it is wanted, and to be back in less than 2 s. No more than this, however often it dies."""
STABLE_AFTER_MS = 10_000
"""A child that served for this long is started at once again when it dies, as after its first death."""

EXIT_OTHER_RELEASE = 78

STOP_ORDER: tuple[tuple[str, ...], ...] = (
    ("ingest", "acceptor"),
    ("coordinator", "replica-fetcher"),
    ("console", "log-reader", "log-writer"),
    ("controller",),
    ("zookeeper",),
)
"""Kinds that stop together, one group after the other (DESIGN §2): nobody loses whom it still needs."""

LISTEN_NAMES: dict[str, tuple[str, ...]] = {"acceptor": ("kafka",), "ingest": ("syslog-tcp", "syslog-udp", "ingest-http"), "console": ("http",)}
"""Which listening sockets a kind is given; ingest also those of its table, whose names begin with `INGEST_SOCKET`."""
INGEST_SOCKET = "ingest-"


def listen_names(kind: str, opened: Iterable[str]) -> list[str]:
    """Which of the opened sockets are for this kind, in the order of their descriptors."""
    own = LISTEN_NAMES.get(kind, ())
    return [*own, *(name for name in opened if kind == "ingest" and name.startswith(INGEST_SOCKET) and name not in own)]


class ChildState(Enum):
    """A child as its supervisor sees it; between `STARTING` and `SERVING` its own counters may say more."""

    STARTING = "starting"
    SERVING = "serving"
    WAITING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"


class Child:
    """One process of the box, over all its lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind, _, self.instance = name.partition("@")
        self.pid = 0
        self.state = ChildState.WAITING
        self.since_ms = 0
        self.since_wall_ms = 0
        self.status_text = ""
        self.restarts = 0
        self.start_at_ms = 0
        self._failures = 0
        """Lives in a row that ended before they served."""
        self._short_services = 0
        """Lives in a row that served, but not for long."""
        self._serves_since_ms = 0

    def on_started(self, pid: int, now_ms: int, wall_ms: int) -> None:
        self.pid = pid
        self.state = ChildState.STARTING
        self.since_ms = now_ms
        self.since_wall_ms = wall_ms
        self.status_text = ""

    def on_ready(self, now_ms: int) -> None:
        self.state = ChildState.SERVING
        self._serves_since_ms = now_ms

    def on_exit(self, exit_code: int, now_ms: int) -> None:
        """It died: it waits for its next start, or has failed for good when it is of another release."""
        self.pid = 0
        if exit_code == EXIT_OTHER_RELEASE:
            self.state = ChildState.FAILED
            return
        self.start_at_ms = now_ms + self._next_delay_ms(now_ms)
        self.restarts += 1
        self.state = ChildState.WAITING

    def _next_delay_ms(self, now_ms: int) -> int:
        if self.state is ChildState.SERVING:
            self._failures = 0
            if now_ms - self._serves_since_ms >= STABLE_AFTER_MS:
                self._short_services = 0
            self._short_services += 1
            return min(SERVED_BACKOFF_MS_MAX, restart_delay_ms(self._short_services - 1))
        self._failures += 1
        return restart_delay_ms(self._failures - 1)

    def is_due(self, now_ms: int) -> bool:
        return self.state is ChildState.WAITING and now_ms >= self.start_at_ms


def restart_delay_ms(failures: int) -> int:
    """At once after the first death, then 0.1 s, 0.2 s, … up to 5 s."""
    return 0 if failures == 0 else min(BACKOFF_MS_MAX, BACKOFF_MS_FIRST << min(failures - 1, 16))


def plan_stop(names: list[str]) -> list[list[str]]:
    """The given processes in groups that stop one after the other. Every one is in exactly one group."""
    groups = [[name for name in names if name.partition("@")[0] in kinds] for kinds in STOP_ORDER]
    placed = {name for group in groups for name in group}
    return [group for group in [[name for name in names if name not in placed], *groups] if group]
