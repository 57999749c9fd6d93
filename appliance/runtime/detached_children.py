"""Processes that the box needs no more and that may not be able to end: their disk was removed or replaced, or did not answer at a start.

They are watched until they are gone, and waited for by nobody. Each is asked to end, or killed at once; one that a disk holds in the kernel takes note of
that when the disk lets it go, and comes back to no line of its own code. Owned by the supervisor. Weak spot: what one of them holds (memory
that others gave it, a lock, a mount) stays taken for as long as its disk hangs.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple


class DetachedProcess(NamedTuple):
    """`kill_at_ms`: when it is killed if it has not ended by itself, monotonic."""

    name: str
    pid: int
    since_wall_ms: int
    kill_at_ms: int


class DetachedProcesses:
    """By pid; its children, so a pid cannot be given to somebody else before `turn` has told of its end."""

    def __init__(self) -> None:
        self._by_pid: dict[int, DetachedProcess] = {}
        self._killed: set[int] = set()

    def add(self, name: str, pid: int, wall_ms: int, now_ms: int, patience_ms: int = 0) -> None:
        """With patience it is asked to end by itself first."""
        self._by_pid[pid] = DetachedProcess(name, pid, wall_ms, now_ms + patience_ms)
        if patience_ms:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it ended; the next turn sees it
        else:
            self._kill(pid)

    def turn(self, now_ms: int) -> list[DetachedProcess]:
        """Kill those whose time is over; those that have ended since."""
        ended = []
        for pid, process in list(self._by_pid.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._kill(pid)  # what it may have started; before it is reaped, so the number is still its own
                os.waitpid(pid, 0)
                del self._by_pid[pid]
                self._killed.discard(pid)
                ended.append(process)
            elif now_ms >= process.kill_at_ms and pid not in self._killed:
                self._kill(pid)
        return ended

    def may_end_by_itself(self, now_ms: int) -> bool:
        """Whether one of them closes its directory now; those that were killed are not worth a wait."""
        return any(now_ms < process.kill_at_ms for process in self._by_pid.values())

    def _kill(self, pid: int) -> None:
        """With everything it started: each child leads a process group of its own."""
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
    """Whether a thread of the process waits in the kernel and cannot be interrupted, as for a disk."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "D":
                    return True
    except OSError:
        pass  # it has ended
    return False
