"""What every use of an open log needs: its state, look-ups of boundaries, flushes, its end.

`Log` adds what changes its records. Both parts are one object, because an append must not pay for a
call from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import StorageFailed
from appliance.base.invariants import InvariantViolation
from appliance.base.model import FILE_START, FIRST_OFFSET, Offset, Position, TopicId, TopicPartition
from appliance.storage import file_io
from appliance.storage.batch_boundary import BatchBoundary
from appliance.storage.log_config import LogConfig
from appliance.storage.log_damage import LogDamage
from appliance.storage.log_durability import BatchFlush, DuplicatedFiles, FlushRound, LogDurability
from appliance.storage.log_loader import LoadedLog
from appliance.storage.log_segments import LogSegments
from appliance.storage.producer_state import PRODUCER_EXPIRATION_MS
from appliance.storage.recovery import seal
from appliance.storage.segment_files import COMPACTED
from appliance.storage.transaction_index import TransactionIndexes
from appliance.storage.verification import Verifications

_FILES_AT_ONCE = 64


class OpenLog:
    """Offsets: `log_start_offset` inclusive; `log_end_offset` and `recovery_point` exclusive."""

    def __init__(self, directory: str, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig, clock: Clock, loaded: LoadedLog) -> None:
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.next_offset
        self.leader_epochs = loaded.leader_epochs
        self.producers = loaded.producers
        self.verifications = Verifications()
        self.truncations = 0
        """Counts truncations. A flush or cleaning run that began before one says nothing about the
        records that took the place of the removed ones."""
        self.replacements = 0
        """Counts swaps of compacted segments: afterwards another file has the name of the segment.
        """
        self.recovered_cut_bytes = loaded.cut_bytes
        """Bytes that recovery removed; for the log message."""
        self.damage = LogDamage(directory)
        """What it lacks, as far as it is on record."""
        self.lost_at_open = loaded.lost
        """What it lacks in front of its end, as its opening found."""
        self._is_marked_compacted = loaded.is_marked_compacted
        self.failed: str | None = None
        """Why the log refuses everything until it is opened again; None if it is sound."""
        self._clock = clock
        self._snapshots = loaded.snapshots
        self._transactions = TransactionIndexes(directory)
        self.aborted_end_offset = FIRST_OFFSET
        """The offset behind the newest abort marker, 0 without any: reads from there on need no
        transaction index."""
        self.producer_expiration_ms = PRODUCER_EXPIRATION_MS
        self._bytes_since_snapshot = 0
        self._segments = LogSegments(directory, loaded)
        self._durability = LogDurability(loaded.recovery_point, self._segments, self.leader_epochs, self._snapshots, self._transactions)

    def configure(self, config: LogConfig) -> None:
        """Use other configs; if they let the log be compacted, leave a mark of that in its directory.

        The name is durable before the recovery point advances, and before segments are swapped.
        Raises `StorageFailed`, `DiskFull`.
        """
        if "compact" in config.cleanup_policy and not self._is_marked_compacted:
            try:
                file_io.close(file_io.open_path(f"{self.directory}/{COMPACTED}", file_io.CREATE_EMPTY))
            except OSError as error:
                raise file_io.storage_failure(f"mark log {self.topic_partition} as compacted", error) from error
            self._is_marked_compacted = True
            self._segments.names_are_synced = False
        self.config = config

    @property
    def recovery_point(self) -> Offset:
        """Everything below it survives a power cut."""
        return self._durability.recovery_point

    @property
    def durable_offset(self) -> Offset:
        """Batches below it survive a power cut; the recovery point follows it (see `BatchFlush`)."""
        return self._durability.durable_offset

    @property
    def highest_descriptor(self) -> int:
        """The largest descriptor of the active segment.

        Near the process's limit no more logs can be opened.
        """
        return max(self._segments.active.files)

    @property
    def segment_list_generation(self) -> int:
        """Goes up whenever a segment comes or goes."""
        return self._segments.generation

    @property
    def active_base_offset(self) -> Offset:
        """The base offset of the active segment."""
        return self._segments.tail.base_offset

    @property
    def active_position(self) -> Position:
        """The end of the valid bytes in the active segment."""
        return self._segments.tail.size_bytes

    @property
    def segment_base_offsets(self) -> list[Offset]:
        """Ascending; the last one is the active segment's."""
        return self._segments.base_offsets

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments, without indexes."""
        return self._segments.size_bytes

    @property
    def segment_sizes(self) -> list[tuple[Offset, int]]:
        """(base offset, bytes) of every segment, ascending; the last one is active."""
        return self._segments.sizes

    @property
    def active_max_timestamp(self) -> int:
        """The largest timestamp in the active segment, negative if it has none."""
        return self._segments.tail.max_timestamp

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the end of what a read_committed consumer may read.

        It is not below the log start offset, even if an open transaction began there: a consumer
        that starts at the end would get an offset that the log no longer has.
        """
        return max(self.log_start_offset, self.producers.last_stable_offset(high_watermark)) if self.producers.is_undecided else high_watermark

    @property
    def end(self) -> BatchBoundary:
        """Where the next batch goes, if no segment begins with it."""
        tail = self._segments.tail
        return BatchBoundary(self.log_end_offset, tail.base_offset, tail.size_bytes)

    def begins_segment(self, offset: Offset) -> bool:
        """Return whether a segment has this base offset."""
        return self._segments.begins(offset)

    def boundary_at(self, offset: Offset, known: BatchBoundary | None = None) -> BatchBoundary:
        """Return the boundary at `offset`, which is not below the first segment.

        If the offset is inside of a batch, the boundary is the start of that batch. `known`: a
        boundary before it, if there is one. Raises `StorageFailed`.
        """
        if offset >= self.log_end_offset:
            return self.end
        if self.begins_segment(offset):
            return BatchBoundary(offset, offset, FILE_START)
        base_offset = self._segments.base_before(offset)
        if base_offset < 0:
            raise InvariantViolation(f"offset {offset} is below the first segment of {self.topic_partition}")
        start = known.position if known is not None and known.base_offset == base_offset else FILE_START
        try:
            return self._segments.find_boundary(base_offset, offset, start)
        except OSError as error:
            raise file_io.storage_failure(f"look up offset {offset} in log {self.topic_partition}", error) from error

    def _or_fail(self, action: str, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            failure = file_io.storage_failure(action, error)
            self.failed = str(failure)
            raise StorageFailed(self.failed) from error

    def flush_files(self, files_max: int = 1 << 30) -> FlushRound | None:
        """Return what must be synced so that everything appended up to now is durable; None if it
        is.

        One round at a time. Of a log with more open segments than `files_max` descriptors it has
        the oldest (at least one segment).
        """
        self._require_sound()
        try:
            return self._durability.begin_round(self.log_end_offset, files_max)
        except OSError as error:
            raise file_io.storage_failure(f"flush log {self.topic_partition}", error) from error

    def take_back(self, flush: FlushRound) -> None:
        """Return a round whose syncs were not tried: the next round includes it."""
        self._durability.take_back(flush)

    def advance_recovery_point(self, offset: Offset) -> None:
        """Everything below `offset` is durable.

        Descriptors of sealed segments below it are closed.
        """
        self._durability.advance_recovery_point(offset, self.log_end_offset)

    def plan_batch_flush(self) -> BatchFlush | None:
        """Return what must be synced so that every batch survives a power cut; None if all do."""
        self._require_sound()
        return self._durability.plan_batch_flush(self.end)

    def on_batches_flushed(self, flush: BatchFlush) -> None:
        """The files of `flush`, or the whole file system, are synced, and nothing was truncated
        since.
        """
        self._durability.on_batches_flushed(flush, self.log_end_offset)

    def flush_batches(self) -> None:
        """Make every batch durable, in the caller's thread. Raises `StorageFailed`."""
        flush = self.plan_batch_flush()
        if flush is not None:
            self._or_fail(f"flush log {self.topic_partition}", lambda: DuplicatedFiles([flush]).sync())
            self.on_batches_flushed(flush)

    def flush(self) -> None:
        """Sync everything in whole rounds, in the caller's thread.

        Raises `StorageFailed`; the log then refuses everything.
        """
        try:
            while (flush := self.flush_files(_FILES_AT_ONCE)) is not None:
                flush.sync()
                self.advance_recovery_point(flush.end_offset)
        except OSError as error:
            failure = file_io.storage_failure(f"flush log {self.topic_partition}", error)
            self.failed = str(failure)
            raise StorageFailed(self.failed) from error

    def close(self) -> None:
        """Write the last time index entry and a producer snapshot, sync everything, close.

        Afterwards `recovery_point` is the log end offset. Raises `StorageFailed`; the log is closed
        all the same.
        """
        try:
            self.write_last_entries()
            self.flush()
        finally:
            self.abandon()

    def write_last_entries(self) -> None:
        """Write what `close` writes: final time index entry, producer snapshot.

        A second call writes nothing.
        """
        self._require_sound()
        try:
            if seal(self._segments.active, self._segments.tail):
                self._segments.names_are_synced = False  # have it synced even if nothing else is due
            if self._snapshots.latest not in (None, self.log_end_offset):
                self._snapshots.write(self.log_end_offset, self.producers, self.segment_base_offsets)
        except OSError as error:
            raise file_io.storage_failure(f"close log {self.topic_partition}", error) from error

    def on_file_system_synced(self) -> None:
        """The whole file system was synced after the last write of this log: no flush round has
        anything left to do.
        """
        self._durability.on_file_system_synced(self.log_end_offset)

    def abandon(self) -> None:
        """Close the descriptors and write nothing: the end of a log that failed, or whose directory
        is offline.
        """
        self.failed = self.failed or f"log {self.topic_partition} is closed"
        self._segments.close()

    def _require_sound(self) -> None:
        if self.failed:
            raise StorageFailed(self.failed)
