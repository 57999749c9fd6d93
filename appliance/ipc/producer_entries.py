"""The producers of a partition: the log-writer's answer to DESCRIBE_PRODUCERS, in memory of the
requesting source.

Entries of 36 bytes without gaps, oldest first. The completion has their number; the slot limits how
many are included. Weak: those that do not fit are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple, Protocol

PRODUCER_ENTRY = Struct("<qiiqiq")


class DescribedProducer(NamedTuple):
    """`last_sequence`, `coordinator_epoch` and `transaction_first_offset` are -1 if there is none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


class _Entry(Protocol):
    """A producer as a log stores it."""

    @property
    def producer_epoch(self) -> int: ...

    @property
    def last_sequence(self) -> int: ...

    @property
    def timestamp(self) -> int: ...

    @property
    def coordinator_epoch(self) -> int: ...

    @property
    def transaction_first_offset(self) -> int: ...


def pack_producers(producers: Iterable[tuple[int, _Entry]], size_bytes: int) -> bytes:
    """Return exactly `size_bytes` with as many entries as fit."""
    packed = bytearray()
    for producer_id, entry in producers:
        if len(packed) + PRODUCER_ENTRY.size > size_bytes:
            break
        packed += PRODUCER_ENTRY.pack(
            producer_id, entry.producer_epoch, entry.last_sequence, entry.timestamp, entry.coordinator_epoch, entry.transaction_first_offset
        )
    return bytes(packed).ljust(size_bytes, b"\0")


def unpack_producers(memory: bytes | memoryview, count: int) -> list[DescribedProducer]:
    """Return the first `count` entries, or as many as there are."""
    fitting = min(count, len(memory) // PRODUCER_ENTRY.size)
    return [DescribedProducer._make(fields) for fields in PRODUCER_ENTRY.iter_unpack(memory[: fitting * PRODUCER_ENTRY.size])]
