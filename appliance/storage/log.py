"""One partition's log: append, roll, truncate, flush, close.

Owned by the log-writer of its disk, one thread. A log's memory says exactly what its files hold.
Plans are made on copies (`append_plan`), files are written, and only then the copy becomes the
state. If a file call fails, the files are cut back to the old state; if that fails too, the log
refuses everything until it is opened, and thereby recovered, again. Weak spot: an append that rolls
is undone as a whole, so on a disk that fills up in the middle the part that would have fit is lost.

The steps of each action, what a crash leaves, and what repairs it. *Killed* means that the process
dies and the page cache stays (`SameBoot`). *Power cut* means that what was not synced may be old,
new or torn (`Unclean`).

Append:

* Steps: leader epochs if new → batch bytes (one `pwritev`) → offset index → time index → memory. If
  a file call fails: new segments closed and unlinked → log truncated → indexes truncated. If that
  fails, too, the log refuses everything until it is opened again.
* Crash: part of a batch, or whole batches that were never acknowledged, or bytes without index
  entries; after a power cut any of these, in any order.
* Repair: open scans behind the known position, or from the recovery point. Whole valid batches
  stay; the first bad one and all behind it are truncated; index entries are added.
* The first batch with a producer id: an empty snapshot first; the next open removes a superfluous
  one.

Roll (inside an append):

* Steps: rest of the old segment's bytes and entries, with its final time index entry → new `.log`,
  `.index`, `.timeindex` → their bytes.
* Crash: an empty last segment, or only some of its files; the old segment without its final entry.
* Repair: open creates missing indexes, and the empty segment is the active one. A scan that passes
  from one segment to the next writes the final entry. A hole between two segments (power cut) ends
  the log there; later segments are deleted, newest first.

Truncate to an offset:

* Steps: later segments unlinked, newest first, `.log` before its indexes → directory synced → log
  truncated and synced → indexes truncated → epochs (also if nothing is truncated) → producers and
  transaction indexes → by the owner, before anything is appended: no checkpoint has a line above
  the new end (`CheckpointWriter.cap`). The result of a flush in flight is ignored
  (`Log.truncations`).
* After a crash open removes what is behind the end; the follower truncates again.

Start over at an offset:

* Steps: all segments unlinked → directory synced → new segment → epochs cleared → snapshots removed
  → directory synced. After a crash open creates a segment at the log start offset; the follower
  starts over again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import RequestRefused, StorageFailed
from appliance.base.invariants import InvariantViolation
from appliance.base.model import FIRST_OFFSET, NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset, ProducerId, TopicId, TopicPartition
from appliance.records.batch import LEADER_EPOCH_AT, LOG_OVERHEAD, MAGIC_AT
from appliance.records.retained_batch import gap_batch
from appliance.storage import file_io
from appliance.storage.append_plan import AppendPlan, AppendResult, RefusedBatch, SegmentPart, plan_append, plan_roll
from appliance.storage.log_config import LogConfig
from appliance.storage.log_damage import LostRange
from appliance.storage.log_loader import LogLoader, open_truncated
from appliance.storage.open_log import OpenLog
from appliance.storage.producer_loading import load_producers, producers_at
from appliance.storage.producer_snapshots import SNAPSHOT_INTERVAL_BYTES, snapshots_at_rolls
from appliance.storage.producer_state import PRODUCER_EXPIRATION_MS, ProducerStaging, ProducerState
from appliance.storage.recovery import Clean, Recovery
from appliance.storage.removed_segments import RemovedSegments
from appliance.storage.segment import OpenSegment, SegmentTail
from appliance.storage.segment_check import unlink_segment
from appliance.storage.segment_swap import SwapBroken, apply_swap
from appliance.storage.verification import Offer

BASE_OFFSET_AND_EPOCH = Struct(">qii")
"""Base offset, batch length, leader epoch: no checksum covers them."""
_GAP_MAX = 1 << 30
"""Offsets of one batch without records; its last offset must fit an index entry of its segment."""
_NO_OFFERS: Mapping[int, Offer] = {}
TIMED_SEGMENTS_MAX = 10_000
"""With so many segments a log begins new ones by size alone: a client that moves the timestamp by
`segment.ms` with each batch would get one for each."""
_NEVER_MS = 1 << 62


class Log(OpenLog):
    """A log that is appended to, truncated and shortened at its start."""

    @classmethod
    def open(
        cls,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        clock: Clock,
        recovery: Recovery,
        log_start_offset: Offset = FIRST_OFFSET,
        on_scanned: Callable[[int], None] = lambda _: None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> Log:
        """Open and recover the log in `directory`, which exists; an empty one gets its first
        segment.

        `on_scanned` is called with the bytes that recovery reads. Raises `StorageFailed`,
        `DiskFull`.
        """
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

    def assign_leader_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Start `leader_epoch` at the log end, because this box leads the partition under it.

        Raises `StorageFailed`, `DiskFull`.
        """
        self._assign_epochs([(leader_epoch, self.log_end_offset)])

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that wrote nothing for `producer_expiration_ms`, and guards that no
        batch has used.
        """
        self.producers.expire(now_ms, self.producer_expiration_ms)
        self.verifications.expire(now_ms, self.producer_expiration_ms)

    def begin_verification(self, producer_id: ProducerId, producer_epoch: int, now_ms: int) -> int:
        """Return a guard for a batch that its coordinator has to confirm; 0 if the producer's
        transaction is open here already, and needs no confirmation."""
        return 0 if self.producers.has_open_transaction(producer_id, producer_epoch) else self.verifications.begin(producer_id, producer_epoch, now_ms)

    def append_as_leader(
        self, batches: Sequence[memoryview], leader_epoch: LeaderEpoch, now_ms: int, offers: Mapping[int, Offer] = _NO_OFFERS
    ) -> list[AppendResult]:
        """Append checked batches, each a writable view of one whole batch.

        `offers`: by index in `batches`, the guards of transactional ones. Returns one result per
        batch, in order. Raises `DiskFull` or `StorageFailed`: then the log has nothing of this
        call.
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

    def fill_gaps(self, leader_epoch: LeaderEpoch, now_ms: int) -> None:
        """Put batches without records in place of the open ranges of `damage`, also at the log end, so
        that their offsets are never given to other records. Each begins a segment.

        Raises like `append_as_leader`, and RequestRefused if segments are too small for a batch.
        """
        self._require_sound()
        for lost in self.damage.open:
            first = max(lost.first, self._segments.first_base_offset)
            end = min(lost.until, self.log_end_offset)
            if first < end and not self.begins_segment(first):
                self._or_fail(f"fill a gap of log {self.topic_partition} at {first}", lambda first=first, end=end: self._fill(first, end))  # type: ignore[misc]
        until = self.damage.open_until
        if self.log_end_offset < until:
            self.roll()
        while self.log_end_offset < until:
            batch = gap_batch(min(until - self.log_end_offset, _GAP_MAX))
            (result,) = self.append_as_leader([memoryview(bytearray(batch))], leader_epoch, now_ms)
            if isinstance(result, RefusedBatch):
                raise RequestRefused(result.error_code, f"segment.bytes of {self.topic_partition} is too small for a batch; raise it")
        self.damage.settle()

    def _fill(self, first: Offset, end: Offset) -> None:
        """Under the leader epoch of the batch before it, because epochs never go back in a log."""
        leader_epoch = self.leader_epochs.epoch_at(first)
        while first < end:
            next_offset = min(end, first + _GAP_MAX)
            batch = bytearray(gap_batch(next_offset - first))
            BASE_OFFSET_AND_EPOCH.pack_into(batch, 0, first, len(batch) - LOG_OVERHEAD, leader_epoch)
            self._segments.insert(first, bytes(batch))
            first = Offset(next_offset)

    @property
    def lost_beginning(self) -> LostRange | None:
        """The open range of `damage` if it is the only one, and lies before the first segment."""
        if not self.damage.ranges:
            return None
        lost, first = self.damage.open, self._segments.first_base_offset
        return lost[0] if len(lost) == 1 and lost[0].until <= first < self.log_end_offset else None

    def cut_to_damage(self) -> bool:
        """Remove what lies behind the first open range of `damage`, because a leader has all of it.

        Return whether there was anything to remove. The range stays on record until the caller
        calls `damage.forget_open`. Raises `StorageFailed`.
        """
        lost = self.damage.open[:1]
        if not lost or lost[0].first >= self.log_end_offset:
            return False
        if lost[0].first < self._segments.first_base_offset:
            self.truncate_fully_and_start_at(lost[0].first)
        else:
            self.truncate_to(lost[0].first)
        return True

    def append_as_follower(self, batches: Sequence[memoryview]) -> tuple[Offset, Offset]:
        """Append a leader's batches unchanged. Their offsets must continue this log; compaction
        leaves gaps between them.

        Returns (first offset, last offset), or (-1, -1) for no batch. Raises `ValueError` for
        batches that do not fit, otherwise like `append_as_leader`.
        """
        self._require_sound()
        producers = self.producers.stage()
        plan = plan_append(self._segments.tail, self.log_end_offset, self._rolling_config(), batches, NO_LEADER_EPOCH, self._clock.wall_ms(), producers)
        if not plan.results:
            return (NO_OFFSET, NO_OFFSET)
        # A follower's batches are never refused, so each result begins with an offset.
        starts: list[tuple[LeaderEpoch, Any]] = [(_leader_epoch(batch), result[0]) for batch, result in zip(batches, plan.results, strict=True)]
        epochs = [self.leader_epochs.latest, *(leader_epoch for leader_epoch, _ in starts)]
        if epochs != sorted(epochs):
            raise ValueError(f"leader epochs {epochs} of {self.topic_partition} go back")
        self._assign_epochs(starts)
        self._carry_out(plan, producers)
        return (plan.results[0][0], self.log_end_offset - 1)  # type: ignore[return-value]

    def _rolling_config(self) -> LogConfig:
        config = self.config
        if len(self._segments.sealed) >= TIMED_SEGMENTS_MAX:
            return config._replace(segment_ms=_NEVER_MS)
        return config.jittered(b"%s %d" % (str(self.topic_partition).encode(), self.active_base_offset)) if config.segment_jitter_ms else config

    def _assign_epochs(self, starts: list[tuple[LeaderEpoch, Offset]]) -> None:
        self._require_sound()
        try:
            self.leader_epochs.assign_all(starts)
        except OSError as error:
            raise file_io.storage_failure(f"write the leader epochs of log {self.topic_partition}", error) from error

    def _carry_out(self, plan: AppendPlan, producers: ProducerStaging) -> None:
        """Write a plan's bytes and index entries, then apply its state.

        Raises `DiskFull` or `StorageFailed`, and the log is as before. All calls that can fail come
        before the first change in memory, so undoing concerns files only.
        """
        created: list[Offset] = []
        opened: list[OpenSegment] = []
        segment = self._segments.active
        try:
            if plan.first_producer_offset >= 0 and self._snapshots.latest is None:
                # Before the first batch with a producer id: without any snapshot a start looks for none.
                self._snapshots.write(self.log_end_offset, self.producers, ())
            for part in plan.parts:
                if part.starts_segment:
                    created.append(part.tail.base_offset)  # before the call: it can fail with one file created
                    segment = OpenSegment.create(self.directory, part.tail.base_offset)
                    opened.append(segment)
                _write_part(segment, part)
            # After the markers' bytes: an entry without its marker would call an open transaction aborted.
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

    def _undo(self, created: list[Offset], opened: list[OpenSegment], has_aborted: bool) -> None:
        """Remove new segments, newest first, then what was written behind the old end.

        Newest first, so that a crash in between leaves a log without a hole. If a call fails,
        memory and files disagree, and the log refuses everything until it is recovered.
        """
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

    def _maybe_snapshot(self, plan: AppendPlan, rolled: list[tuple[Offset, bytes]]) -> None:
        """Write a producer snapshot if one is due, so that a restart replays little. The append has
        succeeded already: after a failure the next append tries again."""
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
        """Seal the active segment and start an empty one at the log end, unless the active one is
        empty. Raises like `append_as_leader`.
        """
        self._require_sound()
        if self.active_position:
            self._carry_out(plan_roll(self._segments.tail, self.log_end_offset, self._clock.wall_ms()), self.producers.stage())

    def begin_segment(self, base_offset: Offset) -> None:
        """Seal the active segment and start an empty one at `base_offset`, at or behind the log
        end.

        A copy has the segments of its source, and compaction leaves gaps between them. An empty
        active segment is moved there instead. Raises like `append_as_leader`.
        """
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
        """Write a snapshot at the log end, if the log has had producers.

        Raises `StorageFailed`, and nothing has changed.
        """
        self._require_sound()
        try:
            if self._snapshots.latest not in (None, self.log_end_offset):
                self._snapshots.write(self.log_end_offset, self.producers, self.segment_base_offsets)
        except OSError as error:
            raise file_io.storage_failure(f"write the producers of log {self.topic_partition}", error) from error

    def take_over(self, epochs: Iterable[tuple[LeaderEpoch, Offset]], producers: ProducerState | None) -> None:
        """Give a copy that ends where its source does the source's leader epochs and producers:
        they may come from batches that retention has removed. `producers` None: keep what the
        batches say. Raises `StorageFailed`.
        """
        self._require_sound()
        try:
            self.leader_epochs.take_over(epochs)
            if producers is not None:
                self._snapshots.write(self.log_end_offset, producers, self.segment_base_offsets)
                self.producers = producers
        except OSError as error:
            raise file_io.storage_failure(f"write leader epochs and producers of log {self.topic_partition}", error) from error

    def advance_log_start_offset(self, offset: Offset) -> RemovedSegments | None:
        """Raise the log start offset in memory to `offset`, which is not above the high watermark.

        Returns the segments wholly below it, None if there are none. They are no longer part of the
        log; the caller removes their files after the checkpoint has the new start. Until
        `forget_removed` they still count as unflushed: if the power fails before the checkpoint is
        written they are back, and a torn one would end the log before what was flushed behind it.
        Raises `StorageFailed`, and nothing has changed.
        """
        self._require_sound()
        bases = self.segment_base_offsets
        gone = [base for base, end in pairwise(bases) if end <= offset]
        try:
            if gone:
                self._snapshots.outlive(bases[len(gone)], lambda base: producers_at(self.directory, bases, base, self._snapshots))
            removed = RemovedSegments.of(self.directory, gone, bases[len(gone)], self._segments.sealed) if gone else None
        except OSError as error:
            raise file_io.storage_failure(f"let log {self.topic_partition} begin at offset {offset}", error) from error
        self.log_start_offset = max(self.log_start_offset, offset)
        if removed is not None:
            self._segments.take_out(gone)
            removed.names += self._snapshots.forget_below(self._segments.first_base_offset)
        return removed

    def forget_removed(self, written_offset: Offset) -> None:
        """The checkpoint has this log start offset: removed segments below it need no flush any
        more.
        """
        self._segments.forget_taken_out(written_offset)

    def truncate_epochs_from_start(self) -> None:
        """Forget leader epochs that ended before the log start offset, once the checkpoint has it."""
        try:
            self.leader_epochs.truncate_from_start(self.log_start_offset)
        except OSError as error:
            raise file_io.storage_failure(f"write the leader epochs of log {self.topic_partition}", error) from error

    def truncate_to(self, offset: Offset) -> int:
        """Remove everything from `offset` on, with the whole batch that holds it, and the leader
        epochs that start there; return the new log end offset (≤ `offset`).

        After a failure the log refuses everything until it is opened again.
        """
        self._require_sound()
        if offset >= self.log_end_offset:
            # No batch to remove; but an epoch that started here without a batch may not be the leader's.
            self._or_fail(f"write the leader epochs of log {self.topic_partition}", lambda: self.leader_epochs.truncate_from_end(self.log_end_offset))
            return self.log_end_offset
        if offset < self._segments.first_base_offset:
            self.truncate_fully_and_start_at(offset)
            return self.log_end_offset
        self._or_fail(f"truncate log {self.topic_partition} to offset {offset}", lambda: self._truncate_segments(offset))
        return self.log_end_offset

    def truncate_fully_and_start_at(self, offset: Offset) -> None:
        """Remove everything and continue at `offset`: the leader's log starts behind this one's
        end.
        """
        self._require_sound()
        self._or_fail(f"restart log {self.topic_partition} at offset {offset}", lambda: self._start_at(offset))

    def can_replace(self, bases: list[Offset]) -> bool:
        """Whether these are adjacent sealed segments, all flushed.

        Since a cleaning run started, retention or a truncation may have removed some.
        """
        return self._segments.can_replace(bases)

    def replace_segments(self, bases: list[Offset], size_bytes: int) -> list[str]:
        """Replace these segments, for which `can_replace` holds, with the `.cleaned` files of
        `bases[0]`, which are whole and synced and have `size_bytes` of log.

        Returns the paths to unlink later, after a sync of the directory. Raises `DiskFull` (nothing
        has changed) or `StorageFailed`.
        """
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

    def _truncate_segments(self, offset: Offset) -> None:
        keep = [base for base in self.segment_base_offsets if base <= offset]
        segments = self._segments
        segments.delete_behind(len(keep) - 1)
        segments.active, recovered = open_truncated(self.directory, keep[-1], offset, self.config, self._clock.wall_ms())
        self._set_end({base: segments.sealed[base] for base in keep[:-1]}, recovered.tail, recovered.next_offset)
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        self._reload_producers()

    def _start_at(self, offset: Offset) -> None:
        self._segments.delete_behind(-1)
        self._segments.active = OpenSegment.create(self.directory, offset)
        self._set_end({}, SegmentTail(offset, self._clock.wall_ms()), offset)
        self.log_start_offset = offset
        self.leader_epochs.clear()
        self.producers.clear()
        self.aborted_end_offset = FIRST_OFFSET
        self._snapshots.remove_all()
        file_io.fsync_directory(self.directory)  # after a power cut no snapshot of the old log may be back

    def _set_end(self, sealed: dict[Offset, int], tail: SegmentTail, log_end_offset: Offset) -> None:
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


def _leader_epoch(batch: memoryview) -> LeaderEpoch:
    return int.from_bytes(batch[LEADER_EPOCH_AT:MAGIC_AT], "big", signed=True)  # type: ignore[return-value]


def _write_part(segment: OpenSegment, part: SegmentPart) -> None:
    """Write the batches before the index entries: an entry must never point past the valid end."""
    if part.size_bytes:
        file_io.write_all(segment.log_fd, part.buffers, part.position, part.size_bytes)
    if part.index_entries:
        file_io.write_all(segment.index_fd, (part.index_entries,), part.index_position, len(part.index_entries))
    if part.time_entries:
        file_io.write_all(segment.time_index_fd, (part.time_entries,), part.time_position, len(part.time_entries))
