"""When to evaluate a parked fetch of many partitions again.

Reading costs 3 µs per partition, so a fetch of thousands that waits for many bytes must not be evaluated at
each change of a row. Instead the positions in the changed rows tell how many bytes were added at most. Any
change but growth evaluates the fetch at once. If an evaluation finds less than was counted (batches that do
not fit, for example), the next one waits for twice as much. Owned by one acceptor, created when such a fetch
parks. Weak spot: such a fetch may be answered later than possible, at its deadline at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.protocol.fetch import FetchPartition, FetchPartitionResult
from appliance.shm.partition_table import Row, TornRow, row_of
from services.acceptor.leadership import leadership_problem
from services.acceptor.row_watch import RowKey

FEW_PARTITIONS: Final = 16
"""Up to so many partitions are read at each change."""


class _Seen:
    """One partition when all were looked at, and what it has gained since."""

    __slots__ = ("end_position", "gained_bytes", "placement", "segment_base_offset", "size_bytes", "wanted")

    def __init__(self, placement: LocalReplica, wanted: FetchPartition, size_bytes: int, end: tuple[int, int]) -> None:
        self.placement = placement
        self.wanted = wanted
        self.size_bytes = size_bytes
        """of what would have been sent"""
        self.segment_base_offset, self.end_position = end
        """where what may be read ended"""
        self.gained_bytes = 0


class ParkedGrowth:
    """Of one parked fetch."""

    def __init__(self, reads_to_end: bool = False, only_leader: bool = True) -> None:
        """As the fetch: up to the log end, or the high watermark; from the leader, or from any replica."""
        self._reads_to_end = reads_to_end
        self._only_leader = only_leader
        self._partitions: dict[RowKey, _Seen] = {}
        self._missing_bytes = 0
        self._gained_bytes = 0
        self._has_some = False
        self._disappointments = 0

    def begin(
        self, placements: Sequence[LocalReplica], partitions: Sequence[FetchPartition], results: Sequence[FetchPartitionResult], needed_bytes: int
    ) -> None:
        """All were just looked at, and it was not enough."""
        seen = self._partitions = {}
        total = 0
        for placement, wanted, result in zip(placements, partitions, results, strict=True):
            records = result.records
            size_bytes = 0 if records is None else len(records) if isinstance(records, bytes) else records.size_bytes  # type: ignore[union-attr]
            total += size_bytes
            seen[(placement.disk, placement.row)] = _Seen(placement, wanted, size_bytes, self._end_of(row_of(placement.seen)))
        self._has_some = total > 0
        self._missing_bytes = max(1, needed_bytes - total) << self._disappointments
        self._gained_bytes = 0

    def is_enough(self, moved: Iterable[RowKey] | None, view: MetadataCache) -> bool:
        """True if all partitions are worth reading again. `moved`: rows that changed since the last call; None: unknown."""
        if moved is None:
            return True
        for key in moved:
            seen = self._partitions.get(key)
            if seen is None or not self._count(seen, view):
                return True
        if self._gained_bytes < self._missing_bytes:
            return False
        self._disappointments += 1  # unless this look is its last one
        return True

    def _end_of(self, row: Row) -> tuple[int, int]:
        """Segment and position where what may be read ends."""
        return (row.active_base_offset, row.active_position) if self._reads_to_end else (row.watermark_base_offset, row.watermark_position)

    def _count(self, seen: _Seen, view: MetadataCache) -> bool:
        """Add up what one partition has gained. False: something else happened to it."""
        placement, wanted = seen.placement, seen.wanted
        if view.placement(placement.topic, placement.partition) is not placement:
            return False
        try:
            row = placement.read_row()
        except TornRow:
            return False
        if leadership_problem(row, placement.row_generation, wanted.current_leader_epoch, self._only_leader) is not None:
            return False
        if not row.log_start_offset <= wanted.fetch_offset <= row.log_end_offset:
            return False
        if row.last_stable_offset != row.high_watermark and not self._reads_to_end:
            return False
        segment_base_offset, end_position = self._end_of(row)
        if segment_base_offset != seen.segment_base_offset or end_position < seen.end_position:
            return False
        gained_bytes = end_position - seen.end_position
        if self._has_some:  # the very first batch goes whatever its size
            gained_bytes = max(0, min(gained_bytes, wanted.max_bytes - seen.size_bytes))
        self._gained_bytes += gained_bytes - seen.gained_bytes
        seen.gained_bytes = gained_bytes
        return True
