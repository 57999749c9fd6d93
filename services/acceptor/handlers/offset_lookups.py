"""ListOffsets and OffsetForLeaderEpoch: offsets from the row, or looked up by the disk's log-reader.

ListOffsets reads the earliest and latest offset from the row. Look-ups by time, the largest timestamp and
the segment lists of version 0 go to the log-reader; so does the leader epoch of the earliest record, unless
the partition has had one leader epoch only. OffsetForLeaderEpoch reads the end of the latest epoch from the
row; older ones are in the leader-epoch checkpoint (KIP-101, KIP-279, KIP-320).
Owned by one acceptor. Weak spots: version 0 returns at most 100 offsets; one question for each partition, up
to `QUESTIONS_AHEAD_MAX` under way at once.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import Offset
from appliance.cluster.metadata_cache import MetadataCache
from appliance.ipc.log_reader_messages import EPOCH_AT, EPOCH_END, MAX_TIMESTAMP, SEGMENTS, TIME, Answer
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.protocol.framing import RequestHeader
from appliance.protocol.offset_apis import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    EpochPartition,
    EpochPartitionResult,
    EpochTopicResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsTopicResult,
    decode_list_offsets,
    decode_offset_for_leader_epoch,
    encode_list_offsets_response,
    encode_offset_for_leader_epoch_response,
)
from appliance.security.acl import AclOperation
from appliance.shm.counters import Counters
from services.acceptor.connection import Connection
from services.acceptor.fanned_out_request import LookUpRequest, RequestPart

INT64_MAX = 2**63 - 1
_SINCE = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    LARGEST_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}
_READ_COMMITTED = 1
_LEADER_EPOCH_SINCE = 4
_OFFSET_NOT_AVAILABLE_SINCE = 5
_CONSUMER, _DEBUGGING = -1, -2
"""Replica ids that are no follower's. A debugging client may ask any replica, for its log end offset."""

ListPart = RequestPart[ListOffsetsPartitionResult]
EpochPart = RequestPart[EpochPartitionResult]


