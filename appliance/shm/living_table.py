"""Which partition table of a disk is the one that counts: of several (one life has just ended) the one whose maker lives, else the youngest.

For those who look from outside (console, command); sources are told by WELCOME. Weak spot: a pid that was given to another process looks alive.
"""

from __future__ import annotations

import os

from appliance.base.layout import BoxLayout
from appliance.shm.mapping import SharedObjectAbsent, list_names
from appliance.shm.partition_table import PartitionTableReader


def table_names(layout: BoxLayout, disk: str) -> list[str]:
    """Names of the tables of all lives of a disk's log-writer. A disk may be called as another one and a dot: its tables have a second dot."""
    prefix = layout.shared_memory_name("table", disk) + "."
    return [name for name in list_names(prefix) if "." not in name[len(prefix) :]]


def attach_table(layout: BoxLayout, disk: str) -> PartitionTableReader | None:
    """The partition table of a disk's log-writer, mapped read-only; None when there is none. Raises LayoutMismatch."""
    best: tuple[bool, int, PartitionTableReader] | None = None
    for name in table_names(layout, disk):
        try:
            table = PartitionTableReader.attach(name)
        except SharedObjectAbsent:
            continue
        candidate = (is_alive(table.shared.pid), table.shared.incarnation, table)
        if best is None or candidate[:2] > best[:2]:
            if best is not None:
                best[2].close()
            best = candidate
        else:
            table.close()
    return None if best is None else best[2]


def is_alive(pid: int) -> bool:
    return pid > 0 and os.path.exists(f"/proc/{pid}")
