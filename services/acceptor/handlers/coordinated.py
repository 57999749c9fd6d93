"""Requests to coordinators: FindCoordinator, the APIs that our coordinator answers, and verifications.

The coordinator gets a request whole and answers with its body, sometimes after minutes (a member waits for
others). If the coordinator is away, a request waits a little for its next incarnation. If it dies with the
request, the client gets an error that makes it retry (`protocol/forwarded_apis.py`). FindCoordinator is
answered from the image: the leader of the partition of a state topic that the group or transactional id
belongs to (Kafka's `KafkaApis.getCoordinator`).

A missing state topic is created before the request continues. AddOffsetsToTxn may be the first request about
any group, and clients ask for the group's coordinator only afterwards, so it creates `__consumer_offsets`.

`TransactionQuestions` is the acceptor's way to the coordinator of a transaction: AddPartitionsToTxn 4, which
brokers send each other, over the box's coordinator socket or to the box that coordinates it.

Owned by one acceptor. Weak spots: the coordinator is not notified when a client leaves while its request
waits; a request whose state topic the controller creates too slowly continues without the topic, and the
client gets COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import orjson

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER, ProducerId
from appliance.client.transaction_gate import TIMEOUT_MS, OnVerified, TransactionPeers, codes, question
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.state_log import OFFSETS_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC, partition_of
from appliance.ipc.request_frames import AUTO_CREATE, KAFKA_REQUEST, pack_kafka_request
from appliance.ipc.request_link import ControllerLink, CoordinatorLink
from appliance.protocol import transaction_apis
from appliance.protocol.apis import SERVED_APIS, SHARE_STATE_KEYS, ApiKey
from appliance.protocol.cluster_apis import GROUP_KEY, SHARE_KEY, TRANSACTION_KEY, Coordinator, decode_find_coordinator, encode_find_coordinator_response
from appliance.protocol.framing import RequestHeader
from appliance.protocol.schema import response_frame
from appliance.protocol.transaction_apis import AddPartitionsToTxnRequest
from appliance.security.acl import AclOperation, AclResource
from appliance.security.authorizer import Rights
from appliance.security.principals import OF_BOX
from services.acceptor.audit.audit_trail import AUDITED
from services.acceptor.closings import UNREADABLE
from services.acceptor.connection import RUNS_AHEAD, Connection

if TYPE_CHECKING:
    from services.acceptor.audit.audit_trail import AuditTrail
    from services.acceptor.authorization.request_judge import RequestJudge  # it imports all schemas

COORDINATED_KEYS = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        *SHARE_STATE_KEYS,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)
"""As in `forwarded_apis`, which an acceptor imports only when the coordinator is away; a test compares both."""
NEEDS_TOPIC = {
    ApiKey.ADD_OFFSETS_TO_TXN: OFFSETS_TOPIC,
    ApiKey.SHARE_GROUP_HEARTBEAT: SHARE_TOPIC,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: SHARE_TOPIC,
}
UNSENT_TIMEOUT_MS = 5_000
WAITS_FOR_MEMBERS = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
MEMBERS_TIMEOUT_MS = 24 * 3600 * 1000
"""A member may wait long for a rebalance; the coordinator ends that wait, not the acceptor."""
ANSWER_TIMEOUT_MS = 9_000
"""For all others: no step of the coordinator takes longer than 5 s. One that does not run (suspended,
starved) is replaced by the watchdog only after `watchdog.timeout.ms`; until then clients get a
retriable error, so that they can ask another box if the coordinator has moved there."""


class CoordinatedHandler:
    """All requests of one acceptor that go to the coordinator."""

    def __init__(
        self,
        coordinator: CoordinatorLink,
        view: MetadataCache,
        controller: ControllerLink,
        on_reply: Callable[[Connection], None],
        commit_timeout_ms: int,
        judge: RequestJudge | None = None,
    ) -> None:
        """`commit_timeout_ms`: offsets.commit.timeout.ms, how long the coordinator waits itself. `judge` authorizes requests; None: everything is allowed."""
        self._coordinator = coordinator
        self._view = view
        self._controller = controller
        self._on_reply = on_reply
        self._answer_timeout_ms = max(ANSWER_TIMEOUT_MS, commit_timeout_ms + 4_000)
        self._judge = judge
        self.audit: AuditTrail | None = None

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        body = bytes(buffer[header.body_position : limit])
        judged = None
        change = self.audit.begin(connection, header, body) if self.audit is not None and header.api_key in AUDITED else None
        if self._judge is not None and connection.rights is not None:
            judged = self._judge.judge(connection.rights, header.api_key, header.api_version, body)
            body = judged.body or b""
        complete = judged.complete if judged is not None else None
        reply = connection.expect_reply(header.api_key in RUNS_AHEAD)
        answer_timeout_ms = MEMBERS_TIMEOUT_MS if header.api_key in WAITS_FOR_MEMBERS else self._answer_timeout_ms
        flexible = SERVED_APIS[header.api_key].is_flexible(header.api_version)
        request = pack_kafka_request(header.api_key, header.api_version, header.client_id, connection.address, body, connection.packed_origin)

        def on_response(payload: bytes | None) -> None:
            answer = payload
            if answer is None:
                from appliance.protocol.forwarded_apis import error_answer  # the acceptor needs these schemas only here

                answer = error_answer(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if answer:
                if complete is not None:
                    answer = complete(answer)
                if change is not None:
                    change.on_answer(answer)
                reply.pieces = [response_frame(flexible, header.correlation_id, answer)]
            else:
                reply.closes = True
                reply.closing = (UNREADABLE, f"the coordinator could not decode the request (API {header.api_key}, version {header.api_version})")
            reply.ready = True
            self._on_reply(connection)

        def ask() -> None:
            self._coordinator.request(KAFKA_REQUEST, request, UNSENT_TIMEOUT_MS, on_response, answer_timeout_ms=answer_timeout_ms)

        if judged is not None and judged.body is None:
            on_response(judged.answer)
        elif header.api_key in NEEDS_TOPIC:
            with_state_topic(self._view, self._controller, NEEDS_TOPIC[ApiKey(header.api_key)], ask)
        else:
            ask()


STATE_TOPICS = {GROUP_KEY: OFFSETS_TOPIC, TRANSACTION_KEY: TRANSACTIONS_TOPIC, SHARE_KEY: SHARE_TOPIC}


class FindCoordinatorHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, controller: ControllerLink, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._controller = controller
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_find_coordinator(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        keys = tuple(dict.fromkeys(request.keys))

        def answer() -> None:
            denied = denied_coordinators(connection.rights, request.key_type, keys)
            found = self._find(request.key_type, [key for key in keys if key not in denied], connection.listener)
            found += [Coordinator(key, error_code=code) for key, code in denied.items()]
            reply.pieces = [encode_find_coordinator_response(header.api_version, header.correlation_id, found)]
            reply.ready = True
            self._on_reply(connection)

        topic = STATE_TOPICS.get(request.key_type)
        if topic is None:
            answer()
        else:
            with_state_topic(self._view, self._controller, topic, answer)

    def _find(self, key_type: int, keys: Sequence[str], listener: str) -> list[Coordinator]:
        topic = STATE_TOPICS.get(key_type)
        if topic is None:
            reason = f"There is no coordinator for keys of type {key_type}."
            return [Coordinator(key, error_code=ErrorCode.INVALID_REQUEST, error_message=reason) for key in keys]
        return [self._coordinator(topic, key, listener) for key in keys]

    def _coordinator(self, topic: str, key: str, listener: str) -> Coordinator:
        image = self._view.image
        found = image.topics.get(topic)
        partitions = found.partitions if found is not None else ()
        leader = partitions[partition_of(key, len(partitions))].leader if partitions else -1
        broker = image.brokers_at(listener).get(leader)
        if broker is None:
            return Coordinator(key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message="The coordinator is not available.")
        return Coordinator(key, broker.id, broker.host, broker.port)


def denied_coordinators(rights: Rights | None, key_type: int, keys: Sequence[str]) -> dict[str, ErrorCode]:
    """Return the keys of which the client may not know the coordinator, and their error codes."""
    if rights is None:
        return {}
    if key_type == GROUP_KEY:
        return {key: ErrorCode.GROUP_AUTHORIZATION_FAILED for key in keys if not rights.allows(AclOperation.DESCRIBE, AclResource.GROUP, key)}
    if key_type == TRANSACTION_KEY:
        denied = (key for key in keys if not rights.allows(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, key))
        return dict.fromkeys(denied, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    is_allowed = key_type != SHARE_KEY or rights.allows_on_cluster(AclOperation.CLUSTER_ACTION)
    return {} if is_allowed else dict.fromkeys(keys, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


CREATE_TIMEOUT_MS = 5_000


def with_state_topic(view: MetadataCache, controller: ControllerLink, topic: str, then: Callable[[], None]) -> None:
    """Call `then` now if `topic` is in the image, otherwise when the controller has created it, or failed to."""
    if topic in view.image.topics:
        then()
    else:
        controller.request(AUTO_CREATE, orjson.dumps({"topics": [topic]}), CREATE_TIMEOUT_MS, lambda _created: then())


VERSION: Final = 5


class TransactionQuestions:
    """All of one acceptor."""

    def __init__(self, coordinator: CoordinatorLink, elsewhere: TransactionPeers) -> None:
        self._coordinator = coordinator
        self._elsewhere = elsewhere

    def verify(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: int, partitions: Sequence[tuple[str, int]], add: bool, on_answer: OnVerified
    ) -> None:
        if self._elsewhere.other_coordinator(transactional_id) != NO_LEADER:
            self._elsewhere.verify(transactional_id, producer_id, producer_epoch, partitions, add, on_answer)
            return
        wanted = question(transactional_id, producer_id, producer_epoch, partitions, add)
        body = transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST.encode(VERSION, AddPartitionsToTxnRequest((wanted,)))

        def on_response(payload: bytes | None) -> None:
            on_answer(codes(transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE.decode(payload, 0, len(payload), VERSION) if payload else None, partitions))

        request = pack_kafka_request(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, "", "", body, OF_BOX.pack())
        self._coordinator.request(KAFKA_REQUEST, request, TIMEOUT_MS, on_response, answer_timeout_ms=TIMEOUT_MS)
