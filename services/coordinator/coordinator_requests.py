"""Kafka's requests on `coordinator.sock`: read, handed to the rules, answered when the rules answer.

Owned by the coordinator process. A request that cannot be read is answered with nothing, which makes the acceptor close its client's connection.
Offsets of a transaction are committed after its coordinator has agreed that it goes over them (KIP-890); when that is another box, it is asked. Weak spot: none
known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from appliance.base.errors import ErrorCode, ProtocolViolation, known_error
from appliance.client.transaction_gate import TransactionVerifier
from appliance.cluster.state_log import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdentity
from appliance.ipc.frames import MAX_PAYLOAD_BYTES, Frame
from appliance.ipc.request_frames import KAFKA_REQUEST, KAFKA_RESPONSE, TRANSACTION_ENDED, KafkaRequest, unpack_ended_transaction, unpack_kafka_request
from appliance.protocol.apis import SHARE_STATE_KEYS, ApiKey
from appliance.protocol.forwarded_apis import COORDINATED_APIS, CoordinatedApi, error_answer
from appliance.protocol.topic_partitions import PartitionResult, TopicResult
from appliance.protocol.transaction_apis import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from appliance.runtime.request_server import RequestClient
from appliance.shm.counters import Counters
from services.coordinator.coordinated_groups import CoordinatedGroups
from services.coordinator.coordinated_shares import CoordinatedShares
from services.coordinator.coordinated_transactions import CoordinatedTransactions
from services.coordinator.groups.group_log import transactional_commit_error
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.member_rights import MemberRights
from services.coordinator.state.confirmations import LeadershipConfirmations, OnConfirmed
from services.coordinator.transactions.transaction import SECOND_PROTOCOL

_ADDS_ITSELF_SINCE = 5
VERIFICATIONS_MAX = 3
"""Times one TxnOffsetCommit is verified; then its client gets INVALID_TXN_STATE."""
"""From this version of TxnOffsetCommit on the group's offsets join the transaction by the way."""

_TAKE_NAMES: Final = {
    ApiKey.JOIN_GROUP: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.STREAMS_GROUP_HEARTBEAT: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.OFFSET_COMMIT: ErrorCode.GROUP_ID_NOT_FOUND,
    ApiKey.TXN_OFFSET_COMMIT: ErrorCode.GROUP_ID_NOT_FOUND,
}
"""What makes a group by its name, and the error if that is a share group's."""

_HEARTBEATS: Final = frozenset({ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_HEARTBEAT})
"""Of members whose rights decide what their groups do."""

HEARD = b"\0"

Respond = Callable[[RequestClient, int, int, bytes], None]


_IDS: Final = {OFFSETS_TOPIC: ("group_id", "group_ids", "groups"), TRANSACTIONS_TOPIC: ("transactional_id", "transactional_ids", "transactions")}
"""Fields of requests that name groups or transactional ids: one, several, or rows that begin with one."""


_GROUPS: Final = (OFFSETS_TOPIC,)
_TRANSACTIONS: Final = (TRANSACTIONS_TOPIC,)
_WITHOUT_GROUP: Final = frozenset({ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}) | SHARE_STATE_KEYS
"""Requests to leaders of share partitions and to share coordinators: not to the coordinator of the group."""
_TWO_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)


def _ids_of(request: Any, topic: str) -> set[str] | None:
    """Return the groups or transactional ids that a request is about; None: it lists all."""
    for field in _IDS[topic]:
        value = getattr(request, field, ())
        if isinstance(value, str):
            return {value}
        if value is None:
            return set()
        if value:
            return {each if isinstance(each, str) else each[0] for each in value}
    return None


