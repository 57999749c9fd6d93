"""Cold reads of followers: one for each session and disk, kept from fetch to fetch.

A consumer's fetch waits for its cold partition. A follower's must not: it has partitions of all disks, and
acks=all waits for it. So cold records are requested and left out of the response; when they have been read
they wake the parked fetch, or go with the next one. A disk that hangs or has much to read delays no partition
of another disk. A follower removes a partition from its session while it is busy with it, and adds it again a
moment later: its read is kept for that time. If its records then come from the page cache, the read is
dropped. Owned by one acceptor. Weak spots: a fetch still waits if a position has to be looked up; records that
the follower does not fetch stay in a log-reader's memory for up to `KEPT_NS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import Position
from services.acceptor.fetch.cold_reads import ColdRead, ColdReads
from services.acceptor.fetch.fetch_session import FetchSession, SessionPartition
from services.acceptor.fetch.record_ranges import ArenaRange, FileRange, ServedSegment

KEPT_NS: Final = 2_000_000_000
ABSENT_NS: Final = 50_000_000
"""How long the read of a partition that is not in the fetch keeps its place before those that are."""


class _KeptRead:
    """A read, its partition, when it was requested, and when it was done (0: under way)."""

    __slots__ = ("asked_ns", "done_ns", "partition", "read")

    def __init__(self, partition: SessionPartition, asked_ns: int) -> None:
        self.read = ColdRead(partition)
        self.partition = partition
        self.asked_ns = asked_ns
        self.done_ns = 0


class FollowerReads:
    """Of one acceptor. `wake(session)`: a read for its parked fetch is done."""

    def __init__(self, cold_reads: ColdReads, clock: Clock, wake: Callable[[FetchSession], None]) -> None:
        self.cold_reads = cold_reads
        self._clock = clock
        self._wake = wake
        self._kept: dict[tuple[int, str], _KeptRead] = {}
        """(session id, disk) → its read"""

    def __len__(self) -> int:
        return len(self._kept)

    def read(
        self, partition: SessionPartition, file: ServedSegment, position: Position, most: int, limit: int, is_first: bool, is_active: bool
    ) -> FileRange | ArenaRange | ErrorCode | None:
        """Return about `most` bytes of [position, limit) if they were read. More than `most` only if `is_first`."""
        key = (partition.session.session_id, file.origin.disk)
        kept = self._kept.get(key)
        if kept is not None and kept.partition is not partition and kept.partition not in partition.session.awake:
            if kept.partition.key == partition.key:
                kept.partition = partition  # it was removed and added again
            elif self._clock.monotonic_ns() - kept.asked_ns > ABSENT_NS:
                kept = None
        if kept is not None and kept.partition is partition and (kept.read.base_offset, kept.read.position) != (file.origin.base_offset, position):
            kept = None  # the follower continues elsewhere
        if kept is None:
            return self._ask(key, partition, file, position, most, limit, is_active)
        read = kept.read
        if kept.partition is not partition or not kept.done_ns:
            return None
        size_bytes = read.range.size_bytes if read.range is not None else read.answer.first_batch_bytes if read.answer is not None else 0
        if size_bytes > most and not is_first:
            return None  # it is sent when it comes first in a response
        del self._kept[key]
        if read.error is not None:
            return read.error
        if read.range is not None:
            return read.range
        # Its first batch is larger than an answer: it is read piece by piece while it is sent.
        return FileRange(file, position, size_bytes) if size_bytes else None

    def _ask(
        self, key: tuple[int, str], partition: SessionPartition, file: ServedSegment, position: Position, most: int, limit: int, is_active: bool
    ) -> ErrorCode | None:
        kept = self._kept[key] = _KeptRead(partition, self._clock.monotonic_ns())
        session = partition.session

        def then() -> None:
            kept.done_ns = self._clock.monotonic_ns()
            self._wake(session)

        if self.cold_reads.ask(kept.read, file, position, most, limit, True, is_active, then):
            return None
        del self._kept[key]
        return kept.read.error

    def pass_over(self, partition: SessionPartition, disk: str) -> None:
        """Drop the read of a partition whose records are in the page cache: it would delay the reads of others."""
        key = (partition.session.session_id, disk)
        kept = self._kept.get(key)
        if kept is not None and kept.partition is partition:
            del self._kept[key]

    def forget(self, session: FetchSession) -> None:
        """Drop the reads of a closed session."""
        for key in [key for key in self._kept if key[0] == session.session_id]:
            del self._kept[key]

    def sweep(self, now_ns: int) -> None:
        """Drop reads that were not fetched: others need that memory. Called once a second."""
        for key in [key for key, kept in self._kept.items() if kept.done_ns and now_ns - kept.done_ns > KEPT_NS]:
            del self._kept[key]
