"""The log that is being moved, as its mover reads it: whole batches, up to the owner's log end.

The files belong to the log-writer of another disk, which appends and removes meanwhile. So each
batch is checked, and if a file changed, the position is looked up again (`SourceChanged`). Reads
bypass the page cache. Compaction is held back while a log is moved. One thread. Weak spot: a batch
is held in memory as a whole, however large it is.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from appliance.base.errors import MillraceError, RequestRefused, StorageFailed
from appliance.base.model import FILE_START, FIRST_OFFSET, NO_OFFSET, Offset, Position, TopicPartition
from appliance.records.batch import RECORDS_AT, BatchHeader, read_batch_header, stored_batch_problem
from appliance.storage import checkpoints, file_io
from appliance.storage.checkpoints import BrokenCheckpoint
from appliance.storage.cold_file import ACTIVE_WAYS, SEALED_WAYS, ColdFile
from appliance.storage.leader_epoch_cache import LeaderEpochCache
from appliance.storage.page_cache import PAGE_BYTES
from appliance.storage.producer_state import BrokenSnapshot, ProducerState
from appliance.storage.reading import LogReading
from appliance.storage.segment_files import LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_of_name, segment_path

PIECE_BYTES = 1 << 20


class SourceChanged(MillraceError):
    """The files differ from what was expected: align the copy with the source again."""


class SourceFailed(MillraceError):
    """The disk of the source cannot be read."""


class SourceState(NamedTuple):
    """The source as its log-writer's table describes it.

    `incarnation` changes when that log-writer restarts, and after each possible
    truncation. Everything below `log_end_offset` is complete. `is_led`: more may be appended."""

    incarnation: int
    log_start_offset: Offset
    log_end_offset: Offset
    active_base_offset: Offset
    is_led: bool = True


class SourcePiece(NamedTuple):
    """Batches of one segment, in order; valid until the next read.

    `starts_segment`: the first of them begins it.
    """

    segment_base_offset: Offset
    starts_segment: bool
    batches: list[memoryview]
    size_bytes: int


class MoveSource:
    """Reads the source from a position on. Close it when done."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._file: ColdFile | None = None
        self._base = NO_OFFSET
        self._position = FILE_START
        self._buffer = mmap.mmap(-1, PIECE_BYTES + PAGE_BYTES)

    def first_segment(self, state: SourceState) -> Offset:
        """Return the base offset of the segment that contains the log start offset."""
        bases = self._bases()
        return max((base for base in bases if base <= state.log_start_offset), default=bases[0])

    def seek(self, offset: Offset, state: SourceState) -> None:
        """Set the position to the first batch at or behind `offset`.

        Raises `SourceChanged`, `SourceFailed`.
        """
        try:
            reading = LogReading(self.directory)
            located = reading.locate(max(offset, reading.earliest), state.log_end_offset)
        except (RequestRefused, FileNotFoundError) as problem:
            raise SourceChanged(str(problem)) from problem
        except StorageFailed as failure:
            raise (SourceFailed if os.path.isdir(self.directory) else SourceChanged)(str(failure)) from failure
        self._stand(located.segment_base_offset, located.position, state)

    def read(self, state: SourceState) -> SourcePiece | None:
        """Return the next batches below the source's end, None if there are none.

        A piece without batches: an empty segment begins at the source's end. Raises
        `SourceChanged`, `SourceFailed`.
        """
        while True:
            piece = self._read(state)
            if piece.batches:
                return piece
            if self._base >= state.active_base_offset:
                return SourcePiece(self._base, True, [], 0) if self._base == state.log_end_offset and not self._position else None
            if self._position < self._size():
                raise SourceChanged(f"{self.directory} has no whole batch at byte {self._position} of segment {self._base}")
            following = [base for base in self._bases() if base > self._base]
            if not following:
                raise SourceChanged(f"{self.directory} has no segment behind {self._base}")
            self._stand(following[0], FILE_START, state)

    def _read(self, state: SourceState) -> SourcePiece:
        if self._file is None:
            raise SourceChanged(f"{self.directory} is not open")
        start = self._position // PAGE_BYTES * PAGE_BYTES
        try:
            count = self._file.read_into(memoryview(self._buffer), start)
        except OSError as error:
            raise self._failed(error) from error
        content = memoryview(self._buffer)[self._position - start : count]
        batches: list[memoryview] = []
        end = 0
        while len(content) - end >= RECORDS_AT:
            header = read_batch_header(content, end)
            if header.base_offset >= state.log_end_offset:
                break
            if end + header.size_bytes > len(content):
                if not batches and count == len(self._buffer):
                    self._grow(header)
                    return self._read(state)
                break
            problem = stored_batch_problem(content, end, len(content))
            if problem is None and header.last_offset >= state.log_end_offset:
                problem = f"it reaches to {header.last_offset}, the log ends at {state.log_end_offset}"
            if problem is not None:
                if batches:
                    break  # those before it are whole; it is met again
                raise SourceChanged(f"{self.directory} has no good batch at byte {self._position + end} of segment {self._base}: {problem}")
            batches.append(content[end : end + header.size_bytes])
            end += header.size_bytes
        starts_segment = not self._position
        self._position += end
        return SourcePiece(self._base, starts_segment, batches, end)

    def _grow(self, header: BatchHeader) -> None:
        size_bytes = -(-(header.size_bytes + PAGE_BYTES) // PAGE_BYTES) * PAGE_BYTES
        if header.size_bytes < RECORDS_AT or self._position + header.size_bytes > self._size():
            raise SourceChanged(f"{self.directory} has a batch that claims {header.size_bytes} bytes at byte {self._position} of segment {self._base}")
        self._buffer = mmap.mmap(-1, size_bytes)

    def lag_bytes(self) -> int:
        """Return about how many bytes of the source are behind the position, -1 if a file was
        removed. Raises `SourceFailed`.
        """
        try:
            behind = sum(file_io.stat(segment_path(self.directory, base, LOG_SUFFIX)).st_size for base in self._bases() if base >= self._base)
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise self._failed(error) from error
        return max(0, behind - self._position)

    def epochs(self) -> LeaderEpochCache:
        """Return the leader epochs of the source's checkpoint, at least as new as any row that was
        read before. Raises `SourceChanged`, `SourceFailed`.
        """
        cache = LeaderEpochCache(self.directory)
        try:
            if not cache.load():
                raise SourceChanged(f"the leader epochs of {self.directory} cannot be read now")
        except OSError as error:
            raise self._failed(error) from error
        return cache

    def producers(self, offset: Offset) -> ProducerState | None:
        """Return the producers of everything below `offset`, if the source has a snapshot exactly
        there. Raises `SourceFailed`.
        """
        state = ProducerState()
        try:
            state.decode(file_io.read_file(segment_path(self.directory, offset, SNAPSHOT_SUFFIX)))
        except (FileNotFoundError, BrokenSnapshot):
            return None
        except OSError as error:
            raise self._failed(error) from error
        return state

    def cleaned_offset(self, topic_partition: TopicPartition) -> Offset:
        """Return the first dirty offset in the checkpoint of the source's log directory.

        Raises `SourceFailed`.
        """
        try:
            return checkpoints.read_offsets(f"{os.path.dirname(self.directory)}/{checkpoints.CLEANED}").get(topic_partition, FIRST_OFFSET)
        except BrokenCheckpoint:
            return FIRST_OFFSET
        except OSError as error:
            raise self._failed(error) from error

    def _bases(self) -> list[Offset]:
        try:
            names = file_io.listdir(self.directory)
        except OSError as error:
            raise self._failed(error) from error
        bases = sorted(base for name in names if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
        if not bases:
            raise SourceChanged(f"{self.directory} holds no segment")
        return bases

    def _stand(self, base_offset: Offset, position: Position, state: SourceState) -> None:
        self._let_go()
        ways = SEALED_WAYS if base_offset < state.active_base_offset else ACTIVE_WAYS
        try:
            self._file = ColdFile(segment_path(self.directory, base_offset, LOG_SUFFIX), ways)
        except OSError as error:
            raise self._failed(error) from error
        self._base, self._position = base_offset, position

    def _size(self) -> int:
        try:
            return file_io.stat(segment_path(self.directory, self._base, LOG_SUFFIX)).st_size
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> MillraceError:
        if isinstance(error, FileNotFoundError):
            return SourceChanged(f"{self.directory}: a file is gone")
        return SourceFailed(str(file_io.storage_failure(f"read {self.directory}", error)))

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def close(self) -> None:
        """Close the open segment."""
        self._let_go()