class CoordinatorRequests:
    """`respond(client, kind, token, payload)` sends an answer."""

    def __init__(
        self,
        groups: CoordinatedGroups,
        transactions: CoordinatedTransactions,
        elsewhere: TransactionVerifier,
        confirmations: Mapping[str, LeadershipConfirmations],
        may_be_replaced: Callable[[str], bool],
        verifies: bool,
        now_ms: Callable[[], int],
        counters: Counters,
        respond: Respond,
        rights: MemberRights | None = None,
    ) -> None:
        """`elsewhere` asks other boxes about transactions that they coordinate. `may_be_replaced(state topic)`: another box may lead what this one leads by its
        rows, so requests wait for `confirmations` (by state topic). `verifies`: transaction.partition.verification.enable."""
        self._groups = groups
        self._transactions = transactions
        self._elsewhere = elsewhere
        self._confirmations = confirmations
        self._may_be_replaced = may_be_replaced
        self._verifies = verifies
        self._now_ms = now_ms
        self._respond = respond
        self._rights = rights
        self.shares: CoordinatedShares | None = None
        """Share groups; None: there are none."""
        self._waiting = 0
        self._received = counters.counter("coordinator.requests")
        self._refused = counters.counter("coordinator.requests_unreadable")
        self._cut_off = counters.counter("coordinator.requests_while_cut_off")
        self._unconfirmed = counters.counter("coordinator.unconfirmed_requests")
        self._waiting_gauge = counters.gauge("coordinator.waiting")

    def on_frame(self, client: RequestClient, frame: Frame) -> None:
        """Take a request in."""
        self._received.add()
        try:
            if frame.kind == TRANSACTION_ENDED:
                self._groups.coordinator.complete_transaction(*unpack_ended_transaction(frame.payload))
                self._respond(client, KAFKA_RESPONSE, frame.token, HEARD)
                return
            if frame.kind != KAFKA_REQUEST:
                raise ProtocolViolation("unknown_frame", f"frame of kind {frame.kind}")
            asked = unpack_kafka_request(frame.payload)
            api = COORDINATED_APIS.get(asked.api_key)
            if api is None:
                raise ProtocolViolation("unknown_api", f"the coordinator does not answer API {asked.api_key}")
            request = api.request.decode(asked.body, 0, len(asked.body), asked.api_version)
        except (ProtocolViolation, ValueError, struct.error):
            self._refused.add()
            self._respond(client, KAFKA_RESPONSE, frame.token, b"")
            return
        if asked.api_key in _WITHOUT_GROUP:  # what they read or write is confirmed by appends to the state of share groups
            self._carry_out(client, frame, asked, api, request)
            return
        topics = _TWO_TOPICS if asked.api_key == ApiKey.TXN_OFFSET_COMMIT else _TRANSACTIONS if api.is_transactional else _GROUPS
        for topic in topics:
            if self._confirmations[topic].are_awaited or self._may_be_replaced(topic):
                self._cut_off.add()
                self._confirm(topics, request, partial(self._on_confirmed, client, frame, asked, api, request))
                return
        self._carry_out(client, frame, asked, api, request)

    def _confirm(self, topics: Sequence[str], request: Any, on_confirmed: OnConfirmed) -> None:
        """Confirm the leadership of the request's partitions, one topic after the other."""
        topic, *others = topics

        def on_topic(is_confirmed: bool) -> None:
            if is_confirmed and others:
                self._confirm(others, request, on_confirmed)
            else:
                on_confirmed(is_confirmed)

        self._confirmations[topic].confirm(_ids_of(request, topic), on_topic, has_lease=not self._may_be_replaced(topic))

    def _on_confirmed(self, client: RequestClient, frame: Frame, asked: KafkaRequest, api: CoordinatedApi, request: Any, is_confirmed: bool) -> None:
        if is_confirmed:
            self._carry_out(client, frame, asked, api, request)
            return
        self._unconfirmed.add()
        self._respond(client, KAFKA_RESPONSE, frame.token, error_answer(frame.payload, ErrorCode.COORDINATOR_NOT_AVAILABLE) or b"")

    def _carry_out(self, client: RequestClient, frame: Frame, asked: KafkaRequest, api: CoordinatedApi, request: Any) -> None:
        self._waiting += 1
        token, version = frame.token, asked.api_version
        payload = None if asked.api_key == ApiKey.SHARE_FETCH else frame.payload  # it waits for seconds, and its answer is bounded

        def reply(response: Any) -> None:
            self._waiting -= 1
            answer = api.response.encode(version, response)
            if len(answer) > MAX_PAYLOAD_BYTES:  # a group with very many members, for example
                answer = b"" if payload is None else error_answer(payload, ErrorCode.INVALID_REQUEST) or b""
            self._respond(client, KAFKA_RESPONSE, token, answer)

        identity = ClientIdentity(asked.client_id, f"/{asked.client_host}")
        if self._rights is not None and asked.api_key in _HEARTBEATS:
            self._rights.on_heartbeat(request.group_id, request.member_id, asked.origin, asked.client_host)
        if asked.api_key == ApiKey.STREAMS_GROUP_HEARTBEAT and self._groups.creations is not None:
            self._groups.creations.on_heartbeat((request.group_id, request.member_id), asked)
        if self.shares is not None and asked.api_key == ApiKey.SHARE_FETCH:
            asker = self.shares.asker(self._rights.of(asked.origin, asked.client_host) if self._rights is not None else None, lambda: client.is_open)
            self.shares.share_fetch(request, asked.api_version, identity, self._now_ms(), reply, asker)
            return
        if self.shares is not None and self._concerns_shares(self.shares, asked, api, request, identity, reply):
            return
        if asked.api_key == ApiKey.TXN_OFFSET_COMMIT:
            self._commit_transactional(api, request, asked.api_version, identity, reply)
        elif api.is_transactional:
            getattr(self._transactions.coordinator, api.rule)(request, asked.api_version, self._now_ms(), reply)
        else:
            getattr(self._groups.coordinator, api.rule)(request, asked.api_version, identity, self._now_ms(), reply)

    def _concerns_shares(
        self, shares: CoordinatedShares, asked: KafkaRequest, api: CoordinatedApi, request: Any, identity: ClientIdentity, reply: Callable[[Any], None]
    ) -> bool:
        """Answer what share groups answer, alone or with the other groups; return False for what they do not."""
        if api.is_shared:
            getattr(shares, api.rule)(request, asked.api_version, identity, self._now_ms(), reply)
        elif asked.api_key in _TAKE_NAMES and shares.groups.has(request.group_id):
            reply(api.response.error_response(asked.api_version, request, _TAKE_NAMES[ApiKey(asked.api_key)], f"Group {request.group_id} is a share group."))
        elif asked.api_key == ApiKey.LIST_GROUPS:
            now_ms = self._now_ms()
            self._groups.coordinator.list_groups(request, asked.api_version, identity, now_ms, lambda response: reply(shares.listed(request, response)))
        elif asked.api_key == ApiKey.DELETE_GROUPS and any(map(shares.groups.has, request.group_ids)):
            shares.delete_groups(request, self._groups.coordinator, asked.api_version, identity, reply)
        else:
            return False
        return True

    def count_waiting(self) -> None:
        self._waiting_gauge.set(self._waiting)

    def _commit_transactional(
        self, api: CoordinatedApi, request: TxnOffsetCommitRequest, version: int, identity: ClientIdentity, reply: Callable[[Any], None]
    ) -> None:
        """Ask the transaction's coordinator first."""
        partition = self._groups.offsets_partition_of(request.group_id)
        adds = version >= _ADDS_ITSELF_SINCE
        if partition is None or not (adds or self._verifies):
            self._groups.coordinator.txn_offset_commit(request, version, identity, self._now_ms(), reply)
            return

        attempts = 1

        def on_committed(response: TxnOffsetCommitResponse) -> None:
            """A marker of the transaction before, which has the same producer epoch, took the guard while the other box was asked: it is asked again."""
            nonlocal attempts
            codes = {each.error_code for topic in response.topics for each in topic.partitions}
            if ErrorCode.INVALID_TXN_STATE in codes and adds and attempts < VERIFICATIONS_MAX and not self._transactions.leads(request.transactional_id):
                attempts += 1
                ask_elsewhere()
            else:
                reply(response)

        def on_verified(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._groups.coordinator.txn_offset_commit(request, version, identity, self._now_ms(), on_committed)
                return
            told = transactional_commit_error(code, version)
            topics = tuple(TopicResult(topic.topic, tuple(PartitionResult(each.partition, told) for each in topic.partitions)) for topic in request.topics)
            reply(TxnOffsetCommitResponse(topics=topics))

        who = (request.transactional_id, request.producer_id, request.producer_epoch)

        def ask_elsewhere() -> None:
            def ask(on_answer: Callable[[ErrorCode], None]) -> None:
                self._elsewhere.verify(*who, (partition,), adds, lambda codes: on_answer(known_error(codes[0])))

            self._groups.commit_verified(partition.partition, ProducerIdentity(*who[1:]), ask, on_verified)

        if not self._transactions.leads(request.transactional_id):
            ask_elsewhere()
        elif adds:
            self._transactions.coordinator.extend(*who, frozenset((partition,)), SECOND_PROTOCOL, lambda codes: on_verified(codes[partition]))
        else:
            self._transactions.coordinator.verify(*who, frozenset((partition,)), lambda codes: on_verified(codes[partition]))
