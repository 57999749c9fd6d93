"""What of units is held back until it is known whether it is stored, and how much of that there may be over all connections together.

Owned by `identified_records`. Beyond the limit nothing more is held: who brings more is told to come again, or a leader that is away and senders that bring
their chunks anew over one connection after the other would take all memory. What a connection that is gone has left stays until it is known: its sender may
not come back. Weak: a cost is an estimate, the bytes of a record and as much again for its fields; and what a unit that began below the limit brings is held
whole, so memory may go beyond the limit by one unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.shm.counters import Counters
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.record import IngestRecord
from services.ingest.records.record_columns import ColumnarRecords
from services.ingest.replay.replay_memory import Known

RECORD_COST_BYTES: Final = 1_000
"""Of the objects around a record with a few fields; of a syslog message a tenth of that."""
MESSAGE_COST_BYTES: Final = 100

Records = Sequence[IngestRecord | bytes]


class HeldRecords:
    """`add` what is held back, `remove` what is known."""

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
    """What records take in memory, about; the same at each call."""
    if isinstance(records, ColumnarRecords):
        return 2 * sum(map(len, records.values)) + RECORD_COST_BYTES * len(records)
    cost = 0
    for record in records:
        cost += len(record) + MESSAGE_COST_BYTES if isinstance(record, bytes) else 2 * len(record.value) + RECORD_COST_BYTES
    return cost


class GroupMemory:
    """What is known of one unit's identities, and what of it is held back meanwhile."""

    __slots__ = ("begun", "held", "is_refused", "may_be_stored", "serials", "taken", "uncertain_below", "verdict")

    def __init__(self) -> None:
        self.taken = 0
        """Records seen so far."""
        self.verdict: Known | None = None
        """Of the one identity."""
        self.begun: dict[bytes, None] = {}
        """Identities that are under way by this unit."""
        self.may_be_stored = False
        """Some of its records may be stored."""
        self.uncertain_below = 0
        """The same for a stream: those with serials below."""
        self.held: list[tuple[Records, range]] = []
        self.serials: list[tuple[int, int]] = []
        self.is_refused = False
        """Its sender will bring all of it again."""


class HeldRun(NamedTuple):
    """Records that wait for the head of their line, by their numbers in the unit."""

    group: AckGroup
    memory: GroupMemory
    records: Records
    numbers: range


class HeldConnection:
    """What came on a connection behind a unit of which it is not known what a previous life has stored."""

    __slots__ = ("behind", "head", "is_closed")

    def __init__(self, head: AckGroup) -> None:
        self.head = head
        self.behind: deque[HeldRun] = deque()
        self.is_closed = False
        """Something was refused: what follows must not overtake it when it comes again."""
