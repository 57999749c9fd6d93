"""Take records whose repeats can be recognised: skip, hold or store them.

Owned by the router. A group has one identity, or one for each record, or its records continue a
stream (`replay_memory` defines addresses). A record whose state is unknown is held, with its group,
until the state is known. Behind a group of which a previous incarnation may have stored a part, the
rest of the connection is held too, so that the order of a sender survives a crash. Held records
count as received when their state is known.

Beyond the bound of held records (`held_records`) a new group that would have to wait is refused,
and all that follows on its connection with it: what follows must not be stored before the repeat of
the refused group.

Weak: items with an identity each (`_bulk`) wait each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from appliance.base.clock import Clock
from appliance.senders.listener import Listener
from services.ingest.records.ack_group import AckGroup, AckOutcome, ReplayedStream
from services.ingest.records.acknowledger import Acknowledger
from services.ingest.records.event import EventSource
from services.ingest.records.held_records import GroupMemory, HeldConnection, HeldRecords, HeldRun, Records
from services.ingest.records.ingest_ledger import IngestLedger
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
"""Addresses of records, in order: identity and ordinal each."""
Store = Callable[[AckGroup, Records, Sequence[int], Addresses | None], None]
Frames = tuple[AckGroup, Records]
"""Frames of a stream, held until their position is known."""
_PENDING = (Known.IN_FLIGHT, Known.UNRESOLVED)


class ReplayLookup(Protocol):
    """`replay.replays.Replays`, as far as it is needed."""

    @property
    def memory(self) -> ReplayMemory: ...

    def open_stream(
        self, listener: Listener, source: EventSource, on_aligned: Callable[[Frames, int], None], on_dropped: Callable[[Frames], None]
    ) -> ReplayedStream: ...

    def forget(self, identity: bytes) -> None: ...


class IdentifiedRecords:
    """`store` routes and batches records."""

    def __init__(self, replays: ReplayLookup, ledger: IngestLedger, acknowledger: Acknowledger, store: Store, held: HeldRecords, clock: Clock) -> None:
        self._replays = replays
        self._memory = replays.memory
        self._ledger = ledger
        self._acknowledger = acknowledger
        self._store = store
        self._held = held
        self._clock = clock
        self._held_connections: dict[bytes, HeldConnection] = {}
        """Held connections by the address of their peer."""
        self._refused: dict[bytes, AckGroup] = {}
        """By the address of the peer: the first refused group whose session was not notified yet.
        What follows must not overtake its repeat."""

    def open_stream(self, listener: Listener, source: EventSource) -> ReplayedStream:
        return self._replays.open_stream(listener, source, self._on_aligned, self._on_dropped)

    def forget(self, identity: bytes) -> None:
        self._replays.forget(identity)

    def take(self, group: AckGroup, records: Records) -> None:
        """Take records of a group with identities."""
        memory: GroupMemory = group.replay or GroupMemory()
        group.replay = memory
        numbers = range(memory.taken, memory.taken + len(records))
        memory.taken = numbers.stop
        if group.stream is not None:
            self._take_frames(group, group.stream, memory, records, numbers)
            return
        line = self._held_connections.get(group.source.address) if self._held_connections else None
        if line is not None and line.head is group:
            line = None
        if self._must_be_repeated(group, memory, numbers, line):
            self._refuse(group, memory)
            if line is not None:
                line.is_closed = True
        elif line is None:
            self._take_known(group, memory, records, numbers)
        else:
            group.pending += 1
            self._held.add(records)
            line.behind.append(HeldRun(group, memory, records, numbers))

    # -- the bound of what is held

    def _must_be_repeated(self, group: AckGroup, memory: GroupMemory, numbers: range, line: HeldConnection | None) -> bool:
        """True if an earlier group was refused, or the group would have to wait and no more may. A
        group that waits already may add all its records."""
        if memory.is_refused or (line is not None and line.is_closed) or (self._refused and group.source.address in self._refused):
            return True
        if not self._held.is_full:
            return False
        identities = group.identities or ()
        if numbers.start and (line is not None or len(identities) == 1):
            return False
        if line is not None:
            return True
        lookup = self._memory.lookup
        return any(lookup(identity) in _PENDING for identity in (identities if len(identities) == 1 else identities[numbers.start : numbers.stop]))

    def _refuse(self, group: AckGroup, memory: GroupMemory) -> None:
        """Refuse the group: its sender repeats all of it."""
        if not memory.is_refused:
            memory.is_refused = True
            group.outcome = AckOutcome.REFUSED
            self._refused.setdefault(group.source.address, group)
            self._ledger.on_refused(group.listener, group.source.host, RefusedReason.BUSY, 1)

    # -- what is known, and what waits for it

    def _take_known(self, group: AckGroup, memory: GroupMemory, records: Records, numbers: range) -> None:
        """Take records whose group has one identity, or one for each record."""
        if len(group.identities or ()) == 1:
            self._take_one(group, memory, records, numbers)
        else:
            self._take_each(group, memory, records, numbers)

    def _continue_connection(self, group: AckGroup) -> None:
        """Take what waited behind the group, up to the next group whose past is unknown."""
        address = group.source.address
        line = self._held_connections.get(address)
        if line is None or line.head is not group:
            return
        del self._held_connections[address]
        while line.behind and address not in self._held_connections:
            behind = line.behind.popleft()
            self._held.remove(behind.records)
            self._take_known(*behind)
            self._acknowledger.release(behind.group)
        if address in self._held_connections:
            self._held_connections[address].behind.extend(line.behind)
            self._held_connections[address].is_closed = line.is_closed

    def may_be_stored(self, group: AckGroup, first_ordinal: int) -> bool:
        """True if any of these records, from this ordinal on, may have been stored before."""
        memory: GroupMemory = group.replay
        return memory.may_be_stored or first_ordinal < memory.uncertain_below

    def is_stored(self, group: AckGroup, identity: bytes, ordinal: int, topic: str, is_copy: bool) -> bool:
        """True if the record was stored in the topic before; counts it as a duplicate unless it is
        a copy."""
        if not self.may_be_stored(group, ordinal) or not self._memory.has(identity, topic, ordinal):
            return False
        if not is_copy:
            self._ledger.on_duplicate(group, 1)
        return True

    def on_completed(self, group: AckGroup) -> None:
        """The group has completed; its session is notified next."""
        memory: GroupMemory | None = group.replay
        if memory is None:
            return
        if self._refused and self._refused.get(group.source.address) is group:
            del self._refused[group.source.address]
        is_stored = group.outcome is not AckOutcome.REFUSED
        now_ms = self._clock.monotonic_ms()
        rejected = _rejected_identities(group)
        for identity in memory.begun:
            if is_stored and identity in rejected:
                self._memory.completed_in_part(identity, now_ms)
            else:
                self._memory.completed(identity, is_stored, now_ms)
        if group.stream is not None:
            for serial, count in memory.serials:
                group.stream.completed(serial, count)

    def _receive(self, group: AckGroup, count: int) -> None:
        group.record_count += count
        self._ledger.on_received(group, count, self._clock.wall_ms())

    # -- streams

    def _take_frames(self, group: AckGroup, stream: ReplayedStream, memory: GroupMemory, records: Records, numbers: range) -> None:
        """Take the next frames of a stream; nothing behind a refused frame of the session is taken."""
        if stream.is_closed or (stream.is_holding and self._held.is_full):
            stream.is_closed = True
            self._refuse(group, memory)
            return
        serial = stream.take((group.identities or ())[numbers.start : numbers.stop], (group, records))
        if serial is None:
            group.pending += 1
            self._held.add(records)
        else:
            self._take_serials(group, memory, records, serial)

    def _on_dropped(self, token: Frames) -> None:
        """The session ended before the position of these frames was known."""
        self._held.remove(token[1])

    def _on_aligned(self, token: Frames, serial: int) -> None:
        """The position of held frames is known."""
        group, records = token
        self._held.remove(records)
        self._take_serials(group, group.replay, records, serial)
        self._acknowledger.release(group)

    def _take_serials(self, group: AckGroup, memory: GroupMemory, records: Records, serial: int) -> None:
        stream = group.stream
        assert stream is not None
        first = group.record_count
        self._receive(group, len(records))
        memory.serials.append((serial, len(records)))
        memory.uncertain_below = stream.replayed_end
        identity = stream.identity
        self._store(group, records, range(first, group.record_count), AddressRun(identity, serial, len(records)))

    # -- one identity

    def _take_one(self, group: AckGroup, memory: GroupMemory, records: Records, numbers: range) -> None:
        assert group.identities is not None
        identity = group.identities[0]
        if memory.verdict is None:
            self._lookup(group, memory, identity)
        if memory.verdict in _PENDING:
            self._held.add(records)
            memory.held.append((records, numbers))
            return
        self._receive(group, len(records))
        if memory.verdict is Known.STORED:
            self._ledger.on_duplicate(group, len(records))
        elif memory.verdict is Known.NEW and not group.keeps_identity:
            self._store(group, records, numbers, None)
        else:
            self._store(group, records, numbers, AddressRun(identity, numbers.start, len(numbers)))

    def _lookup(self, group: AckGroup, memory: GroupMemory, identity: bytes) -> None:
        verdict = memory.verdict = self._memory.lookup(identity)
        if verdict in _PENDING:
            group.pending += 1
            self._memory.when_known(identity, partial(self._on_known, group, memory, identity))
            if verdict is Known.UNRESOLVED:
                self._held_connections.setdefault(group.source.address, HeldConnection(group))
            return
        group.keeps_identity = group.keeps_identity or verdict is not Known.NEW
        if verdict is not Known.STORED and group.keeps_identity:
            self._begin(memory, identity, verdict)

    def _begin(self, memory: GroupMemory, identity: bytes, verdict: Known) -> None:
        self._memory.begin(identity)
        memory.begun[identity] = None
        memory.may_be_stored = memory.may_be_stored or verdict is Known.PARTLY

    def _on_known(self, group: AckGroup, memory: GroupMemory, identity: bytes) -> None:
        self._lookup(group, memory, identity)
        if memory.verdict not in _PENDING:
            held, memory.held = memory.held, []
            for records, numbers in held:
                self._held.remove(records)
                self._take_one(group, memory, records, numbers)
            self._continue_connection(group)
        self._acknowledger.release(group)

    # -- one for each record

    def _take_each(self, group: AckGroup, memory: GroupMemory, records: Records, numbers: range) -> None:
        assert group.identities is not None
        chosen: list[int] = []
        duplicates = 0
        for index, number in enumerate(numbers):
            identity = group.identities[number]
            verdict = self._memory.lookup(identity)
            if verdict is Known.STORED or identity in memory.begun:
                duplicates += 1
            elif verdict in _PENDING:
                self._hold_one(group, memory, records[index : index + 1], number)
            else:
                self._begin(memory, identity, verdict)
                chosen.append(index)
        self._receive(group, len(chosen) + duplicates)
        if duplicates:
            self._ledger.on_duplicate(group, duplicates)
        taken: Records = [records[index] for index in chosen]
        self._store(group, taken, [numbers[index] for index in chosen], [(group.identities[numbers[index]], 0) for index in chosen])

    def _hold_one(self, group: AckGroup, memory: GroupMemory, record: Records, number: int) -> None:
        assert group.identities is not None
        group.pending += 1
        self._held.add(record)
        self._memory.when_known(group.identities[number], partial(self._on_record_known, group, memory, record, range(number, number + 1)))

    def _on_record_known(self, group: AckGroup, memory: GroupMemory, record: Records, number: range) -> None:
        self._held.remove(record)
        self._take_each(group, memory, record, number)
        self._acknowledger.release(group)


def _rejected_identities(group: AckGroup) -> Collection[bytes]:
    """Return the identities of records that can never be stored. They are not remembered as stored,
    so a sender whose answer was lost receives the same refusal again."""
    if not group.rejected or group.identities is None:
        return ()
    if len(group.identities) == 1:
        return group.identities
    return {group.identities[number] for number, _ in group.rejected}
