"""Lets a process take only what nobody else wants: nice 19 and the idle I/O class.

For transient work beside the serving processes (a cleaning run). Weak spot: the idle class means something under the I/O schedulers bfq and
mq-deadline only; where a disk has none, the kernel passes it over.
"""

from __future__ import annotations

import os

_IOPRIO_SET = 251
"""The system call's number on x86-64, which the C library has no name for."""
_WHO_PROCESS = 1
_CLASS_IDLE = 3 << 13


def take_idle_priority() -> None:
    """For the calling process, from now on. What the machine refuses is not had."""
    import ctypes

    os.nice(19)
    ctypes.CDLL(None, use_errno=True).syscall(_IOPRIO_SET, _WHO_PROCESS, 0, _CLASS_IDLE)
