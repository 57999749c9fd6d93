"""The supervisor's children as data: when each is restarted, and in which order they stop.

Pure: this module starts and signals no process. Times are monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

BACKOFF_MS_FIRST = 100
BACKOFF_MS_MAX = 5_000
"""Longest delay before a restart of a child that never served. Faster retries do not mend its
cause."""
SERVED_BACKOFF_MS_MAX = 200
"""Longest delay before a restart of a child that served: it has to be back within 2 s, however
often it dies."""
STABLE_AFTER_MS = 10_000
"""After serving for this long, a child is restarted without delay, as after its first death."""

EXIT_OTHER_RELEASE = 78

STOP_ORDER: tuple[tuple[str, ...], ...] = (
    ("ingest", "acceptor"),
    ("coordinator", "replica-fetcher"),
    ("console", "log-reader", "log-writer"),
    ("controller",),
    ("zookeeper",),
)
"""Kinds that stop together, one group after the other: a process stops before those that it needs.
"""

LISTEN_NAMES: dict[str, tuple[str, ...]] = {"acceptor": ("kafka",), "ingest": ("syslog-tcp", "syslog-udp", "ingest-http"), "console": ("http",)}
"""Listening sockets of each kind. Ingest also receives those of its table, whose names begin with
`INGEST_SOCKET`."""
INGEST_SOCKET = "ingest-"


def listen_names(kind: str, opened: Iterable[str]) -> list[str]:
    """Return the names of the opened sockets that a kind receives, in the order of their
    descriptors."""
    own = LISTEN_NAMES.get(kind, ())
    return [*own, *(name for name in opened if kind == "ingest" and name.startswith(INGEST_SOCKET) and name not in own)]


class ChildState(Enum):
    """State of a child. Between `STARTING` and `SERVING` its own counters may name a more precise
    one."""

    STARTING = "starting"
    SERVING = "serving"
    WAITING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"


class Child:
    """One process of the box across its incarnations."""

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
        """Incarnations in a row that ended before they served."""
        self._short_services = 0
        """Incarnations in a row that served for less than `STABLE_AFTER_MS`."""
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
        """Schedule the next start, or fail the child for good if it is of another release."""
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
    """Return the delay before a restart: none after the first failure, then 0.1 s, 0.2 s, … up to 5
    s."""
    return 0 if failures == 0 else min(BACKOFF_MS_MAX, BACKOFF_MS_FIRST << min(failures - 1, 16))


def plan_stop(names: list[str]) -> list[list[str]]:
    """Return `names` in groups that stop one after the other; each name is in exactly one group."""
    groups = [[name for name in names if name.partition("@")[0] in kinds] for kinds in STOP_ORDER]
    placed = {name for group in groups for name in group}
    return [group for group in [[name for name in names if name not in placed], *groups] if group]
