"""Builds a Fetch request for one partition, and says where in request and reply the fields stand that a reader needs. Bytes only.

Written apart from the broker's codec on purpose, as `produce_frame.py` is. Version 11 is the last whose lengths have a fixed size, so every field has a
fixed place. Weak spot: one topic, one partition; a reply that lists aborted transactions has other places (the reader would see a wrong size).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

API_KEY_FETCH = 1
API_VERSION = 11
CLIENT_ID = b"fetch"
MAX_WAIT_MS = 500
CONSUMER = -1
NO_SESSION = (0, -1)


class FetchLayout(NamedTuple):
    """Byte positions, size fields included."""

    offset_at: int
    """In the request: the offset to read from."""
    error_at: int
    """In the reply: the partition's error code; the high watermark follows it."""
    records_at: int
    """In the reply: where the records begin; their size stands in the 4 bytes before."""


def build_fetch_frame(topic: str, partition: int, max_bytes: int, offset: int = 0) -> bytes:
    name = topic.encode()
    body = b"".join(
        (
            _request_head(),
            struct.pack(">iiiib", CONSUMER, MAX_WAIT_MS, 1, max_bytes, 0),
            struct.pack(">ii", *NO_SESSION),
            struct.pack(">ih", 1, len(name)) + name,
            struct.pack(">iii", 1, partition, -1),
            struct.pack(">qqi", offset, -1, max_bytes),
            struct.pack(">ih", 0, 0),  # no forgotten topics, no rack
        )
    )
    return struct.pack(">i", len(body)) + body


def fetch_layout(topic: str) -> FetchLayout:
    offset_at = 4 + len(_request_head()) + 17 + 8 + 6 + len(topic) + 12
    """size, head, replica to isolation, session, topic, partition and leader epoch"""
    error_at = 4 + 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4
    """size, correlation id, throttle time, error, session, topic count, name, partition count, partition"""
    records_at = error_at + 2 + 8 + 8 + 8 + 4 + 4 + 4
    """error, high watermark, last stable offset, log start offset, aborted transactions, preferred replica, size of the records"""
    return FetchLayout(offset_at, error_at, records_at)


def _request_head() -> bytes:
    return struct.pack(">hhih", API_KEY_FETCH, API_VERSION, 0, len(CLIENT_ID)) + CLIENT_ID
