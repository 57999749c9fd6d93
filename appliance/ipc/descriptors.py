"""The entries of the rings between a source and a log-writer: descriptors one way, completions the
other; 64 bytes each.

A descriptor names a partition by table row, row generation, leader epoch and config generation, so
that a stale one is always detected. Its bytes (batches, or the JSON of a command) are in the arena
of the source. Weak: the meaning of `value_*` depends on the kind.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

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


# kind, flags, reserved, row, row generation, leader epoch, config generation, length, arena
# position, token, value_a, value_b, value_c, guard
DESCRIPTOR = Struct("@BBHIIiIIQQqIIQ")
# kind, flags, error code, row, token, base offset, log append time, log start offset, log end
# offset, leader epoch, record count, guard
COMPLETION = Struct("@BBhIQqqqqiIQ")
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
    DESCRIBE_PRODUCERS: the answer is written to the `length` bytes at `position` (`producer_entries`).
    REPAIR: `length` bytes at `position` are whole checked batches of another replica for a place in a segment.
    PROGRESS (the fetch of a follower), REPLICA_APPEND (`length` bytes at `position` are whole checked
      batches of the leader), TRUNCATE and REPAIR are packed and unpacked by `replication_descriptors`.
    """

    kind: int
    flags: int
    reserved: int
    row: int
    row_generation: int
    leader_epoch: int
    config_generation: int
    length: int
    position: int
    token: int
    value_a: int = 0
    value_b: int = 0
    value_c: int = 0
    guard: int = 0


class Completion(NamedTuple):
    """One entry from a log-writer. `log_end_offset` is the exclusive end of the append; `guard`
    belongs to NEEDS_VERIFICATION."""

    kind: int
    flags: int
    error_code: int
    row: int
    token: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    record_count: int
    guard: int
