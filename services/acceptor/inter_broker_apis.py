"""Requests that only boxes send each other, beside follower fetches: which they are, how others are answered.

They are ListOffsets with another replica id than a consumer's, OffsetForLeaderEpoch with a replica id,
WriteTxnMarkers, and AddPartitionsToTxn from version 4 on. They reveal what is above high watermarks, or end
and extend transactions of others; Kafka requires CLUSTER_ACTION for most. Owned by one acceptor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.protocol import offset_apis, transaction_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.fetch import CONSUMER_REPLICA_ID
from appliance.protocol.offset_apis import (
    EpochPartitionResult,
    EpochTopicResult,
    ListOffsetsPartitionResult,
    ListOffsetsTopicResult,
    encode_offset_for_leader_epoch_response,
)
from appliance.protocol.request_header import RequestHeader
from appliance.protocol.topic_partitions import same_result
from appliance.protocol.transaction_apis import TxnMarkerResult
from appliance.protocol.wire import INT32
from services.acceptor.connection import Connection
from services.acceptor.dispatch import Handler
from services.acceptor.inter_broker import InterBrokerGate

_BATCHED_SINCE = 4
_REPLICA_ID_SINCE = 3
_CODE = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class RestrictedApi(NamedTuple):
    """Which requests of an API only boxes may send, and the body-and-header frame that refuses one."""

    is_restricted: Callable[[RequestHeader, memoryview, int], bool]
    refusal: Callable[[RequestHeader, memoryview, int], bytes]


class InterBrokerHandler:
    """Hands requests on to the handler of their API, except those that only boxes may send, from others."""

    def __init__(
        self,
        api_key: ApiKey,
        handler: Handler,
        gate: InterBrokerGate,
        on_reply: Callable[[Connection], None],
    ) -> None:
        self._handler = handler
        self._gate = gate
        self._on_reply = on_reply
        self._api = RESTRICTED_APIS[api_key]
        self._what = api_key.name

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        is_restricted = self._api.is_restricted(header, buffer, limit)
        if not is_restricted or self._gate.admits(connection.address, self._what):
            self._handler.handle(connection, header, buffer, limit)
            return
        refusal = self._api.refusal(header, buffer, limit)  # may raise: then there is nothing to answer
        reply = connection.expect_reply(False)
        reply.pieces = [refusal]
        reply.ready = True
        self._on_reply(connection)


def _first_number(header: RequestHeader, buffer: memoryview, limit: int) -> int:
    """The replica id, which begins the body; a consumer's if the body is too short."""
    if limit - header.body_position < INT32.size:
        return CONSUMER_REPLICA_ID
    return int(INT32.unpack_from(buffer, header.body_position)[0])


def _lists_as_replica(header: RequestHeader, buffer: memoryview, limit: int) -> bool:
    return _first_number(header, buffer, limit) != CONSUMER_REPLICA_ID


def _refuse_list_offsets(header: RequestHeader, buffer: memoryview, limit: int) -> bytes:
    version, topics = header.api_version, []
    for topic in offset_apis.decode_list_offsets(buffer, header.body_position, limit, version).topics:
        results = [ListOffsetsPartitionResult(wanted.partition, _CODE) for wanted in topic.partitions]
        topics.append(ListOffsetsTopicResult(topic.topic, tuple(results)))
    return offset_apis.encode_list_offsets_response(version, header.correlation_id, tuple(topics))


def _asks_epochs_as_replica(header: RequestHeader, buffer: memoryview, limit: int) -> bool:
    """Before version 3 no request says who sends it, and all get what a consumer gets."""
    return header.api_version >= _REPLICA_ID_SINCE and _first_number(header, buffer, limit) >= 0


def _refuse_epochs(header: RequestHeader, buffer: memoryview, limit: int) -> bytes:
    version, topics = header.api_version, []
    for topic in offset_apis.OFFSET_FOR_LEADER_EPOCH_REQUEST.decode(buffer, header.body_position, limit, version).topics:
        results = [EpochPartitionResult(_CODE, wanted.partition) for wanted in topic.partitions]
        topics.append(EpochTopicResult(topic.topic, tuple(results)))
    return encode_offset_for_leader_epoch_response(version, header.correlation_id, tuple(topics))


def _always(_header: RequestHeader, _buffer: memoryview, _limit: int) -> bool:
    return True


def _refuse_markers(header: RequestHeader, buffer: memoryview, limit: int) -> bytes:
    version = header.api_version
    request = transaction_apis.WRITE_TXN_MARKERS_REQUEST.decode(buffer, header.body_position, limit, version)
    results = [TxnMarkerResult(each.producer_id, same_result(each.topics, _CODE)) for each in request.markers]
    response = transaction_apis.WriteTxnMarkersResponse(tuple(results))
    return transaction_apis.WRITE_TXN_MARKERS_RESPONSE.encode_response(version, header.correlation_id, response)


def _is_batched(header: RequestHeader, _buffer: memoryview, _limit: int) -> bool:
    return header.api_version >= _BATCHED_SINCE


def _refuse_batched(header: RequestHeader, _buffer: memoryview, _limit: int) -> bytes:
    """As Kafka: one error for the whole request."""
    response = transaction_apis.AddPartitionsToTxnResponse(error_code=_CODE)
    return transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE.encode_response(header.api_version, header.correlation_id, response)


RESTRICTED_APIS: Final[dict[int, RestrictedApi]] = {
    ApiKey.LIST_OFFSETS: RestrictedApi(_lists_as_replica, _refuse_list_offsets),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: RestrictedApi(_asks_epochs_as_replica, _refuse_epochs),
    ApiKey.WRITE_TXN_MARKERS: RestrictedApi(_always, _refuse_markers),
    ApiKey.ADD_PARTITIONS_TO_TXN: RestrictedApi(_is_batched, _refuse_batched),
}
"""Beside Fetch, which says in its last bytes who sent it: its handler asks the gate itself."""
