"""The core, and the place in a disk's queue, of the processes that serve it: taken by the process itself at its start, as the box's settings say.

systemd could give both, but has no arithmetic for "the n-th disk has the n-th core"; and `millrace run` needs it as well. The rule: the log-writer of the n-th
disk (in the order of the settings) runs on the n-th core that this process may use, round and round where there are more disks than cores. On four cores or
fewer nobody is bound to one: there the kernel spreads the few processes better than a rule. Weak spot: a disk that is added does not move the others,
but one that is removed does, at their next start.
"""

from __future__ import annotations

import os

from appliance.base.io_class import classes_of_disks, io_priority
from appliance.base.settings import Box
from appliance.runtime.idle_priority import take_io_priority

CORES_WITHOUT_PINNING = 4


def core_of_disk(place: int, cores: list[int]) -> int | None:
    """The core for the disk in this place of the settings; None: any."""
    return None if len(cores) <= CORES_WITHOUT_PINNING else cores[place % len(cores)]


def io_priority_of(box: Box, process_kind: str, disk: str) -> int | None:
    """As the kernel counts it."""
    own = (classes_of_disks(box.text("disk.io.classes")) or {}).get(disk)
    return io_priority(own or box.text("log.writer.io.class" if process_kind == "log-writer" else "log.reader.io.class"))


def take_disk_priority(box: Box, process_kind: str, disk: str) -> None:
    """For the calling process and all that it starts from now on. What the machine refuses is not had."""
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
            pass  # a core that went away just now
