"""Which handler takes a request: one table from API key to handler.

Also ApiVersions, which reports that table, and the check of requests that only boxes may send
(`services/acceptor/inter_broker.py`). Owned by one acceptor. Raises `ProtocolViolation` for everything that
closes a connection (unknown API, unsupported version, malformed bytes).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.protocol import share_state_apis
from appliance.protocol.api_versions import (
    api_versions_problem,
    decode_api_versions,
    encode_api_versions_response,
    encode_unsupported_version,
)
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.fetch import CONSUMER_REPLICA_ID
from appliance.protocol.framing import RequestHeader, parse_request_header
from appliance.protocol.offset_apis import (
    LIST_OFFSETS_REQUEST,
    LIST_OFFSETS_RESPONSE,
    OFFSET_FOR_LEADER_EPOCH_REQUEST,
    OFFSET_FOR_LEADER_EPOCH_RESPONSE,
)
from appliance.protocol.schema import Message
from appliance.protocol.transaction_apis import (
    ADD_PARTITIONS_TO_TXN_RESPONSE,
    WRITE_TXN_MARKERS_REQUEST,
    WRITE_TXN_MARKERS_RESPONSE,
    AddPartitionsToTxnResponse,
)
from appliance.protocol.wire import INT32
from appliance.security.acl import AclOperation
from appliance.security.principals import ACTING, local_principal
from services.acceptor.closings import SESSION_EXPIRED
from services.acceptor.connection import Connection
from services.acceptor.handlers.produce import ProduceHandler
from services.acceptor.inter_broker import InterBrokerGate
from services.acceptor.listening_socket import LOCAL
from services.acceptor.request_memory import ArenaSlot

if TYPE_CHECKING:
    from services.acceptor.sasl_connections import SaslConnections


_SASL_APIS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class Handler(Protocol):
    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None: ...


class Dispatch:
    """From frames to handlers."""

    def __init__(self, produce: ProduceHandler, handlers: dict[int, Handler]) -> None:
        self._produce = produce
        self._handlers = handlers

    def on_request(self, connection: Connection, buffer: memoryview, position: int, limit: int, body_slot: ArenaSlot | None) -> bool:
        """Take the request at `buffer[position:limit]`. False: the arena has no free slot now."""
        header = parse_request_header(buffer, position, limit)
        if connection.sasl is not None:  # it authenticates again, and sends nothing else meanwhile: as in Kafka
            self._handlers[ApiKey.SASL_AUTHENTICATE].handle(connection, header, buffer, limit)
            return True
        if connection.expires_ns and connection.last_active_ns > connection.expires_ns and header.api_key not in _SASL_APIS:
            raise ProtocolViolation(SESSION_EXPIRED, "it sends requests, and did not authenticate again in time (connections.max.reauth.ms)")
        if header.api_key == ApiKey.PRODUCE:
            return self._produce.handle(connection, header, buffer, limit, body_slot)
        self._handlers[header.api_key].handle(connection, header, buffer, limit)
        return True


class ApiVersionsHandler:
    """ApiVersions: what this broker serves; an unknown version gets a body of version 0 (KIP-511)."""

    def __init__(self, on_reply: Callable[[Connection], None]) -> None:
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        version = header.api_version
        reply = connection.expect_reply(False)
        if not SERVED_APIS[ApiKey.API_VERSIONS].serves(version):
            reply.pieces = [encode_unsupported_version(header.correlation_id)]
        else:
            problem = api_versions_problem(decode_api_versions(buffer, header.body_position, limit, version), version)
            reply.pieces = [encode_api_versions_response(version, header.correlation_id, problem or 0)]
        reply.ready = True
        self._on_reply(connection)


class SaslHandler:
    """SaslHandshake and SaslAuthenticate of connections that are authenticated, or never have to be.

    Processes of the box, by its Unix socket, and other boxes with certificates may act for the users of the
    console: they have all rights, and give them up.
    """

    def __init__(self, sasl: SaslConnections | None, gate: InterBrokerGate, on_reply: Callable[[Connection], None]) -> None:
        self._sasl = sasl
        self._gate = gate
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        if self._sasl is not None and (connection.expires_ns or connection.sasl is not None or self._may_act_for_others(connection)):
            self._sasl.authenticate_again(connection, header, buffer, limit)
            return
        from appliance.protocol import sasl_apis  # schemas that few acceptors need

        version = header.api_version
        reply = connection.expect_reply(False)
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            refused = sasl_apis.SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
            reply.pieces = [sasl_apis.SASL_HANDSHAKE_RESPONSE.encode_response(version, header.correlation_id, refused)]
        else:
            text = "SaslAuthenticate request received after successful authentication"
            answer = sasl_apis.SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, text)
            reply.pieces = [sasl_apis.SASL_AUTHENTICATE_RESPONSE.encode_response(version, header.correlation_id, answer)]
        reply.ready = True
        self._on_reply(connection)

    def _may_act_for_others(self, connection: Connection) -> bool:
        if connection.mechanism:
            return False
        if connection.listening.name == LOCAL:
            return connection.origin.is_privileged or connection.principal == local_principal(os.geteuid())
        if connection.certificate_names is None or not self._gate.is_box(connection):
            return False
        return connection.rights is None or connection.rights.would_allow_on_cluster(AclOperation.CLUSTER_ACTION)


_BATCHED_SINCE: Final = 4
_REPLICA_ID_SINCE: Final = 3


class RestrictedApi(NamedTuple):
    """Which requests of an API only boxes may send. Without `request`, an error response needs none."""

    is_restricted: Callable[[RequestHeader, memoryview, int], bool]
    request: Message[Any] | None
    response: Message[Any]


class InterBrokerHandler:
    """Passes requests to the handler of their API, except those that only boxes may send, from others."""

    def __init__(self, api_key: ApiKey, handler: Handler, gate: InterBrokerGate, on_reply: Callable[[Connection], None]) -> None:
        self._handler = handler
        self._gate = gate
        self._on_reply = on_reply
        self._api = RESTRICTED_APIS[api_key]
        self._what = api_key.name
        self._is_for_persons = api_key == ApiKey.WRITE_TXN_MARKERS
        self._changes_transactions = api_key in (ApiKey.WRITE_TXN_MARKERS, ApiKey.ADD_PARTITIONS_TO_TXN)

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        api = self._api
        is_admitted = not api.is_restricted(header, buffer, limit) or connection.origin.is_privileged
        if is_admitted or ((self._is_of_console(connection) or self._gate.admits(connection, self._what)) and self._is_authorized(connection)):
            self._handler.handle(connection, header, buffer, limit)
            return
        version, code = header.api_version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if api.request is None:
            response: Any = AddPartitionsToTxnResponse(error_code=code)  # as Kafka: one error for the whole request
        else:
            request = api.request.decode(buffer, header.body_position, limit, version)  # may raise: then nothing is answered
            response = api.response.error_response(version, request, code)
        reply = connection.expect_reply(False)
        reply.pieces = [api.response.encode_response(version, header.correlation_id, response)]
        reply.ready = True
        self._on_reply(connection)

    def _is_of_console(self, connection: Connection) -> bool:
        """Whether the console of a box acts for a person, whose address it has, and ends a transaction that hangs."""
        return self._is_for_persons and connection.mechanism == ACTING

    def _is_authorized(self, connection: Connection) -> bool:
        """True unless an authorizer denies what ends or extends transactions of others. The handlers themselves authorize look-ups of offsets."""
        rights = connection.rights
        if rights is None or not self._changes_transactions:
            return True
        return rights.would_allow_on_cluster(AclOperation.CLUSTER_ACTION) or rights.allows_on_cluster(AclOperation.ALTER)


def _replica_id(header: RequestHeader, buffer: memoryview, limit: int) -> int:
    """The replica id, which is the first field of the body; a consumer's if the body is too short."""
    if limit - header.body_position < INT32.size:
        return CONSUMER_REPLICA_ID
    return int(INT32.unpack_from(buffer, header.body_position)[0])


