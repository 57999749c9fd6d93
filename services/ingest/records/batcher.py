"""Collect the records of one topic in a batch per partition; close batches by size or age.

Owned by the ingest agent, one for each topic. A batch is closed before the record that would exceed
`batch_bytes`: a batch of 64 KiB fits an arena slot of 64 KiB, and one more byte costs a slot of
twice the size. A larger record makes a batch of its own. Shares remember which ack groups have
records in a batch. Time is an argument.

Weak: an open batch is in the heap of this process, so a crash loses up to `batch_age_ms` of
unacknowledged lines (they are counted as `crash`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from appliance.records.builder import RECORD_OVERHEAD_BYTES_MAX, BatchBuilder
from services.ingest.records.ack_group import AckGroup, Share
from services.ingest.records.event import ProducerRecord
from services.ingest.records.partitioner import Partitioner

DEFAULT_BATCH_BYTES = 65536
DEFAULT_BATCH_AGE_MS = 10


class Acceptance(IntEnum):
    """The result of `append`."""

    TAKEN = 0
    TAKEN_BUT_BLOCKED = 1
    """Taken, but its partition is blocked: slow the sender down. `Batcher.blocked_partition` is the
    partition."""
    TOO_LARGE = 2
    """Not taken: larger than the topic allows (`max.message.bytes`)."""
    OVERFLOW = 3
    """Not taken: its partition is blocked, and the sender cannot be slowed down."""


_TAKEN = Acceptance.TAKEN  # reading an enum member costs 60 ns in Python 3.11


class ReadyBatch(NamedTuple):
    """One closed batch for `partition`."""

    partition: int
    data: bytes
    record_count: int
    shares: list[Share]


class _Run(NamedTuple):
    """Records of one partition, by columns; `numbers` are their numbers in the call."""

    timestamps_ms: Sequence[int]
    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    numbers: Sequence[int]


class Batcher:
    """The open batches of one topic."""

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
        self.max_batch_bytes = max_batch_bytes
        self._blocked: frozenset[int] = frozenset()
        self.blocked_partition = -1
        self._builders = [BatchBuilder() for _ in range(partition_count)]
        self._shares: list[list[Share]] = [[] for _ in range(partition_count)]
        self._last_groups: list[AckGroup | None] = [None] * partition_count
        self._share_begins = [0] * partition_count
        self._opened_ms: dict[int, int] = {}  # partition → time of the first record of its open batch; oldest first
        self._ready: list[ReadyBatch] = []
        self.has_awaited = False
        """True if a sender waits for records of an open batch."""

    @property
    def partition_count(self) -> int:
        return self._partitioner.partition_count

    @property
    def is_blocked(self) -> bool:
        """True if every partition is blocked."""
        return len(self._blocked) == self.partition_count

    @property
    def open_records(self) -> int:
        return sum(builder.count for builder in self._builders)

    def append(
        self, event: ProducerRecord, now_ms: int, group: AckGroup, can_wait: bool = True, identity: bytes | None = None, ordinal: int = 0, is_copy: bool = False
    ) -> Acceptance:
        """Append a record of `group`; batches that this closes are returned by `take_ready`.

        `can_wait`: the sender can be slowed down. A record with an identity and without a key goes
        to the partition of its identity, so that a repeat reaches the partition of the first copy.
        """
        timestamp_ms, key, value, headers = event
        partition = self._partitioner.choose(key) if key is not None or identity is None else self._partitioner.partition_of_identity(identity)
        outcome = _TAKEN
        if partition in self._blocked:
            if not can_wait:
                return Acceptance.OVERFLOW
            self.blocked_partition = partition
            outcome = Acceptance.TAKEN_BUT_BLOCKED
        builder = self._builders[partition]
        size_bytes_max = len(value) + len(headers) + RECORD_OVERHEAD_BYTES_MAX
        if key is not None:
            size_bytes_max += len(key)
        if not builder.count or builder.size_bytes + size_bytes_max > self._batch_bytes:
            partition = self._partition_with_space(partition, key is None and identity is None, size_bytes_max, now_ms)
            if partition < 0:
                return Acceptance.TOO_LARGE
            builder = self._builders[partition]
        if self._last_groups[partition] is not group:
            self._add_share(partition, group)
        builder.append(timestamp_ms, key, value, headers)
        if is_copy:
            self._shares[partition][-1].copies += 1
        if identity is not None:
            self._shares[partition][-1].add_part(identity, ordinal)
        if builder.size_bytes >= self._batch_bytes:
            self._close(partition)
        return outcome

    def append_all(
        self,
        timestamps_ms: Sequence[int],
        values: Sequence[bytes],
        keys: Sequence[bytes | None],
        headers: bytes,
        now_ms: int,
        group: AckGroup,
        can_wait: bool = True,
        identity: bytes | None = None,
        first_ordinal: int = 0,
    ) -> list[tuple[int, Acceptance]]:
        """Append records of `group` that share headers and identity and whose ordinals go up by
        one.

        Return (number in this call, result) of each record that was not plainly taken;
        TAKEN_BUT_BLOCKED once for each batch. Records keep their order in each partition. The
        result is the same as `append` for each record.
        """
        different = set(keys)
        if len(different) == 1:
            run = _Run(timestamps_ms, values, keys, range(len(values)))
            return self._append_run(run, headers, now_ms, group, can_wait, identity, first_ordinal)
        choose = self._partitioner.choose
        where = {
            key: choose(key) if key is not None else self._partitioner.partition_of_identity(identity) if identity is not None else -1 for key in different
        }
        numbers: dict[int, list[int]] = {}
        for number, key in enumerate(keys):
            numbers.setdefault(where[key], []).append(number)
        odd: list[tuple[int, Acceptance]] = []
        for some in numbers.values():
            run = _Run([timestamps_ms[number] for number in some], [values[number] for number in some], [keys[number] for number in some], some)
            odd += self._append_run(run, headers, now_ms, group, can_wait, identity, first_ordinal)
        return sorted(odd)

    def _append_run(
        self, run: _Run, headers: bytes, now_ms: int, group: AckGroup, can_wait: bool, identity: bytes | None, first_ordinal: int
    ) -> list[tuple[int, Acceptance]]:
        """Append records of one partition, or without keys."""
        timestamps_ms, values, keys, numbers = run
        odd: list[tuple[int, Acceptance]] = []
        index = 0
        while index < len(values):
            key = keys[index]
            partition = self._partitioner.choose(key) if key is not None or identity is None else self._partitioner.partition_of_identity(identity)
            is_blocked = partition in self._blocked
            if is_blocked:
                if not can_wait:
                    odd.append((numbers[index], Acceptance.OVERFLOW))
                    index += 1
                    continue
                self.blocked_partition = partition
            builder = self._builders[partition]
            size_bytes_max = len(values[index]) + len(headers) + RECORD_OVERHEAD_BYTES_MAX + (len(key) if key is not None else 0)
            if not builder.count or builder.size_bytes + size_bytes_max > self._batch_bytes:
                partition = self._partition_with_space(partition, key is None and identity is None, size_bytes_max, now_ms)
                if partition < 0:
                    odd.append((numbers[index], Acceptance.TOO_LARGE))
                    index += 1
                    continue
                builder = self._builders[partition]
            if is_blocked:
                odd.append((numbers[index], Acceptance.TAKEN_BUT_BLOCKED))
            if self._last_groups[partition] is not group:
                self._add_share(partition, group)
            end = builder.append_run(timestamps_ms, values, keys, headers, index, self._batch_bytes)
            if identity is not None:
                self._add_parts(partition, identity, first_ordinal, numbers[index:end])
            index = end
            if builder.size_bytes >= self._batch_bytes:
                self._close(partition)
        return odd

    def _partition_with_space(self, partition: int, may_switch: bool, size_bytes_max: int, now_ms: int) -> int:
        """Return a partition with space for a record that starts a batch or does not fit into the
        open one.

        Another partition if `may_switch`; -1 if no batch may hold the record.
        """
        builder = self._builders[partition]
        while builder.count and builder.size_bytes + size_bytes_max > self._batch_bytes:
            self._close(partition)
            if may_switch:
                partition = self._partitioner.choose(None)
                builder = self._builders[partition]
        if not builder.count:
            if builder.size_bytes + size_bytes_max > self.max_batch_bytes:
                return -1
            self._opened_ms[partition] = now_ms
        return partition

    def _add_parts(self, partition: int, identity: bytes, first_ordinal: int, numbers: Sequence[int]) -> None:
        share = self._shares[partition][-1]
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            share.add_part(identity, first_ordinal + numbers[0], len(numbers))
        else:
            for number in numbers:
                share.add_part(identity, first_ordinal + number)

    def _add_share(self, partition: int, group: AckGroup) -> None:
        """Start the share of the next group. Groups alternate on a partition; one that returns
        after another gets a second share. The records of a share are counted when the next one
        starts."""
        self._end_share(partition)
        share = Share(group)
        self._shares[partition].append(share)
        self._last_groups[partition] = group
        self._share_begins[partition] = self._builders[partition].count
        if share.is_awaited:
            group.pending += 1
            self.has_awaited = True

    def _end_share(self, partition: int) -> None:
        if self._last_groups[partition] is not None:
            share = self._shares[partition][-1]
            share.count = self._builders[partition].count - self._share_begins[partition] - share.copies

    def close_due(self, now_ms: int) -> None:
        """Close each batch that has reached its age."""
        for partition in [partition for partition, opened_ms in self._opened_ms.items() if now_ms - opened_ms >= self._batch_age_ms]:
            self._close(partition)

    def close_awaited(self, is_wanted: Callable[[int], bool]) -> None:
        """Close batches whose sender sends nothing more before it is answered, if
        `is_wanted(partition)`."""
        for partition in list(self._opened_ms):
            if is_wanted(partition) and any(share.group.is_closed and share.is_awaited for share in self._shares[partition]):
                self._close(partition)
        self.has_awaited = any(share.is_awaited for partition in self._opened_ms for share in self._shares[partition])

    def close_all(self) -> None:
        for partition in list(self._opened_ms):
            self._close(partition)

    def take_ready(self) -> list[ReadyBatch]:
        """Return the closed batches in the order in which they were closed; the caller owns them."""
        ready, self._ready = self._ready, []
        return ready

    def wait_ms(self, now_ms: int) -> int | None:
        """Return the time until `close_due` has work; None if no batch is open."""
        opened_ms = next(iter(self._opened_ms.values()), None)
        return None if opened_ms is None else max(0, opened_ms + self._batch_age_ms - now_ms)

    def set_blocked(self, partitions: frozenset[int]) -> None:
        """Set the partitions that are over their budget."""
        self._blocked = self._partitioner.blocked = partitions

    def set_dead(self, partitions: frozenset[int]) -> None:
        """Set the partitions on dead disks: others take their lines. Open batches stay;
        `PartitionQueues.add` redirects them."""
        self._partitioner.set_dead(partitions)

    def limit(self, max_batch_bytes: int) -> None:
        """The topic's `max.message.bytes` changed."""
        self.max_batch_bytes = max_batch_bytes
        self._batch_bytes = min(self._batch_bytes_wanted, max_batch_bytes)

    def resize(self, partition_count: int) -> None:
        """The topic has more partitions. Open batches stay where they are."""
        self._partitioner.resize(partition_count)
        more = partition_count - len(self._builders)
        self._builders += [BatchBuilder() for _ in range(more)]
        self._shares += [[] for _ in range(more)]
        self._last_groups += [None] * more
        self._share_begins += [0] * more

    def _close(self, partition: int) -> None:
        builder = self._builders[partition]
        record_count = builder.count
        self._end_share(partition)
        self._ready.append(ReadyBatch(partition, builder.build(), record_count, self._shares[partition]))
        self._shares[partition] = []
        self._last_groups[partition] = None
        del self._opened_ms[partition]
        self._partitioner.on_batch_closed(partition)
