"""Records whose sender can be recognised when it sends them again: what was stored is not stored twice, what is under way is waited for, the rest is new.

Owned by the intake. A unit has one identity, or one for each record, or its records are the next ones of a stream (`replay_memory` says what an
address is). What replay memory cannot answer yet is kept here, with its unit, until it can; and behind a unit of which a previous life may have stored a part
what follows on its connection, so that a sender's order holds over a death. Weak: what is kept is bounded by the windows of senders alone; items with an
identity each (`_bulk`) wait each for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from appliance.agents.intake.ingest_books import IngestBooks
from appliance.agents.intake.ingest_settlement import IngestSettlement
from appliance.base.clock import Clock
from appliance.ingest.event import EventSource
from appliance.ingest.listener import Listener
from appliance.ingest.record import Record
from appliance.ingest.replay.replay_memory import Known, ReplayMemory
from appliance.ingest.unit import Outcome, ReplayedStream, Unit

Records = Sequence[Record | bytes]


class AddressRun(NamedTuple):
    """Addresses of one identity whose ordinals go up by one."""

    identity: bytes
    first_ordinal: int
    record_count: int

    @property
    def pairs(self) -> list[tuple[bytes, int]]:
        return [(self.identity, ordinal) for ordinal in range(self.first_ordinal, self.first_ordinal + self.record_count)]


Addresses = AddressRun | list[tuple[bytes, int]]
"""Of records, in their order: identity and ordinal each."""
Store = Callable[[Unit, Records, Sequence[int], Addresses | None], None]
_UNKNOWN = (Known.UNDER_WAY, Known.UNSURE)


class Replays(Protocol):
    """`replays`."""

    @property
    def memory(self) -> ReplayMemory: ...

    def open_stream(self, listener: Listener, source: EventSource, on_aligned: Callable[[tuple[Unit, Records], int], None]) -> ReplayedStream: ...

    def forget(self, identity: bytes) -> None: ...


class _Memory:
    """What is known of one unit's identities."""

    __slots__ = ("begun", "doubtful_below", "held", "is_doubtful", "serials", "taken", "verdict")

    def __init__(self) -> None:
        self.taken = 0
        """Records seen so far."""
        self.verdict: Known | None = None
        """Of the one identity."""
        self.begun: dict[bytes, None] = {}
        """Identities that are under way by this unit."""
        self.is_doubtful = False
        """Some of its records may be stored."""
        self.doubtful_below = 0
        """The same for a stream: those with serials below."""
        self.held: list[tuple[Records, range]] = []
        self.serials: list[tuple[int, int]] = []


class _Line:
    """What came on a connection behind a unit of which it is not known what a previous life has stored."""

    __slots__ = ("behind", "head")

    def __init__(self, head: Unit) -> None:
        self.head = head
        self.behind: deque[tuple[Unit, _Memory, Records, range]] = deque()


