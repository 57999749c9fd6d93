"""Collects records per partition into batches that are closed by size or by age, and remembers whose records are in them.

Owned by the ingest agent, one for each topic. A batch is closed before the record that would take it beyond `batch_bytes`, because a batch of 64 KiB fits
an arena slot of 64 KiB and one byte more costs twice that; a record larger than that makes a batch of its own. Time is an argument. Weak: an open batch lives
in this process's heap, so a crash loses up to `batch_age_ms` of lines that nobody acknowledged (they are booked as `crash`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from appliance.records.builder import RECORD_OVERHEAD_BYTES_MAX, BatchBuilder
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.event import ProducerRecord
from services.ingest.records.partitioner import Partitioner
from services.ingest.records.share import Share

DEFAULT_BATCH_BYTES = 65536
DEFAULT_BATCH_AGE_MS = 10


class Acceptance(IntEnum):
    """What became of a record that was offered to `append`."""

    TAKEN = 0
    TAKEN_BEYOND = 1
    """Taken, but its partition takes no more: the sender is to be slowed down. `Batcher.slowed_by` is the partition."""
    TOO_LARGE = 2
    """Not taken: no batch may hold so large a record (`max.message.bytes`)."""
    OVERFLOW = 3
    """Not taken: its partition takes no more, and the sender cannot be slowed down."""


_TAKEN = Acceptance.TAKEN  # looking a member up costs 60 ns in Python 3.11


class ReadyBatch(NamedTuple):
    """One closed batch, ready to be appended to `partition`."""

    partition: int
    data: bytes
    record_count: int
    shares: list[Share]


class _Run(NamedTuple):
    """Records of one partition, by columns; `numbers` are theirs among those that came together."""

    timestamps_ms: Sequence[int]
    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    numbers: Sequence[int]


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
        self.max_batch_bytes = max_batch_bytes
        self._blocked: frozenset[int] = frozenset()
        self.slowed_by = -1
        self._builders = [BatchBuilder() for _ in range(partition_count)]
        self._shares: list[list[Share]] = [[] for _ in range(partition_count)]
        self._last_groups: list[AckGroup | None] = [None] * partition_count
        self._share_begins = [0] * partition_count
        self._opened_ms: dict[int, int] = {}  # partition → when its open batch got its first record; oldest first
        self._ready: list[ReadyBatch] = []
        self.has_awaited = False
        """Whether a sender waits for something in an open batch."""

    @property
    def partition_count(self) -> int:
        return self._partitioner.partition_count

    @property
    def is_blocked(self) -> bool:
        """Whether no partition takes anything."""
        return len(self._blocked) == self.partition_count

    @property
    def open_records(self) -> int:
        return sum(builder.count for builder in self._builders)

    def append(
        self, event: ProducerRecord, now_ms: int, group: AckGroup, can_wait: bool = True, identity: bytes | None = None, ordinal: int = 0, is_copy: bool = False
    ) -> Acceptance:
        """Add a record of `group`; what that closes is fetched with `take_ready`. `can_wait`: whether its sender can be slowed down. A record with an
        identity and without a key goes where the identity says, so that a replay meets the first copy's partition."""
        timestamp_ms, key, value, headers = event
        partition = self._partitioner.choose(key) if key is not None or identity is None else self._partitioner.place(identity)
        outcome = _TAKEN
        if partition in self._blocked:
            if not can_wait:
                return Acceptance.OVERFLOW
            self.slowed_by = partition
            outcome = Acceptance.TAKEN_BEYOND
        builder = self._builders[partition]
        size_bytes_max = len(value) + len(headers) + RECORD_OVERHEAD_BYTES_MAX
        if key is not None:
            size_bytes_max += len(key)
        if not builder.count or builder.size_bytes + size_bytes_max > self._batch_bytes:
            partition = self._make_room(partition, key is None and identity is None, size_bytes_max, now_ms)
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
        """The same as `append` for records of `group` that have headers and identity in common, and whose ordinals go up by one. What was not plainly taken:
        (its number here, what became of it); TAKEN_BEYOND is told once for each batch. Records keep their order in each partition."""
        different = set(keys)
        if len(different) == 1:
            run = _Run(timestamps_ms, values, keys, range(len(values)))
            return self._append_run(run, headers, now_ms, group, can_wait, identity, first_ordinal)
        choose = self._partitioner.choose
        where = {key: choose(key) if key is not None else self._partitioner.place(identity) if identity is not None else -1 for key in different}
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
        """Records of one partition, or without keys."""
        timestamps_ms, values, keys, numbers = run
        odd: list[tuple[int, Acceptance]] = []
        place = 0
        while place < len(values):
            key = keys[place]
            partition = self._partitioner.choose(key) if key is not None or identity is None else self._partitioner.place(identity)
            is_beyond = partition in self._blocked
            if is_beyond:
                if not can_wait:
                    odd.append((numbers[place], Acceptance.OVERFLOW))
                    place += 1
                    continue
                self.slowed_by = partition
            builder = self._builders[partition]
            size_bytes_max = len(values[place]) + len(headers) + RECORD_OVERHEAD_BYTES_MAX + (len(key) if key is not None else 0)
            if not builder.count or builder.size_bytes + size_bytes_max > self._batch_bytes:
                partition = self._make_room(partition, key is None and identity is None, size_bytes_max, now_ms)
                if partition < 0:
                    odd.append((numbers[place], Acceptance.TOO_LARGE))
                    place += 1
                    continue
                builder = self._builders[partition]
            if is_beyond:
                odd.append((numbers[place], Acceptance.TAKEN_BEYOND))
            if self._last_groups[partition] is not group:
                self._add_share(partition, group)
            end = builder.append_run(timestamps_ms, values, keys, headers, place, self._batch_bytes)
            if identity is not None:
                self._add_parts(partition, identity, first_ordinal, numbers[place:end])
            place = end
            if builder.size_bytes >= self._batch_bytes:
                self._close(partition)
        return odd

    def _make_room(self, partition: int, may_turn: bool, size_bytes_max: int, now_ms: int) -> int:
        """For a record that begins a batch, or does not fit into the open one: the partition that has room now, another one if it `may_turn` to it; -1: no
        batch may hold the record."""
        builder = self._builders[partition]
        while builder.count and builder.size_bytes + size_bytes_max > self._batch_bytes:
            self._close(partition)
            if may_turn:
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
        """Units take turns on a partition: one that is back after another has a second share. What it holds is counted when the next one begins."""
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
        """Close every batch that has reached its age."""
        for partition in [partition for partition, opened_ms in self._opened_ms.items() if now_ms - opened_ms >= self._batch_age_ms]:
            self._close(partition)

    def close_awaited(self, is_wanted: Callable[[int], bool]) -> None:
        """Close batches for which a sender waits that sends no more before it is answered, where `is_wanted(partition)`."""
        for partition in list(self._opened_ms):
            if is_wanted(partition) and any(share.group.is_closed and share.is_awaited for share in self._shares[partition]):
                self._close(partition)
        self.has_awaited = any(share.is_awaited for partition in self._opened_ms for share in self._shares[partition])

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
        self.max_batch_bytes = max_batch_bytes
        self._batch_bytes = min(self._batch_bytes_wanted, max_batch_bytes)

    def resize(self, partition_count: int) -> None:
        """The topic has more partitions now. Open batches stay where they are."""
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
        self._partitioner.turn(partition)
