"""WriteTxnMarkers: hand each transaction's end to the log-writers of its partitions, answer when every in-sync replica has them.

Comes from a transaction coordinator elsewhere, and from an operator who ends a hanging transaction (KIP-664). As with Kafka a marker is written with
acks=all. A partition that cannot be served gets its own error at once and harms no other. The group coordinator, which keeps open offsets in memory, hears
of those of `__consumer_offsets` before the answer; one that is away reads them when it loads. Owned by one acceptor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.internal_topics import OFFSETS_TOPIC
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.coordinator_link import CoordinatorLink
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COMMIT_FLAG, RAISED_EPOCH_FLAG, DescriptorKind
from appliance.ipc.request_frames import TRANSACTION_ENDED, pack_ended_transaction
from appliance.protocol.request_header import RequestHeader
from appliance.protocol.topic_partitions import PartitionResult, TopicResult
from appliance.protocol.transaction_apis import (
    SECOND_PROTOCOL,
    WRITE_TXN_MARKERS_REQUEST,
    WRITE_TXN_MARKERS_RESPONSE,
    TxnMarker,
    TxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from appliance.shm.counters import Counters
from appliance.shm.partition_table import TornRow
from services.acceptor.connection import Connection, Reply
from services.acceptor.delayed import Delayed
from services.acceptor.leadership import leadership_problem

TIMEOUT_NS = 30_000_000_000
"""Kafka's request.timeout.ms."""
TELL_MS = 5_000
"""So long the group coordinator has to say that it has heard."""
_NONE = int(ErrorCode.NONE)


class PartMarker:
    """One marker in one partition."""

    __slots__ = ("code", "end_offset", "leader_epoch", "partition", "pending", "placement", "topic")

    def __init__(self, pending: _PendingMarkers, topic: str, partition: int) -> None:
        self.pending = pending
        self.topic = topic
        self.partition = partition
        self.placement: LocalReplica | None = None
        self.leader_epoch = -1
        self.end_offset = -1
        self.code: int | None = None
        """None: nobody knows yet."""


class _PendingMarkers:
    """One request."""

    __slots__ = ("correlation_id", "deadline_ns", "handler", "is_finished", "is_offering", "parts", "reply", "request", "ticket", "untold", "version")

    def __init__(self, handler: WriteTxnMarkersHandler, reply: Reply, request: WriteTxnMarkersRequest, header: RequestHeader, deadline_ns: int) -> None:
        self.handler = handler
        self.reply = reply
        self.request = request
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.deadline_ns = deadline_ns
        self.parts = [[PartMarker(self, topic.topic, partition) for topic in marker.topics for partition in topic.partitions] for marker in request.markers]
        self.ticket = 0
        self.is_offering = True
        self.is_finished = False
        self.untold = 0
        """markers that the group coordinator has not heard of yet, and one more until all are on their way"""
        reply.awaited = self

    def on_row_moved(self) -> None:
        self.handler.go_on(self)

    def on_deadline(self) -> None:
        self.ticket = 0
        self.handler.give_up(self)

    def on_too_late(self) -> None:
        self.handler.give_up(self)


