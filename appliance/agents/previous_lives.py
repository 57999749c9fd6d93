"""What a log-writer's previous lives left in shared memory: their partition tables, if they are of this boot.

A table that is still there means that its writer was killed (a clean end unlinks it), and that the page cache is whole: recovery starts from its
rows. A torn row counts as absent. A life that died while it recovered leaves a partial table, so older ones are kept until a new
table is complete. Owned by the log-writer while it starts.
"""

from __future__ import annotations

from appliance.base.layout import BoxLayout
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent, list_names, unlink
from appliance.shm.partition_table import PartitionTableReader, Row


class PreviousLives:
    """Rows of dead lives by (topic id, partition); the newest life's row wins."""

    def __init__(self, layout: BoxLayout, disk: str, own_table: str) -> None:
        self.rows: dict[tuple[bytes, int], Row] = {}
        prefix = layout.shared_memory_name("table", disk) + "."
        # A disk may be called as another one and a dot: what has a second dot belongs to that one.
        lives = {name: name[len(prefix) :] for name in list_names(prefix) if name != own_table and "." not in name[len(prefix) :]}
        self._names = sorted(lives, key=lambda name: int(lives[name], 16))
        self.is_same_boot = False
        for name in self._names:
            self._read(name)

    def _read(self, name: str) -> None:
        try:
            table = PartitionTableReader.attach(name)
        except (SharedObjectAbsent, LayoutMismatch):
            return
        if table.shared.is_of_this_boot():
            self.is_same_boot = True
            for _, row in table.rows():
                self.rows[(row.topic_id, row.partition)] = row
        table.close()

    def forget(self) -> None:
        """Unlink their tables: ours is complete now."""
        for name in self._names:
            unlink(name)
