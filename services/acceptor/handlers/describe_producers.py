"""DescribeProducers: ask each partition's log-writer who produces into it; for finding transactions that hang (KIP-664).

The log-writer writes its answer into our arena; one that does not fit the first slot is asked for again, once, with a larger one. Owned by one acceptor.
Weak spot: of a partition with more than `PRODUCERS_MAX` producers the oldest are told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.producer_entries import PRODUCER_ENTRY, unpack_producers
from appliance.protocol.request_header import RequestHeader
from appliance.protocol.transaction_apis import (
    DESCRIBE_PRODUCERS_REQUEST,
    DESCRIBE_PRODUCERS_RESPONSE,
    ActiveProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducersOfPartition,
    ProducersOfTopic,
)
from appliance.shm.arena import Arena
from appliance.shm.partition_table import TornRow
from services.acceptor.connection import Connection, Reply
from services.acceptor.leadership import leadership_problem

TIMEOUT_NS = 30_000_000_000
FIRST_PRODUCERS = 100
PRODUCERS_MAX = 20_000


class PartDescription:
    """One partition in the hands of a log-writer; `position` is that of the slot for its answer."""

    __slots__ = ("partition", "pending", "position", "producers", "result", "topic")

    def __init__(self, pending: _PendingDescription, topic: str, partition: int) -> None:
        self.pending = pending
        self.topic = topic
        self.partition = partition
        self.position = -1
        self.producers = 0
        """how many the slot has room for"""
        self.result: ProducersOfPartition | None = None


class _PendingDescription:
    """One request."""

    __slots__ = ("correlation_id", "deadline_ns", "handler", "is_finished", "is_offering", "parts", "reply", "request", "version")

    def __init__(self, handler: DescribeProducersHandler, reply: Reply, request: DescribeProducersRequest, header: RequestHeader, deadline_ns: int) -> None:
        self.handler = handler
        self.reply = reply
        self.request = request
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.deadline_ns = deadline_ns
        self.parts = [[PartDescription(self, topic.topic, partition) for partition in topic.partitions] for topic in request.topics]
        self.is_offering = True
        self.is_finished = False
        reply.awaited = self

    def on_too_late(self) -> None:
        self.handler.give_up(self)


class DescribeProducersHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, arena: Arena, clock: Clock, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._arena = arena
        self._clock = clock
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = DESCRIBE_PRODUCERS_REQUEST.decode(buffer, header.body_position, limit, header.api_version)
        pending = _PendingDescription(self, connection.expect_reply(False), request, header, self._clock.monotonic_ns() + TIMEOUT_NS)
        for parts in pending.parts:
            for part in parts:
                self._ask(part, FIRST_PRODUCERS)
        pending.is_offering = False
        self._maybe_finish(pending)

    def _ask(self, part: PartDescription, producers: int) -> None:
        placement = self._view.placement(part.topic, part.partition)
        code = self._view.why_absent(part.topic, part.partition) if placement is None else self._offer(part, placement, producers)
        if code:
            self._settle(part, ProducersOfPartition(part.partition, code))

    def _offer(self, part: PartDescription, placement: LocalReplica, producers: int) -> ErrorCode:
        try:
            row = placement.read_row()
        except TornRow:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        problem = leadership_problem(row, placement.row_generation, -1)
        if problem is not None:
            return problem
        size_bytes = producers * PRODUCER_ENTRY.size
        position = self._arena.allocate(size_bytes)
        if position < 0:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # no room now: the client asks again
        descriptor = (
            DescriptorKind.DESCRIBE_PRODUCERS, 0, 0, placement.row, placement.row_generation, row.leader_epoch, row.config_generation,
            size_bytes, position, 0, 0, 0, 0, 0,
        )  # fmt: skip
        if not placement.proxy.offer_or_queue(descriptor, self._arena.rounded_size(size_bytes), part):
            self._arena.free(position)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        part.position, part.producers = position, producers
        return ErrorCode.NONE

    def on_completion(self, part: PartDescription, entry: tuple[Any, ...]) -> None:
        """The answer lies in the slot, or there is none. Fields of `entry` as in `ipc.descriptors.Completion`."""
        code, count = entry[2], entry[10]
        memory = self._arena.memory[part.position : part.position + part.producers * PRODUCER_ENTRY.size]
        found = [] if code else unpack_producers(memory, count)
        self._arena.free(part.position)
        if part.pending.is_finished:
            return
        if count > part.producers == FIRST_PRODUCERS and not code:
            self._ask(part, min(count, PRODUCERS_MAX))
            return
        self._settle(part, ProducersOfPartition(part.partition, code, None, tuple(map(ActiveProducer._make, found))))

    def on_lost(self, part: PartDescription) -> None:
        """The log-writer died; the client asks again."""
        self._arena.free(part.position)
        self.on_hung(part)

    def on_hung(self, part: PartDescription) -> None:
        """The disk hangs: its log-writer may still write into the slot."""
        if part.result is None:
            self._settle(part, ProducersOfPartition(part.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def give_up(self, pending: _PendingDescription) -> None:
        """It took longer than the client waits."""
        for parts in pending.parts:
            for part in parts:
                part.result = part.result or ProducersOfPartition(part.partition, ErrorCode.REQUEST_TIMED_OUT)
        self._maybe_finish(pending)

    def _settle(self, part: PartDescription, result: ProducersOfPartition) -> None:
        part.result = part.result or result
        self._maybe_finish(part.pending)

    def _maybe_finish(self, pending: _PendingDescription) -> None:
        if pending.is_finished or pending.is_offering or any(part.result is None for parts in pending.parts for part in parts):
            return
        pending.is_finished = True
        topics = tuple(
            ProducersOfTopic(topic.topic, tuple(part.result for part in parts if part.result is not None))
            for topic, parts in zip(pending.request.topics, pending.parts, strict=True)
        )
        reply = pending.reply
        reply.awaited = None
        reply.pieces = [DESCRIBE_PRODUCERS_RESPONSE.encode_response(pending.version, pending.correlation_id, DescribeProducersResponse(0, topics))]
        reply.ready = True
        self._on_reply(reply.connection)
