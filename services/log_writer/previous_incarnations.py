"""The partition tables that earlier incarnations of a log-writer left in shared memory.

A table that exists means that its log-writer was killed (a clean end unlinks it) and that the page
cache is complete: recovery starts from its rows. A torn row counts as absent. An incarnation that
died while it recovered leaves a partial table: its rows add to those of the newest complete one,
and it says nothing about how the machine came up. Everything older than a complete table, and
tables without a row, are unlinked at once, so that a log-writer that keeps dying leaves at most one
table for each incarnation that recovered something.
"""

from __future__ import annotations

from appliance.base.layout import BoxLayout
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent, list_names, unlink
from appliance.shm.partition_table import PartitionTableReader, Row


class PreviousTables:
    """Rows of dead incarnations by (topic id, partition); the newest row wins."""

    def __init__(self, layout: BoxLayout, disk: str, own_table: str) -> None:
        self.rows: dict[tuple[bytes, int], Row] = {}
        prefix = layout.shared_memory_name("table", disk) + "."
        # A disk may be called as another one and a dot: what has a second dot belongs to that one.
        lives = {name: name[len(prefix) :] for name in list_names(prefix) if name != own_table and "." not in name[len(prefix) :]}
        self._names: list[str] = []
        self.is_same_boot = False
        """Whether an incarnation of this boot had opened every log: only then is known what clients
        saw."""
        self.is_suspect = False
        """Whether the disk failed under one of them. Then its rows, older rows and the page cache
        are not used: they may have what never reached the disk."""
        for name in sorted(lives, key=lambda name: int(lives[name], 16), reverse=True):
            if self.is_same_boot or self.is_suspect or not self._read(name):
                unlink(name)
            else:
                self._names.append(name)

    def _read(self, name: str) -> bool:
        """Add the rows that no newer incarnation has. Return False if the table can be unlinked."""
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
                return True  # it stays until the disk was read again, even if that incarnation dies before the end
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
