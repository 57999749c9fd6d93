"""Collects records per partition into batches that are closed by size or by age.

Owned by the ingest agent. A batch is closed before the record that would take it beyond `batch_bytes`, because a batch of 64 KiB fits
an arena slot of 64 KiB and one byte more costs twice that; a record larger than that makes a batch of its own. Time is an
argument. Weak: an open batch lives in this process's heap, so a crash loses up to `batch_age_ms` of lines (they are booked as `crash`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from appliance.ingest.event import Event
from appliance.ingest.partitioner import Partitioner
from appliance.records.builder import BatchBuilder

DEFAULT_BATCH_BYTES = 65536
DEFAULT_BATCH_AGE_MS = 10
RECORD_OVERHEAD_BYTES_MAX = 36
"""Attributes 1, timestamp delta 10, offset delta 5, lengths of record, key and value 5 each, rounded up."""


class Outcome(IntEnum):
    """What became of a record that was offered to `append`."""

    TAKEN = 0
    TAKEN_BEYOND = 1
    """Taken, but its partition takes no more: the sender is to be slowed down. `Batcher.slowed_by` is the partition."""
    TOO_LARGE = 2
    """Not taken: no batch may hold so large a record (`max.message.bytes`)."""
    OVERFLOW = 3
    """Not taken: its partition takes no more, and the sender cannot be slowed down."""


_TAKEN = Outcome.TAKEN  # looking a member up costs 60 ns in Python 3.11


class ReadyBatch(NamedTuple):
    """One closed batch, ready to be appended to `partition`."""

    partition: int
    data: bytes
    record_count: int


class Batcher:
    """Open batches of one topic."""

    def __init__(
        self,
        partition_count: int,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        batch_age_ms: int = DEFAULT_BATCH_AGE_MS,
        max_batch_bytes: int = 1_048_588,
    ) -> None:
        self._partitioner = Partitioner(partition_count)
        self._batch_bytes_wanted = batch_bytes
        self._batch_bytes = min(batch_bytes, max_batch_bytes)
        self._batch_age_ms = batch_age_ms
        self._max_batch_bytes = max_batch_bytes
        self._blocked: frozenset[int] = frozenset()
        self.slowed_by = -1
        self._builders = [BatchBuilder() for _ in range(partition_count)]
        self._opened_ms: dict[int, int] = {}  # partition → when its open batch got its first record; oldest first
        self._ready: list[ReadyBatch] = []

    @property
    def open_records(self) -> int:
        return sum(builder.count for builder in self._builders)

    def append(self, event: Event, now_ms: int, can_wait: bool = True) -> Outcome:
        """Add a record; what that closes is fetched with `take_ready`. `can_wait`: whether its sender can be slowed down."""
        timestamp_ms, key, value, headers = event
        partition = self._partitioner.choose(key)
        outcome = _TAKEN
        if partition in self._blocked:
            if not can_wait:
                return Outcome.OVERFLOW
            self.slowed_by = partition
            outcome = Outcome.TAKEN_BEYOND
        builder = self._builders[partition]
        size_bytes_max = len(value) + len(headers) + RECORD_OVERHEAD_BYTES_MAX
        if key is not None:
            size_bytes_max += len(key)
        if builder.count and builder.size_bytes + size_bytes_max > self._batch_bytes:
            self._close(partition)
            if key is None:
                partition = self._partitioner.choose(None)
                builder = self._builders[partition]
        if not builder.count:
            if builder.size_bytes + size_bytes_max > self._max_batch_bytes:
                return Outcome.TOO_LARGE
            self._opened_ms[partition] = now_ms
        builder.append(timestamp_ms, key, value, headers)
        if builder.size_bytes >= self._batch_bytes:
            self._close(partition)
        return outcome

    def close_due(self, now_ms: int) -> None:
        """Close every batch that has reached its age."""
        for partition in [partition for partition, opened_ms in self._opened_ms.items() if now_ms - opened_ms >= self._batch_age_ms]:
            self._close(partition)

    def close_all(self) -> None:
        for partition in list(self._opened_ms):
            self._close(partition)

    def take_ready(self) -> list[ReadyBatch]:
        """Closed batches in the order in which they were closed; they are the caller's now."""
        ready, self._ready = self._ready, []
        return ready

    def wait_ms(self, now_ms: int) -> int | None:
        """How long until `close_due` has something to do; None when nothing is open."""
        opened_ms = next(iter(self._opened_ms.values()), None)
        return None if opened_ms is None else max(0, opened_ms + self._batch_age_ms - now_ms)

    def block(self, partitions: frozenset[int]) -> None:
        """These partitions take no more for now."""
        self._blocked = self._partitioner.blocked = partitions

    def avoid(self, partitions: frozenset[int]) -> None:
        """The disks of these partitions are dead: others take their lines. Open batches stay, whoever sends them knows where to."""
        self._partitioner.avoid(partitions)

    def limit(self, max_batch_bytes: int) -> None:
        """The topic's `max.message.bytes` has changed."""
        self._max_batch_bytes = max_batch_bytes
        self._batch_bytes = min(self._batch_bytes_wanted, max_batch_bytes)

    def resize(self, partition_count: int) -> None:
        """The topic has more partitions now. Open batches stay where they are."""
        self._partitioner.resize(partition_count)
        self._builders += [BatchBuilder() for _ in range(partition_count - len(self._builders))]

    def _close(self, partition: int) -> None:
        builder = self._builders[partition]
        record_count = builder.count
        self._ready.append(ReadyBatch(partition, builder.build(), record_count))
        del self._opened_ms[partition]
        self._partitioner.turn(partition)
