"""What one partition of a fetch answers now: an error, nothing, or the range of bytes where its batches are.

A consumer may read to the high watermark, a follower to the log end (`services/acceptor/fetch/follower_fetches.py`). The path without a question:
the fetch offset is one
of the partition's known cursors (who read to the end comes back exactly there) and its segment is open. Otherwise the disk's log-reader is asked (LOOKUP,
OPEN); the acceptor itself never opens, seeks or reads a log file. Only what is in the page cache is sent from the file; the rest the log-reader reads into
its memory (`services/acceptor/fetch/cold_reads.py`), one partition of a fetch at a time. Owned by one acceptor, used by `handlers/fetch`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.lease_gate import LeaseGate
from appliance.cluster.metadata_cache import Bound, LocalReplica, MetadataCache
from appliance.ipc.log_reader_messages import EPOCH_END, LOOKUP, OPEN, Answer, Span
from appliance.ipc.log_reader_proxy import QUESTIONS_AHEAD_MAX, LogReaderProxy
from appliance.protocol.fetch import MAGIC_2_SINCE, READ_COMMITTED, TOPIC_IDS_SINCE, EpochEndOffset, FetchPartition, FetchPartitionResult
from appliance.shm.partition_table import ROLE_LEADER, Row, TornRow
from appliance.storage.leader_epoch_cache import is_diverging
from services.acceptor.arena_range import ArenaRange
from services.acceptor.fetch.cold_reads import GATHERED_BYTES_MAX, ColdRead, ColdReads, GatheredBatch
from services.acceptor.fetch.committed_reads import CommittedReads, cut
from services.acceptor.fetch.fetch_session import SessionPartition
from services.acceptor.fetch.follower_fetches import FollowerFetches
from services.acceptor.fetch.follower_reads import FollowerReads
from services.acceptor.fetch.message_sets import DownConversion
from services.acceptor.fetch.pending_fetch import Found, PendingFetch, Target
from services.acceptor.fetch.read_replicas import THE_LEADER, nearest_replica
from services.acceptor.fetch.residency import CHECK_BYTES, Residency
from services.acceptor.fetch.segment_files import FileRange, SegmentFile, SegmentFiles
from services.acceptor.leadership import leadership_problem

ROUNDS_MAX = 8
"""Questions asked one after the other for one fetch before it answers with what it has."""
End = tuple[int, int, int]
"""Where what a fetch may read of a partition ends: offset, base offset of the segment, position in it. For consumers that is the high watermark, for
followers the log end."""
_AGREES = (-1, -1)
"""No epoch and no end: nothing parts."""
TARGETS_MAX = QUESTIONS_AHEAD_MAX
"""Partitions that one answer has records of, or fewer where fewer segments can be open; the others' turn comes with the next fetch."""


