"""DescribeProducers: the producers of each partition, for finding transactions that hang (KIP-664).

The log-writer writes its answer into our arena. If it does not fit, it is requested once more with a larger
slot. Owned by one acceptor. Weak spot: of more than `PRODUCERS_MAX` producers the oldest are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import MetadataCache
from appliance.ipc.descriptors import PRODUCER_ENTRY, DescriptorKind, unpack_producers
from appliance.protocol.framing import RequestHeader
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    DESCRIBE_PRODUCERS_REQUEST,
    DESCRIBE_PRODUCERS_RESPONSE,
    ActiveProducer,
    DescribeProducersResponse,
    ProducersOfPartition,
    ProducersOfTopic,
)
from appliance.security.acl import AclOperation
from appliance.shm.arena import Arena
from services.acceptor.connection import Connection
from services.acceptor.fanned_out_request import FannedOutRequest, RequestPart

TIMEOUT_NS = 30_000_000_000
FIRST_PRODUCERS = 100
PRODUCERS_MAX = 20_000
ANSWER_PRODUCERS_MAX = 200_000
"""Of all partitions of a request; those beyond get INVALID_REQUEST."""


class _Request(FannedOutRequest[ProducersOfPartition]):
    producers_left = ANSWER_PRODUCERS_MAX

    def refusal(self, wanted: int, code: int) -> ProducersOfPartition:
        return ProducersOfPartition(wanted, code)

    def encode(self, results: list[tuple[ProducersOfPartition, ...]]) -> bytes:
        topics = tuple(ProducersOfTopic(topic.topic, each) for topic, each in zip(self.topics, results, strict=True))
        response = DescribeProducersResponse(0, topics)
        return DESCRIBE_PRODUCERS_RESPONSE.encode_response(self.header.api_version, self.header.correlation_id, response)


class _Part(RequestPart[ProducersOfPartition]):
    """`position` is that of the slot for the answer, which has space for `producers` entries."""

    __slots__ = ("arena", "position", "producers", "view", "whole")

    def __init__(self, request: _Request, topic_index: int, index: int, view: MetadataCache, arena: Arena) -> None:
        super().__init__(request, topic_index, index)
        self.whole = request
        self.view = view
        self.arena = arena
        self.position = -1
        self.producers = 0

    def offer(self, producers: int) -> None:
        if not self.find(self.view):
            return
        replica, row, size_bytes = self.replica, self.row, producers * PRODUCER_ENTRY.size
        position = self.arena.allocate(size_bytes)
        if position < 0:
            self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # no free slot now: the client retries
            return
        descriptor = (
            DescriptorKind.DESCRIBE_PRODUCERS, 0, 0, replica.row, replica.row_generation, row.leader_epoch, row.config_generation,
            size_bytes, position, 0, 0, 0, 0, 0,
        )  # fmt: skip
        self.position, self.producers = position, producers
        if not replica.proxy.offer_or_queue(descriptor, self.arena.rounded_size(size_bytes), self):
            self.on_lost()

    def on_completion(self, entry: tuple[Any, ...]) -> None:
        code, count = entry[2], entry[10]
        memory = self.arena.memory[self.position : self.position + self.producers * PRODUCER_ENTRY.size]
        found = [] if code else unpack_producers(memory, count)
        self.arena.free(self.position)
        if self.request.remaining and count > self.producers == FIRST_PRODUCERS and not code:
            wanted = min(count, PRODUCERS_MAX)
            self.whole.producers_left -= wanted
            if self.whole.producers_left < 0:
                self.refuse(ErrorCode.INVALID_REQUEST)
            else:
                self.offer(wanted)
        else:
            self.settle(ProducersOfPartition(self.partition, code, None, tuple(map(ActiveProducer._make, found))))

    def on_lost(self) -> None:
        self.arena.free(self.position)
        self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def on_hung(self) -> None:
        """The slot stays taken: the log-writer may still write into it."""
        self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class DescribeProducersHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, arena: Arena, clock: Clock, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._arena = arena
        self._clock = clock
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        topics = _distinct(DESCRIBE_PRODUCERS_REQUEST.decode(buffer, header.body_position, limit, header.api_version).topics)
        deadline_ns = self._clock.monotonic_ns() + TIMEOUT_NS
        request = _Request(self._on_reply, connection.expect_reply(False), header, topics, deadline_ns)
        if not request.remaining:
            request.finish()
        for topic_index, topic in enumerate(topics):
            for index in range(len(topic.partitions)):
                part = _Part(request, topic_index, index, self._view, self._arena)
                if part.is_allowed(AclOperation.READ):
                    part.offer(FIRST_PRODUCERS)


def _distinct(topics: tuple[TopicPartitions, ...]) -> tuple[TopicPartitions, ...]:
    """Name each partition once: named a hundred thousand times, one with many producers would make an answer of gigabytes."""
    partitions: dict[str, dict[int, None]] = {}
    for topic in topics:
        partitions.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    return tuple(TopicPartitions(name, tuple(numbers)) for name, numbers in partitions.items())
