"""ListOffsets: earliest and latest from the row; by time, the largest timestamp and version 0's lists through the disk's log-reader.

The earliest record's leader epoch is asked of the log-reader too, unless the partition has had one leader epoch only; and, until a new leader's high
watermark has reached its epoch, where that began. Owned by one acceptor.
Weak spots: version 0 gets at most 100 offsets; partitions are asked one by one, up to `QUESTIONS_AHEAD_MAX` under way at once.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.log_reader_messages import EPOCH_AT, EPOCH_END, MAX_TIMESTAMP, SEGMENTS, TIME, Answer
from appliance.ipc.log_reader_proxy import QUESTIONS_AHEAD_MAX, LogReaderProxy, OnAnswer
from appliance.protocol.offset_apis import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
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
from services.acceptor.connection import Connection, Reply
from services.acceptor.leadership import leadership_problem

INT64_MAX = 2**63 - 1
_SINCE = {LATEST_TIMESTAMP: 0, EARLIEST_TIMESTAMP: 0, LARGEST_TIMESTAMP: 7, EARLIEST_LOCAL_TIMESTAMP: 8, LATEST_TIERED_TIMESTAMP: 9}
_READ_COMMITTED = 1
_LEADER_EPOCH_SINCE = 4
_OFFSET_NOT_AVAILABLE_SINCE = 5
_CONSUMER, _DEBUGGING = -1, -2
"""Replica ids of who is none. Who looks for errors may ask any replica, for its log end."""


class _PendingListOffsets:
    """One request whose partitions are being looked up."""

    __slots__ = ("correlation_id", "duplicates", "is_looking", "questions", "reply", "request", "results", "todo", "version")

    def __init__(self, reply: Reply, request: ListOffsetsRequest, header: RequestHeader) -> None:
        self.reply = reply
        self.request = request
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.questions = 0
        self.todo = ((topic_index, index) for topic_index, topic in enumerate(request.topics) for index in range(len(topic.partitions)))
        """(topic, partition) that nobody looked at yet, by their places in the request"""
        self.is_looking = False
        self.duplicates = _duplicates(request) if header.api_version else frozenset()
        self.results: list[list[ListOffsetsPartitionResult | None]] = [[None] * len(topic.partitions) for topic in request.topics]


class ListOffsetsHandler:
    """All ListOffsets requests of one acceptor."""

    def __init__(
        self, view: MetadataCache, readers: dict[str, LogReaderProxy], clock: Clock, counters: Counters, on_reply: Callable[[Connection], None]
    ) -> None:
        self._view = view
        self._readers = readers
        self._clock = clock
        self._on_reply = on_reply
        self._requests = counters.counter("list_offsets.requests")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_list_offsets(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        pending = _PendingListOffsets(connection.expect_reply(False), request, header)
        self._go_on(pending)

    def _go_on(self, pending: _PendingListOffsets) -> None:
        """Look at partitions as long as not too many questions are under way; answer when there is nothing left to do."""
        if pending.is_looking or pending.reply.connection.closed:
            return  # an answer came, or its log-reader died, in the middle of a question: the look goes on anyway
        pending.is_looking = True
        for topic_index, index in pending.todo:
            topic = pending.request.topics[topic_index]
            wanted = topic.partitions[index]
            if (topic.topic, wanted.partition) in pending.duplicates:
                result: ListOffsetsPartitionResult | None = _error(wanted, ErrorCode.INVALID_REQUEST)
            else:
                result = self._look(pending, topic_index, index, topic.topic, wanted)
            if result is not None:
                pending.results[topic_index][index] = result
            if pending.questions >= QUESTIONS_AHEAD_MAX:
                break
        pending.is_looking = False
        if not pending.questions:
            self._answer(pending)

    def _look(self, pending: _PendingListOffsets, topic_index: int, index: int, topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResult | None:
        placement = self._view.placement(topic, wanted.partition)
        if placement is None:
            return _error(wanted, self._view.why_absent(topic, wanted.partition))
        try:
            row = placement.read_row()
        except TornRow:
            return _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        replica_id = pending.request.replica_id
        problem = leadership_problem(row, placement.row_generation, wanted.current_leader_epoch, replica_id != _DEBUGGING)
        if problem is not None:
            return _error(wanted, problem)
        timestamp = wanted.timestamp
        if timestamp < 0 and pending.version < _SINCE.get(timestamp, 1 << 15):
            return _error(wanted, ErrorCode.UNSUPPORTED_VERSION)
        limit_offset = row.last_stable_offset if pending.request.isolation_level == _READ_COMMITTED else row.high_watermark
        if replica_id != _CONSUMER:
            limit_offset = row.log_end_offset
        if pending.version == 0:
            return self._old_style(pending, topic_index, index, placement, wanted, row, limit_offset)
        if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            return self._earliest(pending, topic_index, index, placement, wanted, row)
        if timestamp == LATEST_TIERED_TIMESTAMP:
            return ListOffsetsPartitionResult(wanted.partition)  # nothing is stored anywhere but here
        if timestamp == LATEST_TIMESTAMP:
            result = ListOffsetsPartitionResult(wanted.partition, 0, -1, limit_offset, row.leader_epoch)
            return self._if_settled(pending, topic_index, index, placement, wanted, row, result)
        return self._by_time(pending, topic_index, index, placement, wanted, row, limit_offset)

    def _if_settled(
        self,
        pending: _PendingListOffsets,
        topic_index: int,
        index: int,
        placement: LocalReplica,
        wanted: ListOffsetsPartition,
        row: Row,
        result: ListOffsetsPartitionResult,
    ) -> ListOffsetsPartitionResult | None:
        """`result`; or, for a consumer of a new leader whose high watermark has not reached the beginning of its epoch, that it has to ask again: what
        the leader before it said of the end may have been more (KIP-207). None while the log-reader is asked where the epoch begins."""
        is_lagging = row.high_watermark < row.log_end_offset and 0 < row.leader_epoch != placement.settled_epoch
        if pending.request.replica_id != _CONSUMER or not is_lagging:
            return result

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            told = result
            if answer is None or answer.error_code:
                told = _error(wanted, ErrorCode(answer.error_code) if answer is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif answer.b > row.high_watermark:
                code = ErrorCode.OFFSET_NOT_AVAILABLE if pending.version >= _OFFSET_NOT_AVAILABLE_SINCE else ErrorCode.LEADER_NOT_AVAILABLE
                told = _error(wanted, code)
            else:
                placement.settled_epoch = row.leader_epoch
            pending.results[topic_index][index] = told
            self._answered(pending)

        # Where the epoch before ours ended, ours began.
        if not self._ask(pending, placement, EPOCH_END, row, row.leader_epoch - 1, row.log_end_offset, on_answer):
            return _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return None

    def _earliest(
        self, pending: _PendingListOffsets, topic_index: int, index: int, placement: LocalReplica, wanted: ListOffsetsPartition, row: Row
    ) -> ListOffsetsPartitionResult | None:
        result = ListOffsetsPartitionResult(wanted.partition, 0, -1, row.log_start_offset, row.leader_epoch)
        if row.leader_epoch == 0 or pending.version < _LEADER_EPOCH_SINCE:
            return result

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            # Without an answer the epoch stays unknown, which clients take; the offset is right all the same.
            known = answer is not None and not answer.error_code
            pending.results[topic_index][index] = result._replace(leader_epoch=answer.a if known and answer is not None else -1)
            self._answered(pending)

        if not self._ask(pending, placement, EPOCH_AT, row, row.log_start_offset, 0, on_answer):
            return result._replace(leader_epoch=-1)
        return None

    def _old_style(
        self, pending: _PendingListOffsets, topic_index: int, index: int, placement: LocalReplica, wanted: ListOffsetsPartition, row: Row, limit_offset: int
    ) -> ListOffsetsPartitionResult | None:
        """Version 0: base offsets of segments and the log end, descending, from the newest that is not younger than the timestamp on."""
        most = max(0, wanted.max_num_offsets)
        if wanted.timestamp == EARLIEST_TIMESTAMP:
            return ListOffsetsPartitionResult(wanted.partition, old_style_offsets=(row.log_start_offset,)[:most])
        # The log end counts as a segment that was written to just now, unless the last segment is empty and begins there.
        is_latest = wanted.timestamp == LATEST_TIMESTAMP or wanted.timestamp >= self._clock.wall_ms()
        ends = (row.log_end_offset,) if is_latest and row.active_position else ()

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if answer is None:
                result = _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif answer.error_code:
                result = _error(wanted, ErrorCode(answer.error_code))
            else:
                offsets = (*ends, *(max(offset, row.log_start_offset) for offset in answer.offsets))[:most]
                if offsets and offsets[0] > limit_offset:
                    offsets = (limit_offset, *(offset for offset in offsets if offset <= limit_offset))
                result = ListOffsetsPartitionResult(wanted.partition, old_style_offsets=offsets)
            pending.results[topic_index][index] = result
            self._answered(pending)

        if not self._ask(pending, placement, SEGMENTS, row, INT64_MAX if is_latest else wanted.timestamp, 0, on_answer):
            return _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return None

    def _by_time(
        self, pending: _PendingListOffsets, topic_index: int, index: int, placement: LocalReplica, wanted: ListOffsetsPartition, row: Row, limit_offset: int
    ) -> ListOffsetsPartitionResult | None:
        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if answer is None:
                result = _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif answer.error_code:
                result = _error(wanted, ErrorCode(answer.error_code))
            else:
                # Of a segment whose first records were deleted the log-reader sees them still: nobody is sent below the log start.
                offset = max(answer.a, row.log_start_offset) if answer.a >= 0 else -1
                found: ListOffsetsPartitionResult | None = ListOffsetsPartitionResult(wanted.partition, 0, answer.b, offset, answer.c)
                if offset < 0 and found is not None:
                    found = self._if_settled(pending, topic_index, index, placement, wanted, row, found)
                if found is None:
                    pending.questions -= 1  # another one is under way instead
                    return
                result = found
            pending.results[topic_index][index] = result
            self._answered(pending)

        kind = MAX_TIMESTAMP if wanted.timestamp == LARGEST_TIMESTAMP else TIME
        if not self._ask(pending, placement, kind, row, wanted.timestamp, limit_offset, on_answer):
            return _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return None

    def _ask(self, pending: _PendingListOffsets, placement: LocalReplica, kind: int, row: Row, value_a: int, value_b: int, on_answer: OnAnswer) -> bool:
        reader = self._readers[placement.disk]
        asked = reader.ask(kind, placement.topic, placement.partition, row.segment_list_generation, value_a, value_b, on_answer)
        pending.questions += asked
        return asked

    def _answered(self, pending: _PendingListOffsets) -> None:
        pending.questions -= 1
        self._go_on(pending)

    def _answer(self, pending: _PendingListOffsets) -> None:
        topics = tuple(
            ListOffsetsTopicResult(topic.topic, tuple(result for result in results if result is not None))
            for topic, results in zip(pending.request.topics, pending.results, strict=True)
        )
        reply = pending.reply
        reply.pieces = [encode_list_offsets_response(pending.version, pending.correlation_id, topics)]
        reply.ready = True
        self._on_reply(reply.connection)


def _duplicates(request: ListOffsetsRequest) -> frozenset[tuple[str, int]]:
    """Partitions that a request names more than once, in one topic entry or in several."""
    named = [(topic.topic, wanted.partition) for topic in request.topics for wanted in topic.partitions]
    if len(named) == len(set(named)):
        return frozenset()
    return frozenset(name for name, count in Tally(named).items() if count > 1)


def _error(wanted: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResult:
    return ListOffsetsPartitionResult(wanted.partition, code)
