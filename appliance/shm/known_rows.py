"""Caches which partition is in which row of a partition table. Partitions rarely change; roles
change in bursts.

After a change of the table's generation a refresh costs about 20 ns per row, and 3 µs per new row.
Owned by the reading process. Weak: a row whose writer is interrupted is missing until a later
refresh reads it whole.
"""

from __future__ import annotations

from appliance.base.model import TopicId
from appliance.shm.partition_table import PartitionTableReader, TornRow

RowKey = tuple[TopicId, int]
"""Topic id and partition."""
NEVER = -1


class KnownRows:
    """Lists by row index: `keys` (None for an unused row) and `row_generations` (0 there)."""

    def __init__(self, table: PartitionTableReader) -> None:
        self.table = table
        self.keys: list[RowKey | None] = []
        self.row_generations: list[int] = []
        self._identities: list[int] = []
        self._generation = NEVER

    @property
    def is_old(self) -> bool:
        """Return whether the table changed since the last `look`, or rows could not be read then."""
        return self._generation != self.table.generation

    def look(self) -> bool:
        """Refresh the lists; returns whether a row was added or removed."""
        table = self.table
        self._generation = table.generation  # read before the rows: a later change is seen by the next call
        identities = table.identities()
        if identities == self._identities:
            return False
        missing = len(identities) - len(self._identities)
        known = self._identities + [0] * missing
        self.keys += [None] * missing
        self.row_generations += [0] * missing
        for index, identity in enumerate(identities):
            if identity != known[index] and not self._read(index):
                identities[index] = 0
                self._generation = NEVER
        self._identities = identities
        return True

    def _read(self, index: int) -> bool:
        self.keys[index], self.row_generations[index] = None, 0
        try:
            row = self.table.read(index)
        except TornRow:
            return False
        if row.row_generation:
            self.keys[index], self.row_generations[index] = (TopicId(row.topic_id), row.partition), row.row_generation
        return True
