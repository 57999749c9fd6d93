"""Lowers the priority of a process to what no other process needs: a nice value and the idle I/O
class.

For temporary work beside the serving processes (a cleaning run, a move). Weak: only the I/O
schedulers bfq and mq-deadline know the idle class; with none, the kernel ignores it.
"""

from __future__ import annotations

import os

_IOPRIO_SET = 251
"""Number of the system call on x86-64; the C library has no function for it."""
_WHO_PROCESS = 1
_CLASS_IDLE = 3 << 13
_CLASS_BEST_EFFORT = 2 << 13 | 4


def take_idle_priority(niceness: int = 19) -> None:
    """Lower CPU and I/O priority of the calling process from now on. What the machine refuses is
    skipped."""
    leave_core()
    os.nice(niceness)
    _take_io_class(_CLASS_IDLE)


def take_ordinary_io() -> None:
    """Return to the default I/O class, because a request now waits for the calling process."""
    _take_io_class(_CLASS_BEST_EFFORT)


def take_io_priority(value: int) -> None:
    """Set a class and level of `appliance.base.io_class` for the calling process and its later
    children."""
    _take_io_class(value)


def leave_core() -> None:
    """Allow any core again: the child of a process that is bound to a core must not compete with
    it."""
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except OSError:
        pass


def _take_io_class(value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).syscall(_IOPRIO_SET, _WHO_PROCESS, 0, value)
