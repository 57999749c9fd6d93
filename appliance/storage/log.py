"""One partition's log: append, roll, truncate, flush, close.

Owned by the log-writer of its disk, one thread. A log's memory says exactly what its files hold: plans are made on copies
(`append_plan`), files are written, and only then the copy becomes the state; when a file call fails the files are cut back, and if even that
fails the log refuses everything until it is opened (and so recovered) again. Weak spots: an append that rolls is undone as a whole, so a disk
that fills up in the middle costs the part that would have fit.

The order of steps of every action, and what a crash in the middle leaves, is in README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from appliance.base.clock import Clock
from appliance.base.errors import StorageFailed
from appliance.base.invariants import InvariantViolation
from appliance.base.model import TopicId, TopicPartition
from appliance.records.batch import LEADER_EPOCH_AT, MAGIC_AT
from appliance.storage import file_io
from appliance.storage.append_plan import AppendPlan, AppendResult, SegmentPart, plan_append, plan_roll
from appliance.storage.batch_boundary import BatchBoundary
from appliance.storage.batch_flush import BatchFlush, DuplicatedFiles
from appliance.storage.flush_round import FlushRound
from appliance.storage.log_config import LogConfig
from appliance.storage.log_durability import LogDurability
from appliance.storage.log_loader import LoadedLog, LogLoader, load_producers, producers_at, unlink_segment
from appliance.storage.log_segments import LogSegments
from appliance.storage.producer_snapshots import SNAPSHOT_INTERVAL_BYTES, snapshots_at_rolls
from appliance.storage.producer_state import PRODUCER_EXPIRATION_MS, ProducerStaging, ProducerState
from appliance.storage.recovery import Clean, Recovery, seal
from appliance.storage.removed_segments import RemovedSegments
from appliance.storage.segment import OpenSegment, SegmentTail
from appliance.storage.segment_swap import SwapBroken, apply_swap
from appliance.storage.transaction_index import TransactionIndexes
from appliance.storage.truncation import open_truncated
from appliance.storage.verification import Offer, Verifications

_FILES_AT_ONCE = 64
_NO_OFFERS: Mapping[int, Offer] = {}


class Log:
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
        """Goes up whenever something is cut off: what was under way of a flush then says nothing of what comes in its place."""
        self.replacements = 0
        """Goes up whenever compacted segments take the place of others: a file of the same name is another one then."""
        self.recovered_cut_bytes = loaded.cut_bytes
        """What recovery cut off, for the operator's eyes."""
        self.failed: str | None = None
        """Why this log refuses everything until it is opened again; None when it is sound."""
        self._clock = clock
        self._snapshots = loaded.snapshots
        self._transactions = TransactionIndexes(directory)
        self.aborted_end_offset = 0
        """Behind the newest marker in the transaction indexes, 0 without any: who reads from there on need not look into them."""
        self.producer_expiration_ms = PRODUCER_EXPIRATION_MS
        self._bytes_since_snapshot = 0
        self._segments = LogSegments(directory, loaded)
        self._durability = LogDurability(loaded.recovery_point, self._segments, self.leader_epochs, self._snapshots, self._transactions)

    @classmethod
    def open(
        cls,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        clock: Clock,
        recovery: Recovery,
        log_start_offset: int = 0,
        on_scanned: Callable[[int], None] = lambda _: None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> Log:
        """Load the log in `directory` (which exists; an empty one gets its first segment). `on_scanned` hears of the bytes that recovery reads.
        Raises `StorageFailed`, `DiskFull`."""
        try:
            loaded = LogLoader(directory, config, clock, recovery, log_start_offset, on_scanned, producer_expiration_ms).load()
        except OSError as error:
            raise file_io.storage_failure(f"open log {topic_partition} in {directory}", error) from error
        log = cls(directory, topic_partition, topic_id, config, clock, loaded)
        log.producer_expiration_ms = producer_expiration_ms
        log.aborted_end_offset = loaded.aborted_end_offset
        if not isinstance(recovery, Clean):
            log._durability.distrust_small_files(log.log_end_offset)
        return log

    @property
    def recovery_point(self) -> int:
        """Everything below it survives a power cut."""
        return self._durability.recovery_point

    @property
    def durable_offset(self) -> int:
        """Batches below it survive a power cut; the recovery point follows it (see `batch_flush`)."""
        return self._durability.durable_offset

    @property
    def highest_descriptor(self) -> int:
        """The largest of the active segment's descriptors: near the process's limit it tells that there is no room for more logs."""
        return max(self._segments.active.files)

    @property
    def segment_list_generation(self) -> int:
        """Goes up whenever a segment comes or goes."""
        return self._segments.generation

    @property
    def active_base_offset(self) -> int:
        return self._segments.tail.base_offset

    @property
    def active_position(self) -> int:
        """Valid end byte of the active segment."""
        return self._segments.tail.size_bytes

    @property
    def segment_base_offsets(self) -> list[int]:
        """Ascending; the last one is the active segment's."""
        return self._segments.base_offsets

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_sizes(self) -> list[tuple[int, int]]:
        """(base offset, bytes) of every segment, ascending; the last one is active."""
        return self._segments.sizes

    @property
    def active_max_timestamp(self) -> int:
        """The largest timestamp in the active segment, negative if it has none."""
        return self._segments.tail.max_timestamp

    def last_stable_offset(self, high_watermark: int) -> int:
        """What a read_committed consumer may read up to. Not below the log start, where an open transaction may have begun: who wants to begin at the
        end would be sent to where there is nothing."""
        return max(self.log_start_offset, self.producers.last_stable_offset(high_watermark)) if self.producers.is_undecided else high_watermark

    @property
    def end(self) -> BatchBoundary:
        """Where the next batch goes, if no segment begins with it."""
        tail = self._segments.tail
        return BatchBoundary(self.log_end_offset, tail.base_offset, tail.size_bytes)

    def begins_segment(self, offset: int) -> bool:
        return self._segments.begins(offset)

    def boundary_at(self, offset: int, known: BatchBoundary | None = None) -> BatchBoundary:
        """Where `offset` is, which is not below the first segment; the beginning of its batch if it is inside of one. `known`: a boundary before it, if there
        is one. Raises `StorageFailed`."""
        if offset >= self.log_end_offset:
            return self.end
        if self.begins_segment(offset):
            return BatchBoundary(offset, offset, 0)
        base_offset = self._segments.base_before(offset)
        if base_offset < 0:
            raise InvariantViolation(f"offset {offset} is below the first segment of {self.topic_partition}")
        start = known.position if known is not None and known.base_offset == base_offset else 0
        try:
            return self._segments.find_boundary(base_offset, offset, start)
        except OSError as error:
            raise file_io.storage_failure(f"look up offset {offset} in log {self.topic_partition}", error) from error

    def assign_leader_epoch(self, leader_epoch: int) -> None:
        """This box leads the partition under `leader_epoch` from the log end on."""
        self._assign_epochs([(leader_epoch, self.log_end_offset)])

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that were silent for too long, and verifications that nobody came back from."""
        self.producers.expire(now_ms, self.producer_expiration_ms)
        self.verifications.expire(now_ms, self.producer_expiration_ms)

    def begin_verification(self, producer_id: int, producer_epoch: int, now_ms: int) -> int:
        """A guard for a batch whose coordinator asks another box first; 0 while the producer's transaction is open here: nobody needs to be asked."""
        return 0 if self.producers.has_open_transaction(producer_id, producer_epoch) else self.verifications.begin(producer_id, producer_epoch, now_ms)

    def append_as_leader(self, batches: Sequence[memoryview], leader_epoch: int, now_ms: int, offers: Mapping[int, Offer] = _NO_OFFERS) -> list[AppendResult]:
        """Append checked batches, each a writable view of one whole batch. One result per batch, in order. `offers` say of transactional ones, by their
        number, with which guard they come.

        Raises `DiskFull` or `StorageFailed`: then nothing of this call is in the log.
        """
        if self.failed:
            raise StorageFailed(self.failed)
        if leader_epoch < 0 or leader_epoch < self.leader_epochs.latest:
            raise InvariantViolation(f"leader epoch {leader_epoch} of {self.topic_partition} went back from {self.leader_epochs.latest}")
        producers = self.producers.stage(self.verifications)
        plan = plan_append(self._segments.tail, self.log_end_offset, self._rolling_config(), batches, leader_epoch, now_ms, producers, offers)
        if plan.next_offset != plan.first_offset:
            if leader_epoch > self.leader_epochs.latest:
                self.assign_leader_epoch(leader_epoch)
            self._carry_out(plan, producers)
        return plan.results

    def append_as_follower(self, batches: Sequence[memoryview]) -> tuple[int, int]:
        """Append a leader's batches as they are; their offsets must continue this log (gaps are what compaction leaves).

        Returns (first offset, last offset), (-1, -1) for nothing. Raises `ValueError` for batches that do not fit, otherwise like
        `append_as_leader`.
        """
        self._require_sound()
        producers = self.producers.stage()
        plan = plan_append(self._segments.tail, self.log_end_offset, self._rolling_config(), batches, -1, self._clock.wall_ms(), producers)
        if not plan.results:
            return (-1, -1)
        starts = [(_leader_epoch(batch), result[0]) for batch, result in zip(batches, plan.results, strict=True)]
        epochs = [self.leader_epochs.latest, *(leader_epoch for leader_epoch, _ in starts)]
        if epochs != sorted(epochs):
            raise ValueError(f"leader epochs {epochs} of {self.topic_partition} go back")
        self._assign_epochs(starts)
        self._carry_out(plan, producers)
        return (plan.results[0][0], self.log_end_offset - 1)

    def _rolling_config(self) -> LogConfig:
        config = self.config
        return config.jittered(b"%s %d" % (str(self.topic_partition).encode(), self.active_base_offset)) if config.segment_jitter_ms else config

    def _assign_epochs(self, starts: list[tuple[int, int]]) -> None:
        self._require_sound()
        try:
            self.leader_epochs.assign_all(starts)
        except OSError as error:
            raise file_io.storage_failure(f"write the leader epochs of log {self.topic_partition}", error) from error

    def _carry_out(self, plan: AppendPlan, producers: ProducerStaging) -> None:
        """Write a plan's bytes and index entries, then take its state over. On failure: as if it had not been."""
        created: list[int] = []
        opened: list[OpenSegment] = []
        segment = self._segments.active
        try:
            if plan.first_producer_offset >= 0 and self._snapshots.latest is None:
                self._snapshots.write(self.log_end_offset, self.producers, ())
            for part in plan.parts:
                if part.starts_segment:
                    created.append(part.tail.base_offset)
                    segment = OpenSegment.create(self.directory, part.tail.base_offset)
                    opened.append(segment)
                _write_part(segment, part)
            for transaction in producers.aborted:
                self._transactions.append(plan.base_offset_of(transaction.last_offset), (transaction,))
        except OSError as error:
            self._undo(created, opened, bool(producers.aborted))
            if self.failed:
                raise StorageFailed(self.failed) from error
            raise file_io.storage_failure(f"append to log {self.topic_partition} at offset {self.log_end_offset}", error) from error
        has_producers = self._snapshots.latest is not None
        rolled = snapshots_at_rolls(self.producers, plan.parts) if opened and has_producers else []
        if opened:
            self._segments.take_rolls_over(plan.parts, opened)
        self._segments.tail = plan.parts[-1].tail
        self.log_end_offset = plan.next_offset
        if plan.first_producer_offset >= 0:
            self.producers.apply(producers)
            if producers.aborted:
                self.aborted_end_offset = producers.aborted[-1].last_offset + 1
        if has_producers:
            self._maybe_snapshot(plan, rolled)

    def _undo(self, created: list[int], opened: list[OpenSegment], has_aborted: bool) -> None:
        """Remove new segments, newest first, then what was written behind the old end."""
        try:
            for segment in opened:
                segment.close()
            for base_offset in reversed(created):
                unlink_segment(self.directory, base_offset)
            self._segments.active.cut_to(self._segments.tail)
            if has_aborted:
                self._transactions.cut(self.active_base_offset, self.log_end_offset)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            self.failed = f"log {self.topic_partition} could not be cut back to offset {self.log_end_offset}: {reason}"

    def _maybe_snapshot(self, plan: AppendPlan, rolled: list[tuple[int, bytes]]) -> None:
        """Keep short what a restart must replay. The append has succeeded: a failure here is tried again at the next one."""
        self._bytes_since_snapshot += sum(part.size_bytes for part in plan.parts)
        try:
            if rolled:
                self._snapshots.write_rolled(rolled, self.segment_base_offsets)
                self._bytes_since_snapshot = plan.parts[-1].size_bytes
            if self._bytes_since_snapshot > SNAPSHOT_INTERVAL_BYTES:
                self._snapshots.write(self.log_end_offset, self.producers, self.segment_base_offsets)
                self._bytes_since_snapshot = 0
        except OSError:
            return

    def roll(self) -> None:
        """Seal the active segment and begin an empty one at the log end; nothing happens if it is empty. Raises like `append_as_leader`."""
        self._require_sound()
        if self.active_position:
            self._carry_out(plan_roll(self._segments.tail, self.log_end_offset, self._clock.wall_ms()), self.producers.stage())

    def begin_segment(self, base_offset: int) -> None:
        """Seal the active segment and begin an empty one at `base_offset`, at the log end or behind it: a copy's segments are those of its source, and
        compaction leaves gaps. An empty active segment begins there instead. Raises like `append_as_leader`."""
        self._require_sound()
        if base_offset < self.log_end_offset:
            raise ValueError(f"a segment of {self.topic_partition} cannot begin at {base_offset}, the log ends at {self.log_end_offset}")
        if self.active_position:
            self._carry_out(plan_roll(self._segments.tail, base_offset, self._clock.wall_ms()), self.producers.stage())
        elif base_offset != self.active_base_offset:
            now_ms = self._clock.wall_ms()
            self._or_fail(f"begin a segment of log {self.topic_partition} at {base_offset}", lambda: self._segments.move_empty(base_offset, now_ms))
            self.log_end_offset = base_offset
            if not self._segments.sealed:
                self.log_start_offset = max(self.log_start_offset, base_offset)

    def snapshot_producers(self) -> None:
        """Let a snapshot tell of the producers at the log end, if there ever was one. Raises `StorageFailed`, and nothing has changed."""
        self._require_sound()
        try:
            if self._snapshots.latest not in (None, self.log_end_offset):
                self._snapshots.write(self.log_end_offset, self.producers, self.segment_base_offsets)
        except OSError as error:
            raise file_io.storage_failure(f"write the producers of log {self.topic_partition}", error) from error

    def take_over(self, epochs: Iterable[tuple[int, int]], producers: ProducerState | None) -> None:
        """A copy that ends where its source does: leader epochs and producers are the source's, of batches too that retention took. None: as the batches
        say. Raises `StorageFailed`."""
        self._require_sound()
        try:
            self.leader_epochs.take_over(epochs)
            if producers is not None:
                self._snapshots.write(self.log_end_offset, producers, self.segment_base_offsets)
                self.producers = producers
        except OSError as error:
            raise file_io.storage_failure(f"write leader epochs and producers of log {self.topic_partition}", error) from error

    def advance_log_start_offset(self, offset: int) -> RemovedSegments | None:
        """Let the log begin at `offset` (never above the high watermark, which the caller knows), in memory.

        Segments that lie wholly below it are no longer part of the log; their files are the caller's to remove, after the new start was
        written down. Until `forget_removed` they count as unflushed all the same: if the power goes before it was written down they are back, and a
        torn one would end the log before what was flushed behind it. None: there are none. Raises `StorageFailed` and has then changed nothing.
        """
        self._require_sound()
        bases = self.segment_base_offsets
        gone = [base for base, end in pairwise(bases) if end <= offset]
        try:
            if gone:
                self._snapshots.outlive(bases[len(gone)], lambda base: producers_at(self.directory, bases, base, self._snapshots))
            removed = RemovedSegments.of(self.directory, gone, self._segments.sealed) if gone else None
        except OSError as error:
            raise file_io.storage_failure(f"let log {self.topic_partition} begin at offset {offset}", error) from error
        self.log_start_offset = max(self.log_start_offset, offset)
        if removed is not None:
            self._segments.take_out(gone)
            removed.names += self._snapshots.forget_below(self._segments.first_base_offset)
        return removed

    def forget_removed(self, written_offset: int) -> None:
        """That the log begins there is written down: what was not flushed of segments that went below it need not be."""
        self._segments.forget_taken_out(written_offset)

    def truncate_epochs_from_start(self) -> None:
        """Forget leader epochs that ended before the log start offset; once that is written down."""
        try:
            self.leader_epochs.truncate_from_start(self.log_start_offset)
        except OSError as error:
            raise file_io.storage_failure(f"write the leader epochs of log {self.topic_partition}", error) from error

    def truncate_to(self, offset: int) -> int:
        """Remove everything at and behind `offset`, with the whole batch that holds it, and epochs that begin behind; the new log end offset (≤ `offset`).

        A failure leaves the log refusing everything until it is opened again.
        """
        self._require_sound()
        if offset >= self.log_end_offset:
            # Nothing to cut; but an epoch that began here and brought no batch may not be the leader's.
            self._or_fail(f"write the leader epochs of log {self.topic_partition}", lambda: self.leader_epochs.truncate_from_end(self.log_end_offset))
            return self.log_end_offset
        if offset < self._segments.first_base_offset:
            self.truncate_fully_and_start_at(offset)
            return self.log_end_offset
        self._or_fail(f"truncate log {self.topic_partition} to offset {offset}", lambda: self._truncate_segments(offset))
        return self.log_end_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Throw everything away and go on at `offset` (a follower whose leader no longer has what it has)."""
        self._require_sound()
        self._or_fail(f"restart log {self.topic_partition} at offset {offset}", lambda: self._start_at(offset))

    def can_replace(self, bases: list[int]) -> bool:
        """Whether these are neighbouring sealed segments, all flushed: what a cleaning run was given may have been deleted or cut since."""
        return self._segments.can_replace(bases)

    def replace_segments(self, bases: list[int], size_bytes: int) -> list[str]:
        """Let the `.cleaned` files of `bases[0]` (whole and synced, `size_bytes` of log) take the place of these segments, for which `can_replace` holds.
        The paths to unlink when there is time; the directory is to be synced before. Raises `DiskFull` (nothing happened) or `StorageFailed`."""
        self._require_sound()
        try:
            leftovers = apply_swap(self.directory, bases)
        except OSError as error:
            failure = file_io.storage_failure(f"replace segments of log {self.topic_partition}", error)
            if isinstance(error, SwapBroken):
                self.failed = str(failure)
                raise StorageFailed(self.failed) from error
            raise failure from error
        self.replacements += 1
        self._segments.on_replaced(bases, size_bytes)
        return leftovers + self._snapshots.let_go(bases[1:])

    def _truncate_segments(self, offset: int) -> None:
        keep = [base for base in self.segment_base_offsets if base <= offset]
        segments = self._segments
        segments.delete_behind(len(keep) - 1)
        segments.active, recovered = open_truncated(self.directory, keep[-1], offset, self.config, self._clock.wall_ms())
        self._set_end({base: segments.sealed[base] for base in keep[:-1]}, recovered.tail, recovered.next_offset)
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        self._reload_producers()

    def _start_at(self, offset: int) -> None:
        self._segments.delete_behind(-1)
        self._segments.active = OpenSegment.create(self.directory, offset)
        self._set_end({}, SegmentTail(offset, self._clock.wall_ms()), offset)
        self.log_start_offset = offset
        self.leader_epochs.clear()
        self.producers.clear()
        self.aborted_end_offset = 0
        self._snapshots.remove_all()
        file_io.fsync_directory(self.directory)  # a snapshot that came back would tell of producers that wrote elsewhere

    def _set_end(self, sealed: dict[int, int], tail: SegmentTail, log_end_offset: int) -> None:
        self._segments.sealed, self._segments.tail, self.log_end_offset = sealed, tail, log_end_offset
        self.truncations += 1
        self.log_start_offset = min(self.log_start_offset, log_end_offset)  # the batch that held it went whole
        self._durability.cut_to(log_end_offset)

    def _reload_producers(self) -> None:
        names, bases = file_io.listdir(self.directory), self.segment_base_offsets
        now_ms, expiration_ms = self._clock.wall_ms(), self.producer_expiration_ms
        before = self.producers
        self.producers, self._snapshots = load_producers(self.directory, names, bases, self.log_end_offset, now_ms, expiration_ms=expiration_ms)
        self.producers.remember_kept(before, self.log_end_offset)
        self._durability.use_snapshots(self._snapshots)
        self.aborted_end_offset = min(self.aborted_end_offset, self.log_end_offset)

    def _or_fail(self, action: str, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            failure = file_io.storage_failure(action, error)
            self.failed = str(failure)
            raise StorageFailed(self.failed) from error

    def flush_files(self, files_max: int = 1 << 30) -> FlushRound | None:
        """What must be synced so that everything appended up to now is durable; None when it is. One round at a time.

        A log with more open segments than `files_max` descriptors gives the oldest (at least one segment).
        """
        self._require_sound()
        try:
            return self._durability.begin_round(self.log_end_offset, files_max)
        except OSError as error:
            raise file_io.storage_failure(f"flush log {self.topic_partition}", error) from error

    def take_back(self, flush: FlushRound) -> None:
        """A round that was not synced (and of which no sync has failed): the next one does it all."""
        self._durability.take_back(flush)

    def advance_recovery_point(self, offset: int) -> None:
        """Everything below `offset` is durable. Descriptors of sealed segments below it are closed."""
        self._durability.advance_recovery_point(offset, self.log_end_offset)

    def plan_batch_flush(self) -> BatchFlush | None:
        """What must be synced so that every batch survives a power cut; None when all do."""
        self._require_sound()
        return self._durability.plan_batch_flush(self.end)

    def on_batches_flushed(self, flush: BatchFlush) -> None:
        """Its files, or the whole file system, are synced; nothing was truncated meanwhile."""
        self._durability.on_batches_flushed(flush, self.log_end_offset)

    def flush_batches(self) -> None:
        """Let every batch be durable, in the caller's thread. Raises `StorageFailed`."""
        flush = self.plan_batch_flush()
        if flush is not None:
            self._or_fail(f"flush log {self.topic_partition}", lambda: DuplicatedFiles([flush]).sync())
            self.on_batches_flushed(flush)

    def flush(self) -> None:
        """Whole rounds at once, in the caller's thread."""
        try:
            while (flush := self.flush_files(_FILES_AT_ONCE)) is not None:
                flush.sync()
                self.advance_recovery_point(flush.end_offset)
        except OSError as error:
            failure = file_io.storage_failure(f"flush log {self.topic_partition}", error)
            self.failed = str(failure)
            raise StorageFailed(self.failed) from error

    def close(self) -> None:
        """Final time index entry, producer snapshot, everything durable; `recovery_point` is the log end afterwards."""
        try:
            self.write_last_entries()
            self.flush()
        finally:
            self.abandon()

    def write_last_entries(self) -> None:
        """What `close` writes: final time index entry, producer snapshot. Doing it again writes nothing."""
        self._require_sound()
        try:
            if seal(self._segments.active, self._segments.tail):
                self._segments.names_are_synced = False  # have it synced even if nothing else is due
            if self._snapshots.latest not in (None, self.log_end_offset):
                self._snapshots.write(self.log_end_offset, self.producers, self.segment_base_offsets)
        except OSError as error:
            raise file_io.storage_failure(f"close log {self.topic_partition}", error) from error

    def on_file_system_synced(self) -> None:
        """The whole file system was synced after the last write of this log: no flush round has anything left to do."""
        self._durability.on_file_system_synced(self.log_end_offset)

    def abandon(self) -> None:
        """Close the descriptors, write nothing: what a log that failed, or whose directory goes offline, can still do."""
        self.failed = self.failed or f"log {self.topic_partition} is closed"
        self._segments.close()

    def _require_sound(self) -> None:
        if self.failed:
            raise StorageFailed(self.failed)


def _leader_epoch(batch: memoryview) -> int:
    return int.from_bytes(batch[LEADER_EPOCH_AT:MAGIC_AT], "big", signed=True)


def _write_part(segment: OpenSegment, part: SegmentPart) -> None:
    """Bytes first: an index entry never points past the valid end."""
    if part.size_bytes:
        file_io.write_all(segment.log_fd, part.buffers, part.position, part.size_bytes)
    if part.index_entries:
        file_io.write_all(segment.index_fd, (part.index_entries,), part.index_position, len(part.index_entries))
    if part.time_entries:
        file_io.write_all(segment.time_index_fd, (part.time_entries,), part.time_position, len(part.time_entries))
