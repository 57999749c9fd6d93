"""ListOffsets: earliest and latest from the row; by time and the largest timestamp through the disk's log-reader.

Owned by one acceptor. Weak spot: partitions are asked one by one, all under way at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.broker.box_view import BoxView, Placement
from appliance.broker.connection import Connection, Reply
from appliance.broker.leadership import leadership_problem
from appliance.ipc.log_reader_messages import MAX_TIMESTAMP, TIME, Answer
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsTopicResult,
    decode_list_offsets,
    encode_list_offsets_response,
)
from appliance.protocol.request_header import RequestHeader
from appliance.shm.counters import Counters
from appliance.shm.partition_table import Row, TornRow

LATEST, EARLIEST, LARGEST_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
_SINCE = {LATEST: 0, EARLIEST: 0, LARGEST_TIMESTAMP: 7, EARLIEST_LOCAL: 8}
_READ_COMMITTED = 1


class _PendingListOffsets:
    """One request whose partitions are being looked up."""

    __slots__ = ("correlation_id", "questions", "reply", "request", "results", "version")

    def __init__(self, reply: Reply, request: ListOffsetsRequest, header: RequestHeader) -> None:
        self.reply = reply
        self.request = request
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.questions = 0
        self.results: list[list[ListOffsetsPartitionResult | None]] = [[None] * len(topic.partitions) for topic in request.topics]


class ListOffsetsHandler:
    """All ListOffsets requests of one acceptor."""

    def __init__(self, view: BoxView, readers: dict[str, LogReaderProxy], counters: Counters, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._readers = readers
        self._on_reply = on_reply
        self._requests = counters.counter("list_offsets.requests")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_list_offsets(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        pending = _PendingListOffsets(connection.expect_reply(False), request, header)
        pending.questions = 1  # holds the answer back until every partition was looked at
        for topic_index, topic in enumerate(request.topics):
            seen: set[int] = set()
            for index, wanted in enumerate(topic.partitions):
                if wanted.partition in seen:
                    result: ListOffsetsPartitionResult | None = _error(wanted, ErrorCode.INVALID_REQUEST)
                else:
                    seen.add(wanted.partition)
                    result = self._look(pending, topic_index, index, topic.topic, wanted)
                if result is not None:
                    pending.results[topic_index][index] = result
        self._answered(pending)

    def _look(self, pending: _PendingListOffsets, topic_index: int, index: int, topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResult | None:
        placement = self._view.placement(topic, wanted.partition)
        if placement is None:
            return _error(wanted, self._view.why_absent(topic, wanted.partition))
        try:
            row = placement.read_row()
        except TornRow:
            return _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        problem = leadership_problem(row, placement.row_generation, wanted.current_leader_epoch)
        if problem is not None:
            return _error(wanted, problem)
        timestamp = wanted.timestamp
        if timestamp < 0 and pending.version < _SINCE.get(timestamp, 1 << 15):
            return _error(wanted, ErrorCode.UNSUPPORTED_VERSION)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return ListOffsetsPartitionResult(wanted.partition, 0, -1, row.log_start_offset, row.leader_epoch)
        limit_offset = row.last_stable_offset if pending.request.isolation_level == _READ_COMMITTED else row.high_watermark
        if pending.request.replica_id >= 0:
            limit_offset = row.log_end_offset
        if timestamp == LATEST:
            return ListOffsetsPartitionResult(wanted.partition, 0, -1, limit_offset, row.leader_epoch)
        return self._ask(pending, topic_index, index, placement, wanted, row, limit_offset)

    def _ask(
        self, pending: _PendingListOffsets, topic_index: int, index: int, placement: Placement, wanted: ListOffsetsPartition, row: Row, limit_offset: int
    ) -> ListOffsetsPartitionResult | None:
        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if descriptor >= 0:
                os.close(descriptor)
            if answer is None:
                result = _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif answer.error_code:
                result = _error(wanted, ErrorCode(answer.error_code))
            else:
                result = ListOffsetsPartitionResult(wanted.partition, 0, answer.b if answer.a >= 0 else -1, answer.a)
            pending.results[topic_index][index] = result
            self._answered(pending)

        kind = MAX_TIMESTAMP if wanted.timestamp == LARGEST_TIMESTAMP else TIME
        asked = self._readers[placement.disk].ask(
            kind, placement.topic, placement.partition, row.segment_list_generation, wanted.timestamp, limit_offset, on_answer
        )
        if not asked:
            return _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        pending.questions += 1
        return None

    def _answered(self, pending: _PendingListOffsets) -> None:
        pending.questions -= 1
        if pending.questions:
            return
        topics = tuple(
            ListOffsetsTopicResult(topic.topic, tuple(result for result in results if result is not None))
            for topic, results in zip(pending.request.topics, pending.results, strict=True)
        )
        reply = pending.reply
        reply.pieces = [encode_list_offsets_response(pending.version, pending.correlation_id, topics)]
        reply.ready = True
        self._on_reply(reply.connection)


def _error(wanted: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResult:
    return ListOffsetsPartitionResult(wanted.partition, code)
