"""The entries of the rings between a source and a log-writer: descriptors one way, completions the other; 64 bytes each.

A descriptor names a partition by table row, row generation, leader epoch and config generation, so that a mismatch is found and never
guessed at. Bytes (batches, or a command's JSON) lie in the source's arena. Weak spot: fields `value_*` mean what the kind says.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from appliance.shm.ring import ENTRY_BYTES


class DescriptorKind(IntEnum):
    """What a source asks of a log-writer."""

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
"""Error code of a PRODUCE that is to be offered again with the completion's guard, when its transaction coordinator has agreed. No client sees it."""


# kind, flags, reserved, row, row generation, leader epoch, config generation, length, arena position, token, value_a, value_b, value_c, guard
DESCRIPTOR = Struct("@BBHIIiIIQQqIIQ")
# kind, flags, error code, row, token, base offset, log append time, log start offset, log end offset, leader epoch, record count, guard
COMPLETION = Struct("@BBhIQqqqqiIQ")
assert DESCRIPTOR.size == ENTRY_BYTES and COMPLETION.size == ENTRY_BYTES


ACKS_ALL_FLAG = 1
"""PRODUCE, TRANSACTION_MARKER: refused while fewer replicas are in sync than `min.insync.replicas`."""
COORDINATOR_FLAG = 2
"""PRODUCE: from a coordinator, into its own topic. Sequences are not checked and a transactional batch is not verified: who decides does not ask himself
(Kafka's AppendOrigin.COORDINATOR)."""
ADDS_PARTITION_FLAG = 4
"""PRODUCE: the transaction's partitions are added by its batches (Produce 12, KIP-890), so its coordinator is asked even where verification is off."""
VERIFIED_FLAG = 16
"""PRODUCE of a coordinator: taken only while its producer's transaction is open here, or with the guard that BEGIN_VERIFICATION was answered with."""
BEHIND_REFUSED_FLAG = 32
"""PRODUCE: on its connection a batch of its producer before it was refused for now. Taken only if the log knows the producer, and this batch or the one
before it."""
COMMIT_FLAG = 8
"""TRANSACTION_MARKER: the transaction is committed; else it is aborted."""
RAISED_EPOCH_FLAG = 64
"""TRANSACTION_MARKER: its producer epoch is larger than that of its transaction's batches (KIP-890), so it does not end what is open under its own epoch."""
COMMITTED_FLAG = 1
"""In a completion of a PRODUCE: the high watermark has passed it. That stays true, whoever leads by the time it is read."""


class Truncation(IntEnum):
    """What a TRUNCATE asks of a follower's log; its completion tells where the log ends then, and under which epoch, as that of a REPLICA_APPEND does."""

    TELL = 0
    """Nothing."""
    DIVERGED = 1
    """The leader's log of epoch value_b ends at value_c, or ours went on differently."""
    TO_OFFSET = 2
    START_AT = 3
    """The leader has nothing older than value_c any more."""


class Descriptor(NamedTuple):
    """One entry to a log-writer. PRODUCE: `length` bytes at `position` are exactly one checked batch; value_a is its record count, `guard` what
    NEEDS_VERIFICATION was answered with. TRANSACTION_MARKER: value_a is the producer id, value_b the coordinator epoch, value_c the producer epoch.
    DELETE_RECORDS: value_a is where the log shall begin (-1: at the high watermark), `guard` the monotonic time in ns until which followers are waited for; the
    completion's log start offset is the low watermark.
    BEGIN_VERIFICATION: value_a is a producer id, value_c its epoch; the completion's `guard` is for a PRODUCE to come, 0 while his transaction is open here.
    DESCRIBE_PRODUCERS: the answer is written to the `length` bytes at `position` (`producer_entries`).
    REPAIR: `length` bytes at `position` are whole checked batches of another replica, for a place in a segment.
    PROGRESS (what a follower's fetch says of one partition), REPLICA_APPEND (`length` bytes at `position` are whole checked batches of the leader) and
    TRUNCATE: as REPAIR, `replication_descriptors` knows what is where."""

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
    """One entry from a log-writer. `log_end_offset` is the exclusive end of what was appended; `guard` answers NEEDS_VERIFICATION."""

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
