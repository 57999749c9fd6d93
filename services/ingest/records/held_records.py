"""Records that are held until it is known whether they are stored, and the bound of all of them.

Owned by `identified_records`. Beyond `ingest.held.bytes` a new group that would have to wait is
refused for now. Otherwise an absent leader, and senders that repeat their chunks over one
connection after another, would use up the memory. Held records of a closed connection stay until
they are resolved, because their sender may not return.

Weak: the cost of a record is an estimate: its bytes, and as much again for its fields. A group that
began below the limit is held whole, so memory may exceed the limit by one group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.shm.counters import Counters
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.ingest_record import ColumnarRecords, IngestRecord
from services.ingest.replay.replay_memory import Known

RECORD_COST_BYTES: Final = 1_000
"""The objects around a record with a few fields; of a syslog message a tenth of that."""
MESSAGE_COST_BYTES: Final = 100

Records = Sequence[IngestRecord | bytes]


class HeldRecords:
    """Counts the cost of held records."""

    def __init__(self, limit_bytes: int, counters: Counters) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._gauge = counters.gauge("ingest.held_bytes")

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= self._limit_bytes

    def add(self, records: Records) -> None:
        self._set(self._size_bytes + cost_of(records))

    def remove(self, records: Records) -> None:
        self._set(self._size_bytes - cost_of(records))

    def _set(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._gauge.set(size_bytes)


def cost_of(records: Records) -> int:
    """Return the estimated memory of records; the same result at each call."""
    if isinstance(records, ColumnarRecords):
        return 2 * sum(map(len, records.values)) + RECORD_COST_BYTES * len(records)
    cost = 0
    for record in records:
        cost += len(record) + MESSAGE_COST_BYTES if isinstance(record, bytes) else 2 * len(record.value) + RECORD_COST_BYTES
    return cost


class GroupMemory:
    """What is known about one group's identities, and its held records."""

    __slots__ = ("begun", "held", "is_refused", "may_be_stored", "serials", "taken", "uncertain_below", "verdict")

    def __init__(self) -> None:
        self.taken = 0
        """Records seen so far."""
        self.verdict: Known | None = None
        """The state of its one identity."""
        self.begun: dict[bytes, None] = {}
        """Identities that this group has in flight."""
        self.may_be_stored = False
        """Some of its records may be stored."""
        self.uncertain_below = 0
        """The same for a stream: frames with serials below may be stored."""
        self.held: list[tuple[Records, range]] = []
        self.serials: list[tuple[int, int]] = []
        self.is_refused = False
        """Its sender will repeat all of it."""


class HeldRun(NamedTuple):
    """Records that wait for an earlier group of their connection, by their numbers in their group."""

    group: AckGroup
    memory: GroupMemory
    records: Records
    numbers: range


class HeldConnection:
    """What arrived on a connection after a group of which it is not known what a previous
    incarnation has stored."""

    __slots__ = ("behind", "head", "is_closed")

    def __init__(self, head: AckGroup) -> None:
        self.head = head
        self.behind: deque[HeldRun] = deque()
        self.is_closed = False
        """A group was refused: later ones must not overtake its repeat."""