class IdentifiedRecords:
    """`store` routes and batches."""

    def __init__(self, replays: Replays, books: IngestBooks, settlement: IngestSettlement, store: Store, clock: Clock) -> None:
        self._replays = replays
        self._memory = replays.memory
        self._books = books
        self._settlement = settlement
        self._store = store
        self._clock = clock
        self._lines: dict[bytes, _Line] = {}
        """By the address of the peer."""

    def open_stream(self, listener: Listener, source: EventSource) -> ReplayedStream:
        return self._replays.open_stream(listener, source, self._on_aligned)

    def forget(self, identity: bytes) -> None:
        self._replays.forget(identity)

    def take(self, unit: Unit, records: Records) -> None:
        """Records of a unit with identities."""
        memory: _Memory = unit.replay or _Memory()
        unit.replay = memory
        first = memory.taken
        memory.taken += len(records)
        identities = unit.identities or ()
        if unit.stream is not None:
            serial = unit.stream.take(identities[first : memory.taken], (unit, records))
            if serial is None:
                unit.pending += 1
            else:
                self._take_serials(unit, memory, records, serial)
            return
        self._receive(unit, len(records))
        numbers = range(first, memory.taken)
        line = self._lines.get(unit.source.address) if self._lines else None
        if line is None or line.head is unit:
            self._take_known(unit, memory, records, numbers)
        else:
            unit.pending += 1
            line.behind.append((unit, memory, records, numbers))

    def _take_known(self, unit: Unit, memory: _Memory, records: Records, numbers: range) -> None:
        """Of one identity, or of one for each."""
        if len(unit.identities or ()) == 1:
            self._take_one(unit, memory, records, numbers)
        else:
            self._take_each(unit, memory, records, numbers)

    def _go_on_behind(self, unit: Unit) -> None:
        """What waited behind it, up to the next one whose past is not known."""
        address = unit.source.address
        line = self._lines.get(address)
        if line is None or line.head is not unit:
            return
        del self._lines[address]
        while line.behind and address not in self._lines:
            each = line.behind.popleft()
            self._take_known(*each)
            self._settlement.release(each[0])
        if line.behind:
            self._lines[address].behind.extend(line.behind)

    def is_doubtful(self, unit: Unit, first_ordinal: int) -> bool:
        """Whether any of these records, which go up from the first, may have been stored before."""
        memory: _Memory = unit.replay
        return memory.is_doubtful or first_ordinal < memory.doubtful_below

    def is_stored(self, unit: Unit, identity: bytes, ordinal: int, topic: str, is_copy: bool) -> bool:
        """Whether a record was stored in the topic before; counted, if this is where it counts."""
        if not self.is_doubtful(unit, ordinal) or not self._memory.has(identity, topic, ordinal):
            return False
        if not is_copy:
            self._books.on_duplicate(unit, 1)
        return True

    def on_settled(self, unit: Unit) -> None:
        """Its session is told next."""
        memory: _Memory | None = unit.replay
        if memory is None:
            return
        is_stored = unit.outcome is not Outcome.REFUSED
        now_ms = self._clock.monotonic_ms()
        for identity in memory.begun:
            self._memory.settled(identity, is_stored, now_ms)
        if unit.stream is not None:
            for serial, count in memory.serials:
                unit.stream.settled(serial, count)

    def _receive(self, unit: Unit, count: int) -> None:
        unit.record_count += count
        self._books.on_received(unit, count, self._clock.wall_ms())

    # -- streams

    def _on_aligned(self, token: tuple[Unit, Records], serial: int) -> None:
        """It is known now where held frames belong."""
        unit, records = token
        self._take_serials(unit, unit.replay, records, serial)
        self._settlement.release(unit)

    def _take_serials(self, unit: Unit, memory: _Memory, records: Records, serial: int) -> None:
        stream = unit.stream
        assert stream is not None
        first = unit.record_count
        self._receive(unit, len(records))
        memory.serials.append((serial, len(records)))
        memory.doubtful_below = stream.replayed_end
        identity = stream.identity
        self._store(unit, records, range(first, unit.record_count), AddressRun(identity, serial, len(records)))

    # -- one identity

    def _take_one(self, unit: Unit, memory: _Memory, records: Records, numbers: range) -> None:
        assert unit.identities is not None
        identity = unit.identities[0]
        if memory.verdict is None:
            self._look(unit, memory, identity)
        if memory.verdict in _UNKNOWN:
            memory.held.append((records, numbers))
        elif memory.verdict is Known.STORED:
            self._books.on_duplicate(unit, len(records))
        elif memory.verdict is Known.NEW and not unit.keeps_identity:
            self._store(unit, records, numbers, None)
        else:
            self._store(unit, records, numbers, AddressRun(identity, numbers.start, len(numbers)))

    def _look(self, unit: Unit, memory: _Memory, identity: bytes) -> None:
        verdict = memory.verdict = self._memory.look(identity)
        if verdict in _UNKNOWN:
            unit.pending += 1
            self._memory.when_known(identity, partial(self._on_known, unit, memory, identity))
            if verdict is Known.UNSURE:
                self._lines.setdefault(unit.source.address, _Line(unit))
            return
        unit.keeps_identity = unit.keeps_identity or verdict is not Known.NEW
        if verdict is not Known.STORED and unit.keeps_identity:
            self._begin(memory, identity, verdict)

    def _begin(self, memory: _Memory, identity: bytes, verdict: Known) -> None:
        self._memory.begin(identity)
        memory.begun[identity] = None
        memory.is_doubtful = memory.is_doubtful or verdict is Known.PARTLY

    def _on_known(self, unit: Unit, memory: _Memory, identity: bytes) -> None:
        self._look(unit, memory, identity)
        if memory.verdict not in _UNKNOWN:
            held, memory.held = memory.held, []
            for records, numbers in held:
                self._take_one(unit, memory, records, numbers)
            self._go_on_behind(unit)
        self._settlement.release(unit)

    # -- one for each record

    def _take_each(self, unit: Unit, memory: _Memory, records: Records, numbers: range) -> None:
        assert unit.identities is not None
        chosen: list[int] = []
        for place, number in enumerate(numbers):
            identity = unit.identities[number]
            verdict = self._memory.look(identity)
            if verdict is Known.STORED or identity in memory.begun:
                self._books.on_duplicate(unit, 1)
            elif verdict in _UNKNOWN:
                unit.pending += 1
                self._memory.when_known(identity, partial(self._on_record_known, unit, memory, records[place : place + 1], range(number, number + 1)))
            else:
                self._begin(memory, identity, verdict)
                chosen.append(place)
        taken: Records = [records[place] for place in chosen]
        self._store(unit, taken, [numbers[place] for place in chosen], [(unit.identities[numbers[place]], 0) for place in chosen])

    def _on_record_known(self, unit: Unit, memory: _Memory, record: Records, number: range) -> None:
        self._take_each(unit, memory, record, number)
        self._settlement.release(unit)
