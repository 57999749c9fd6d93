"""The segments of one open log: sealed ones by size, the active one with its tail, unflushed ones.

Owned by its log, which decides; this class keeps the list and the descriptors. A sealed segment
stays open until it is flushed. A failed file call leaves the list as it was, except in
`delete_behind`, after which the whole log fails. Raises `OSError`.
"""

from __future__ import annotations

from appliance.base.model import NO_OFFSET, Offset, Position
from appliance.storage import file_io
from appliance.storage.append_plan import SegmentPart
from appliance.storage.batch_boundary import BatchBoundary, find_boundary
from appliance.storage.log_loader import LoadedLog
from appliance.storage.segment import OpenSegment, SegmentTail
from appliance.storage.segment_check import unlink_segment
from appliance.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, START_SUFFIX, offset_of_name, segment_path


class LogSegments:
    """Segments are known by their base offsets; the one with the largest is active."""

    __slots__ = ("active", "directory", "generation", "names_are_synced", "sealed", "tail", "unflushed")

    def __init__(self, directory: str, loaded: LoadedLog) -> None:
        self.directory = directory
        self.sealed: dict[Offset, int] = loaded.sealed
        """Base offset → bytes, ascending."""
        self.active: OpenSegment = loaded.active
        self.tail: SegmentTail = loaded.tail
        """Of the active segment."""
        self.unflushed: list[tuple[Offset, OpenSegment]] = loaded.unflushed
        """(end offset, sealed segment), ascending."""
        self.generation = 1
        """Goes up whenever a segment comes or goes."""
        self.names_are_synced = False
        """Whether the name of every segment is durable; set by the code that syncs the directory.
        """

    @property
    def base_offsets(self) -> list[Offset]:
        """Ascending; the last one is the active segment's."""
        return [*self.sealed, self.tail.base_offset]

    @property
    def first_base_offset(self) -> Offset:
        """The base offset of the oldest segment."""
        return next(iter(self.sealed), self.tail.base_offset)

    @property
    def sizes(self) -> list[tuple[Offset, int]]:
        """(base offset, bytes) of every segment, ascending; the last one is active."""
        return [*self.sealed.items(), (self.tail.base_offset, self.tail.size_bytes)]

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments, without indexes."""
        return sum(self.sealed.values()) + self.tail.size_bytes

    def opened(self, log_end_offset: Offset) -> list[tuple[Offset, OpenSegment]]:
        """Return (end offset, segment) of every open segment, ascending: those that may have
        unflushed bytes.
        """
        return [*self.unflushed, (log_end_offset, self.active)]

    def begins(self, offset: Offset) -> bool:
        """Return whether a segment has this base offset."""
        return offset in self.sealed or offset == self.tail.base_offset

    def base_before(self, offset: Offset) -> Offset:
        """Return the base offset of the segment that contains `offset` but does not begin with it;
        -1 below the first one.
        """
        return max((base for base in self.base_offsets if base < offset), default=NO_OFFSET)

    def find_boundary(self, base_offset: Offset, offset: Offset, start: Position) -> BatchBoundary:
        """Find `offset` in a segment, from position `start` on."""
        for segment in (self.active, *(segment for _, segment in self.unflushed)):
            if segment.base_offset == base_offset:
                size_bytes = self.sealed.get(base_offset, self.tail.size_bytes)
                return find_boundary(segment.log_fd, segment.index_fd, base_offset, size_bytes, offset, start)
        opened: list[int] = []
        try:
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX):
                opened.append(file_io.open_path(segment_path(self.directory, base_offset, suffix), file_io.READ_ONLY))
            return find_boundary(opened[0], opened[1], base_offset, self.sealed[base_offset], offset, start)
        finally:
            file_io.close_all(opened)

    # -- at the end

    def take_rolls_over(self, parts: list[SegmentPart], opened: list[OpenSegment]) -> None:
        """Add the segments that an append began, `opened`; all but the last of its parts are sealed
        now.
        """
        segments = [self.active, *opened]
        for number, part in enumerate(parts[:-1]):
            self.sealed[part.tail.base_offset] = part.tail.size_bytes
            self.unflushed.append((parts[number + 1].tail.base_offset, segments[number]))
        self.active = segments[-1]
        self.generation += 1
        self.names_are_synced = False

    def move_empty(self, base_offset: Offset, now_ms: int) -> None:
        """Replace the empty active segment by one at `base_offset`."""
        segment, old = OpenSegment.create(self.directory, base_offset), self.active
        self.active = segment
        old.close()
        unlink_segment(self.directory, old.base_offset)
        self.tail = SegmentTail(base_offset, now_ms)
        self.generation += 1
        self.names_are_synced = False

    def delete_behind(self, last_kept: int) -> None:
        """Remove the segments behind number `last_kept`, newest first, so that each step leaves a
        prefix of the log.

        That segment is closed too, because it is opened again for appending. Sealed ones before it
        stay open until they are flushed.
        """
        bases = self.base_offsets
        self.active.close()
        still_unflushed = []
        for end_offset, segment in self.unflushed:
            if last_kept >= 0 and segment.base_offset < bases[last_kept]:
                still_unflushed.append((end_offset, segment))
            else:
                segment.close()
        self.unflushed = still_unflushed
        self.generation += 1
        gone = set(bases[last_kept + 1 :])
        if last_kept < 0:  # also those that retention took out of the log and that still have their names
            gone.update(base for name in file_io.listdir(self.directory) if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
        for base_offset in sorted(gone, reverse=True):
            unlink_segment(self.directory, base_offset)
        file_io.fsync_directory(self.directory)
        if last_kept < 0:  # after the segments, because it says where a log without any begins
            for name in file_io.listdir(self.directory):
                if offset_of_name(name, START_SUFFIX) is not None:
                    file_io.unlink_if_there(f"{self.directory}/{name}")

    # -- at the start, and in between

    def insert(self, base_offset: Offset, batch: bytes) -> None:
        """Put a sealed segment of one batch, synced, where segments leave a gap."""
        segment = OpenSegment.create(self.directory, base_offset)
        try:
            file_io.write_all(segment.log_fd, (batch,), 0, len(batch))
            for fd in segment.files:
                file_io.sync_data(fd)
        finally:
            segment.close()
        file_io.fsync_directory(self.directory)
        self.sealed = dict(sorted({**self.sealed, base_offset: len(batch)}.items()))
        self.generation += 1

    def take_out(self, bases: list[Offset]) -> None:
        """Remove the oldest segments from the log.

        Unflushed ones stay open until `forget_taken_out`.
        """
        for base in bases:
            del self.sealed[base]
        self.generation += 1

    def forget_taken_out(self, written_offset: Offset) -> None:
        """Close removed segments below `written_offset`: the checkpoint has this log start offset,
        so they need no flush.
        """
        first = self.first_base_offset
        while self.unflushed and self.unflushed[0][1].base_offset < first and self.unflushed[0][0] <= written_offset:
            self.unflushed.pop(0)[1].close()

    def can_replace(self, bases: list[Offset]) -> bool:
        """Return whether these are adjacent sealed segments, all flushed."""
        sealed = list(self.sealed)
        start = sealed.index(bases[0]) if bases[0] in self.sealed else -1
        return start >= 0 and sealed[start : start + len(bases)] == bases and not any(segment.base_offset <= bases[-1] for _, segment in self.unflushed)

    def on_replaced(self, bases: list[Offset], size_bytes: int) -> None:
        """Replace these segments in the list by one of `size_bytes`."""
        self.sealed = {base: size_bytes if base == bases[0] else size for base, size in self.sealed.items() if base not in bases[1:]}
        self.generation += 1
        self.names_are_synced = False

    # -- descriptors

    def close_flushed(self, recovery_point: Offset) -> None:
        """Close sealed segments that end at or below the recovery point."""
        while self.unflushed and self.unflushed[0][0] <= recovery_point:
            self.unflushed.pop(0)[1].close()

    def close(self) -> None:
        """Close all descriptors."""
        for segment in (*(segment for _, segment in self.unflushed), self.active):
            segment.close()
        self.unflushed.clear()
