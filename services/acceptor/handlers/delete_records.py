"""DeleteRecords: hand each partition's new beginning to its disk's log-writer, answer when it is durable there and every follower that lives begins there, too.

A partition that cannot be served gets its own error at once and harms no other. Owned by one acceptor. Kafka answers before its checkpoint is
written; here the answer means that a power cut of the leader brings no deleted record back, at the price of one sync. The log-writer knows the followers, and
answers REQUEST_TIMED_OUT when the client's time is over. Weak spot: a request that timed out is carried out all the same, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import INTERNAL_TOPICS
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.descriptors import DescriptorKind
from appliance.protocol.offset_apis import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopicResult,
    decode_delete_records,
    encode_delete_records_response,
)
from appliance.protocol.request_header import RequestHeader
from appliance.shm.counters import Counters
from appliance.shm.partition_table import Row, TornRow
from services.acceptor.connection import Connection, Reply
from services.acceptor.leadership import leadership_problem

ANSWER_NS = 1_000_000_000
"""So long after the client's time the log-writer may still answer. Only waiting for followers has to end in time: the leader's part is always done, so a
client that gives no time at all is told of it."""


class _PendingDeletion:
    """One request whose partitions are under way."""

    __slots__ = ("correlation_id", "deadline_ns", "handler", "is_finished", "remaining", "reply", "request", "results", "version")

    def __init__(self, handler: DeleteRecordsHandler, reply: Reply, request: DeleteRecordsRequest, header: RequestHeader, deadline_ns: int) -> None:
        self.handler = handler
        self.reply = reply
        self.request = request
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.deadline_ns = deadline_ns
        self.remaining = 1  # holds the answer back until every partition was looked at
        self.is_finished = False
        self.results: list[list[DeleteRecordsPartitionResult | None]] = [[None] * len(topic.partitions) for topic in request.topics]
        reply.awaited = self

    def on_too_late(self) -> None:
        self.handler.give_up(self)


class PartDeletion:
    """One partition in the hands of a log-writer."""

    __slots__ = ("index", "partition", "pending", "topic_index")

    def __init__(self, pending: _PendingDeletion, topic_index: int, index: int, partition: int) -> None:
        self.pending = pending
        self.topic_index = topic_index
        self.index = index
        self.partition = partition


class DeleteRecordsHandler:
    """All DeleteRecords requests of one acceptor."""

    def __init__(self, view: MetadataCache, clock: Clock, counters: Counters, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._clock = clock
        self._on_reply = on_reply
        self._requests = counters.counter("delete_records.requests")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_delete_records(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        deadline_ns = self._clock.monotonic_ns() + max(0, request.timeout_ms) * 1_000_000
        pending = _PendingDeletion(self, connection.expect_reply(False), request, header, deadline_ns + ANSWER_NS)
        for topic_index, topic in enumerate(request.topics):
            for index, wanted in enumerate(topic.partitions):
                pending.remaining += 1
                part = PartDeletion(pending, topic_index, index, wanted.partition)
                code = self._offer(part, topic.topic, wanted.offset, deadline_ns)
                if code:
                    self._settle(part, DeleteRecordsPartitionResult(wanted.partition, -1, code))
        self._count_down(pending)

    def _offer(self, part: PartDeletion, topic: str, offset: int, deadline_ns: int) -> ErrorCode:
        """Kafka's checks in its order; what a log-writer alone knows (policy, high watermark) is checked there."""
        if topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        placement = self._view.placement(topic, part.partition)
        if placement is None:
            return self._view.why_absent(topic, part.partition)
        try:
            row = placement.read_row()
        except TornRow:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        problem = leadership_problem(row, placement.row_generation, -1)
        if problem is not None:
            return problem
        if offset < -1 or offset > row.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if not placement.proxy.offer_or_queue(_descriptor(placement, row, offset, deadline_ns), 0, part):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def on_completion(self, part: PartDeletion, entry: tuple[Any, ...]) -> None:
        """It is done everywhere, or the log-writer refused, or followers are not there in time. Fields of `entry` as in `ipc.descriptors.Completion`."""
        code, low_watermark = entry[2], entry[7]
        self._settle(part, DeleteRecordsPartitionResult(part.partition, low_watermark, code))

    def on_lost(self, part: PartDeletion) -> None:
        """The log-writer died or hangs; the client asks again."""
        self._settle(part, DeleteRecordsPartitionResult(part.partition, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def give_up(self, pending: _PendingDeletion) -> None:
        """It took longer than the client waits, and the log-writer does not say so."""
        for topic, results in zip(pending.request.topics, pending.results, strict=True):
            for index, wanted in enumerate(topic.partitions):
                if results[index] is None:
                    results[index] = DeleteRecordsPartitionResult(wanted.partition, -1, ErrorCode.REQUEST_TIMED_OUT)
        self._finish(pending)

    def _settle(self, part: PartDeletion, result: DeleteRecordsPartitionResult) -> None:
        pending = part.pending
        if pending.is_finished:
            return
        if pending.results[part.topic_index][part.index] is None:
            pending.results[part.topic_index][part.index] = result
            self._count_down(pending)

    def _count_down(self, pending: _PendingDeletion) -> None:
        pending.remaining -= 1
        if not pending.remaining:
            self._finish(pending)

    def _finish(self, pending: _PendingDeletion) -> None:
        pending.is_finished = True
        topics = tuple(
            DeleteRecordsTopicResult(topic.topic, tuple(result for result in results if result is not None))
            for topic, results in zip(pending.request.topics, pending.results, strict=True)
        )
        reply = pending.reply
        reply.awaited = None
        reply.pieces = [encode_delete_records_response(pending.version, pending.correlation_id, topics)]
        reply.ready = True
        self._on_reply(reply.connection)


def _descriptor(placement: LocalReplica, row: Row, offset: int, deadline_ns: int) -> tuple[int, ...]:
    return (
        DescriptorKind.DELETE_RECORDS, 0, 0, placement.row, placement.row_generation, row.leader_epoch, row.config_generation, 0, 0, 0, offset, 0, 0,
        deadline_ns,
    )  # fmt: skip
