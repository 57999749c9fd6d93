"""CPU core and I/O priority of the processes of a disk. Each process sets them itself at its start,
from the settings.

The log-writer of the n-th disk (in the order of the settings) runs on the n-th core that this
process may use, modulo the number of cores. On four cores or fewer no process is bound: there the
kernel distributes the few processes better. systemd cannot express "the n-th disk has the n-th
core", and `millrace run` needs it as well. Weak: a removed disk moves the others at their next
start.
"""

from __future__ import annotations

import os

from appliance.base.io_class import classes_of_disks, io_priority
from appliance.base.settings import Box
from appliance.runtime.idle_priority import take_io_priority

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
