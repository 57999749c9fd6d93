"""Fetch: find where each partition's batches begin, send them by sendfile, park long polls until enough is there.

The path without a question: the fetch offset is one of the partition's known cursors (a consumer that read to the high watermark comes back
exactly there) and its segment is open. Otherwise the disk's log-reader is asked (LOOKUP, OPEN); the acceptor itself never opens, seeks
or reads a log file. Only what is in the page cache is sent from the file; the rest the log-reader reads into its memory
(`broker/cold_reads.py`), one partition of a fetch at a time. A fetch of a session (`broker/fetch_session.py`) looks at the partitions that are
awake only: the others sleep until their row moves. Before version 4 what is read is converted (`broker/message_sets.py`). Owned by one acceptor.
Weak spots: a fetch with one cold partition is answered when that is read, its hot ones too; one answer has records of at most `TARGETS_MAX` partitions.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.broker.arena_range import ArenaRange
from appliance.broker.box_view import BoxView, Placement
from appliance.broker.cold_reads import ColdRead, ColdReads
from appliance.broker.connection import Connection, Reply
from appliance.broker.delayed import Delayed
from appliance.broker.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession, FetchSessions, SessionPartition, key_of
from appliance.broker.leadership import leadership_problem
from appliance.broker.message_sets import CONVERTED_BYTES_MAX, DownConversion
from appliance.broker.parked_growth import FEW_PARTITIONS, ParkedGrowth
from appliance.broker.residency import CHECK_BYTES, Residency
from appliance.broker.segment_files import FileRange, SegmentFile, SegmentFiles
from appliance.broker.topic_traffic import TopicTraffic
from appliance.ipc.log_reader_messages import EPOCH_END, LOOKUP, OPEN, Answer
from appliance.ipc.log_reader_proxy import QUESTIONS_AHEAD_MAX, LogReaderProxy
from appliance.protocol.fetch import (
    MAGIC_2_SINCE,
    READ_COMMITTED,
    TOPIC_IDS_SINCE,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    decode_fetch,
    encode_fetch_response,
)
from appliance.protocol.request_header import RequestHeader
from appliance.shm.counters import Counters
from appliance.shm.partition_table import Row, TornRow

Target: TypeAlias = int | SessionPartition
"""Which partition of a fetch: its index in the request, or the session's own object."""

ROUNDS_MAX = 8
"""Questions asked one after the other for one fetch before it answers with what it has."""
TARGETS_MAX = QUESTIONS_AHEAD_MAX
"""Partitions that one answer has records of, or fewer where fewer segments can be open; the others' turn comes with the next fetch."""


class _Found(NamedTuple):
    """Where a batch begins, as the log-reader told; `first_batch_bytes` 0: not known."""

    offset: int
    segment_base_offset: int
    position: int
    first_batch_bytes: int
    inode: int = 0
    """of the file that `position` is in; 0: of the active segment, which nobody replaces"""


