"""Produce requests with a record for each of many partitions, and the little of Metadata that says whom to send them to: bytes only, both ways.

Written apart from the broker's codecs, as `produce_frame` is. Produce v9, Metadata v1, which brokers of ten years serve. Weak spot: one topic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from appliance.records.builder import BatchBuilder
from loadtest.generators.produce_frame import API_KEY_PRODUCE, API_VERSION, NO_TAGGED_FIELDS, RECORD_TIMESTAMP_MS, compact_length

API_KEY_METADATA, METADATA_VERSION = 3, 1
CLIENT_ID = b"many"
TIMEOUT_MS = 1000
_HEAD = struct.Struct(">hhih")
_PARTITION = struct.Struct(">hiii")
"""Error code, partition, leader, number of replicas."""
_ROW_FIXED = struct.Struct(">ihqqq")
"""Partition, error code, base offset, log append time, log start offset."""


class Leaders(NamedTuple):
    """Of a topic's partitions; -1 where there is no leader."""

    addresses: dict[int, tuple[str, int]]
    by_partition: dict[int, int]


class ManyProduces:
    """Requests with acks=all for any of a topic's partitions."""

    def __init__(self, topic: str) -> None:
        builder = BatchBuilder()
        builder.append(RECORD_TIMESTAMP_MS, None, b"probe", ())
        records = builder.build()
        self._row_tail = compact_length(len(records)) + records + NO_TAGGED_FIELDS
        self._topic = topic.encode()

    def frame(self, partitions: Iterable[int]) -> bytes:
        rows = [struct.pack(">i", partition) + self._row_tail for partition in partitions]
        head = _HEAD.pack(API_KEY_PRODUCE, API_VERSION, 0, len(CLIENT_ID)) + CLIENT_ID + NO_TAGGED_FIELDS
        body = b"\0" + struct.pack(">hi", -1, TIMEOUT_MS) + compact_length(1) + compact_length(len(self._topic)) + self._topic
        return _framed(head + body + compact_length(len(rows)) + b"".join(rows) + NO_TAGGED_FIELDS * 2)

    def metadata_frame(self) -> bytes:
        head = _HEAD.pack(API_KEY_METADATA, METADATA_VERSION, 0, len(CLIENT_ID)) + CLIENT_ID
        return _framed(head + struct.pack(">ih", 1, len(self._topic)) + self._topic)


def error_codes(reply: bytes) -> dict[int, int]:
    """By partition, of a reply to `ManyProduces.frame`; its size field is not in it."""
    position = 5  # correlation id, tags
    _, position = _uvarint(reply, position)  # one topic
    length, position = _uvarint(reply, position)
    count, position = _uvarint(reply, position + length - 1)
    codes = {}
    for _ in range(count - 1):
        partition, code, *_ = _ROW_FIXED.unpack_from(reply, position)
        codes[partition] = code
        errors, position = _uvarint(reply, position + _ROW_FIXED.size)
        for _ in range(errors - 1):
            position = _skip_text(reply, position + 4) + 1
        position = _skip_text(reply, position) + 1
    return codes


def leaders(reply: bytes) -> Leaders:
    """Of a reply to `metadata_frame`; its size field is not in it."""
    (brokers,), position, addresses = struct.unpack_from(">i", reply, 4), 8, {}
    for _ in range(brokers):
        (broker_id,) = struct.unpack_from(">i", reply, position)
        host, position = _short_text(reply, position + 4)
        (port,) = struct.unpack_from(">i", reply, position)
        addresses[broker_id] = (host, port)
        _, position = _short_text(reply, position + 4)
    _, position = _short_text(reply, position + 4 + 4 + 2)  # controller, one topic, its error
    (count,) = struct.unpack_from(">i", reply, position + 1)
    position += 5
    found = {}
    for _ in range(count):
        _, partition, leader, replicas = _PARTITION.unpack_from(reply, position)
        position += _PARTITION.size + 4 * replicas
        (in_sync,) = struct.unpack_from(">i", reply, position)
        position += 4 + 4 * in_sync
        found[partition] = leader
    return Leaders(addresses, found)


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _uvarint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _skip_text(data: bytes, position: int) -> int:
    length, position = _uvarint(data, position)
    return position + max(0, length - 1)


def _short_text(data: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, position)
    end = position + 2 + max(0, length)
    return data[position + 2 : end].decode(), end
