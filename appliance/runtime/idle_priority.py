"""Lets a process take only what nobody else wants: a nice value and the idle I/O class.

For transient work beside the serving processes (a cleaning run, a move). Weak spot: the idle class means something under the I/O schedulers bfq and
mq-deadline only; where a disk has none, the kernel passes it over.
"""

from __future__ import annotations

import os

_IOPRIO_SET = 251
"""The system call's number on x86-64, which the C library has no name for."""
_WHO_PROCESS = 1
_CLASS_IDLE = 3 << 13
_CLASS_BEST_EFFORT = 2 << 13 | 4


def take_idle_priority(niceness: int = 19) -> None:
    """For the calling process, from now on. What the machine refuses is not had."""
    leave_core()
    os.nice(niceness)
    _take_io_class(_CLASS_IDLE)


def take_ordinary_io() -> None:
    """Somebody waits for the calling process now."""
    _take_io_class(_CLASS_BEST_EFFORT)


def take_io_priority(value: int) -> None:
    """A class and level of `appliance.base.io_class`, for the calling process and what it starts from now on."""
    _take_io_class(value)


def leave_core() -> None:
    """Run on any core again: a child of a process that is bound to one must not take it from its parent."""
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except OSError:
        pass


def _take_io_class(value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).syscall(_IOPRIO_SET, _WHO_PROCESS, 0, value)
