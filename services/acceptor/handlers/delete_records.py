"""DeleteRecords: each partition's log-writer moves the log start offset; the response waits for live followers.

Kafka answers before its checkpoint is written. Here the response means that a power cut of the leader brings
no deleted record back, at the price of one sync. The log-writer knows the followers, and completes with
REQUEST_TIMED_OUT when the client's timeout has passed. Owned by one acceptor. Weak spot: a request that timed
out is carried out all the same, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import INTERNAL_TOPICS, Offset
from appliance.cluster.metadata_cache import MetadataCache
from appliance.ipc.descriptors import DescriptorKind
from appliance.protocol.framing import RequestHeader
from appliance.protocol.offset_apis import (
    DELETE_RECORDS_RESPONSE,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    decode_delete_records,
    encode_delete_records_response,
)
from appliance.security.acl import AclOperation
from appliance.shm.counters import Counters
from services.acceptor.connection import Connection
from services.acceptor.fanned_out_request import FannedOutRequest, RequestPart

if TYPE_CHECKING:
    from services.acceptor.audit.audit_trail import AuditTrail, PendingChange

ANSWER_NS = 1_000_000_000
"""Time after the client's timeout in which the log-writer may still answer. Only the wait for followers has to
end in time: the leader's part is always done, so a client with a timeout of 0 gets its result."""


class _Request(FannedOutRequest[DeleteRecordsPartitionResult]):
    change: PendingChange | None = None
    """what audits it"""

    def refusal(self, wanted: DeleteRecordsPartition, code: int) -> DeleteRecordsPartitionResult:
        return DeleteRecordsPartitionResult(wanted.partition, -1, code)

    def encode(self, results: list[tuple[DeleteRecordsPartitionResult, ...]]) -> bytes:
        topics = tuple(DeleteRecordsTopicResult(topic.topic, each) for topic, each in zip(self.topics, results, strict=True))
        if self.change is not None:
            self.change.on_answer(DELETE_RECORDS_RESPONSE.encode(self.header.api_version, DeleteRecordsResponse(0, topics)))
        return encode_delete_records_response(self.header.api_version, self.header.correlation_id, topics)


class _Part(RequestPart[DeleteRecordsPartitionResult]):
    def on_completion(self, entry: tuple[Any, ...]) -> None:
        self.settle(DeleteRecordsPartitionResult(self.partition, entry[7], entry[2]))

    def on_lost(self) -> None:
        self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    on_hung = on_lost


class DeleteRecordsHandler:
    """All DeleteRecords requests of one acceptor."""

    def __init__(self, view: MetadataCache, clock: Clock, counters: Counters, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._clock = clock
        self._on_reply = on_reply
        self._requests = counters.counter("delete_records.requests")
        self.audit: AuditTrail | None = None

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        body = decode_delete_records(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        deadline_ns = self._clock.monotonic_ns() + max(0, body.timeout_ms) * 1_000_000
        request = _Request(self._on_reply, connection.expect_reply(False), header, body.topics, deadline_ns + ANSWER_NS)
        if self.audit is not None:
            request.change = self.audit.begin(connection, header, bytes(buffer[header.body_position : limit]))
        if not request.remaining:
            request.finish()
        for topic_index, topic in enumerate(body.topics):
            for index in range(len(topic.partitions)):
                self._offer(_Part(request, topic_index, index), deadline_ns)

    def _offer(self, part: _Part, deadline_ns: int) -> None:
        """Kafka's checks in its order; the log-writer checks what it alone knows (policy, high watermark)."""
        offset: Offset = part.wanted.offset
        if not part.is_allowed(AclOperation.DELETE):
            return
        if part.topic in INTERNAL_TOPICS:
            part.refuse(ErrorCode.INVALID_TOPIC_EXCEPTION)
        elif part.find(self._view):
            replica, row = part.replica, part.row
            descriptor = (
                DescriptorKind.DELETE_RECORDS, 0, 0, replica.row, replica.row_generation, row.leader_epoch, row.config_generation,
                0, 0, 0, offset, 0, 0, deadline_ns,
            )  # fmt: skip
            if offset < -1 or offset > row.high_watermark:
                part.refuse(ErrorCode.OFFSET_OUT_OF_RANGE)
            elif not replica.proxy.offer_or_queue(descriptor, 0, part):
                part.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