class PartitionAnswers:
    """Of one acceptor; `evaluate` is called for a fetch when the last question asked for it was answered."""

    def __init__(
        self,
        view: MetadataCache,
        readers: dict[str, LogReaderProxy],
        files: SegmentFiles,
        residency: Residency,
        cold_reads: ColdReads,
        message_sets: DownConversion,
        targets_max: int,
        followers: FollowerFetches,
        follower_reads: FollowerReads,
        lease: LeaseGate | None,
        finds_nearest: bool,
        clock: Clock,
        evaluate: Callable[[PendingFetch, bool], None],
    ) -> None:
        """`finds_nearest`: consumers are sent to a replica in their rack."""
        self._view = view
        self._readers = readers
        self._files = files
        self._residency = residency
        self._cold_reads = cold_reads
        self._message_sets = message_sets
        self._targets_max = targets_max
        self._followers = followers
        self._follower_reads = follower_reads
        self._lease = lease
        self._finds_nearest = finds_nearest
        self._clock = clock
        self._evaluate = evaluate
        self._committed_reads = CommittedReads(self._ask, self._answered)

    def look(
        self, pending: PendingFetch, index: Target, wanted: FetchPartition, room: int, is_first: bool
    ) -> tuple[FetchPartitionResult | None, LocalReplica | None]:
        """What partition `index` answers now, with its placement; None while a question is under way."""
        found = self._find(pending, wanted)
        if isinstance(found, FetchPartitionResult):
            return found, None
        topic, placement, row = found
        problem = self._problem(pending, wanted, topic, placement, row)
        if problem is not None:
            return FetchPartitionResult(topic, wanted.topic_id, wanted.partition, problem), None
        if placement.segment_list_generation != row.segment_list_generation:
            self._take_segment_list(placement, row)
        request = pending.request
        is_committed = request.isolation_level == READ_COMMITTED and not pending.reads_to_end
        if pending.reads_to_end:
            end: End = (row.log_end_offset, row.active_base_offset, row.active_position)
        else:
            end = (row.high_watermark, row.watermark_base_offset, row.watermark_position)
        limit_offset = row.last_stable_offset if is_committed else end[0]
        aborted = () if is_committed else None
        empty = FetchPartitionResult(
            topic, wanted.topic_id, wanted.partition, 0, row.high_watermark, row.last_stable_offset, row.log_start_offset, None, aborted
        )
        if self._finds_nearest and request.rack and not pending.reads_to_end and row.log_start_offset <= wanted.fetch_offset <= row.high_watermark:
            nearest = nearest_replica(self._view.image, topic, wanted.partition, self._view.broker_id, request.rack) if row.role == ROLE_LEADER else THE_LEADER
            if nearest != THE_LEADER:
                return empty._replace(preferred_read_replica=nearest), placement
        parting = self._parting(pending, index, wanted, topic, placement, row)
        if parting is None:
            return None, placement
        if isinstance(parting, ErrorCode):
            return FetchPartitionResult(topic, wanted.topic_id, wanted.partition, parting), None
        if parting is not _AGREES:
            return empty._replace(diverging_epoch=EpochEndOffset(*parting)), placement
        if request.replica_id >= 0:
            self._followers.tell(pending, index, wanted, placement, row, self._readers[placement.disk])
        if wanted.fetch_offset >= limit_offset:
            if wanted.fetch_offset == end[0]:
                placement.remember(*end)
            return empty, placement
        return self._records(pending, index, wanted, room, is_first, topic, placement, row, end, limit_offset, empty)

    def _find(self, pending: PendingFetch, wanted: FetchPartition) -> tuple[str, LocalReplica, Row] | FetchPartitionResult:
        """The partition's topic, place and row; or the answer where it has none here."""
        topic = wanted.topic
        if pending.version >= TOPIC_IDS_SINCE:
            known = self._view.image.topics_by_id.get(wanted.topic_id)
            if known is None:
                return FetchPartitionResult("", wanted.topic_id, wanted.partition, ErrorCode.UNKNOWN_TOPIC_ID)
            topic = known.name
        placement = self._view.placement(topic, wanted.partition)
        if placement is None:
            return FetchPartitionResult(topic, wanted.topic_id, wanted.partition, self._view.why_absent(topic, wanted.partition))
        try:
            return topic, placement, placement.read_row()
        except TornRow:
            return FetchPartitionResult(topic, wanted.topic_id, wanted.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _problem(self, pending: PendingFetch, wanted: FetchPartition, topic: str, placement: LocalReplica, row: Row) -> ErrorCode | None:
        """Why it answers nothing to this client, if so."""
        replica_id = pending.request.replica_id
        problem = leadership_problem(row, placement.row_generation, wanted.current_leader_epoch, pending.only_leader)
        if problem is None:
            if replica_id >= 0:
                problem = self._followers.problem(pending, wanted, placement)
            elif self._lease is not None and row.role == ROLE_LEADER and self._lease.is_shut(placement):
                problem = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if problem is not None:
            return problem
        if pending.version >= TOPIC_IDS_SINCE and placement.topic_id != wanted.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if pending.version < MAGIC_2_SINCE and not self._message_sets.is_allowed(topic, replica_id):
            return ErrorCode.UNSUPPORTED_VERSION
        return None

    def _parting(
        self, pending: PendingFetch, index: Target, wanted: FetchPartition, topic: str, placement: LocalReplica, row: Row
    ) -> tuple[int, int] | ErrorCode | None:
        """Where the client's log parts from ours, or `_AGREES`; an error, or None while the log-reader is asked."""
        is_within = row.log_start_offset <= wanted.fetch_offset <= row.log_end_offset
        if wanted.last_fetched_epoch >= 0 and (wanted.last_fetched_epoch != row.leader_epoch or not is_within):
            known = self._epoch_end(pending, index, topic, wanted.last_fetched_epoch, placement, row)
            if known is None or isinstance(known, ErrorCode):
                return known
            if wanted.fetch_offset >= row.log_start_offset and is_diverging(wanted.last_fetched_epoch, wanted.fetch_offset, *known):
                return known
        return _AGREES if is_within else ErrorCode.OFFSET_OUT_OF_RANGE

    def _records(
        self,
        pending: PendingFetch,
        index: Target,
        wanted: FetchPartition,
        room: int,
        is_first: bool,
        topic: str,
        placement: LocalReplica,
        row: Row,
        end: End,
        limit_offset: int,
        empty: FetchPartitionResult,
    ) -> tuple[FetchPartitionResult | None, LocalReplica | None]:
        """As `look`, where there are records below `limit_offset`; `empty` is the answer without them."""
        is_committed = empty.aborted_transactions is not None
        bound: Bound | None = None
        if is_committed and limit_offset < row.high_watermark:
            stable = self._committed_reads.bound(pending, index, topic, wanted.fetch_offset, placement, row)
            if stable is None:
                return None, placement
            if isinstance(stable, ErrorCode):
                return FetchPartitionResult(topic, wanted.topic_id, wanted.partition, stable), None
            bound = stable
        most = min(wanted.max_bytes, room)
        if most <= 0 and not is_first:
            return empty, placement
        if pending.request.replica_id >= 0:
            most = self._followers.piece_bytes(pending, wanted, placement, most, self._clock.monotonic_ns())
            if most <= 0:
                return empty, placement
        if pending.targets >= self._targets_max:
            pending.is_partial = True
            return empty, placement
        pending.targets += 1
        unknown = pending.unknown
        records = self._range(pending, index, topic, wanted.fetch_offset, most, is_first, placement, row, end, bound)
        if isinstance(records, ErrorCode):
            return FetchPartitionResult(topic, wanted.topic_id, wanted.partition, records), None
        if pending.unknown != unknown:
            return None, placement
        if records is None or not is_committed or isinstance(records, GatheredBatch):  # who needs it converted is older than read_committed
            return empty._replace(records=records), placement
        base_offset, position = _beginning(records, pending)
        found = self._committed_reads.aborted(pending, index, topic, wanted.fetch_offset, base_offset, position + records.size_bytes, placement, row)
        if isinstance(found, ErrorCode):
            return FetchPartitionResult(topic, wanted.topic_id, wanted.partition, found), None
        if found is None:
            return None, placement
        return empty._replace(records=cut(records, position, found.end_position), aborted_transactions=found.transactions), placement

    def _take_segment_list(self, placement: LocalReplica, row: Row) -> None:
        """Segments came, went, or were compacted: positions that were known may be in a file that is none of them any more."""
        placement.segment_list_generation = row.segment_list_generation
        placement.cursors.clear()
        self._files.keep_active(placement.disk, placement.row, placement.row_generation, row.active_base_offset)

    def _epoch_end(
        self, pending: PendingFetch, index: Target, topic: str, leader_epoch: int, placement: LocalReplica, row: Row
    ) -> tuple[int, int] | ErrorCode | None:
        """Our largest epoch that is not above `leader_epoch`, and where it ends; an error, or None while the log-reader is asked (KIP-595)."""
        if leader_epoch > row.leader_epoch:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        leads = row.role == ROLE_LEADER
        if leader_epoch == row.leader_epoch:
            # Whoever leads has the epoch in its cache before the row says so. Of a follower that lags nothing is concluded: its reader asks the leader.
            return (leader_epoch, row.log_end_offset) if leads else ErrorCode.OFFSET_OUT_OF_RANGE
        if leads and (found := placement.epoch_ends(row.leader_epoch).get(leader_epoch)) is not None:
            return found
        key = (index, row.leader_epoch)
        known = pending.epoch_ends.get(key)
        if known is not None:
            return known

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if answer is None:
                pending.epoch_ends[key] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif answer.error_code:
                pending.epoch_ends[key] = ErrorCode(answer.error_code)
            else:
                pending.epoch_ends[key] = ErrorCode.OFFSET_OUT_OF_RANGE if answer.a < 0 else (answer.a, answer.b)
                if leads and 0 <= answer.a:
                    placement.epoch_ends(row.leader_epoch)[leader_epoch] = (answer.a, answer.b)
            self._answered(pending)

        return self._ask(pending, placement, EPOCH_END, topic, row, leader_epoch, row.log_end_offset, on_answer)

    def _range(
        self,
        pending: PendingFetch,
        index: Target,
        topic: str,
        fetch_offset: int,
        most: int,
        is_first: bool,
        placement: LocalReplica,
        row: Row,
        readable: End,
        bound: Bound | None,
    ) -> FileRange | ArenaRange | GatheredBatch | ErrorCode | None:
        """The bytes to send, none of them behind `readable` and `bound`, an error, or None: either a question is under way or there is nothing that fits."""
        found = pending.found.get(index)
        if isinstance(found, ErrorCode):
            return found
        if found is None or found.offset != fetch_offset:
            cursor = placement.cursors.get(fetch_offset)
            if cursor is None:
                return self._ask_lookup(pending, index, topic, fetch_offset, readable[0], placement, row, most)
            found = Found(fetch_offset, *cursor)
        base_offset, position = found.segment_base_offset, found.position
        file = self._files.get((placement.disk, placement.row, placement.row_generation, base_offset))
        if file is None:
            return self._ask_open(pending, index, topic, base_offset, placement, row)
        if found.inode and found.inode != file.inode:
            # It was compacted between the two questions.
            self._files.forget((placement.disk, placement.row, placement.row_generation, base_offset))
            placement.cursors.pop(fetch_offset, None)
            return self._ask_lookup(pending, index, topic, fetch_offset, readable[0], placement, row, most)
        end_offset, end_base_offset, end_position = readable
        end = end_position if base_offset == end_base_offset else file.sealed_size_bytes()
        if bound is not None and base_offset >= bound.segment_base_offset:
            end = min(end, bound.position)
            if base_offset > bound.segment_base_offset or position >= end:
                return None  # what was there was compacted away
        if position >= end:
            # The cursor stands at the end of a segment that was rolled since: the batch is in the next one.
            placement.cursors.pop(fetch_offset, None)
            return self._ask_lookup(pending, index, topic, fetch_offset, readable[0], placement, row, most)
        size_bytes = min(end - position, most)
        cold = pending.cold
        if (cold is not None and cold.target == index) or not self._residency.is_resident(file, position, min(max(size_bytes, 1), CHECK_BYTES)):
            is_active = base_offset == row.active_base_offset
            placement.reads_resident = False
            if pending.request.replica_id >= 0 and isinstance(index, SessionPartition):
                placement.remember(fetch_offset, base_offset, position, found.first_batch_bytes, found.inode)  # it will be looked for again
                return self._follower_reads.look(index, file, position, size_bytes, end, is_first, is_active)
            return self._cold_range(pending, index, file, position, size_bytes, end, is_first, is_active, placement)
        if len(self._follower_reads) and isinstance(index, SessionPartition):
            self._follower_reads.pass_over(index, placement.disk)
        placement.reads_resident = size_bytes < end - position
        if placement.reads_resident and not found.first_batch_bytes:
            # The first batch must go whole, and it may be longer than what was asked for; than today's max.message.bytes, too.
            return self._ask_lookup(pending, index, topic, fetch_offset, readable[0], placement, row, most)
        if size_bytes < found.first_batch_bytes:
            if not is_first:
                return None
            size_bytes = found.first_batch_bytes
        if position + size_bytes == end_position and base_offset == end_base_offset:
            placement.remember(end_offset, base_offset, end_position)
        return FileRange(file, position, size_bytes, True)

    def _cold_range(
        self,
        pending: PendingFetch,
        index: Target,
        file: SegmentFile,
        position: int,
        most: int,
        limit: int,
        is_first: bool,
        is_active: bool,
        placement: LocalReplica,
    ) -> FileRange | ArenaRange | GatheredBatch | ErrorCode | None:
        """As `_range`, of what is not in the page cache."""
        read = pending.cold
        if read is None:
            read = pending.cold = ColdRead(index)
            if self._cold_reads.ask(read, file, position, most, limit, is_first, is_active, lambda: self._answered(pending)):
                pending.questions += 1
                pending.unknown += 1
                return None
        if read.target != index:
            return None  # its turn comes with the next fetch
        if read.error is not None:
            return read.error
        if read.range is None or read.answer is None:
            # Its first batch is larger than an answer: it is brought piece by piece while it is sent.
            if read.answer is None or not is_first or not read.answer.first_batch_bytes:
                return None
            if pending.version >= MAGIC_2_SINCE:
                return FileRange(file, position, read.answer.first_batch_bytes)
            return self._gathered(pending, read, file)
        if read.answer.next_offset >= 0:
            placement.remember(read.answer.next_offset, file.origin.base_offset, position + read.answer.size_bytes)
        return read.range

    def _gathered(self, pending: PendingFetch, read: ColdRead, file: SegmentFile) -> GatheredBatch | ErrorCode | None:
        """The one batch, for conversion: it has to be in memory as a whole."""
        assert read.answer is not None
        if read.gathered is None:
            if read.answer.first_batch_bytes > GATHERED_BYTES_MAX:
                return ErrorCode.MESSAGE_TOO_LARGE
            read.gathered = GatheredBatch(read.answer.first_batch_bytes)
            if self._cold_reads.gather(read, file, lambda: self._answered(pending)):
                pending.questions += 1
                pending.unknown += 1
                return None
            return read.error
        return read.gathered

    # -- questions to the log-reader

    def _ask_lookup(
        self, pending: PendingFetch, index: Target, topic: str, offset: int, limit_offset: int, placement: LocalReplica, row: Row, most: int
    ) -> ErrorCode | None:
        """Where the batch with this offset begins; and, for a consumer that reads on through the page cache `most` bytes at a time, where it will ask next."""
        if pending.rounds >= ROUNDS_MAX:
            pending.is_partial = True
            return None

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if descriptor >= 0:
                os.close(descriptor)
            if answer is None:
                pending.found[index] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif answer.error_code:
                pending.found[index] = ErrorCode(answer.error_code)
            else:
                # The batch that holds the offset may begin before it: the client skips what it did not ask for.
                pending.found[index] = Found(offset, answer.a, answer.b, answer.c, answer.d)
                if placement.segment_list_generation == row.segment_list_generation:
                    for at in range(0, len(answer.offsets), 3):
                        next_offset, position, first_batch_bytes = answer.offsets[at : at + 3]
                        placement.remember(next_offset, answer.a, position, first_batch_bytes, answer.d)
            self._answered(pending)

        ahead_bytes = most if placement.reads_resident and pending.version >= MAGIC_2_SINCE else 0
        return self._ask(pending, placement, LOOKUP, topic, row, offset, limit_offset, on_answer, ahead_bytes=ahead_bytes)

    def _ask_open(self, pending: PendingFetch, index: Target, topic: str, base_offset: int, placement: LocalReplica, row: Row) -> ErrorCode | None:
        if pending.rounds >= ROUNDS_MAX:
            pending.is_partial = True  # others' segments pushed out what was opened for it
            return None
        key = (placement.disk, placement.row, placement.row_generation, base_offset)

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if answer is None:
                pending.found[index] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif answer.error_code or descriptor < 0:
                pending.found[index] = ErrorCode(answer.error_code or ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                self._files.add(key, descriptor, topic, placement.partition)
            self._answered(pending)

        return self._ask(pending, placement, OPEN, topic, row, base_offset, 0, on_answer)

    def _ask(
        self,
        pending: PendingFetch,
        placement: LocalReplica,
        kind: int,
        topic: str,
        row: Row,
        value_a: int,
        value_b: int,
        on_answer: Callable[[Answer | None, int], None],
        span: Span | None = None,
        ahead_bytes: int = 0,
    ) -> ErrorCode | None:
        if pending.rounds >= ROUNDS_MAX:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if pending.questions >= QUESTIONS_AHEAD_MAX:
            pending.unknown += 1
            pending.is_held_back = True
            return None
        reader = self._readers[placement.disk]
        if not reader.ask(kind, topic, placement.partition, row.segment_list_generation, value_a, value_b, on_answer, span=span, ahead_bytes=ahead_bytes):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        pending.questions += 1
        pending.unknown += 1
        return None

    def _answered(self, pending: PendingFetch) -> None:
        pending.questions -= 1
        if not pending.questions:
            self._evaluate(pending, self._clock.monotonic_ns() >= pending.deadline_ns)


def _beginning(records: FileRange | ArenaRange, pending: PendingFetch) -> tuple[int, int]:
    """(segment base offset, position) of what is about to be sent."""
    if isinstance(records, FileRange):
        return records.file.origin.base_offset, records.position
    assert pending.cold is not None
    return pending.cold.base_offset, pending.cold.position
