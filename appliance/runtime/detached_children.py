"""Processes that the box no longer needs and that may not end, because a disk blocks them in the
kernel.

Their disk was removed or replaced, did not answer at the start, or blocked them during a stop. Each
is asked to end or killed at once, and reaped when it ends; no process waits for it. A killed
process dies when the disk answers, before it runs a line of its code. Owned by the supervisor.

Weak: what such a process holds (shared memory, a lock, a mount) stays in use as long as its disk
hangs.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple


class DetachedProcess(NamedTuple):
    """A process that is reaped when it ends, and killed at `kill_at_ms` (monotonic) if it has not
    ended by then."""

    name: str
    pid: int
    since_wall_ms: int
    kill_at_ms: int


class DetachedProcesses:
    """Detached processes by pid. They are unreaped children, so no other process can get their pid."""

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
