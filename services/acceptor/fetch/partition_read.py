"""The read of one partition for one fetch: a state machine that returns a result or asks a log-reader.

`PartitionRead.step` returns the partition's result: an error, nothing, or the range of bytes with its
batches. If it needs an answer of the disk's log-reader first, it asks and returns None; the fetch is evaluated
again when its last question was answered, and `step` continues with what is known then.

A consumer reads up to the high watermark, a follower up to the log end. The fast path asks nothing: the fetch
offset is a cursor of the partition (a client that read to the end returns exactly there) and its segment is
open. Otherwise the log-reader finds the position (LOOKUP) and opens the segment (OPEN); the acceptor never
opens, seeks or reads a log file. Only what is in the page cache is sent from the file; the rest the log-reader
reads into its memory (`services/acceptor/fetch/cold_reads.py`), one partition of a fetch at a time.

For a read_committed consumer, the log-reader also finds the position of the last stable offset while a
transaction is open, and the aborted transactions if an abort marker is at or above the fetch offset (the
partition table has the newest one). Topics without transactions need neither. Both answers are kept with the
replica: an older last stable offset stays true, and aborted transactions do until the next abort.

Owned by one acceptor. Weak spots: in a backfill of a topic with aborted transactions each fetch asks one
question; of several in-sync followers in the rack of a consumer, the first one in the assignment is preferred.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import LeaderEpoch, Offset, Position, ProducerId
from appliance.cluster.lease_gate import LeaseGate
from appliance.cluster.metadata_cache import Bound, KnownAborted, LocalReplica, MetadataCache
from appliance.cluster.metadata_image import MetadataImage
from appliance.ipc.log_reader_messages import ABORTED, EPOCH_END, LOOKUP, OPEN, Answer, Span, read_aborted
from appliance.ipc.log_reader_proxy import QUESTIONS_AHEAD_MAX, LogReaderProxy
from appliance.protocol.fetch import (
    MAGIC_2_SINCE,
    READ_COMMITTED,
    TOPIC_IDS_SINCE,
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResult,
)
from appliance.shm.partition_table import ROLE_LEADER, Row, TornRow
from appliance.storage.leader_epoch_cache import is_diverging
from services.acceptor.fetch.cold_reads import GATHERED_BYTES_MAX, ColdRead, ColdReads, GatheredBatch
from services.acceptor.fetch.fetch_session import SessionPartition
from services.acceptor.fetch.follower_fetches import FollowerFetches
from services.acceptor.fetch.follower_reads import FollowerReads
from services.acceptor.fetch.message_sets import DownConversion
from services.acceptor.fetch.pending_fetch import AbortedFound, FoundBatch, PendingFetch, Target
from services.acceptor.fetch.record_ranges import ArenaRange, FileRange, Residency, SegmentFiles, ServedSegment
from services.acceptor.fetch.residency import CHECK_BYTES
from services.acceptor.leadership import leadership_problem

ROUNDS_MAX: Final = 8
"""Questions that depend on each other in one fetch; then it is answered with what it has."""
TARGETS_MAX: Final = QUESTIONS_AHEAD_MAX
"""Partitions with records in one response (or the number of open segments, if smaller); the others follow."""
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
THE_LEADER: Final = -1

Records = FileRange | ArenaRange | GatheredBatch


@dataclass(slots=True)
class PartitionReading:
    """What the reads of one acceptor share. `evaluate(fetch, is_due)` follows the last answer of a fetch."""

    view: MetadataCache
    readers: dict[str, LogReaderProxy]
    files: SegmentFiles
    residency: Residency
    cold_reads: ColdReads
    message_sets: DownConversion
    targets_max: int
    followers: FollowerFetches
    follower_reads: FollowerReads
    lease: LeaseGate | None
    prefers_racks: bool
    """consumers are sent to a replica in their rack"""
    clock: Clock
    evaluate: Callable[[PendingFetch, bool], None]

    def on_answered(self, pending: PendingFetch) -> None:
        """One question fewer is under way."""
        pending.questions -= 1
        if not pending.questions:
            self.evaluate(pending, self.clock.monotonic_ns() >= pending.deadline_ns)


class PartitionRead:
    """One partition of one fetch, and what log-readers answered about it."""

    __slots__ = ("aborted", "end", "error", "found", "pending", "replica", "row", "shared", "target", "topic", "wanted")
    replica: LocalReplica
    row: Row
    end: tuple[Offset, Offset, Position]
    """where the readable part ends: offset, base offset of its segment, position in that"""

    def __init__(self, shared: PartitionReading, pending: PendingFetch, target: Target, wanted: FetchPartition) -> None:
        self.shared = shared
        self.pending = pending
        self.target = target
        self.wanted = wanted
        self.topic = wanted.topic
        self.found: FoundBatch | None = None
        self.aborted: AbortedFound | None = None
        self.error: ErrorCode | None = None

    def step(self, space_bytes: int, is_first: bool) -> FetchPartitionResult | None:
        """Return the result, of at most `space_bytes`, or None while a question is under way.

        The first batch of a response (`is_first`) is returned whole, however large it is. `replica` is set
        if the result has no error.
        """
        shared, pending, wanted = self.shared, self.pending, self.wanted
        request, view = pending.request, shared.view
        if pending.version >= TOPIC_IDS_SINCE:
            topic = view.image.topics_by_id.get(wanted.topic_id)
            if topic is None:
                return self._refuse(ErrorCode.UNKNOWN_TOPIC_ID)
            self.topic = topic.name
        replica = view.placement(self.topic, wanted.partition)
        if replica is None:
            return self._refuse(view.why_absent(self.topic, wanted.partition))
        self.replica = replica
        try:
            row = self.row = replica.read_row()
        except TornRow:
            return self._refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        problem = self._problem()
        if problem is not None:
            return self._refuse(problem)
        if replica.segment_list_generation != row.segment_list_generation:
            # Segments were added, deleted or compacted: a known position may be in a file that is no segment any more.
            replica.segment_list_generation = row.segment_list_generation
            replica.cursors.clear()
            shared.files.keep_active(replica.disk, replica.row, replica.row_generation, row.active_base_offset)
        fetch_offset = wanted.fetch_offset
        if pending.reads_to_end:
            end = self.end = (row.log_end_offset, row.active_base_offset, row.active_position)
            limit_offset, aborted = end[0], None
        else:
            end = self.end = (row.high_watermark, row.watermark_base_offset, row.watermark_position)
            limit_offset, aborted = end[0], None
            if request.isolation_level == READ_COMMITTED:
                limit_offset, aborted = row.last_stable_offset, ()
        empty = FetchPartitionResult(
            self.topic, wanted.topic_id, wanted.partition, 0, row.high_watermark, row.last_stable_offset, row.log_start_offset, None, aborted
        )
        if shared.prefers_racks and request.rack and not pending.reads_to_end and row.role == ROLE_LEADER:
            if row.log_start_offset <= fetch_offset <= row.high_watermark:
                nearest = nearest_replica(view.image, self.topic, wanted.partition, view.broker_id, request.rack)
                if nearest != THE_LEADER:
                    return empty._replace(preferred_read_replica=nearest)
        is_within = row.log_start_offset <= fetch_offset <= row.log_end_offset
        if wanted.last_fetched_epoch >= 0 and (wanted.last_fetched_epoch != row.leader_epoch or not is_within):
            epoch_end = self._epoch_end(wanted.last_fetched_epoch)
            if epoch_end is None:
                return None
            if isinstance(epoch_end, ErrorCode):
                return self._refuse(self._out_of_range() if epoch_end == ErrorCode.OFFSET_OUT_OF_RANGE else epoch_end)
            if fetch_offset >= row.log_start_offset and is_diverging(wanted.last_fetched_epoch, fetch_offset, *epoch_end):
                return empty._replace(diverging_epoch=EpochEndOffset(*epoch_end))
        if not is_within:
            return self._refuse(self._out_of_range())
        if request.replica_id >= 0:
            shared.followers.report(pending, self.target, wanted, replica, row.leader_epoch, shared.readers[replica.disk])
        if fetch_offset >= limit_offset:
            if fetch_offset == end[0]:
                replica.remember(*end)
            return empty
        return self._read(space_bytes, is_first, limit_offset, empty)

    def _refuse(self, code: ErrorCode) -> FetchPartitionResult:
        topic = "" if code == ErrorCode.UNKNOWN_TOPIC_ID else self.topic
        return FetchPartitionResult(topic, self.wanted.topic_id, self.wanted.partition, code)

    def _out_of_range(self) -> ErrorCode:
        """OFFSET_OUT_OF_RANGE, at which consumers reset their position, unless another leader may have what this log lacks."""
        lease = self.shared.lease
        is_ahead = self.pending.request.replica_id < 0 and self.wanted.fetch_offset >= self.row.log_start_offset
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_ahead and lease is not None and lease.may_be_replaced(self.replica) else ErrorCode.OFFSET_OUT_OF_RANGE

    def _problem(self) -> ErrorCode | None:
        """Return the error with which this client is refused, if any."""
        shared, pending, wanted, replica, row = self.shared, self.pending, self.wanted, self.replica, self.row
        replica_id = pending.request.replica_id
        problem = leadership_problem(row, replica.row_generation, wanted.current_leader_epoch, pending.only_leader)
        if problem is None:
            if replica_id >= 0:
                problem = shared.followers.problem(pending, wanted, replica)
            elif shared.lease is not None and row.role == ROLE_LEADER and shared.lease.refuses_consumers(replica):
                problem = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if problem is not None:
            return problem
        if pending.version >= TOPIC_IDS_SINCE and replica.topic_id != wanted.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if pending.version < MAGIC_2_SINCE and not shared.message_sets.is_allowed(self.topic, replica_id):
            return ErrorCode.UNSUPPORTED_VERSION
        return None

    def _epoch_end(self, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset] | ErrorCode | None:
        """Return our largest epoch up to `leader_epoch` and its end offset; None while asked (KIP-595)."""
        replica, row = self.replica, self.row
        if leader_epoch > row.leader_epoch:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        leads = row.role == ROLE_LEADER
        if leader_epoch == row.leader_epoch:
            # A leader caches its epoch before the row has it. A lagging follower's row proves nothing: ask the leader.
            return (leader_epoch, row.log_end_offset) if leads else ErrorCode.OFFSET_OUT_OF_RANGE
        if leads and (cached := replica.epoch_ends(row.leader_epoch).get(leader_epoch)) is not None:
            return cached
        key = (self.target, row.leader_epoch)
        known = self.pending.epoch_ends.get(key)
        if known is not None:
            return known

        def then(answer: Answer, _descriptor: int) -> None:
            known = ErrorCode.OFFSET_OUT_OF_RANGE if answer.a < 0 else (answer.a, answer.b)
            self.pending.epoch_ends[key] = known
            if leads and not isinstance(known, ErrorCode):
                replica.epoch_ends(row.leader_epoch)[leader_epoch] = known

        return self._ask(EPOCH_END, leader_epoch, row.log_end_offset, then)

    def _read(self, space_bytes: int, is_first: bool, limit_offset: Offset, empty: FetchPartitionResult) -> FetchPartitionResult | None:
        """As `step`, if there are records below `limit_offset`; `empty` is the result without them."""
        shared, pending, wanted, replica, row = self.shared, self.pending, self.wanted, self.replica, self.row
        is_committed = empty.aborted_transactions is not None
        bound: Bound | None = None
        unknown = pending.unknown
        if is_committed and limit_offset < row.high_watermark:
            stable = self._stable_bound()
            if isinstance(stable, ErrorCode):
                return self._refuse(stable)
            if stable is None:
                return None
            bound = stable
        size_bytes = min(wanted.max_bytes, space_bytes)
        if size_bytes <= 0 and not is_first:
            return empty
        if pending.request.replica_id >= 0:
            size_bytes = shared.followers.piece_bytes(pending, wanted, replica, size_bytes, shared.clock.monotonic_ns())
            if size_bytes <= 0:
                return empty
        if pending.targets >= shared.targets_max:
            pending.is_partial = True
            return empty
        pending.targets += 1
        records = self._range(size_bytes, is_first, bound)
        if isinstance(records, ErrorCode):
            return self._refuse(records)
        if pending.unknown != unknown:
            return None
        if records is None or not is_committed or isinstance(records, GatheredBatch):
            # A client that needs conversion is older than read_committed.
            return empty._replace(records=records)
        if isinstance(records, FileRange):
            base_offset, position = records.file.origin.base_offset, records.position
        else:
            assert pending.cold is not None
            base_offset, position = pending.cold.base_offset, pending.cold.position
        aborted = self._aborted_transactions(base_offset, position + records.size_bytes)
        if isinstance(aborted, ErrorCode):
            return self._refuse(aborted)
        if aborted is None:
            return None
        if isinstance(records, FileRange) and position + records.size_bytes > aborted.end_position:
            # What was appended since the question follows in the next response.
            records = records._replace(size_bytes=aborted.end_position - position)
        return empty._replace(records=records, aborted_transactions=aborted.transactions)

    # -- the range of bytes

    def _range(self, size_bytes: int, is_first: bool, bound: Bound | None) -> Records | ErrorCode | None:
        """Return about `size_bytes` below `end` and `bound`; None: a question is under way, or nothing fits."""
        shared, pending, replica = self.shared, self.pending, self.replica
        fetch_offset, found = self.wanted.fetch_offset, self.found
        if found is None or found.offset != fetch_offset:
            cursor = replica.cursors.get(fetch_offset)
            if cursor is None:
                return self._look_up(size_bytes)
            found = FoundBatch(fetch_offset, *cursor)
        base_offset, position = found.segment_base_offset, found.position
        key = (replica.disk, replica.row, replica.row_generation, base_offset)
        file = shared.files.get(key)
        if file is None:
            return self._open(base_offset)
        if found.inode and found.inode != file.inode:
            # The segment was compacted between the two questions.
            shared.files.forget(key)
            replica.cursors.pop(fetch_offset, None)
            return self._look_up(size_bytes)
        end_offset, end_base_offset, end_position = self.end
        end = end_position if base_offset == end_base_offset else file.sealed_size_bytes()
        if bound is not None and base_offset >= bound.segment_base_offset:
            end = min(end, bound.position)
            if base_offset > bound.segment_base_offset or position >= end:
                return None  # the records there were compacted away
        if position >= end:
            # The cursor is at the end of a segment that was rolled since: the batch is in the next one.
            replica.cursors.pop(fetch_offset, None)
            return self._look_up(size_bytes)
        count = min(end - position, size_bytes)
        cold = pending.cold
        is_cold = cold is not None and cold.target is self
        if is_cold or not shared.residency.is_resident(file, position, min(max(count, 1), CHECK_BYTES)):
            is_active = base_offset == self.row.active_base_offset
            replica.reads_resident = False
            if pending.request.replica_id >= 0 and isinstance(self.target, SessionPartition):
                # The follower's next fetch looks for this position again.
                replica.remember(fetch_offset, base_offset, position, found.first_batch_bytes, found.inode)
                return shared.follower_reads.read(self.target, file, position, count, end, is_first, is_active)
            return self._cold_range(file, position, count, end, is_first, is_active)
        if len(shared.follower_reads) and isinstance(self.target, SessionPartition):
            shared.follower_reads.pass_over(self.target, replica.disk)
        replica.reads_resident = count < end - position
        if replica.reads_resident and not found.first_batch_bytes:
            # The first batch is sent whole; it may be larger than requested, and than today's max.message.bytes.
            return self._look_up(size_bytes)
        if count < found.first_batch_bytes:
            if not is_first:
                return None
            count = found.first_batch_bytes
        if position + count == end_position and base_offset == end_base_offset:
            replica.remember(end_offset, base_offset, end_position)
        return FileRange(file, position, count, True)

    def _cold_range(self, file: ServedSegment, position: Position, size_bytes: int, limit: int, is_first: bool, is_active: bool) -> Records | ErrorCode | None:
        """As `_range`, for bytes that are not in the page cache: the log-reader reads them."""
        shared, pending = self.shared, self.pending
        read = pending.cold
        if read is None:
            read = pending.cold = ColdRead(self)
            if shared.cold_reads.ask(read, file, position, size_bytes, limit, is_first, is_active, self._on_cold_read):
                self._wait()
                return None
        if read.target is not self:
            return None  # one cold partition at a time: the others follow with the next fetch
        if read.error is not None:
            return read.error
        if read.answer is None:
            return None
        if read.range is not None:
            if read.answer.next_offset >= 0:
                self.replica.remember(read.answer.next_offset, file.origin.base_offset, position + read.answer.size_bytes)
            return read.range
        # The first batch is larger than an answer.
        batch_bytes = read.answer.first_batch_bytes
        if not is_first or not batch_bytes:
            return None
        if pending.version >= MAGIC_2_SINCE:
            return FileRange(file, position, batch_bytes)  # the log-reader reads it piece by piece while it is sent
        if read.gathered is None:  # to be converted it has to be in memory as a whole
            if batch_bytes > GATHERED_BYTES_MAX:
                return ErrorCode.MESSAGE_TOO_LARGE
            read.gathered = GatheredBatch(batch_bytes)
            if not shared.cold_reads.gather(read, file, self._on_cold_read):
                return read.error
            self._wait()
            return None
        return read.gathered

    def _on_cold_read(self) -> None:
        self.shared.on_answered(self.pending)

    # -- transactions

    def _stable_bound(self) -> Bound | ErrorCode | None:
        """Return the position of the last stable offset; None while the log-reader is asked."""
        replica, row = self.replica, self.row
        known = replica.stable_bound
        if known is not None and known.segment_list_generation == row.segment_list_generation and known.offset > self.wanted.fetch_offset:
            if known.offset == row.last_stable_offset or self.pending.rounds:  # asked a moment ago, for this fetch
                return known

        def then(answer: Answer, _descriptor: int) -> None:
            replica.stable_bound = Bound(row.last_stable_offset, answer.a, answer.b, row.segment_list_generation)
            replica.remember(row.last_stable_offset, answer.a, answer.b)

        return self._ask(LOOKUP, row.last_stable_offset, row.high_watermark, then)

    def _aborted_transactions(self, segment_base_offset: Offset, end_position: Position) -> AbortedFound | ErrorCode | None:
        """Return the aborted transactions from the fetch offset to `end_position`, or to a lower position; None while asked."""
        replica, row, fetch_offset = self.replica, self.row, self.wanted.fetch_offset
        aborted_end_offset = replica.table.aborted_end(replica.row)
        if fetch_offset >= aborted_end_offset:
            return AbortedFound(fetch_offset, segment_base_offset, end_position, ())
        found = self.aborted
        if found is not None and (found.fetch_offset, found.segment_base_offset) == (fetch_offset, segment_base_offset):
            return found
        known = replica.known_aborted
        generation = row.segment_list_generation
        if known is not None and (known.segment_list_generation, known.aborted_end_offset) == (generation, aborted_end_offset):
            if known.first_offset <= fetch_offset and known.end_offset >= row.last_stable_offset:
                return AbortedFound(fetch_offset, segment_base_offset, end_position, _overlapping(known.transactions, fetch_offset))

        def then(answer: Answer, descriptor: int) -> None:
            transactions = read_aborted(answer, descriptor)
            replica.known_aborted = KnownAborted(generation, aborted_end_offset, fetch_offset, answer.a, transactions)
            self.aborted = AbortedFound(fetch_offset, segment_base_offset, end_position, _overlapping(transactions, fetch_offset))

        return self._ask(ABORTED, fetch_offset, row.last_stable_offset, then, Span(segment_base_offset, end_position))

    # -- questions to the log-reader

    def _look_up(self, size_bytes: int) -> ErrorCode | None:
        """Ask for the position of the fetch offset.

        For a consumer that reads through the page cache, the log-reader also returns where its next fetches
        of `size_bytes` will begin.
        """
        pending, replica, offset = self.pending, self.replica, self.wanted.fetch_offset
        if pending.rounds >= ROUNDS_MAX and self.error is None:
            pending.is_partial = True
            return None
        generation = self.row.segment_list_generation

        def then(answer: Answer, _descriptor: int) -> None:
            # The batch that contains the offset may begin before it: the client skips the records in front.
            self.found = FoundBatch(offset, answer.a, answer.b, answer.c, answer.d)
            if replica.segment_list_generation == generation:
                for at in range(0, len(answer.offsets), 3):
                    next_offset, position, first_batch_bytes = answer.offsets[at : at + 3]
                    replica.remember(next_offset, answer.a, position, first_batch_bytes, answer.d)

        ahead_bytes = size_bytes if replica.reads_resident and pending.version >= MAGIC_2_SINCE else 0
        return self._ask(LOOKUP, offset, self.end[0], then, ahead_bytes=ahead_bytes)

    def _open(self, base_offset: Offset) -> ErrorCode | None:
        if self.pending.rounds >= ROUNDS_MAX and self.error is None:
            self.pending.is_partial = True  # segments of other fetches displaced the one that was opened for this
            return None
        replica = self.replica
        key = (replica.disk, replica.row, replica.row_generation, base_offset)

        def then(_answer: Answer, descriptor: int) -> None:
            if descriptor < 0:
                self.error = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                self.shared.files.add(key, descriptor, self.topic, replica.partition)

        return self._ask(OPEN, base_offset, 0, then)

    def _ask(
        self, kind: int, value_a: int, value_b: int, then: Callable[[Answer, int], None], span: Span | None = None, ahead_bytes: int = 0
    ) -> ErrorCode | None:
        """Ask the log-reader; `then` receives its answer. Return the error of an earlier question instead, if any."""
        pending = self.pending
        if self.error is not None:
            return self.error
        if pending.rounds >= ROUNDS_MAX:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if pending.questions >= QUESTIONS_AHEAD_MAX:
            pending.unknown += 1
            pending.is_held_back = True
            return None

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if answer is None:
                self.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif answer.error_code:
                self.error = ErrorCode(answer.error_code)
            else:
                then(answer, descriptor)
            if descriptor >= 0 and kind != OPEN:
                os.close(descriptor)
            self.shared.on_answered(pending)

        reader, generation = self.shared.readers[self.replica.disk], self.row.segment_list_generation
        if not reader.ask(kind, self.topic, self.wanted.partition, generation, value_a, value_b, on_answer, span=span, ahead_bytes=ahead_bytes):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._wait()
        return None

    def _wait(self) -> None:
        self.pending.questions += 1
        self.pending.unknown += 1


def nearest_replica(image: MetadataImage, topic: str, partition: int, own_id: int, rack: str) -> int:
    """Return an in-sync replica in the consumer's rack (KIP-392), or `THE_LEADER`. `own_id` leads."""
    known = image.topics.get(topic)
    if not rack or known is None or partition >= len(known.partitions):
        return THE_LEADER
    brokers = image.brokers
    own = brokers.get(own_id)
    if own is not None and own.rack == rack:
        return THE_LEADER
    found = known.partitions[partition]
    for replica in found.replicas:
        broker = brokers.get(replica)
        if broker is not None and broker.rack == rack and replica in found.isr and replica != own_id:
            return replica
    return THE_LEADER


def _overlapping(transactions: Sequence[tuple[ProducerId, Offset, Offset]], fetch_offset: Offset) -> tuple[AbortedTransaction, ...]:
    found = (AbortedTransaction(*each[:2]) for each in transactions if each[2] >= fetch_offset)
    return tuple(sorted(found, key=lambda each: each.first_offset))
