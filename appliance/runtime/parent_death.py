"""Children die with their parent, even when it is killed with -9: PR_SET_PDEATHSIG.

Called between fork and exec (the kernel keeps the wish across exec), so that only who starts processes pays for ctypes. Weak spot: the
signal follows the death of the *thread* that forked; whoever starts children therefore does it from its main thread.
"""

from __future__ import annotations

import os
import signal

PARENT_VARIABLE = "MILLRACE_PARENT"
"""Pid of the `millrace run` that a process belongs to."""

BOUND_VARIABLE = "MILLRACE_PARENT_BOUND"
"""Set when the parent has bound the child to itself already."""

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> bool:
    """Have the kernel kill this process when its parent dies; False if the parent is dead already."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid


def bind_to_parent() -> bool:
    """In a started process: bind to the parent that the environment names, if any; False if it is dead already."""
    named = os.environ.get(PARENT_VARIABLE)
    if not named:
        return True
    if os.environ.pop(BOUND_VARIABLE, ""):
        return os.getppid() == int(named)
    return die_with_parent(int(named))
