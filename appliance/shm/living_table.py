"""Finds the current partition table of a disk: of several (a log-writer has just ended) that of the
running process, otherwise the youngest.

For observers (console, commands); sources get the name in WELCOME. Weak: a reused pid counts as
running.
"""

from __future__ import annotations

import os

from appliance.base.layout import BoxLayout
from appliance.shm.mapping import SharedObjectAbsent, list_names
from appliance.shm.partition_table import PartitionTableReader


def table_names(layout: BoxLayout, disk: str) -> list[str]:
    """Return the names of all tables of a disk. Another disk may have its name plus a dot; its
    tables have a second dot."""
    prefix = layout.shared_memory_name("table", disk) + "."
    return [name for name in list_names(prefix) if "." not in name[len(prefix) :]]


def attach_table(layout: BoxLayout, disk: str) -> PartitionTableReader | None:
    """Map the partition table of a disk read-only; None if there is none. Raises LayoutMismatch."""
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
    """Return whether a process with this pid exists."""
    return pid > 0 and os.path.exists(f"/proc/{pid}")
