"""The entries of the rings between a source and a log-writer: descriptors one way, completions the
other; 64 bytes each.

A descriptor names a partition by table row, row generation, leader epoch and config generation, so
that a stale one is always detected. Its bytes (batches, or the JSON of a command) are in the arena
of the source. Weak: the meaning of `value_*` depends on the kind.

The descriptors of replication: packs their numbers, more and larger than the plain fields, into
an entry and unpacks them.

PROGRESS comes from an acceptor that a follower fetches from; REPLICA_APPEND, TRUNCATE and REPAIR
come from the replica-fetcher. Weak: the layout is known only here, so other code must not pack or
read these four kinds.

The producers of a partition: the log-writer's answer to DESCRIBE_PRODUCERS, in memory of the
requesting source.

Entries of 36 bytes without gaps, oldest first. The completion has their number; the slot limits how
many are included. Weak: those that do not fit are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from appliance.base.model import LeaderEpoch, Offset, Position, ProducerId
from appliance.shm.ring import ENTRY_BYTES


class DescriptorKind(IntEnum):
    """The request of a descriptor to a log-writer."""

    PRODUCE = 1
    REPLICA_APPEND = 2
    PROGRESS = 3
    TRANSACTION_MARKER = 4
    BECOME_LEADER = 5
    BECOME_FOLLOWER = 6
    ISR = 7
    TRUNCATE = 8
    DELETE_RECORDS = 9
    CREATE = 10
    DELETE = 11
    CONFIG = 12
    MOVE_BEGIN = 13
    MOVE_MARK = 14
    MOVE_FREEZE = 15
    MOVE_FINISH = 16
    MOVE_COMMIT = 17
    MOVE_PROMOTE = 18
    MOVE_CANCEL = 19
    DESCRIBE_PRODUCERS = 20
    BEGIN_VERIFICATION = 21
    REPAIR = 22
    LIVE_BROKERS = 23


NEEDS_VERIFICATION = 32_000
"""Error code of a PRODUCE that has to be offered again with the guard of the completion, after its
transaction coordinator has agreed. Clients never see it."""


DESCRIPTOR = Struct("@BBHIIiIIQQqIIQ")
KIND, FLAGS, RESERVED, ROW, ROW_GENERATION, LEADER_EPOCH, CONFIG_GENERATION = range(7)
LENGTH, POSITION, TOKEN, VALUE_A, VALUE_B, VALUE_C, GUARD = range(7, 14)
"""Indices of the fields of a descriptor as it comes off the ring (see `Descriptor`)."""
COMPLETION = Struct("@BBhIQqqqqiIQ")
COMPLETION_ERROR, COMPLETION_TOKEN, COMPLETION_RECORDS = 2, 4, 10
"""Indices in a completion; `Completion` has all fields in their order."""
assert DESCRIPTOR.size == ENTRY_BYTES and COMPLETION.size == ENTRY_BYTES


ACKS_ALL_FLAG = 1
"""PRODUCE, TRANSACTION_MARKER: refused if fewer replicas are in sync than `min.insync.replicas`."""
COORDINATOR_FLAG = 2
"""PRODUCE: by a coordinator into its own topic. Sequences are not checked and transactional batches
not verified (Kafka's AppendOrigin.COORDINATOR)."""
ADDS_PARTITION_FLAG = 4
"""PRODUCE: batches add their partitions to the transaction (Produce 12, KIP-890), so the
coordinator is asked even if verification is off."""
VERIFIED_FLAG = 16
"""PRODUCE of a coordinator: accepted only while the transaction of its producer is open here, or
with the guard that answered BEGIN_VERIFICATION."""
BEHIND_REFUSED_FLAG = 32
"""PRODUCE: an earlier batch of its producer on its connection was refused temporarily. Accepted
only if the log knows the producer, and this batch or the one before it."""
COMMIT_FLAG = 8
"""TRANSACTION_MARKER: the transaction is committed; otherwise it is aborted."""
RAISED_EPOCH_FLAG = 64
"""TRANSACTION_MARKER: its producer epoch is larger than that of its transaction's batches
(KIP-890), so it does not end what is open under its own epoch."""
COMMITTED_FLAG = 1
"""Completion of a PRODUCE: the high watermark has passed it. That stays true under any later
leader."""


class Truncation(IntEnum):
    """What a TRUNCATE requires of a follower's log. Its completion has the log end and its epoch,
    like that of a REPLICA_APPEND."""

    TELL = 0
    """Truncate nothing."""
    DIVERGED = 1
    """The leader's epoch value_b ends at value_c, or our log diverged there."""
    TO_OFFSET = 2
    START_AT = 3
    """The leader's log starts at value_c."""


class Descriptor(NamedTuple):
    """One entry to a log-writer.

    PRODUCE: `length` bytes at `position` are exactly one checked batch; value_a is its record count,
      `guard` the answer to NEEDS_VERIFICATION.
    TRANSACTION_MARKER: value_a is the producer id, value_b the coordinator epoch, value_c the producer epoch.
    DELETE_RECORDS: value_a is the new log start offset (-1: the high watermark), `guard` until when
      followers are waited for (monotonic ns); the log start offset of the completion is the low watermark.
    BEGIN_VERIFICATION: value_a is a producer id, value_c its epoch; the completion's `guard` is for the
      next PRODUCE, 0 while its transaction is open here.
    DESCRIBE_PRODUCERS: the answer is written to the `length` bytes at `position` (`pack_producers`).
    REPAIR: `length` bytes at `position` are whole checked batches of another replica for a place in a segment.
    PROGRESS (the fetch of a follower), REPLICA_APPEND (`length` bytes at `position` are whole checked
      batches of the leader), TRUNCATE and REPAIR are packed and unpacked by functions below.
    """

    kind: int
    flags: int
    reserved: int
    row: int
    row_generation: int
    leader_epoch: LeaderEpoch
    config_generation: int
    length: int
    position: int
    token: int
    value_a: int = 0
    value_b: int = 0
    value_c: int = 0
    guard: int = 0


assert Descriptor._fields.index("guard") == GUARD and Descriptor._fields.index("position") == POSITION


class Completion(NamedTuple):
    """One entry from a log-writer. `log_end_offset` is the exclusive end of the append; `guard`
    belongs to NEEDS_VERIFICATION."""

    kind: int
    flags: int
    error_code: int
    row: int
    token: int
    base_offset: Offset
    log_append_time_ms: int
    log_start_offset: Offset
    log_end_offset: Offset
    leader_epoch: LeaderEpoch
    record_count: int
    guard: int


_HALF: Final = (1 << 32) - 1
_PROGRESS: Final = int(DescriptorKind.PROGRESS)
_REPLICA_APPEND: Final = int(DescriptorKind.REPLICA_APPEND)
_TRUNCATE: Final = int(DescriptorKind.TRUNCATE)
_REPAIR: Final = int(DescriptorKind.REPAIR)
NO_BROKER_EPOCH: Final = 0
"""Broker epoch of a follower that does not send its own: no transaction of ZooKeeper has this
number."""


class Progress(NamedTuple):
    """The fetch of a follower for one partition: it has all records below `fetch_offset`."""

    replica_id: int
    fetch_offset: Offset
    received_ns: int
    """time of the fetch, monotonic ns"""
    broker_epoch: int
    log_start_offset: Offset
    """0: not known"""


def progress_descriptor(row: int, row_generation: int, leader_epoch: LeaderEpoch, progress: Progress) -> tuple[int, ...]:
    replica_id, fetch_offset, received_ns, broker_epoch, log_start_offset = progress
    return (
        _PROGRESS, 0, 0, row, row_generation, leader_epoch, 0, replica_id, log_start_offset if log_start_offset > 0 else 0, 0,
        fetch_offset, received_ns >> 32, received_ns & _HALF, broker_epoch if broker_epoch > 0 else NO_BROKER_EPOCH,
    )  # fmt: skip


def progress_of(entry: tuple[Any, ...]) -> Progress:
    """Return the fields of a PROGRESS entry."""
    return Progress(entry[LENGTH], entry[VALUE_A], entry[VALUE_B] << 32 | entry[VALUE_C], entry[GUARD], entry[POSITION])


class ReplicaAppend(NamedTuple):
    """The state of the leader's log beside the batches."""

    high_watermark: Offset
    log_start_offset: Offset


def replica_append_descriptor(row: int, row_generation: int, leader_epoch: LeaderEpoch, position: int, length: int, told: ReplicaAppend) -> tuple[int, ...]:
    """`length` bytes at `position` of the source's arena are whole batches; 0: there are none."""
    return (_REPLICA_APPEND, 0, 0, row, row_generation, leader_epoch, 0, length, position, 0, told.high_watermark, 0, 0, max(0, told.log_start_offset))


def replica_append_of(entry: tuple[Any, ...]) -> ReplicaAppend:
    return ReplicaAppend(entry[VALUE_A], entry[GUARD])


class TruncateOrder(NamedTuple):
    """What to truncate; a number that the kind does not need is -1."""

    kind: Truncation
    leader_epoch: LeaderEpoch
    """the epoch that ends at `offset` in the leader's log"""
    offset: Offset


def truncate_descriptor(row: int, row_generation: int, leader_epoch: LeaderEpoch, order: TruncateOrder) -> tuple[int, ...]:
    return (_TRUNCATE, 0, 0, row, row_generation, leader_epoch, 0, 0, 0, 0, order.offset, order.kind, order.leader_epoch & _HALF, 0)


def truncate_of(entry: tuple[Any, ...]) -> TruncateOrder:
    epoch = entry[VALUE_C]
    return TruncateOrder(Truncation(entry[VALUE_B]), epoch - (1 << 32) if epoch >> 31 else epoch, entry[VALUE_A])


class RepairOrder(NamedTuple):
    """The place of another replica's batches. It completes with error code NONE when it is decided
    how they fit.

    `record_count` of the completion is a `batch_repair.Verdict`, `base_offset` the first offset
    that was written, or -1.
    """

    segment_base_offset: Offset
    segment_position: Position
    source_id: int
    """the broker that sent the batches"""


def repair_descriptor(row: int, row_generation: int, position: int, length: int, order: RepairOrder) -> tuple[int, ...]:
    base_offset, segment_position, source_id = order
    return (_REPAIR, 0, 0, row, row_generation, 0, 0, length, position, 0, base_offset, segment_position, source_id & _HALF, 0)


def repair_of(entry: tuple[Any, ...]) -> RepairOrder:
    return RepairOrder(entry[VALUE_A], entry[VALUE_B], entry[VALUE_C])


PRODUCER_ENTRY = Struct("<qiiqiq")


class DescribedProducer(NamedTuple):
    """`last_sequence`, `coordinator_epoch` and `transaction_first_offset` are -1 if there is none."""

    producer_id: ProducerId
    producer_epoch: int
    last_sequence: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: Offset


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
    def transaction_first_offset(self) -> Offset: ...


def pack_producers(producers: Iterable[tuple[ProducerId, _Entry]], size_bytes: int) -> bytes:
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
