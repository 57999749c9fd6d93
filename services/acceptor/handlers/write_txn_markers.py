"""WriteTxnMarkers: log-writers append the markers; the response waits until all in-sync replicas have them.

Sent by a transaction coordinator on another box, or by an operator who ends a hanging transaction (KIP-664).
As in Kafka a marker is written with acks=all. The group coordinator, which keeps pending offsets in memory,
is notified of markers in `__consumer_offsets` before the response; if it is away, it reads them when it
loads. Owned by one acceptor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.state_log import OFFSETS_TOPIC
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COMMIT_FLAG, RAISED_EPOCH_FLAG, DescriptorKind
from appliance.ipc.request_frames import TRANSACTION_ENDED, pack_ended_transaction
from appliance.ipc.request_link import CoordinatorLink
from appliance.protocol.framing import RequestHeader
from appliance.protocol.topic_partitions import PartitionResult, TopicResult
from appliance.protocol.transaction_apis import (
    SECOND_PROTOCOL,
    WRITE_TXN_MARKERS_REQUEST,
    WRITE_TXN_MARKERS_RESPONSE,
    TxnMarker,
    TxnMarkerResult,
    WriteTxnMarkersResponse,
)
from appliance.shm.counters import Counters
from appliance.shm.partition_table import TornRow
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.delayed import DelayedRequests
from services.acceptor.fanned_out_request import FannedOutRequest, RequestPart
from services.acceptor.leadership import leadership_problem

TIMEOUT_NS = 5_000_000_000
"""As long as a coordinator waits for markers on its own box. The answer stands for all partitions of
a request: a longer wait for the followers of one would hold up the transactions of the others."""
NOTIFY_MS = 5_000
"""Timeout for the group coordinator's acknowledgement."""


class _MarkedTopic(NamedTuple):
    topic: str
    partitions: tuple[int, ...]
    marker: TxnMarker


class _Request(FannedOutRequest[int]):
    def __init__(self, handler: WriteTxnMarkersHandler, reply: PendingReply, header: RequestHeader, markers: tuple[TxnMarker, ...], deadline_ns: int) -> None:
        topics = [_MarkedTopic(*topic, marker) for marker in markers for topic in marker.topics]
        super().__init__(handler.on_reply, reply, header, topics, deadline_ns)
        self.handler = handler
        self.markers = markers
        self.written: list[_Part] = []
        """not known to be replicated"""
        self.ticket = 0

    def refusal(self, wanted: int, code: int) -> int:
        return code

    def encode(self, results: list[tuple[int, ...]]) -> bytes:
        by_topic = zip(self.topics, results, strict=True)
        answers = []
        for marker in self.markers:
            topics = []
            for _ in marker.topics:
                topic, codes = next(by_topic)
                topics.append(TopicResult(topic.topic, tuple(map(PartitionResult, topic.partitions, codes))))
            answers.append(TxnMarkerResult(marker.producer_id, tuple(topics)))
        header = self.header
        response = WriteTxnMarkersResponse(tuple(answers))
        return WRITE_TXN_MARKERS_RESPONSE.encode_response(header.api_version, header.correlation_id, response)

    def check_replication(self) -> None:
        """Settle the written markers that are replicated, or never will be; park when all others are settled."""
        self.written = [part for part in self.written if part.is_waiting()]
        if self.written and len(self.written) == self.remaining and not self.ticket:
            self.ticket = self.handler.delayed.park(self, [part.replica for part in self.written], self.deadline_ns)
            self.check_replication()  # a row may have changed before it was watched

    on_row_moved = check_replication

    def on_deadline(self) -> None:
        self.ticket = 0
        self.on_too_late()

    def on_closed(self) -> None:
        self.reply.awaited = None
        self.written = []

    def finish(self) -> None:
        self.written = []  # its parts refer to this request: a cycle
        if self.ticket:
            self.handler.delayed.leave(self.ticket)
        self._unconfirmed = 1
        for topic, codes in zip(self.topics, self.results, strict=True):
            for partition, code in zip(topic.partitions, codes, strict=True):
                if topic.topic == OFFSETS_TOPIC and code == ErrorCode.NONE:
                    self._unconfirmed += 1
                    ended = pack_ended_transaction(partition, topic.marker.producer_id, topic.marker.is_commit)
                    self.handler.coordinator.request(TRANSACTION_ENDED, ended, NOTIFY_MS, self._on_confirmed, answer_timeout_ms=NOTIFY_MS)
        self._on_confirmed(None)

    def _on_confirmed(self, _payload: bytes | None) -> None:
        self._unconfirmed -= 1
        if not self._unconfirmed:
            super().finish()


class _Part(RequestPart[int]):
    request: _Request
    end_offset = -1

    def on_completion(self, entry: tuple[Any, ...]) -> None:
        if entry[2]:
            self.refuse(entry[2])
        elif self.request.results[self.topic_index][self.index] is None:  # not settled by `on_hung` or the deadline
            self.end_offset = entry[8]
            self.request.written.append(self)
        if self.request.remaining:
            self.request.check_replication()

    def on_lost(self) -> None:
        """The coordinator retries."""
        self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.request.remaining:
            self.request.check_replication()

    on_hung = on_lost

    def is_waiting(self) -> bool:
        """True while the high watermark has not reached the marker's end; otherwise the part is settled."""
        replica, code = self.replica, ErrorCode.NOT_LEADER_OR_FOLLOWER
        if replica.proxy.serving and replica.proxy.table is replica.table:
            try:
                row = replica.read_row()
            except TornRow:
                return True
            if leadership_problem(row, replica.row_generation, self.row.leader_epoch) is None:
                if row.high_watermark < self.end_offset:
                    return True
                is_replicated = row.isr_size >= row.min_insync_replicas
                code = ErrorCode.NONE if is_replicated else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self.refuse(code)
        return False


class WriteTxnMarkersHandler:
    """All such requests of one acceptor."""

    def __init__(
        self,
        view: MetadataCache,
        delayed: DelayedRequests,
        coordinator: CoordinatorLink,
        clock: Clock,
        counters: Counters,
        on_reply: Callable[[Connection], None],
    ) -> None:
        self._view = view
        self.coordinator = coordinator
        self.delayed = delayed
        self._clock = clock
        self.on_reply = on_reply
        self._markers = counters.counter("write_txn_markers.markers")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        markers = WRITE_TXN_MARKERS_REQUEST.decode(buffer, header.body_position, limit, header.api_version).markers
        request = _Request(self, connection.expect_reply(False), header, markers, self._clock.monotonic_ns() + TIMEOUT_NS)
        if not request.remaining:
            request.finish()
        for topic_index, topic in enumerate(request.topics):
            for index in range(len(topic.partitions)):
                self._markers.add()
                self._offer(_Part(request, topic_index, index), topic.marker)

    def _offer(self, part: _Part, marker: TxnMarker) -> None:
        if not part.find(self._view):
            return
        replica, row = part.replica, part.row
        raises_epoch = marker.transaction_version >= SECOND_PROTOCOL
        flags = ACKS_ALL_FLAG | (COMMIT_FLAG if marker.is_commit else 0) | (RAISED_EPOCH_FLAG if raises_epoch else 0)
        epochs = (marker.coordinator_epoch & 0xFFFFFFFF, marker.producer_epoch & 0xFFFF)
        descriptor = (
            DescriptorKind.TRANSACTION_MARKER, flags, 0, replica.row, replica.row_generation, row.leader_epoch, row.config_generation,
            0, 0, 0, marker.producer_id, *epochs, 0,
        )  # fmt: skip
        if not replica.proxy.offer_or_queue(descriptor, 0, part):
            part.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
