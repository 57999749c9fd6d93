"""Binds a child to its parent: the kernel kills it when the parent dies, even by SIGKILL
(PR_SET_PDEATHSIG).

Called between fork and exec, where the setting survives exec, so that only processes that start
others load ctypes. Weak: the signal follows the death of the *thread* that forked, so children have
to be started from the main thread.
"""

from __future__ import annotations

import os
import signal

PARENT_VARIABLE = "MILLRACE_PARENT"
"""Environment variable with the pid of the `millrace run` that a process belongs to."""

BOUND_VARIABLE = "MILLRACE_PARENT_BOUND"
"""Environment variable that is set if the parent has already bound the child."""

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> bool:
    """Have the kernel kill this process when its parent dies; returns False if the parent is
    already dead."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid


def bind_to_parent() -> bool:
    """Bind this process to the parent that the environment names; returns False if that is already
    dead."""
    named = os.environ.get(PARENT_VARIABLE)
    if not named:
        return True
    if os.environ.pop(BOUND_VARIABLE, ""):
        return os.getppid() == int(named)
    return die_with_parent(int(named))
