"""What followers fetch that is not in the page cache: one read for each of a follower's sessions and each disk, kept from fetch to fetch.

A consumer's fetch waits for its cold partition. A follower's must not: it carries the partitions of all disks, and acks=all waits for it. So what is cold is
asked for and left out of the answer; when it has come it wakes the parked fetch, or goes with the next one. A disk that hangs, or has a week to be read from,
holds up no partition of another. A follower takes a partition back while it has no time for it, and names it again a moment later: what was read meanwhile is
still its, for a moment; for what it then got from the page cache it does not come any more. Owned by one acceptor. Weak spots: a fetch still waits where a
position has to be looked up; and what its follower does not come for stays in a log-reader's memory for up to `KEPT_NS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from services.acceptor.fetch.cold_reads import ColdRead, ColdReads
from services.acceptor.fetch.fetch_session import FetchSession, SessionPartition
from services.acceptor.fetch.record_ranges import ArenaRange, FileRange, SegmentFile

KEPT_NS: Final = 2_000_000_000
ABSENT_NS: Final = 50_000_000
"""So long a read of a partition that is not in the fetch has its place before those that are."""


class _KeptRead:
    """A read, whose it is, when it was asked for, and when it was done (0: it is under way)."""

    __slots__ = ("asked_ns", "done_ns", "partition", "read")

    def __init__(self, partition: SessionPartition, asked_ns: int) -> None:
        self.read = ColdRead(partition)
        self.partition = partition
        self.asked_ns = asked_ns
        self.done_ns = 0


class FollowerReads:
    """Of one acceptor. `wake(session)`: something has come for its parked fetch."""

    def __init__(self, cold_reads: ColdReads, clock: Clock, wake: Callable[[FetchSession], None]) -> None:
        self._cold_reads = cold_reads
        self._clock = clock
        self._wake = wake
        self._kept: dict[tuple[int, str], _KeptRead] = {}
        """(session id, disk) → its read"""

    def __len__(self) -> int:
        return len(self._kept)

    def read(
        self, partition: SessionPartition, file: SegmentFile, position: int, most: int, limit: int, is_first: bool, is_active: bool
    ) -> FileRange | ArenaRange | ErrorCode | None:
        """About `most` bytes of [position, limit) if they have come, else nothing yet. Not more than `most` unless the answer `is_first` with it."""
        key = (partition.session.session_id, file.origin.disk)
        kept = self._kept.get(key)
        if kept is not None and kept.partition is not partition and kept.partition not in partition.session.awake:
            if kept.partition.key == partition.key:
                kept.partition = partition  # it was taken back, and is named again
            elif self._clock.monotonic_ns() - kept.asked_ns > ABSENT_NS:
                kept = None
        if kept is not None and kept.partition is partition and (kept.read.base_offset, kept.read.position) != (file.origin.base_offset, position):
            kept = None  # it goes on from elsewhere
        if kept is None:
            return self._ask(key, partition, file, position, most, limit, is_active)
        read = kept.read
        if kept.partition is not partition or not kept.done_ns:
            return None
        size_bytes = read.range.size_bytes if read.range is not None else read.answer.first_batch_bytes if read.answer is not None else 0
        if size_bytes > most and not is_first:
            return None  # it has its turn when nobody stands before it
        del self._kept[key]
        if read.error is not None:
            return read.error
        if read.range is not None:
            return read.range
        # Its first batch is larger than an answer: it is brought piece by piece while it is sent.
        return FileRange(file, position, size_bytes) if size_bytes else None

    def _ask(
        self, key: tuple[int, str], partition: SessionPartition, file: SegmentFile, position: int, most: int, limit: int, is_active: bool
    ) -> ErrorCode | None:
        kept = self._kept[key] = _KeptRead(partition, self._clock.monotonic_ns())
        session = partition.session

        def then() -> None:
            kept.done_ns = self._clock.monotonic_ns()
            self._wake(session)

        if self._cold_reads.ask(kept.read, file, position, most, limit, True, is_active, then):
            return None
        del self._kept[key]
        return kept.read.error

    def pass_over(self, partition: SessionPartition, disk: str) -> None:
        """It gets its records from the page cache after all: what was to be read for it must not keep others from their reads."""
        key = (partition.session.session_id, disk)
        kept = self._kept.get(key)
        if kept is not None and kept.partition is partition:
            del self._kept[key]

    def forget(self, session: FetchSession) -> None:
        """The session is over."""
        for key in [key for key in self._kept if key[0] == session.session_id]:
            del self._kept[key]

    def sweep(self, now_ns: int) -> None:
        """Once a second: let go of what nobody comes for, or it would be missing to others."""
        for key in [key for key, kept in self._kept.items() if kept.done_ns and now_ns - kept.done_ns > KEPT_NS]:
            del self._kept[key]