class PendingFetch:
    """One fetch request on its way."""

    __slots__ = ("cold", "correlation_id", "deadline_ns", "epoch_ends", "expected_epoch", "finished", "found", "growth", "handler", "is_held_back",
                 "is_partial", "questions", "ready_ns", "received_ns", "reply", "request", "rounds", "session", "targets", "ticket", "unknown",
                 "version")  # fmt: skip

    def __init__(self, handler: FetchHandler, reply: Reply, request: FetchRequest, version: int, correlation_id: int, deadline_ns: int) -> None:
        self.handler = handler
        self.reply = reply
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        self.deadline_ns = deadline_ns
        self.questions = 0
        self.rounds = 0
        self.unknown = 0
        """in this look: partitions that a question has to be answered for"""
        self.is_held_back = False
        """in this look: some of those questions are asked when others were answered"""
        self.targets = 0
        """in this look: partitions with something to read"""
        self.is_partial = False
        """in this look: some partition has more, but its turn comes with the next fetch"""
        self.growth: ParkedGrowth | None = None
        """while it is parked with many partitions: what of them is worth a look"""
        self.cold: ColdRead | None = None
        """its one partition that is read by a log-reader"""
        self.ticket = 0
        self.session: FetchSession | None = None
        self.expected_epoch = 0
        """of the session's next request, as long as this one is its latest"""
        self.found: dict[Target, _Found | ErrorCode] = {}
        """partition → what the log-reader answered"""
        self.epoch_ends: dict[tuple[Target, int], tuple[int, int] | ErrorCode] = {}
        """(partition, leader epoch of its row) → what the log-reader said of the epoch that the client fetched last"""
        self.finished = False
        self.received_ns = self.ready_ns = reply.connection.last_active_ns
        """Since when nothing but us delays the answer: received, or woken from the last wait; 0 while it waits."""

    def on_row_moved(self) -> None:
        if self.growth is None or self.handler.has_grown(self, self.growth):
            self.rounds = 0
            self.handler.woken(self)
            self.handler.evaluate(self, False)

    def on_deadline(self) -> None:
        if self.session is not None and self.session.parked_ticket == self.ticket:
            self.session.parked_ticket = 0
        self.ticket = 0
        self.handler.woken(self)
        self.handler.evaluate(self, True)


