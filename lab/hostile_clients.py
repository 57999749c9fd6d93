"""Clients that mean no good, for system tests: many connections from many loopback addresses, requests that are begun and not ended, bombs."""

from __future__ import annotations

import resource
import socket
import struct
from contextlib import ExitStack

import crc32c

from appliance.records.compression import Codec, compress
from lab.running_box import RunningBox

PRODUCE, FETCH, METADATA = 0, 1, 3


def raise_descriptor_limit() -> int:
    """All that the hard limit allows; returns it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connect_from(box: RunningBox, number: int) -> socket.socket:
    """From the loopback address 127.0.0.`number`: limits of connections are per address."""
    return socket.create_connection(box.kafka, timeout=30, source_address=(f"127.0.0.{number}", 0))


def connect_many(box: RunningBox, count: int, an_address: int, stack: ExitStack) -> list[socket.socket]:
    """`count` connections, `an_address` of them from each address; closed by `stack`."""
    return [stack.enter_context(connect_from(box, 2 + index // an_address)) for index in range(count)]


def frame(api_key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", api_key, version, 1, -1) + body
    return struct.pack(">i", len(request)) + request


def begun_request(api_key: int, version: int, size_bytes: int, first: bytes = b"") -> bytes:
    """The first bytes of a request that announces `size_bytes`."""
    return struct.pack(">ihhih", size_bytes, api_key, version, 1, -1) + first


def fetch_frame(topic: str, partitions: int = 1, max_wait_ms: int = 0, min_bytes: int = 1, offset: int = 0) -> bytes:
    """Fetch 11 of partition 0, named as often as wanted."""
    head = struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, 55 << 20, 0, 0, -1)
    name = topic.encode()
    partition = struct.pack(">iiqqi", 0, -1, offset, -1, 55 << 20)
    return frame(FETCH, 11, head + struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", partitions) + partition * partitions + struct.pack(">ih", 0, 0))


def metadata_frame(topic: str, times: int) -> bytes:
    """Metadata 1 that names one topic many times."""
    name = topic.encode()
    return frame(METADATA, 1, struct.pack(">i", times) + (struct.pack(">h", len(name)) + name) * times)


def bomb(codec: Codec, size_bytes: int, timestamp: int) -> bytes:
    """A batch of a few KiB, correct to every check that does not open it, that decompresses to `size_bytes` of zeros.

    Streams of codecs are put together from compressed parts, so that the test itself needs no such memory.
    """
    records = _compressed_zeros(codec, size_bytes)
    body = struct.pack(">hiqqqhii", codec, 0, timestamp, timestamp, -1, -1, -1, 1) + records
    head = struct.pack(">qiib", 0, len(body) + 9, -1, 2)
    return head + struct.pack(">I", crc32c.crc32c(body)) + body


def _compressed_zeros(codec: Codec, size_bytes: int) -> bytes:
    part = bytes(min(size_bytes, 16 << 20))
    if codec in (Codec.GZIP, Codec.SNAPPY):  # both may be several streams, one behind the other
        return compress(codec, part) * (size_bytes // len(part))
    return compress(codec, bytes(size_bytes))