RESTRICTED_APIS: Final[dict[int, RestrictedApi]] = {
    ApiKey.LIST_OFFSETS: RestrictedApi(
        lambda header, buffer, limit: _replica_id(header, buffer, limit) != CONSUMER_REPLICA_ID, LIST_OFFSETS_REQUEST, LIST_OFFSETS_RESPONSE
    ),
    # Before version 3 no request has a replica id, and every client gets what a consumer gets.
    ApiKey.OFFSET_FOR_LEADER_EPOCH: RestrictedApi(
        lambda header, buffer, limit: header.api_version >= _REPLICA_ID_SINCE and _replica_id(header, buffer, limit) >= 0,
        OFFSET_FOR_LEADER_EPOCH_REQUEST,
        OFFSET_FOR_LEADER_EPOCH_RESPONSE,
    ),
    ApiKey.WRITE_TXN_MARKERS: RestrictedApi(lambda _header, _buffer, _limit: True, WRITE_TXN_MARKERS_REQUEST, WRITE_TXN_MARKERS_RESPONSE),
    **{
        ApiKey(each[0].api.key): RestrictedApi(lambda _header, _buffer, _limit: True, *each)
        for each in (
            (share_state_apis.INITIALIZE_SHARE_GROUP_STATE_REQUEST, share_state_apis.INITIALIZE_SHARE_GROUP_STATE_RESPONSE),
            (share_state_apis.READ_SHARE_GROUP_STATE_REQUEST, share_state_apis.READ_SHARE_GROUP_STATE_RESPONSE),
            (share_state_apis.WRITE_SHARE_GROUP_STATE_REQUEST, share_state_apis.WRITE_SHARE_GROUP_STATE_RESPONSE),
            (share_state_apis.DELETE_SHARE_GROUP_STATE_REQUEST, share_state_apis.DELETE_SHARE_GROUP_STATE_RESPONSE),
            (share_state_apis.READ_SHARE_GROUP_STATE_SUMMARY_REQUEST, share_state_apis.READ_SHARE_GROUP_STATE_SUMMARY_RESPONSE),
        )
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: RestrictedApi(lambda header, _buffer, _limit: header.api_version >= _BATCHED_SINCE, None, ADD_PARTITIONS_TO_TXN_RESPONSE),
}
"""Fetch is not here: its last bytes name the sender, so its handler calls the gate itself."""