class FetchHandler:
    """All fetches of one acceptor."""

    def __init__(
        self,
        view: BoxView,
        readers: dict[str, LogReaderProxy],
        delayed: Delayed,
        clock: Clock,
        counters: Counters,
        fetch_max_bytes: int,
        segment_files_max: int,
        residency: Residency,
        cold_reads: ColdReads,
        session_slots: int,
        new_session_id: Callable[[], int],
        on_reply: Callable[[Connection], None],
    ) -> None:
        self._view = view
        self._readers = readers
        self._delayed = delayed
        self._sessions = FetchSessions(session_slots, new_session_id, delayed.rows.wake_up, self._on_session_closed)
        self._clock = clock
        self._fetch_max_bytes = fetch_max_bytes
        self._on_reply = on_reply
        self.files = SegmentFiles(segment_files_max, residency)
        self._targets_max = min(TARGETS_MAX, segment_files_max)
        self._wide_fetches = 0
        self._is_evaluating = False
        self._to_evaluate: deque[tuple[PendingFetch, bool]] = deque()
        self._residency = residency
        self._cold_reads = cold_reads
        self._message_sets = DownConversion(view, counters)
        self._requests = counters.counter("fetch.requests")
        self._parked = counters.counter("fetch.parked")
        self._range_bytes = counters.counter("fetch.range_bytes")
        self._errors = counters.counter("fetch.errors")
        self._topic_traffic = TopicTraffic(counters)
        self._sessions_open = counters.counter("fetch.sessions")
        self._session_partitions = counters.counter("fetch.session_partitions")
        self._session_evictions = counters.counter("fetch.session_evictions")
        self._session_errors = counters.counter("fetch.session_errors")
        self._incremental = counters.counter("fetch.incremental")
        self._sessions_open.set(0)
        self._session_partitions.set(0)
        self._latency = counters.histogram("fetch.latency_us")
        self._latency_with_wait = counters.histogram("fetch.latency_with_wait_us")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_fetch(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        if len(request.partitions) > 1:
            self._tidy(request.partitions)
        if header.api_version < MAGIC_2_SINCE:
            self._message_sets.reorder(header.api_version, request.partitions)
        reply = connection.expect_reply(False)
        deadline_ns = self._clock.monotonic_ns() + max(0, request.max_wait_ms) * 1_000_000
        pending = PendingFetch(self, reply, request, header.api_version, header.correlation_id, deadline_ns)
        if (request.session_id or request.session_epoch > INITIAL_EPOCH) and not self._take_up_session(pending):
            return
        self.evaluate(pending, request.max_wait_ms <= 0)

    def _tidy(self, partitions: list[FetchPartition]) -> None:
        """A partition that is named again replaces what was wanted of it before, as in Kafka: it must not cost us twice. Where not all can have their
        turn, each fetch begins with others, because a client may ask in the same order always."""
        unique = {key_of(wanted): wanted for wanted in partitions}
        if len(unique) < len(partitions):
            partitions[:] = unique.values()
        if len(partitions) > self._targets_max:
            self._wide_fetches += 1
            start = self._wide_fetches * self._targets_max % len(partitions)
            partitions[:] = partitions[start:] + partitions[:start]

    def has_grown(self, pending: PendingFetch, growth: ParkedGrowth) -> bool:
        """Whether a parked fetch of many partitions is worth a look at all of them."""
        return growth.is_enough(self._delayed.rows.take_moved(pending.ticket), self._view)

    def woken(self, pending: PendingFetch) -> None:
        """A wait ended: from here on the time counts as ours."""
        if not pending.ready_ns:
            pending.ready_ns = self._clock.monotonic_ns()

    def evaluate(self, pending: PendingFetch, is_due: bool) -> None:
        """Look at every partition; answer, ask the log-readers, or park.

        A log-reader's death may be noticed in the middle of a question, and whoever waits for it is told there and then, this fetch too: what it
        means for them is looked at when this look is over.
        """
        if self._is_evaluating:
            self._to_evaluate.append((pending, is_due))
            return
        self._is_evaluating = True
        try:
            self._evaluate(pending, is_due)
            while self._to_evaluate:
                self._evaluate(*self._to_evaluate.popleft())
        finally:
            self._is_evaluating = False

    def _evaluate(self, pending: PendingFetch, is_due: bool) -> None:
        if pending.finished or pending.questions > 0:
            return
        pending.unknown = pending.targets = 0
        pending.is_held_back = pending.is_partial = False
        if pending.reply.connection.closed:
            self._leave(pending)
            return
        if pending.session is not None:
            self._evaluate_session(pending, pending.session, is_due)
            return
        request = pending.request
        results: list[FetchPartitionResult] = []
        room = min(request.max_bytes, self._fetch_max_bytes)
        is_converted = pending.version < MAGIC_2_SINCE
        if is_converted:
            room = min(room, CONVERTED_BYTES_MAX)
        total = 0
        failed = urgent = False
        watched: list[Placement] = []
        for index, wanted in enumerate(request.partitions):
            result, placement = self._look(pending, index, wanted, room - total, total == 0)
            if result is None:
                continue
            if result.error_code:
                failed = True
            elif placement is not None:
                urgent = urgent or result.diverging_epoch is not None or pending.cold is not None
                watched.append(placement)
                if result.records is not None:
                    total += result.records.size_bytes  # type: ignore[union-attr]
            results.append(result)
        if pending.unknown:
            pending.rounds += not pending.is_held_back
            return
        needed_bytes = min(request.min_bytes, room)
        is_ready = failed or urgent or is_due or total >= needed_bytes or not request.partitions or (pending.is_partial and total > 0)
        is_ready = is_ready or self._clock.monotonic_ns() >= pending.deadline_ns
        if is_ready and is_converted and total:
            results = self._message_sets.convert(pending.version, request.partitions, results)
            total = sum(len(result.records) for result in results if isinstance(result.records, bytes))
            failed = any(result.error_code for result in results)
            # Nothing but markers: more must come.
            is_ready = failed or is_due or total > 0 or self._clock.monotonic_ns() >= pending.deadline_ns
        if is_ready:
            session_id = self._create_session(pending, results) if request.session_epoch == INITIAL_EPOCH else NO_SESSION
            self._answer(pending, session_id, results, total, failed)
        elif not pending.ticket:
            self._parked.add()
            pending.found.clear()
            pending.cold = None
            pending.rounds = 0
            pending.ticket = self._delayed.park(pending, watched, pending.deadline_ns)
            if len(watched) > FEW_PARTITIONS:
                self._delayed.rows.tell_which(pending.ticket)
                pending.growth = ParkedGrowth()
                pending.growth.begin(watched, request.partitions, results, needed_bytes)
            self.evaluate(pending, False)  # a row may have moved before it was watched
        else:
            pending.ready_ns = 0
            if pending.growth is not None:
                pending.growth.begin(watched, request.partitions, results, needed_bytes)

    def _answer(self, pending: PendingFetch, session_id: int, results: list[FetchPartitionResult], total: int, failed: bool) -> None:
        self._leave(pending)
        if failed:
            self._errors.add()
        self._range_bytes.add(total)
        for result in results:
            records = result.records
            if records is not None:
                self._topic_traffic.add(result.topic, len(records) if isinstance(records, bytes) else records.size_bytes)  # type: ignore[union-attr]
        reply = pending.reply
        reply.pieces = list(encode_fetch_response(pending.version, pending.correlation_id, 0, session_id, results))
        reply.ready = True
        now_ns = self._clock.monotonic_ns()
        self._latency.record(now_ns - (pending.ready_ns or now_ns))
        self._latency_with_wait.record(now_ns - pending.received_ns)
        self._on_reply(reply.connection)

    def _leave(self, pending: PendingFetch) -> None:
        pending.finished = True
        session = pending.session
        if session is not None and session.parked_ticket == pending.ticket:
            session.parked_ticket = 0
        if pending.ticket:
            self._delayed.leave(pending.ticket)
            pending.ticket = 0

    # -- sessions

    def _take_up_session(self, pending: PendingFetch) -> bool:
        """Find the session of a request that names one. False: it was answered with an error."""
        request = pending.request
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.close(request.session_id)
            self._count_sessions()
            return True
        found = self._sessions.continued(
            request.session_id,
            request.session_epoch,
            request.partitions,
            request.forgotten,
            pending.version >= TOPIC_IDS_SINCE,
            request.isolation_level,
            self._clock.monotonic_ms(),
        )
        self._count_sessions()
        if isinstance(found, ErrorCode):
            self._refuse(pending, found)
            return False
        if found.parked_ticket:
            self._delayed.rows.due[found.parked_ticket] = None  # an older request waits for an answer that nobody wants
        if not found.closed:
            self._incremental.add()
            pending.session = found
            pending.expected_epoch = found.expected_epoch
        return True

    def _evaluate_session(self, pending: PendingFetch, session: FetchSession, is_due: bool) -> None:
        """As `evaluate`, but looks only at who is awake, and answers only what is news."""
        if session.closed or session.expected_epoch != pending.expected_epoch:
            # It was evicted, or the client has gone on without waiting for this answer.
            self._refuse(pending, ErrorCode.FETCH_SESSION_ID_NOT_FOUND if session.closed else ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            return
        rows = self._delayed.rows
        rows.collect()
        request = pending.request
        room = min(request.max_bytes, self._fetch_max_bytes)
        total = 0
        failed = urgent = False
        news: list[tuple[SessionPartition, FetchPartitionResult]] = []
        awake: list[tuple[SessionPartition, Placement]] = []
        for partition in session.awake_in_order():
            wanted = partition.wanted
            result, placement = self._look(pending, partition, wanted, room - total, total == 0)
            if result is None:
                continue
            if placement is not None:
                awake.append((partition, placement))
            if partition.must_report(result):
                news.append((partition, result))
                failed = failed or result.error_code != 0
                urgent = urgent or result.diverging_epoch is not None or pending.cold is not None
                if result.records is not None:
                    total += result.records.size_bytes  # type: ignore[union-attr]
            elif placement is not None and wanted.fetch_offset >= _readable_end(request, result) and rows.sleep(placement, partition):
                session.awake.pop(partition, None)
                awake.pop()
        if pending.unknown:
            pending.rounds += not pending.is_held_back
            return
        urgent = urgent or (pending.is_partial and total > 0)
        if failed or urgent or is_due or total >= min(request.min_bytes, room) or self._clock.monotonic_ns() >= pending.deadline_ns:
            for partition, result in news:
                partition.on_reported(result)
            self._answer(pending, session.session_id, [result for _, result in news], total, failed)
        elif not pending.ticket:
            self._parked.add()
            pending.found.clear()
            pending.cold = None
            pending.rounds = 0
            pending.ticket = session.parked_ticket = self._delayed.park(pending, [], pending.deadline_ns)
            pending.ready_ns = 0
            self._watch_awake(awake, pending.ticket)
        else:
            pending.ready_ns = 0
            self._watch_awake(awake, pending.ticket)

    def _watch_awake(self, awake: list[tuple[SessionPartition, Placement]], ticket: int) -> None:
        """Who has something to say, but not enough yet, wakes the parked fetch by saying more."""
        rows = self._delayed.rows
        for partition, placement in awake:
            if not rows.sleep(placement, partition):
                rows.due[ticket] = None  # it moved since it was looked at

    def _create_session(self, pending: PendingFetch, results: list[FetchPartitionResult]) -> int:
        request = pending.request
        by_id = pending.version >= TOPIC_IDS_SINCE
        session = self._sessions.maybe_create(request.partitions, results, request.replica_id >= 0, by_id, request.isolation_level, self._clock.monotonic_ms())
        self._count_sessions()
        return NO_SESSION if session is None else session.session_id

    def _refuse(self, pending: PendingFetch, error_code: ErrorCode) -> None:
        """Answer the whole request with an error of its session."""
        self._leave(pending)
        self._session_errors.add()
        reply = pending.reply
        reply.pieces = list(encode_fetch_response(pending.version, pending.correlation_id, error_code, NO_SESSION, []))
        reply.ready = True
        self._on_reply(reply.connection)

    def _on_session_closed(self, session: FetchSession) -> None:
        if session.parked_ticket:
            self._delayed.rows.due[session.parked_ticket] = None

    def _count_sessions(self) -> None:
        sessions = self._sessions
        self._sessions_open.set(len(sessions))
        self._session_partitions.set(sessions.partition_count)
        self._session_evictions.set(sessions.evictions)

    # -- one partition

    def _look(
        self, pending: PendingFetch, index: Target, wanted: FetchPartition, room: int, is_first: bool
    ) -> tuple[FetchPartitionResult | None, Placement | None]:
        """What partition `index` answers now, with its placement; None while a question is under way."""
        topic, topic_id, partition = wanted.topic, wanted.topic_id, wanted.partition
        if pending.version >= TOPIC_IDS_SINCE:
            known = self._view.image.topics_by_id.get(topic_id)
            if known is None:
                return FetchPartitionResult("", topic_id, partition, ErrorCode.UNKNOWN_TOPIC_ID), None
            topic = known.name
        placement = self._view.placement(topic, partition)
        if placement is None:
            return FetchPartitionResult(topic, topic_id, partition, self._view.why_absent(topic, partition)), None
        try:
            row = placement.read_row()
        except TornRow:
            return FetchPartitionResult(topic, topic_id, partition, ErrorCode.NOT_LEADER_OR_FOLLOWER), None
        problem = _problem(row, placement, wanted)
        if problem is not None:
            return FetchPartitionResult(topic, topic_id, partition, problem), None
        if pending.version >= TOPIC_IDS_SINCE and placement.topic_id != topic_id:
            return FetchPartitionResult(topic, topic_id, partition, ErrorCode.INCONSISTENT_TOPIC_ID), None
        if pending.version < MAGIC_2_SINCE and not self._message_sets.is_allowed(topic, pending.request.replica_id):
            return FetchPartitionResult(topic, topic_id, partition, ErrorCode.UNSUPPORTED_VERSION), None
        if placement.segment_list_generation != row.segment_list_generation:
            self._take_segment_list(placement, row)
        is_committed = pending.request.isolation_level == READ_COMMITTED
        limit_offset = row.last_stable_offset if is_committed else row.high_watermark
        aborted = () if is_committed else None
        empty = FetchPartitionResult(topic, topic_id, partition, 0, row.high_watermark, row.last_stable_offset, row.log_start_offset, None, aborted)
        if wanted.last_fetched_epoch >= 0 and wanted.last_fetched_epoch != row.leader_epoch:
            end = self._epoch_end(pending, index, topic, wanted.last_fetched_epoch, placement, row)
            if end is None:
                return None, placement
            if isinstance(end, ErrorCode):
                return FetchPartitionResult(topic, topic_id, partition, end), None
            if end[0] < wanted.last_fetched_epoch or end[1] < wanted.fetch_offset:
                return empty._replace(diverging_epoch=EpochEndOffset(*end)), placement
        if wanted.fetch_offset >= limit_offset:
            if wanted.fetch_offset == row.high_watermark:
                placement.remember(row.high_watermark, row.watermark_base_offset, row.watermark_position)
            return empty, placement
        most = min(wanted.max_bytes, room)
        if most <= 0 and not is_first:
            return empty, placement
        if pending.targets >= self._targets_max:
            pending.is_partial = True
            return empty, placement
        pending.targets += 1
        unknown = pending.unknown
        records = self._range(pending, index, topic, wanted.fetch_offset, most, is_first, placement, row)
        if isinstance(records, ErrorCode):
            return FetchPartitionResult(topic, topic_id, partition, records), None
        if pending.unknown != unknown:
            return None, placement
        return empty._replace(records=records), placement

    def _take_segment_list(self, placement: Placement, row: Row) -> None:
        """Segments came, went, or were compacted: positions that were known may be in a file that is none of them any more."""
        placement.segment_list_generation = row.segment_list_generation
        placement.cursors.clear()
        self.files.keep_active(placement.disk, placement.row, placement.row_generation, row.active_base_offset)

    def _epoch_end(
        self, pending: PendingFetch, index: Target, topic: str, leader_epoch: int, placement: Placement, row: Row
    ) -> tuple[int, int] | ErrorCode | None:
        """Our largest epoch that is not above `leader_epoch`, and where it ends; an error, or None while the log-reader is asked (KIP-595)."""
        if leader_epoch > row.leader_epoch:
            return ErrorCode.OFFSET_OUT_OF_RANGE
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
            self._answered(pending)

        return self._ask(pending, placement, EPOCH_END, topic, row, leader_epoch, row.log_end_offset, on_answer)

    def _range(
        self, pending: PendingFetch, index: Target, topic: str, fetch_offset: int, most: int, is_first: bool, placement: Placement, row: Row
    ) -> FileRange | ArenaRange | ErrorCode | None:
        """The bytes to send, an error, or None: either a question is under way or there is nothing that fits."""
        found = pending.found.get(index)
        if isinstance(found, ErrorCode):
            return found
        if found is None or found.offset != fetch_offset:
            cursor = placement.cursors.get(fetch_offset)
            if cursor is None:
                return self._ask_lookup(pending, index, topic, fetch_offset, placement, row)
            found = _Found(fetch_offset, *cursor, 0)
        base_offset, position = found.segment_base_offset, found.position
        file = self.files.get((placement.disk, placement.row, placement.row_generation, base_offset))
        if file is None:
            return self._ask_open(pending, index, topic, base_offset, placement, row)
        if found.inode and found.inode != file.inode:
            # It was compacted between the two questions.
            self.files.forget((placement.disk, placement.row, placement.row_generation, base_offset))
            return self._ask_lookup(pending, index, topic, fetch_offset, placement, row)
        end = row.watermark_position if base_offset == row.watermark_base_offset else file.sealed_size_bytes()
        if position >= end:
            # The cursor stands at the end of a segment that was rolled since: the batch is in the next one.
            placement.cursors.pop(fetch_offset, None)
            return self._ask_lookup(pending, index, topic, fetch_offset, placement, row)
        size_bytes = min(end - position, most)
        cold = pending.cold
        if (cold is not None and cold.target == index) or not self._residency.is_resident(file, position, min(max(size_bytes, 1), CHECK_BYTES)):
            is_active = base_offset == row.watermark_base_offset
            return self._cold_range(pending, index, file, position, size_bytes, end, is_first, is_active, placement)
        if size_bytes < end - position and not found.first_batch_bytes:
            # The first batch must go whole, and it may be longer than what was asked for; than today's max.message.bytes, too.
            return self._ask_lookup(pending, index, topic, fetch_offset, placement, row)
        if size_bytes < found.first_batch_bytes:
            if not is_first:
                return None
            size_bytes = found.first_batch_bytes
        if position + size_bytes == row.watermark_position and base_offset == row.watermark_base_offset:
            placement.remember(row.high_watermark, base_offset, position + size_bytes)
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
        placement: Placement,
    ) -> FileRange | ArenaRange | ErrorCode | None:
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
            if pending.version < MAGIC_2_SINCE:
                return ErrorCode.KAFKA_STORAGE_ERROR  # to convert it, it would have to be in memory as a whole
            return FileRange(file, position, read.answer.first_batch_bytes)
        if read.answer.next_offset >= 0:
            placement.remember(read.answer.next_offset, file.origin.base_offset, position + read.answer.size_bytes)
        return read.range

    # -- questions to the log-reader

    def _ask_lookup(self, pending: PendingFetch, index: Target, topic: str, offset: int, placement: Placement, row: Row) -> ErrorCode | None:
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
                pending.found[index] = _Found(offset, answer.a, answer.b, answer.c, answer.d)
            self._answered(pending)

        return self._ask(pending, placement, LOOKUP, topic, row, offset, row.high_watermark, on_answer)

    def _ask_open(self, pending: PendingFetch, index: Target, topic: str, base_offset: int, placement: Placement, row: Row) -> ErrorCode | None:
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
                self.files.add(key, descriptor, topic, placement.partition)
            self._answered(pending)

        return self._ask(pending, placement, OPEN, topic, row, base_offset, 0, on_answer)

    def _ask(
        self,
        pending: PendingFetch,
        placement: Placement,
        kind: int,
        topic: str,
        row: Row,
        value_a: int,
        value_b: int,
        on_answer: Callable[[Answer | None, int], None],
    ) -> ErrorCode | None:
        if pending.rounds >= ROUNDS_MAX:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if pending.questions >= QUESTIONS_AHEAD_MAX:
            pending.unknown += 1
            pending.is_held_back = True
            return None
        reader = self._readers[placement.disk]
        if not reader.ask(kind, topic, placement.partition, row.segment_list_generation, value_a, value_b, on_answer):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        pending.questions += 1
        pending.unknown += 1
        return None

    def _answered(self, pending: PendingFetch) -> None:
        pending.questions -= 1
        if not pending.questions:
            self.evaluate(pending, self._clock.monotonic_ns() >= pending.deadline_ns)


def _problem(row: Row, placement: Placement, wanted: FetchPartition) -> ErrorCode | None:
    """Kafka's checks before reading, in its order."""
    problem = leadership_problem(row, placement.row_generation, wanted.current_leader_epoch)
    if problem is not None:
        return problem
    return None if row.log_start_offset <= wanted.fetch_offset <= row.log_end_offset else ErrorCode.OFFSET_OUT_OF_RANGE


def _readable_end(request: FetchRequest, result: FetchPartitionResult) -> int:
    """Where what this request may read ends."""
    return result.last_stable_offset if request.isolation_level == READ_COMMITTED else result.high_watermark
