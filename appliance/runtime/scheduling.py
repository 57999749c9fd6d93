"""Lowers the priority of a process to what no other process needs: a nice value and the idle I/O
class.

For temporary work beside the serving processes (a cleaning run, a move). Weak: only the I/O
schedulers bfq and mq-deadline know the idle class; with none, the kernel ignores it.

CPU core and I/O priority of the processes of a disk. Each process sets them itself at its start,
from the settings.

The log-writer of the n-th disk (in the order of the settings) runs on the n-th core that this
process may use, modulo the number of cores. On four cores or fewer no process is bound: there the
kernel distributes the few processes better. systemd cannot express "the n-th disk has the n-th
core", and `millrace run` needs it as well. Weak: a removed disk moves the others at their next
start.

Requests short time slices, so that a woken process runs at once instead of after the running
one's slice.

Linux >= 6.12 grants them on request (`sched_setattr`): the process runs sooner and shorter, with
the same share of the CPU. Measured on two busy cores, 90 % of the delays from wake-up to running of
a log-writer are below 0.15 ms instead of 0.5 ms. No privilege is needed; older kernels ignore the
request. Weak: the number of the system call is known for two architectures.
"""

from __future__ import annotations

import os
import struct

from appliance.base.io_class import classes_of_disks, io_priority
from appliance.base.settings import Box

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


CORES_WITHOUT_PINNING = 4


def core_of_disk(place: int, cores: list[int]) -> int | None:
    """Return the core for the disk at this place of the settings; None for any core."""
    return None if len(cores) <= CORES_WITHOUT_PINNING else cores[place % len(cores)]


def io_priority_of(box: Box, process_kind: str, disk: str) -> int | None:
    """Return the I/O priority of a process in the kernel's encoding; None to leave it unchanged."""
    own = (classes_of_disks(box.text("disk.io.classes")) or {}).get(disk)
    return io_priority(own or box.text("log.writer.io.class" if process_kind == "log-writer" else "log.reader.io.class"))


def take_disk_priority(box: Box, process_kind: str, disk: str) -> None:
    """Set core and I/O priority of the calling process and of its later children. What the machine
    refuses is skipped."""
    priority = io_priority_of(box, process_kind, disk)
    if priority is not None:
        take_io_priority(priority)
    if process_kind != "log-writer" or not box.flag("log.writer.pinning"):
        return
    place = next((place for place, known in enumerate(box.disks) if known.name == disk), 0)
    core = core_of_disk(place, sorted(os.sched_getaffinity(0)))
    if core is not None:
        try:
            os.sched_setaffinity(0, {core})
        except OSError:
            pass  # the core was taken offline a moment ago


SLICE_NS = 100_000
"""The shortest slice that the kernel grants."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
"""size, policy, flags, nice, priority, runtime (the slice), deadline, period, two clamps"""
_POLICY_OTHER = 0
_RESET_ON_FORK = 1


def take_short_slices(inherits: bool = False) -> bool:
    """Request short slices for the calling thread; `inherits`: also for its later threads and
    children. False if refused."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return False
    import ctypes

    nice, flags = os.getpriority(os.PRIO_PROCESS, 0), 0 if inherits else _RESET_ON_FORK
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, _POLICY_OTHER, flags, nice, 0, SLICE_NS, 0, 0, 0, 0)
    return not ctypes.CDLL(None, use_errno=True).syscall(number, 0, attributes, 0)
