"""The log that a coordinator keeps its state in: the port between the rules of groups and transactions, and the process that appends and reads.

A state topic (`__consumer_offsets`, `__transaction_state`) is a compacted topic of our own; a group or a transactional id belongs to one of its
partitions by the hash that Kafka takes. A coordinator's memory follows the log: what a refused append would have said never was. Owned by the
coordinator process. Weak spot: one batch an append; whoever has many small ones puts them together first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from appliance.base.errors import ErrorCode

OnAppended = Callable[[ErrorCode], None]
"""NONE when every in-sync replica has the records, else why they were refused. Called once, never from within `append`."""


class StateRecord(NamedTuple):
    """One record of a state topic; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class ProducerIdentity(NamedTuple):
    """Whose transaction a batch belongs to."""

    producer_id: int
    producer_epoch: int


class LoadedRecord(NamedTuple):
    """One record as a load reads it back. `is_commit` is None for records, else says what a transaction's marker decided (key and value are empty then)."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    producer: ProducerIdentity | None = None
    """Set for records and markers of transactions."""
    is_commit: bool | None = None


class StateLog(Protocol):
    """Appends to the partitions of one state topic that this box leads."""

    def append(
        self, partition: int, records: Sequence[StateRecord], on_appended: OnAppended, *, producer: ProducerIdentity | None = None, timeout_ms: int = 5_000
    ) -> None:
        """One batch, in the order of calls; with `producer` it is part of his transaction. REQUEST_TIMED_OUT after `timeout_ms`: whether it is in the
        log nobody knows then."""


def partition_of(name: str, partitions: int) -> int:
    """Where a group or a transactional id belongs: Java's `String.hashCode`, made positive as Kafka's `Utils.abs` does, modulo the partitions."""
    value = 0
    for unit in _utf16_units(name):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _utf16_units(name: str) -> Sequence[int]:
    encoded = name.encode("utf-16-be", "surrogatepass")
    return [encoded[at] << 8 | encoded[at + 1] for at in range(0, len(encoded), 2)]
