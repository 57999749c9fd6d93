"""The partition that is being moved, as the row of the other disk's log-writer describes it.

A mover is not notified when that log-writer dies and starts again, so it looks for the newest table now
and then. The table of a dead incarnation is as good as a live one: what it says was appended stays. If
the partition follows, batches may be truncated; then every change of its segments, and every leader
epoch, counts as another incarnation. None: the partition is not served there now. Weak spot: while a
log-writer starts, its rows appear one by one, and until then nothing is known.
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent, list_names
from appliance.shm.partition_table import DISK_OFFLINE, ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, PartitionTableReader, Row, TornRow
from appliance.storage.move_source import SourceState

LOOK_AGAIN_NS = 200_000_000


class MovingSource:
    """One partition of one disk of this box."""

    def __init__(self, layout: BoxLayout, disk: str, topic_id: TopicId, partition: int, clock: Clock) -> None:
        self._prefix = layout.shared_memory_name("table", disk) + "."
        self._topic_id = topic_id
        self._partition = partition
        self._clock = clock
        self._table: PartitionTableReader | None = None
        self._life = -1
        self._index = -1
        self._scanned = -1
        self._look_again_ns = 0

    def look(self, anew: bool = False) -> SourceState | None:
        """Return the state of the source. `anew`: look for a newer incarnation now."""
        now_ns = self._clock.monotonic_ns()
        if anew or now_ns >= self._look_again_ns:
            self._look_again_ns = now_ns + LOOK_AGAIN_NS
            self._attach_newest()
        table = self._table
        if table is None or table.disk_state == DISK_OFFLINE or table.is_suspect:
            return None
        row = self._row(table)
        if row is None or row.role == ROLE_OFFLINE:
            return None
        is_followed = row.role == ROLE_FOLLOWER
        life = (self._life << 32 | row.leader_epoch + 1) << 64
        if is_followed:  # what was appended may be cut off again, and then the segment list is another one
            life |= row.segment_list_generation
        return SourceState(life, row.log_start_offset, row.log_end_offset, row.active_base_offset, is_followed or row.role == ROLE_LEADER)

    def _attach_newest(self) -> None:
        lives = [int(name[len(self._prefix) :], 16) for name in list_names(self._prefix) if "." not in name[len(self._prefix) :]]
        newest = max(lives, default=-1)
        if newest == self._life and self._table is not None:
            return
        self.close()
        if newest < 0:
            return
        try:
            self._table = PartitionTableReader.attach(f"{self._prefix}{newest:x}")
        except (SharedObjectAbsent, LayoutMismatch):
            return
        self._life = newest

    def _row(self, table: PartitionTableReader) -> Row | None:
        if self._index >= 0:
            try:
                row = table.read(self._index)
            except TornRow:
                return None
            if self._is_ours(row):
                return row
            self._index = -1
        generation = table.generation
        if generation == self._scanned:
            return None
        for index, row in table.rows():
            if self._is_ours(row):
                self._index = index
                return row
        if not table.torn_rows:
            self._scanned = generation
        return None

    def _is_ours(self, row: Row) -> bool:
        return row.topic_id == self._topic_id and row.partition == self._partition and row.row_generation > 0

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
        self._table = None
        self._life = self._index = self._scanned = -1
