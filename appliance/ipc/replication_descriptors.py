"""The descriptors of replication: packs their numbers, more and larger than the plain fields, into
an entry and unpacks them.

PROGRESS comes from an acceptor that a follower fetches from; REPLICA_APPEND, TRUNCATE and REPAIR
come from the replica-fetcher. Weak: the layout is known only here, so other code must not pack or
read these four kinds.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from appliance.ipc.descriptors import DescriptorKind, Truncation

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
    fetch_offset: int
    received_ns: int
    """time of the fetch, monotonic ns"""
    broker_epoch: int
    log_start_offset: int
    """0: not known"""


def progress_descriptor(row: int, row_generation: int, leader_epoch: int, progress: Progress) -> tuple[int, ...]:
    replica_id, fetch_offset, received_ns, broker_epoch, log_start_offset = progress
    return (
        _PROGRESS, 0, 0, row, row_generation, leader_epoch, 0, replica_id, log_start_offset if log_start_offset > 0 else 0, 0,
        fetch_offset, received_ns >> 32, received_ns & _HALF, broker_epoch if broker_epoch > 0 else NO_BROKER_EPOCH,
    )  # fmt: skip


def progress_of(entry: tuple[Any, ...]) -> Progress:
    """Return the fields of a PROGRESS entry."""
    return Progress(entry[7], entry[10], entry[11] << 32 | entry[12], entry[13], entry[8])


class ReplicaAppend(NamedTuple):
    """The state of the leader's log beside the batches."""

    high_watermark: int
    log_start_offset: int


def replica_append_descriptor(row: int, row_generation: int, leader_epoch: int, position: int, length: int, told: ReplicaAppend) -> tuple[int, ...]:
    """`length` bytes at `position` of the source's arena are whole batches; 0: there are none."""
    return (_REPLICA_APPEND, 0, 0, row, row_generation, leader_epoch, 0, length, position, 0, told.high_watermark, 0, 0, max(0, told.log_start_offset))


def replica_append_of(entry: tuple[Any, ...]) -> ReplicaAppend:
    return ReplicaAppend(entry[10], entry[13])


class TruncateOrder(NamedTuple):
    """What to truncate; a number that the kind does not need is -1."""

    kind: Truncation
    leader_epoch: int
    """the epoch that ends at `offset` in the leader's log"""
    offset: int


def truncate_descriptor(row: int, row_generation: int, leader_epoch: int, order: TruncateOrder) -> tuple[int, ...]:
    return (_TRUNCATE, 0, 0, row, row_generation, leader_epoch, 0, 0, 0, 0, order.offset, order.kind, order.leader_epoch & _HALF, 0)


def truncate_of(entry: tuple[Any, ...]) -> TruncateOrder:
    epoch = entry[12]
    return TruncateOrder(Truncation(entry[11]), epoch - (1 << 32) if epoch >> 31 else epoch, entry[10])


class RepairOrder(NamedTuple):
    """The place of another replica's batches. It completes with error code NONE when it is decided
    how they fit.

    `record_count` of the completion is a `batch_repair.Verdict`, `base_offset` the first offset
    that was written, or -1.
    """

    segment_base_offset: int
    segment_position: int
    source_id: int
    """the broker that sent the batches"""


def repair_descriptor(row: int, row_generation: int, position: int, length: int, order: RepairOrder) -> tuple[int, ...]:
    base_offset, segment_position, source_id = order
    return (_REPAIR, 0, 0, row, row_generation, 0, 0, length, position, 0, base_offset, segment_position, source_id & _HALF, 0)


def repair_of(entry: tuple[Any, ...]) -> RepairOrder:
    return RepairOrder(entry[10], entry[11], entry[12])
