"""Kafka requests that an acceptor forwards to the controller or the coordinator, their answers, and
ended transactions."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

KAFKA_REQUEST = 1
"""acceptor → controller or coordinator: int16 api key, int16 api version, int16 lengths of client id and client host, both, request body."""
KAFKA_RESPONSE = 2
"""The response body, without size and header. Empty: the request could not be answered; close the
connection."""
TRANSACTION_ENDED = 3
"""acceptor → coordinator: int32 partition of `__consumer_offsets`, int64 producer id, uint8 1 for a
commit. Its marker is below the high watermark.

The coordinator answers with KAFKA_RESPONSE of one byte, 0, when it has applied it.
"""

_REQUEST = Struct("<hhhh")
_ENDED = Struct("<iqB")
_NAME_BYTES_MAX = 32767


class EndedTransaction(NamedTuple):
    """The pending offsets of a producer in one partition are committed or aborted."""

    partition: int
    producer_id: int
    is_commit: bool


class KafkaRequest(NamedTuple):
    """A request without its frame, with its sender."""

    api_key: int
    api_version: int
    client_id: str
    client_host: str
    body: bytes


def pack_kafka_request(api_key: int, api_version: int, client_id: str, client_host: str, body: bytes) -> bytes:
    """The payload of KAFKA_REQUEST."""
    identity, host = client_id.encode()[:_NAME_BYTES_MAX], client_host.encode()[:_NAME_BYTES_MAX]
    return _REQUEST.pack(api_key, api_version, len(identity), len(host)) + identity + host + body


def unpack_kafka_request(payload: bytes) -> KafkaRequest:
    """Inverse of `pack_kafka_request`. Raises `ValueError` for a client id that was cut within a
    character."""
    api_key, api_version, identity_length, host_length = _REQUEST.unpack_from(payload)
    host_position = _REQUEST.size + identity_length
    body_position = host_position + host_length
    identity, host = payload[_REQUEST.size : host_position].decode(), payload[host_position:body_position].decode()
    return KafkaRequest(api_key, api_version, identity, host, payload[body_position:])


def pack_ended_transaction(partition: int, producer_id: int, is_commit: bool) -> bytes:
    """The payload of TRANSACTION_ENDED."""
    return _ENDED.pack(partition, producer_id, is_commit)


def unpack_ended_transaction(payload: bytes) -> EndedTransaction:
    """Inverse of `pack_ended_transaction`. Raises `struct.error` for another length."""
    partition, producer_id, is_commit = _ENDED.unpack(payload)
    return EndedTransaction(partition, producer_id, bool(is_commit))
