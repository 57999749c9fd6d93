"""Starts a child process with fork and exec.

The supervisor uses it instead of `subprocess`, which costs 2 MB, cannot set the parent-death
signal, and cannot put sockets on the descriptors that LISTEN_FDS requires. Weak: only simple code
may run between fork and exec; the caller has a single thread.

Binds a child to its parent: the kernel kills it when the parent dies, even by SIGKILL
(PR_SET_PDEATHSIG).

Called between fork and exec, where the setting survives exec, so that only processes that start
others load ctypes. Weak: the signal follows the death of the *thread* that forked, so children have
to be started from the main thread.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from appliance.runtime.systemd import FIRST_LISTEN_DESCRIPTOR

PARENT_VARIABLE = "MILLRACE_PARENT"
"""Environment variable with the pid of the `millrace run` that a process belongs to."""

BOUND_VARIABLE = "MILLRACE_PARENT_BOUND"
"""Environment variable that is set if the parent has already bound the child."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> bool:
    """Have the kernel kill this process when its parent dies; returns False if the parent is
    already dead."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid


def adopt_orphans(does: bool) -> None:
    """Have the kernel make this process the parent of later orphans among its descendants, or no longer."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0)


def bind_to_parent() -> bool:
    """Bind this process to the parent that the environment names; returns False if that is already
    dead."""
    named = os.environ.get(PARENT_VARIABLE)
    if not named:
        return True
    if os.environ.pop(BOUND_VARIABLE, ""):
        return os.getppid() == int(named)
    return die_with_parent(int(named))


EXIT_NOT_STARTED = 127


def spawn(arguments: Sequence[str], environment: dict[str, str], listening: Sequence[int] = ()) -> int:
    """Start `arguments[0]` and return its pid. `listening` become descriptors 3, 4, … Raises
    OSError if the fork fails."""
    parent_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(arguments, dict(environment), listening, parent_pid)
    except BaseException as error:
        os.write(2, f"ERROR supervisor: could not start {arguments[0]}: {error}\n".encode())
    finally:
        os._exit(EXIT_NOT_STARTED)


def _become(arguments: Sequence[str], environment: dict[str, str], listening: Sequence[int], parent_pid: int) -> NoReturn:
    signal.set_wakeup_fd(-1)  # the parent's pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stays ignored over exec: the parent stops its children
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    # Ctrl-C and Ctrl-Z of the terminal reach only the parent, and descendants can be killed with
    # the child
    os.setpgid(0, 0)
    if not die_with_parent(parent_pid):
        os._exit(EXIT_NOT_STARTED)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0, inheritable=True)
    os.dup2(2, 1, inheritable=True)  # standard output is reserved for the ready line
    first_above = max(128, FIRST_LISTEN_DESCRIPTOR + len(listening))
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, first_above) for descriptor in listening]
    for index, descriptor in enumerate(above):
        os.dup2(descriptor, FIRST_LISTEN_DESCRIPTOR + index, inheritable=True)
    environment[PARENT_VARIABLE] = str(parent_pid)
    environment[BOUND_VARIABLE] = "1"
    if listening:
        environment["LISTEN_PID"] = str(os.getpid())
    os.execve(arguments[0], list(arguments), environment)
