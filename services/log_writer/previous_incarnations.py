"""What a log-writer's previous lives left in shared memory: their partition tables, if they are of this boot.

A table that is still there means that its writer was killed (a clean end unlinks it), and that the page cache is whole: recovery starts from its
rows. A torn row counts as absent. A life that died while it recovered leaves a partial table: it adds to the newest complete one, and says
nothing by itself about how the machine came up. What is older than a complete table, and tables without a row, go at once, so that a log-writer
that keeps dying leaves no more than one table a life that got somewhere. Owned by the log-writer while it starts.
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
        self._names: list[str] = []
        self.is_same_boot = False
        """Whether a life of this boot had opened every log: only then is it known what users saw."""
        self.is_suspect = False
        """Whether the disk failed under one of them: then no row is believed, of that life or an older one, nor what the page cache says."""
        for name in sorted(lives, key=lambda name: int(lives[name], 16), reverse=True):
            if self.is_same_boot or self.is_suspect or not self._read(name):
                unlink(name)
            else:
                self._names.append(name)

    def _read(self, name: str) -> bool:
        """Take the rows over that no newer life had. False: there is nothing in it to keep."""
        try:
            table = PartitionTableReader.attach(name)
        except SharedObjectAbsent:
            return False
        except LayoutMismatch:
            return True  # of another release, which could come back; until ours is complete
        try:
            if not table.shared.is_of_this_boot():
                return False
            if table.is_suspect:
                self.is_suspect = True
                return True  # it stays until the disk is read again: a life that dies while it does so must not forget it
            rows = table.rows()
            for _, row in rows:
                self.rows.setdefault((row.topic_id, row.partition), row)
            self.is_same_boot = table.is_recovered
            return self.is_same_boot or bool(rows)
        finally:
            table.close()

    def forget(self) -> None:
        """Unlink their tables: ours is complete now."""
        for name in self._names:
            unlink(name)
        self._names.clear()
