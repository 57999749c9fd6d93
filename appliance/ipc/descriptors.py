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
    """What a source asks of a log-writer. REPLICA_APPEND to TRUNCATE are doors: their rooms are built with replication and transactions."""

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


# kind, flags, reserved, row, row generation, leader epoch, config generation, length, arena position, token, value_a, value_b, value_c, guard
DESCRIPTOR = Struct("@BBHIIiIIQQqIIQ")
# kind, flags, error code, row, token, base offset, log append time, log start offset, log end offset, leader epoch, record count, guard
COMPLETION = Struct("@BBhIQqqqqiIQ")
assert DESCRIPTOR.size == ENTRY_BYTES and COMPLETION.size == ENTRY_BYTES


class Descriptor(NamedTuple):
    """One entry to a log-writer. PRODUCE: `length` bytes at `position` are exactly one checked batch; value_a is its record count."""

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