class _ListRequest(LookUpRequest[ListOffsetsPartitionResult]):
    body: ListOffsetsRequest
    duplicates: frozenset[tuple[str, int]]

    def refusal(self, wanted: ListOffsetsPartition, code: int) -> ListOffsetsPartitionResult:
        return ListOffsetsPartitionResult(wanted.partition, code)

    def encode(self, results: list[tuple[ListOffsetsPartitionResult, ...]]) -> bytes:
        topics = tuple(ListOffsetsTopicResult(topic.topic, each) for topic, each in zip(self.topics, results, strict=True))
        return encode_list_offsets_response(self.header.api_version, self.header.correlation_id, topics)


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
        body = decode_list_offsets(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        reply = connection.expect_reply(False)
        request = _ListRequest(self._on_reply, reply, header, body.topics, self._readers, self._look_up)
        request.body = body
        request.duplicates = _duplicates(body) if header.api_version else frozenset()
        request.go_on()

    def _look_up(self, request: _ListRequest, part: ListPart) -> None:
        wanted: ListOffsetsPartition = part.wanted
        version, timestamp, replica_id = request.header.api_version, wanted.timestamp, request.body.replica_id
        if (part.topic, wanted.partition) in request.duplicates:
            part.refuse(ErrorCode.INVALID_REQUEST)
            return
        if not part.is_allowed(AclOperation.DESCRIBE):
            return
        if not part.find(self._view, wanted.current_leader_epoch, replica_id != _DEBUGGING):
            return
        row = part.row
        if timestamp < 0 and version < _SINCE.get(timestamp, 1 << 15):
            part.refuse(ErrorCode.UNSUPPORTED_VERSION)
            return
        limit_offset = row.last_stable_offset if request.body.isolation_level == _READ_COMMITTED else row.high_watermark
        if replica_id != _CONSUMER:
            limit_offset = row.log_end_offset
        if version == 0:
            self._list_segments(request, part, limit_offset)
        elif timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            self._find_earliest(request, part)
        elif timestamp == LATEST_TIERED_TIMESTAMP:
            part.settle(ListOffsetsPartitionResult(wanted.partition))  # there is no tiered storage
        elif timestamp == LATEST_TIMESTAMP:
            result = ListOffsetsPartitionResult(wanted.partition, 0, -1, limit_offset, row.leader_epoch)
            self._settle_when_current(request, part, result)
        else:
            self._find_by_time(request, part, limit_offset)

    def _settle_when_current(self, request: _ListRequest, part: ListPart, result: ListOffsetsPartitionResult) -> None:
        """Settle with `result`, unless a new leader's high watermark has not reached the start of its epoch.

        The previous leader may have returned a larger offset, so a consumer would see the end go back: it has
        to retry (KIP-207).
        """
        replica, row = part.replica, part.row
        is_lagging = row.high_watermark < row.log_end_offset and 0 < row.leader_epoch != replica.settled_epoch
        if request.body.replica_id != _CONSUMER or not is_lagging:
            part.settle(result)
            return

        def then(answer: Answer) -> None:
            if answer.b <= row.high_watermark:
                replica.settled_epoch = row.leader_epoch
                part.settle(result)
            elif request.header.api_version >= _OFFSET_NOT_AVAILABLE_SINCE:
                part.refuse(ErrorCode.OFFSET_NOT_AVAILABLE)
            else:
                part.refuse(ErrorCode.LEADER_NOT_AVAILABLE)

        # The end of the previous epoch is the start of ours.
        request.ask(part, EPOCH_END, row.leader_epoch - 1, row.log_end_offset, then)

    def _find_earliest(self, request: _ListRequest, part: ListPart) -> None:
        row = part.row
        result = ListOffsetsPartitionResult(part.partition, 0, -1, row.log_start_offset, row.leader_epoch)
        if row.leader_epoch == 0 or request.header.api_version < _LEADER_EPOCH_SINCE:
            part.settle(result)
        else:
            # Without an answer the leader epoch is unknown, which clients accept; the offset is right.
            unknown = result._replace(leader_epoch=-1)
            request.ask(part, EPOCH_AT, row.log_start_offset, 0, lambda answer: part.settle(result._replace(leader_epoch=answer.a)), unknown)

    def _list_segments(self, request: _ListRequest, part: ListPart, limit_offset: Offset) -> None:
        """Version 0: base offsets of segments and the log end, descending, from `timestamp` back."""
        wanted, row = part.wanted, part.row
        count = max(0, wanted.max_num_offsets)
        if wanted.timestamp == EARLIEST_TIMESTAMP:
            part.settle(ListOffsetsPartitionResult(wanted.partition, old_style_offsets=(row.log_start_offset,)[:count]))
            return
        # The log end counts as a segment written just now, unless the last segment is empty and starts there.
        is_latest = wanted.timestamp == LATEST_TIMESTAMP or wanted.timestamp >= self._clock.wall_ms()
        ends = (row.log_end_offset,) if is_latest and row.active_position else ()

        def then(answer: Answer) -> None:
            offsets = (*ends, *(max(offset, row.log_start_offset) for offset in answer.offsets))[:count]
            if offsets and offsets[0] > limit_offset:
                offsets = (limit_offset, *(offset for offset in offsets if offset <= limit_offset))
            part.settle(ListOffsetsPartitionResult(wanted.partition, old_style_offsets=offsets))

        request.ask(part, SEGMENTS, INT64_MAX if is_latest else wanted.timestamp, 0, then)

    def _find_by_time(self, request: _ListRequest, part: ListPart, limit_offset: Offset) -> None:
        def then(answer: Answer) -> None:
            # The log-reader still sees deleted records at the start of a segment: never return them.
            offset = max(answer.a, part.row.log_start_offset) if answer.a >= 0 else -1
            result = ListOffsetsPartitionResult(part.partition, 0, answer.b, offset, answer.c)
            if offset >= 0:
                part.settle(result)
            else:
                self._settle_when_current(request, part, result)

        kind = MAX_TIMESTAMP if part.wanted.timestamp == LARGEST_TIMESTAMP else TIME
        request.ask(part, kind, part.wanted.timestamp, limit_offset, then)


def _duplicates(request: ListOffsetsRequest) -> frozenset[tuple[str, int]]:
    """Partitions that a request names more than once, in one topic entry or in several."""
    named = [(topic.topic, wanted.partition) for topic in request.topics for wanted in topic.partitions]
    if len(named) == len(set(named)):
        return frozenset()
    return frozenset(name for name, count in Tally(named).items() if count > 1)


class _EpochRequest(LookUpRequest[EpochPartitionResult]):
    def refusal(self, wanted: EpochPartition, code: int) -> EpochPartitionResult:
        return EpochPartitionResult(code, wanted.partition)

    def encode(self, results: list[tuple[EpochPartitionResult, ...]]) -> bytes:
        topics = tuple(EpochTopicResult(topic.topic, each) for topic, each in zip(self.topics, results, strict=True))
        return encode_offset_for_leader_epoch_response(self.header.api_version, self.header.correlation_id, topics)


class OffsetForLeaderEpochHandler:
    """All OffsetForLeaderEpoch requests of one acceptor."""

    def __init__(self, view: MetadataCache, readers: dict[str, LogReaderProxy], counters: Counters, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._readers = readers
        self._on_reply = on_reply
        self._requests = counters.counter("offset_for_leader_epoch.requests")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        topics = decode_offset_for_leader_epoch(buffer, header.body_position, limit, header.api_version).topics
        self._requests.add()
        reply = connection.expect_reply(False)
        request = _EpochRequest(self._on_reply, reply, header, topics, self._readers, self._look_up)
        request.go_on()

    def _look_up(self, request: _EpochRequest, part: EpochPart) -> None:
        wanted: EpochPartition = part.wanted
        rights = request.reply.connection.rights
        if rights is not None and not rights.would_allow_on_cluster(AclOperation.CLUSTER_ACTION) and not part.is_allowed(AclOperation.DESCRIBE):
            return
        if not part.find(self._view, wanted.current_leader_epoch):
            return
        row = part.row
        if wanted.leader_epoch == row.leader_epoch:
            # The leader caches its epoch before the row has it: it is the latest one.
            part.settle(EpochPartitionResult(ErrorCode.NONE, wanted.partition, row.leader_epoch, row.log_end_offset))
        elif not 0 <= wanted.leader_epoch < row.leader_epoch:
            part.refuse(ErrorCode.NONE)  # unknown: −1 and −1
        else:
            request.ask(
                part,
                EPOCH_END,
                wanted.leader_epoch,
                row.log_end_offset,
                lambda answer: part.settle(EpochPartitionResult(ErrorCode.NONE, wanted.partition, answer.a, answer.b)),
            )
