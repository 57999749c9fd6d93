"""Kafka requests that an acceptor forwards to the controller or the coordinator, their answers, and
ended transactions.

Frames on `controller.sock` besides Kafka's requests (`request_frames`): changes of the metadata
image, implicit creation of topics, and others.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from appliance.base.model import ProducerId
from appliance.security.principals import UNAUTHENTICATED, RequestOrigin

IMAGE_CHANGED = 3
"""controller → each client, when it connects and at each change: u64 generation."""
AUTO_CREATE = 4
"""acceptor, ingest or coordinator → controller: JSON {"topics": [name, …]} or {"topics": {name:
partitions}}."""
AUTO_CREATE_DONE = 5
"""controller → client: JSON {"errors": {name: Kafka error code}}; 0 and TOPIC_ALREADY_EXISTS mean
that the topic exists."""
MOVE_ORDERS = 16
"""command → controller: JSON {"disk": name, "draining": true, false or null (unchanged), "cancel":
true to revoke all moves away from it, "throttle": bytes per second or null, "moves": [[topic,
partition, target disk], …]}."""
MOVE_ORDERS_DONE = 17
"""controller → client: JSON {"refused": [[what, Kafka error code, message], …]}; empty: all of it
is durable."""
ORPHAN_ORDERS = 18
"""command → controller: JSON {"remove": [[disk, topic, partition, topic id or null], …], "adopt":
{"topic": name, "topic_id": id, "config": {…}, "allow_missing": true or absent} or absent}. The answer
is MOVE_ORDERS_DONE."""
LEASE_PRODUCER_IDS = 6
"""coordinator → controller: JSON {}."""
COMMIT_LEGACY_OFFSETS = 7
"""coordinator → controller: JSON {"group": …, "offsets": [[topic, partition, offset], …]}."""
FETCH_LEGACY_OFFSETS = 8
"""coordinator → controller: JSON {"group": …, "partitions": [[topic, partition], …]}."""
COORDINATOR_ANSWER = 9
"""controller → coordinator: JSON {"error": Kafka error code}, and without an error {"first": id,
"last": id}, {"errors": [[topic, partition, code], …]} or {"offsets": [[topic, partition, offset],
…]}."""

GENERATION = Struct("<Q")


KAFKA_REQUEST = 1
"""acceptor → controller or coordinator: int16 api key, int16 api version, int16 lengths of client
id, client host and origin (`RequestOrigin.pack`), these three, request body."""
KAFKA_RESPONSE = 2
"""The response body, without size and header. Empty: the request could not be answered; close the
connection."""
TRANSACTION_ENDED = 3
"""acceptor → coordinator: int32 partition of `__consumer_offsets`, int64 producer id, uint8 1 for a
commit. Its marker is below the high watermark.

The coordinator answers with KAFKA_RESPONSE of one byte, 0, when it has applied it.
"""

_REQUEST = Struct("<hhhhh")
_ENDED = Struct("<iqB")
_NAME_BYTES_MAX = 32767


class EndedTransaction(NamedTuple):
    """The pending offsets of a producer in one partition are committed or aborted."""

    partition: int
    producer_id: ProducerId
    is_commit: bool


class KafkaRequest(NamedTuple):
    """A request without its frame, with its sender."""

    api_key: int
    api_version: int
    client_id: str
    client_host: str
    body: bytes
    origin: RequestOrigin = UNAUTHENTICATED


_UNAUTHENTICATED = UNAUTHENTICATED.pack()


def pack_kafka_request(api_key: int, api_version: int, client_id: str, client_host: str, body: bytes, packed_origin: bytes = _UNAUTHENTICATED) -> bytes:
    """The payload of KAFKA_REQUEST. `packed_origin`: of the connection that the request came from."""
    identity, host = client_id.encode()[:_NAME_BYTES_MAX], client_host.encode()[:_NAME_BYTES_MAX]
    return _REQUEST.pack(api_key, api_version, len(identity), len(host), len(packed_origin)) + identity + host + packed_origin + body


def unpack_kafka_request(payload: bytes) -> KafkaRequest:
    """Inverse of `pack_kafka_request`. Raises `ValueError` for a client id that was cut within a
    character."""
    api_key, api_version, identity_length, host_length, origin_length = _REQUEST.unpack_from(payload)
    host_position = _REQUEST.size + identity_length
    origin_position = host_position + host_length
    body_position = origin_position + origin_length
    identity, host = payload[_REQUEST.size : host_position].decode(), payload[host_position:origin_position].decode()
    packed_origin = payload[origin_position:body_position]
    origin = UNAUTHENTICATED if packed_origin == _UNAUTHENTICATED else RequestOrigin.unpack(packed_origin)
    return KafkaRequest(api_key, api_version, identity, host, payload[body_position:], origin)


def pack_ended_transaction(partition: int, producer_id: ProducerId, is_commit: bool) -> bytes:
    """The payload of TRANSACTION_ENDED."""
    return _ENDED.pack(partition, producer_id, is_commit)


def unpack_ended_transaction(payload: bytes) -> EndedTransaction:
    """Inverse of `pack_ended_transaction`. Raises `struct.error` for another length."""
    partition, producer_id, is_commit = _ENDED.unpack(payload)
    return EndedTransaction(partition, producer_id, bool(is_commit))