class WriteTxnMarkersHandler:
    """All such requests of one acceptor."""

    def __init__(
        self, view: MetadataCache, delayed: Delayed, coordinator: CoordinatorLink, clock: Clock, counters: Counters, on_reply: Callable[[Connection], None]
    ) -> None:
        self._view = view
        self._coordinator = coordinator
        self._delayed = delayed
        self._clock = clock
        self._on_reply = on_reply
        self._markers = counters.counter("write_txn_markers.markers")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = WRITE_TXN_MARKERS_REQUEST.decode(buffer, header.body_position, limit, header.api_version)
        pending = _PendingMarkers(self, connection.expect_reply(False), request, header, self._clock.monotonic_ns() + TIMEOUT_NS)
        for marker, parts in zip(request.markers, pending.parts, strict=True):
            for part in parts:
                self._markers.add()
                code = self._offer(marker, part)
                if code:
                    part.code = code
        pending.is_offering = False
        self.go_on(pending)

    def _offer(self, marker: TxnMarker, part: PartMarker) -> ErrorCode:
        placement = self._view.placement(part.topic, part.partition)
        if placement is None:
            return self._view.why_absent(part.topic, part.partition)
        try:
            row = placement.read_row()
        except TornRow:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        problem = leadership_problem(row, placement.row_generation, -1)
        if problem is not None:
            return problem
        part.placement, part.leader_epoch = placement, row.leader_epoch
        raises_epoch = marker.transaction_version >= SECOND_PROTOCOL
        flags = ACKS_ALL_FLAG | (COMMIT_FLAG if marker.is_commit else 0) | (RAISED_EPOCH_FLAG if raises_epoch else 0)
        epochs = (marker.coordinator_epoch & 0xFFFFFFFF, marker.producer_epoch & 0xFFFF)
        descriptor = (
            DescriptorKind.TRANSACTION_MARKER, flags, 0, placement.row, placement.row_generation, row.leader_epoch, row.config_generation,
            0, 0, 0, marker.producer_id, *epochs, 0,
        )  # fmt: skip
        return ErrorCode.NONE if placement.proxy.offer_or_queue(descriptor, 0, part) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def on_completion(self, part: PartMarker, entry: tuple[Any, ...]) -> None:
        """The log-writer has written it, or refused. Fields of `entry` as in `ipc.descriptors.Completion`."""
        if entry[2]:
            part.code = entry[2]
        else:
            part.end_offset = entry[8]
        self.go_on(part.pending)

    def on_lost(self, part: PartMarker) -> None:
        """The log-writer died or hangs; the coordinator tries again."""
        part.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.go_on(part.pending)

    def go_on(self, pending: _PendingMarkers) -> None:
        """Look at what is written and not replicated yet; answer when nothing is left."""
        if pending.is_finished or pending.is_offering:
            return
        open_parts = [part for parts in pending.parts for part in parts if part.code is None]
        written = [part for part in open_parts if part.end_offset >= 0]
        waiting = [placement for part in written if (placement := _waits_for(part)) is not None]
        if len(written) < len(open_parts):
            return
        if not waiting:
            self._finish(pending)
        elif not pending.ticket:
            pending.ticket = self._delayed.park(pending, waiting, pending.deadline_ns)
            self.go_on(pending)  # a row may have moved before it was watched

    def give_up(self, pending: _PendingMarkers) -> None:
        """It took longer than a coordinator waits."""
        for parts in pending.parts:
            for part in parts:
                if part.code is None:
                    part.code = ErrorCode.REQUEST_TIMED_OUT
        if not pending.is_finished:
            self._finish(pending)

    def _finish(self, pending: _PendingMarkers) -> None:
        pending.is_finished = True
        if pending.ticket:
            self._delayed.leave(pending.ticket)
        pending.untold = 1
        for marker, parts in zip(pending.request.markers, pending.parts, strict=True):
            for part in parts:
                if part.topic == OFFSETS_TOPIC and part.code == _NONE:
                    pending.untold += 1
                    ended = pack_ended_transaction(part.partition, marker.producer_id, marker.is_commit)
                    self._coordinator.request(TRANSACTION_ENDED, ended, TELL_MS, lambda _heard: self._on_told(pending), answer_timeout_ms=TELL_MS)
        self._on_told(pending)

    def _on_told(self, pending: _PendingMarkers) -> None:
        pending.untold -= 1
        if not pending.untold:
            self._answer(pending)

    def _answer(self, pending: _PendingMarkers) -> None:
        results = tuple(_result(marker, parts) for marker, parts in zip(pending.request.markers, pending.parts, strict=True))
        reply = pending.reply
        reply.awaited = None
        reply.pieces = [WRITE_TXN_MARKERS_RESPONSE.encode_response(pending.version, pending.correlation_id, WriteTxnMarkersResponse(results))]
        reply.ready = True
        self._on_reply(reply.connection)


def _waits_for(part: PartMarker) -> LocalReplica | None:
    """The partition whose high watermark has to pass the marker; None when it has, or never will: then the part's code says so."""
    placement = part.placement
    assert placement is not None
    if not placement.proxy.serving or placement.proxy.table is not placement.table:
        part.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return None
    try:
        row = placement.read_row()
    except TornRow:
        return placement
    if leadership_problem(row, placement.row_generation, part.leader_epoch) is not None:
        part.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif row.high_watermark < part.end_offset:
        return placement
    else:
        part.code = _NONE if row.isr_size >= row.min_insync_replicas else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    return None


def _result(marker: TxnMarker, parts: list[PartMarker]) -> TxnMarkerResult:
    codes = iter(parts)
    topics = tuple(
        TopicResult(topic.topic, tuple(PartitionResult(partition, next(codes).code or _NONE) for partition in topic.partitions)) for topic in marker.topics
    )
    return TxnMarkerResult(marker.producer_id, topics)
