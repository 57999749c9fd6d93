"""Fetch: find where each partition's batches begin, send them by sendfile, park long polls until enough is there.

The path without a question: the fetch offset is one of the partition's known cursors (a consumer that read to the high watermark comes back
exactly there) and its segment is open. Otherwise the disk's log-reader is asked (LOOKUP, OPEN); the acceptor itself never opens, seeks
or reads a log file. Sessions are declined (session id 0). Owned by one acceptor.
Weak spot: a range that is not in the page cache makes sendfile wait for the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.broker.box_view import BoxView, Placement
from appliance.broker.connection import Connection, Reply
from appliance.broker.delayed import Delayed
from appliance.broker.leadership import leadership_problem
from appliance.broker.segment_files import FileRange, SegmentFiles
from appliance.ipc.log_reader_messages import LOOKUP, OPEN, Answer
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.protocol.fetch import READ_COMMITTED, TOPIC_IDS_SINCE, FetchPartition, FetchPartitionResult, FetchRequest, decode_fetch, encode_fetch_response
from appliance.protocol.request_header import RequestHeader
from appliance.shm.counters import Counters
from appliance.shm.partition_table import Row, TornRow

ROUNDS_MAX = 8
"""Questions asked one after the other for one fetch before it answers with what it has."""


class _Found(NamedTuple):
    """Where a batch begins, as the log-reader told; `first_batch_bytes` 0: not known."""

    offset: int
    segment_base_offset: int
    position: int
    first_batch_bytes: int


class PendingFetch:
    """One fetch request on its way."""

    __slots__ = ("correlation_id", "deadline_ns", "finished", "found", "handler", "questions", "reply", "request", "rounds", "ticket", "version")

    def __init__(self, handler: FetchHandler, reply: Reply, request: FetchRequest, version: int, correlation_id: int, deadline_ns: int) -> None:
        self.handler = handler
        self.reply = reply
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        self.deadline_ns = deadline_ns
        self.questions = 0
        self.rounds = 0
        self.ticket = 0
        self.found: dict[int, _Found | ErrorCode] = {}
        """index of a partition → what the log-reader answered"""
        self.finished = False

    def on_row_moved(self) -> None:
        self.handler.evaluate(self, False)

    def on_deadline(self) -> None:
        self.ticket = 0
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
        on_reply: Callable[[Connection], None],
    ) -> None:
        self._view = view
        self._readers = readers
        self._delayed = delayed
        self._clock = clock
        self._fetch_max_bytes = fetch_max_bytes
        self._on_reply = on_reply
        self.files = SegmentFiles()
        self._requests = counters.counter("fetch.requests")
        self._parked = counters.counter("fetch.parked")
        self._range_bytes = counters.counter("fetch.range_bytes")
        self._errors = counters.counter("fetch.errors")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_fetch(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        reply = connection.expect_reply(False)
        deadline_ns = self._clock.monotonic_ns() + max(0, request.max_wait_ms) * 1_000_000
        if request.session_id and request.session_epoch > 0:
            reply.pieces = list(encode_fetch_response(header.api_version, header.correlation_id, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, []))
            reply.ready = True
            self._on_reply(connection)
            return
        self.evaluate(PendingFetch(self, reply, request, header.api_version, header.correlation_id, deadline_ns), request.max_wait_ms <= 0)

    def evaluate(self, pending: PendingFetch, is_due: bool) -> None:
        """Look at every partition; answer, ask the log-readers, or park."""
        if pending.finished or pending.questions > 0:
            return
        if pending.reply.connection.closed:
            self._leave(pending)
            return
        request = pending.request
        results: list[FetchPartitionResult] = []
        room = min(request.max_bytes, self._fetch_max_bytes)
        total = 0
        failed = False
        watched: list[Placement] = []
        for index, wanted in enumerate(request.partitions):
            result, placement = self._look(pending, index, wanted, room - total, total == 0)
            if result is None:
                continue
            if result.error_code:
                failed = True
            elif placement is not None:
                watched.append(placement)
                if result.records is not None:
                    total += result.records.size_bytes  # type: ignore[union-attr]
            results.append(result)
        if pending.questions > 0:
            pending.rounds += 1
            return
        if failed or is_due or total >= min(request.min_bytes, room) or not request.partitions or self._clock.monotonic_ns() >= pending.deadline_ns:
            self._answer(pending, results, total, failed)
        elif not pending.ticket:
            self._parked.add()
            pending.found.clear()
            pending.rounds = 0
            pending.ticket = self._delayed.park(pending, watched, pending.deadline_ns)
            self.evaluate(pending, False)  # a row may have moved before it was watched

    def _answer(self, pending: PendingFetch, results: list[FetchPartitionResult], total: int, failed: bool) -> None:
        self._leave(pending)
        if failed:
            self._errors.add()
        self._range_bytes.add(total)
        reply = pending.reply
        reply.pieces = list(encode_fetch_response(pending.version, pending.correlation_id, 0, 0, results))
        reply.ready = True
        self._on_reply(reply.connection)

    def _leave(self, pending: PendingFetch) -> None:
        pending.finished = True
        if pending.ticket:
            self._delayed.leave(pending.ticket)
            pending.ticket = 0

    # -- one partition

    def _look(
        self, pending: PendingFetch, index: int, wanted: FetchPartition, room: int, is_first: bool
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
        is_committed = pending.request.isolation_level == READ_COMMITTED
        limit_offset = row.last_stable_offset if is_committed else row.high_watermark
        aborted = () if is_committed else None
        empty = FetchPartitionResult(topic, topic_id, partition, 0, row.high_watermark, row.last_stable_offset, row.log_start_offset, None, aborted)
        if wanted.fetch_offset >= limit_offset:
            if wanted.fetch_offset == row.high_watermark:
                placement.remember(row.high_watermark, row.watermark_base_offset, row.watermark_position)
            return empty, placement
        most = min(wanted.max_bytes, room)
        if most <= 0 and not is_first:
            return empty, placement
        records = self._range(pending, index, topic, wanted.fetch_offset, most, is_first, placement, row)
        if isinstance(records, ErrorCode):
            return FetchPartitionResult(topic, topic_id, partition, records), None
        if pending.questions and records is None:
            return None, placement
        return empty._replace(records=records), placement

    def _range(
        self, pending: PendingFetch, index: int, topic: str, fetch_offset: int, most: int, is_first: bool, placement: Placement, row: Row
    ) -> FileRange | ErrorCode | None:
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
        end = row.watermark_position if base_offset == row.watermark_base_offset else file.sealed_size_bytes()
        if position >= end:
            # The cursor stands at the end of a segment that was rolled since: the batch is in the next one.
            placement.cursors.pop(fetch_offset, None)
            return self._ask_lookup(pending, index, topic, fetch_offset, placement, row)
        size_bytes = min(end - position, most)
        if size_bytes < end - position and not found.first_batch_bytes and most < placement.max_message_bytes:
            # The first batch must go whole, and it may be longer than what was asked for.
            return self._ask_lookup(pending, index, topic, fetch_offset, placement, row)
        if size_bytes < found.first_batch_bytes:
            if not is_first:
                return None
            size_bytes = found.first_batch_bytes
        if position + size_bytes == row.watermark_position and base_offset == row.watermark_base_offset:
            placement.remember(row.high_watermark, base_offset, position + size_bytes)
        return FileRange(file, position, size_bytes)

    # -- questions to the log-reader

    def _ask_lookup(self, pending: PendingFetch, index: int, topic: str, offset: int, placement: Placement, row: Row) -> ErrorCode | None:
        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if descriptor >= 0:
                os.close(descriptor)
            if answer is None:
                pending.found[index] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif answer.error_code:
                pending.found[index] = ErrorCode(answer.error_code)
            else:
                # The batch that holds the offset may begin before it: the client skips what it did not ask for.
                pending.found[index] = _Found(offset, answer.a, answer.b, answer.c)
            self._answered(pending)

        return self._ask(pending, placement, LOOKUP, topic, row, offset, row.high_watermark, on_answer)

    def _ask_open(self, pending: PendingFetch, index: int, topic: str, base_offset: int, placement: Placement, row: Row) -> ErrorCode | None:
        key = (placement.disk, placement.row, placement.row_generation, base_offset)

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if answer is None:
                pending.found[index] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif answer.error_code or descriptor < 0:
                pending.found[index] = ErrorCode(answer.error_code or ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                self.files.add(key, descriptor)
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
        reader = self._readers[placement.disk]
        if not reader.ask(kind, topic, placement.partition, row.segment_list_generation, value_a, value_b, on_answer):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        pending.questions += 1
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
