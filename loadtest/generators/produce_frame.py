"""Builds a Produce request frame of an exact size, and says how the reply to it must look. Bytes only.

Written apart from the broker's codec on purpose: a mistake that both shared would go unseen. Version 9, the first with compact lengths: what
most clients of the last years send, give or take a version. Weak spot: one topic, one partition, one record a request.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from appliance.records.builder import BatchBuilder

API_KEY_PRODUCE = 0
API_VERSION = 9
TIMEOUT_MS = 30_000
CLIENT_ID = b"replay"
NO_TAGGED_FIELDS = b"\0"
RECORD_TIMESTAMP_MS = 1_700_000_000_000


class ReplyLayout(NamedTuple):
    """A good reply: its size with the size field, and where in it the partition's error code stands."""

    size_bytes: int
    error_at: int


def build_produce_frame(topic: str, partition: int, frame_bytes: int, acks: int = 1) -> bytes:
    """A whole request of exactly `frame_bytes` (size field included) with a single record. Raises ValueError if that is too small."""
    value_bytes = frame_bytes
    for _ in range(4):  # lengths of lengths change once or twice on the way
        frame = _frame(topic, partition, bytes(value_bytes), acks)
        if len(frame) == frame_bytes:
            return _frame(topic, partition, _text(value_bytes), acks)
        value_bytes -= len(frame) - frame_bytes
        if value_bytes < 0:
            break
    raise ValueError(f"no request to topic {topic!r} has {frame_bytes} bytes")


def reply_layout(topic: str) -> ReplyLayout:
    """Of the reply to a request with one partition and no error."""
    head = 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4
    """size, correlation id, tags of the header, topic count, length of the name, name, partition count, partition"""
    tail = 2 + 8 + 8 + 8 + 1 + 1 + 1 + 1 + 4 + 1
    """error code, base offset, log append time, log start offset, record errors, error message, tags of partition and topic, throttle time, tags"""
    return ReplyLayout(head + tail, head)


def _frame(topic: str, partition: int, value: bytes, acks: int) -> bytes:
    builder = BatchBuilder()
    builder.append(RECORD_TIMESTAMP_MS, None, value, ())
    records = builder.build()
    name = topic.encode()
    body = b"".join(
        (
            struct.pack(">hhih", API_KEY_PRODUCE, API_VERSION, 0, len(CLIENT_ID)),
            CLIENT_ID,
            NO_TAGGED_FIELDS,
            b"\0",  # no transactional id
            struct.pack(">hi", acks, TIMEOUT_MS),
            compact_length(1),
            compact_length(len(name)) + name,
            compact_length(1),
            struct.pack(">i", partition),
            compact_length(len(records)) + records,
            NO_TAGGED_FIELDS * 3,  # of partition, topic and request
        )
    )
    return struct.pack(">i", len(body)) + body


def compact_length(length: int) -> bytes:
    """Length plus one as an unsigned varint (KIP-482)."""
    rest, encoded = length + 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _text(size_bytes: int) -> bytes:
    """Something like a log line, as long as wanted."""
    line = b"Oct 11 22:14:15 host-17 app[4711]: request served status=200 bytes=5120 took=12ms path=/v1/items user=- "
    return (line * (size_bytes // len(line) + 1))[:size_bytes]
