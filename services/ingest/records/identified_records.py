"""Records whose sender can be recognised when it sends them again: what was stored is not stored twice, what is under way is waited for, the rest is new.

Owned by the intake. A unit has one identity, or one for each record, or its records are the next ones of a stream (`replay_memory` says what an
address is). What replay memory cannot answer yet is held back, with its unit, until it can; and behind a unit of which a previous life may have stored a part
what follows on its connection, so that a sender's order holds over a death. It counts as received when it is known. Beyond the bound of what is held
(`held_records`) a new unit that would have to wait is refused, and what follows on its connection with it. Weak: items with an identity each (`_bulk`) wait
each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from appliance.base.clock import Clock
from appliance.senders.listener import Listener
from services.ingest.records.ack_group import AckGroup, AckOutcome, ReplayedStream
from services.ingest.records.event import EventSource
from services.ingest.records.held_records import Behind, HeldRecords, Line, Records, UnitMemory
from services.ingest.records.ingest_ledger import IngestLedger
from services.ingest.records.ingest_settlement import IngestSettlement
from services.ingest.records.intake import RefusedReason
from services.ingest.replay.replay_memory import Known, ReplayMemory


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
Store = Callable[[AckGroup, Records, Sequence[int], Addresses | None], None]
Frames = tuple[AckGroup, Records]
"""Of a stream, held back until it is known where they belong."""
_UNKNOWN = (Known.UNDER_WAY, Known.UNSURE)


class ReplayLookup(Protocol):
    """`replays`."""

    @property
    def memory(self) -> ReplayMemory: ...

    def open_stream(
        self, listener: Listener, source: EventSource, on_aligned: Callable[[Frames, int], None], on_dropped: Callable[[Frames], None]
    ) -> ReplayedStream: ...

    def forget(self, identity: bytes) -> None: ...


class IdentifiedRecords:
    """`store` routes and batches."""

    def __init__(self, replays: ReplayLookup, books: IngestLedger, settlement: IngestSettlement, store: Store, held: HeldRecords, clock: Clock) -> None:
        self._replays = replays
        self._memory = replays.memory
        self._books = books
        self._settlement = settlement
        self._store = store
        self._held = held
        self._clock = clock
        self._lines: dict[bytes, Line] = {}
        """By the address of the peer."""
        self._refused: dict[bytes, AckGroup] = {}
        """By the address of the peer: the first unit that was refused and whose session was not told yet. What follows must not overtake it."""

    def open_stream(self, listener: Listener, source: EventSource) -> ReplayedStream:
        return self._replays.open_stream(listener, source, self._on_aligned, self._on_dropped)

    def forget(self, identity: bytes) -> None:
        self._replays.forget(identity)

    def take(self, unit: AckGroup, records: Records) -> None:
        """Records of a unit with identities."""
        memory: UnitMemory = unit.replay or UnitMemory()
        unit.replay = memory
        numbers = range(memory.taken, memory.taken + len(records))
        memory.taken = numbers.stop
        if unit.stream is not None:
            self._take_frames(unit, unit.stream, memory, records, numbers)
            return
        line = self._lines.get(unit.source.address) if self._lines else None
        if line is not None and line.head is unit:
            line = None
        if self._has_to_come_again(unit, memory, numbers, line):
            self._refuse(unit, memory)
            if line is not None:
                line.is_closed = True
        elif line is None:
            self._take_known(unit, memory, records, numbers)
        else:
            unit.pending += 1
            self._held.add(records)
            line.behind.append(Behind(unit, memory, records, numbers))

    # -- the bound of what is held

    def _has_to_come_again(self, unit: AckGroup, memory: UnitMemory, numbers: range, line: Line | None) -> bool:
        """Whether something before it has to, or it would have to wait, and no more may. A unit that waits already brings all that it has."""
        if memory.is_refused or (line is not None and line.is_closed) or (self._refused and unit.source.address in self._refused):
            return True
        if not self._held.is_full:
            return False
        identities = unit.identities or ()
        if numbers.start and (line is not None or len(identities) == 1):
            return False
        if line is not None:
            return True
        look = self._memory.look
        return any(look(identity) in _UNKNOWN for identity in (identities if len(identities) == 1 else identities[numbers.start : numbers.stop]))

    def _refuse(self, unit: AckGroup, memory: UnitMemory) -> None:
        """All of it will come again."""
        if not memory.is_refused:
            memory.is_refused = True
            unit.outcome = AckOutcome.REFUSED
            self._refused.setdefault(unit.source.address, unit)
            self._books.on_refused(unit.listener, unit.source.host, RefusedReason.BUSY, 1)

    # -- what is known, and what waits for it

    def _take_known(self, unit: AckGroup, memory: UnitMemory, records: Records, numbers: range) -> None:
        """Of one identity, or of one for each."""
        if len(unit.identities or ()) == 1:
            self._take_one(unit, memory, records, numbers)
        else:
            self._take_each(unit, memory, records, numbers)

    def _go_on_behind(self, unit: AckGroup) -> None:
        """What waited behind it, up to the next one whose past is not known."""
        address = unit.source.address
        line = self._lines.get(address)
        if line is None or line.head is not unit:
            return
        del self._lines[address]
        while line.behind and address not in self._lines:
            behind = line.behind.popleft()
            self._held.remove(behind.records)
            self._take_known(*behind)
            self._settlement.release(behind.unit)
        if address in self._lines:
            self._lines[address].behind.extend(line.behind)
            self._lines[address].is_closed = line.is_closed

    def is_doubtful(self, unit: AckGroup, first_ordinal: int) -> bool:
        """Whether any of these records, which go up from the first, may have been stored before."""
        memory: UnitMemory = unit.replay
        return memory.is_doubtful or first_ordinal < memory.doubtful_below

    def is_stored(self, unit: AckGroup, identity: bytes, ordinal: int, topic: str, is_copy: bool) -> bool:
        """Whether a record was stored in the topic before; counted, if this is where it counts."""
        if not self.is_doubtful(unit, ordinal) or not self._memory.has(identity, topic, ordinal):
            return False
        if not is_copy:
            self._books.on_duplicate(unit, 1)
        return True

    def on_settled(self, unit: AckGroup) -> None:
        """Its session is told next."""
        memory: UnitMemory | None = unit.replay
        if memory is None:
            return
        if self._refused and self._refused.get(unit.source.address) is unit:
            del self._refused[unit.source.address]
        is_stored = unit.outcome is not AckOutcome.REFUSED
        now_ms = self._clock.monotonic_ms()
        rejected = _rejected_identities(unit)
        for identity in memory.begun:
            if is_stored and identity in rejected:
                self._memory.settled_in_part(identity, now_ms)
            else:
                self._memory.settled(identity, is_stored, now_ms)
        if unit.stream is not None:
            for serial, count in memory.serials:
                unit.stream.settled(serial, count)

    def _receive(self, unit: AckGroup, count: int) -> None:
        unit.record_count += count
        self._books.on_received(unit, count, self._clock.wall_ms())

    # -- streams

    def _take_frames(self, unit: AckGroup, stream: ReplayedStream, memory: UnitMemory, records: Records, numbers: range) -> None:
        """The next ones of its stream; behind one that was refused nothing of the session is taken."""
        if stream.is_closed or (stream.is_holding and self._held.is_full):
            stream.is_closed = True
            self._refuse(unit, memory)
            return
        serial = stream.take((unit.identities or ())[numbers.start : numbers.stop], (unit, records))
        if serial is None:
            unit.pending += 1
            self._held.add(records)
        else:
            self._take_serials(unit, memory, records, serial)

    def _on_dropped(self, token: Frames) -> None:
        """The session ended before it was known where these belong."""
        self._held.remove(token[1])

    def _on_aligned(self, token: Frames, serial: int) -> None:
        """It is known now where held frames belong."""
        unit, records = token
        self._held.remove(records)
        self._take_serials(unit, unit.replay, records, serial)
        self._settlement.release(unit)

    def _take_serials(self, unit: AckGroup, memory: UnitMemory, records: Records, serial: int) -> None:
        stream = unit.stream
        assert stream is not None
        first = unit.record_count
        self._receive(unit, len(records))
        memory.serials.append((serial, len(records)))
        memory.doubtful_below = stream.replayed_end
        identity = stream.identity
        self._store(unit, records, range(first, unit.record_count), AddressRun(identity, serial, len(records)))

    # -- one identity

    def _take_one(self, unit: AckGroup, memory: UnitMemory, records: Records, numbers: range) -> None:
        assert unit.identities is not None
        identity = unit.identities[0]
        if memory.verdict is None:
            self._look(unit, memory, identity)
        if memory.verdict in _UNKNOWN:
            self._held.add(records)
            memory.held.append((records, numbers))
            return
        self._receive(unit, len(records))
        if memory.verdict is Known.STORED:
            self._books.on_duplicate(unit, len(records))
        elif memory.verdict is Known.NEW and not unit.keeps_identity:
            self._store(unit, records, numbers, None)
        else:
            self._store(unit, records, numbers, AddressRun(identity, numbers.start, len(numbers)))

    def _look(self, unit: AckGroup, memory: UnitMemory, identity: bytes) -> None:
        verdict = memory.verdict = self._memory.look(identity)
        if verdict in _UNKNOWN:
            unit.pending += 1
            self._memory.when_known(identity, partial(self._on_known, unit, memory, identity))
            if verdict is Known.UNSURE:
                self._lines.setdefault(unit.source.address, Line(unit))
            return
        unit.keeps_identity = unit.keeps_identity or verdict is not Known.NEW
        if verdict is not Known.STORED and unit.keeps_identity:
            self._begin(memory, identity, verdict)

    def _begin(self, memory: UnitMemory, identity: bytes, verdict: Known) -> None:
        self._memory.begin(identity)
        memory.begun[identity] = None
        memory.is_doubtful = memory.is_doubtful or verdict is Known.PARTLY

    def _on_known(self, unit: AckGroup, memory: UnitMemory, identity: bytes) -> None:
        self._look(unit, memory, identity)
        if memory.verdict not in _UNKNOWN:
            held, memory.held = memory.held, []
            for records, numbers in held:
                self._held.remove(records)
                self._take_one(unit, memory, records, numbers)
            self._go_on_behind(unit)
        self._settlement.release(unit)

    # -- one for each record

    def _take_each(self, unit: AckGroup, memory: UnitMemory, records: Records, numbers: range) -> None:
        assert unit.identities is not None
        chosen: list[int] = []
        duplicates = 0
        for place, number in enumerate(numbers):
            identity = unit.identities[number]
            verdict = self._memory.look(identity)
            if verdict is Known.STORED or identity in memory.begun:
                duplicates += 1
            elif verdict in _UNKNOWN:
                self._hold_one(unit, memory, records[place : place + 1], number)
            else:
                self._begin(memory, identity, verdict)
                chosen.append(place)
        self._receive(unit, len(chosen) + duplicates)
        if duplicates:
            self._books.on_duplicate(unit, duplicates)
        taken: Records = [records[place] for place in chosen]
        self._store(unit, taken, [numbers[place] for place in chosen], [(unit.identities[numbers[place]], 0) for place in chosen])

    def _hold_one(self, unit: AckGroup, memory: UnitMemory, record: Records, number: int) -> None:
        assert unit.identities is not None
        unit.pending += 1
        self._held.add(record)
        self._memory.when_known(unit.identities[number], partial(self._on_record_known, unit, memory, record, range(number, number + 1)))

    def _on_record_known(self, unit: AckGroup, memory: UnitMemory, record: Records, number: range) -> None:
        self._held.remove(record)
        self._take_each(unit, memory, record, number)
        self._settlement.release(unit)


def _rejected_identities(unit: AckGroup) -> Collection[bytes]:
    """Of what can never be stored: who brings it again, because the answer was lost, hears the same again."""
    if not unit.rejected or unit.identities is None:
        return ()
    if len(unit.identities) == 1:
        return unit.identities
    return {unit.identities[number] for number, _ in unit.rejected}
