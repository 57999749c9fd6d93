"""The supervisor's children as data: when each is restarted, and in which order they stop.

Pure: this module starts and signals no process. Times are monotonic milliseconds.

Processes that the box no longer needs and that may not end, because a disk blocks them in the
kernel.

Their disk was removed or replaced, did not answer at the start, or blocked them during a stop. Each
is asked to end or killed at once, and reaped when it ends; no process waits for it. A killed
process dies when the disk answers, before it runs a line of its code. Owned by the supervisor.

Weak: what such a process holds (shared memory, a lock, a mount) stays in use as long as its disk
hangs.

How long the stop of a box waits for its controlled shutdown.

The controller hands leaderships to other boxes before the processes stop. That takes seconds for
thousands of partitions, and does not progress without ZooKeeper; the wait continues while the
controller's counter rises. The supervisor waits; under systemd, each process does.

Weak: a slow controller is cut off; other boxes take the remaining leaderships when the session of
this box expires.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from appliance.base.layout import BoxLayout
from appliance.runtime.listening import KAFKA_SOCKET
from appliance.shm.counters import read_counters

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
    ("coordinator", "replica-fetcher", "tabler"),
    ("console", "log-reader", "log-writer"),
    ("controller",),
    ("zookeeper",),
)
"""Kinds that stop together, one group after the other: a process stops before those that it needs.
"""

LISTEN_NAMES: dict[str, tuple[str, ...]] = {"acceptor": (KAFKA_SOCKET,), "ingest": ("syslog-tcp", "syslog-udp", "ingest-http"), "console": ("http",)}
"""Listening sockets of each kind. Ingest also receives those of its table, an acceptor those of further
listeners (`_EXTRA_SOCKETS`)."""
INGEST_SOCKET = "ingest-"
_EXTRA_SOCKETS = {"ingest": INGEST_SOCKET, "acceptor": f"{KAFKA_SOCKET}-"}
"""Prefixes of the names of further sockets."""


def listen_names(kind: str, opened: Iterable[str]) -> list[str]:
    """Return the names of the opened sockets that a kind receives, in the order of their
    descriptors."""
    own = LISTEN_NAMES.get(kind, ())
    extra = _EXTRA_SOCKETS.get(kind)
    return [*own, *(name for name in opened if extra is not None and name.startswith(extra) and name not in own)]


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
        self.is_restart_ordered = False
        """Whether the supervisor asked this incarnation to end, to be started again."""
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
        self.is_restart_ordered = False

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


class DetachedProcess(NamedTuple):
    """A process that is reaped when it ends, and killed at `kill_at_ms` (monotonic) if it has not
    ended by then."""

    name: str
    pid: int
    since_wall_ms: int
    kill_at_ms: int


class DetachedProcesses:
    """Detached processes by pid.

    They are unreaped children, so no other process can get their pid.
    """

    def __init__(self) -> None:
        self._by_pid: dict[int, DetachedProcess] = {}
        self._killed: set[int] = set()

    def add(self, name: str, pid: int, wall_ms: int, now_ms: int, patience_ms: int = 0) -> None:
        """Kill the process now, or send SIGTERM and kill it after `patience_ms`."""
        self._by_pid[pid] = DetachedProcess(name, pid, wall_ms, now_ms + patience_ms)
        if patience_ms:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it ended; the next turn reaps it
        else:
            self._kill(pid)

    def turn(self, now_ms: int) -> list[DetachedProcess]:
        """Kill the processes whose patience is over; returns those that have ended, and reaps them."""
        ended = []
        for pid, process in list(self._by_pid.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._kill(pid)  # kill its process group before its pid can be reused
                os.waitpid(pid, 0)
                del self._by_pid[pid]
                self._killed.discard(pid)
                ended.append(process)
            elif now_ms >= process.kill_at_ms and pid not in self._killed:
                self._kill(pid)
        return ended

    def may_end_by_itself(self, now_ms: int) -> bool:
        """Return whether a process may still close its directory; those that were killed are not
        worth a wait."""
        return any(now_ms < process.kill_at_ms for process in self._by_pid.values())

    def _kill(self, pid: int) -> None:
        """Kill the process and its descendants: each child leads its own process group."""
        self._killed.add(pid)
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def __len__(self) -> int:
        return len(self._by_pid)

    def processes(self) -> list[DetachedProcess]:
        return list(self._by_pid.values())


def is_in_kernel(pid: int) -> bool:
    """Return whether a thread of the process is in an uninterruptible wait (state D), for example
    for a disk."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "D":
                    return True
    except OSError:
        pass  # it has ended
    return False


CONTROLLER: Final = "controller"
GIVEN_AWAY: Final = 'controller.elections{reason="stop"}'
"""The controller's counter of leaderships that it handed over because this box stops."""
STILL_NS: Final = 3_000_000_000
"""The wait ends if the controller hands over nothing for this long."""
LOOK_NS: Final = 100_000_000
LEAVE_NS_MAX: Final = 8_000_000_000
"""Longest wait: units are killed after 15 s, and connections have to be drained first."""


class ShutdownProgress:
    """Progress of a controlled shutdown, from the first call of `is_given_up` on."""

    def __init__(self, layout: BoxLayout) -> None:
        self._layout = layout
        self._given_away = -1
        self._still_until_ns = 0
        self._until_ns = 0
        self._look_ns = 0

    def has_left(self) -> bool:
        return os.path.exists(self._layout.left_file)

    def is_given_up(self, now_ns: int) -> bool:
        """Return whether waiting longer is useless."""
        self._until_ns = self._until_ns or now_ns + LEAVE_NS_MAX
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            snapshot = read_counters(self._layout, CONTROLLER)
            given_away = snapshot.values.get(GIVEN_AWAY, 0) if snapshot is not None else 0
            if given_away != self._given_away:
                self._given_away, self._still_until_ns = given_away, now_ns + STILL_NS
        return now_ns >= min(self._still_until_ns, self._until_ns)
