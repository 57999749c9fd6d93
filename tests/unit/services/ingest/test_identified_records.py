"""Units whose sender may bring them again: what is known of them, what waits until it is, and how much may wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.records.ack_group import AckGroup, AckOutcome, digest_of
from services.ingest.records.event import EventSource
from services.ingest.records.held_records import MESSAGE_COST_BYTES, RECORD_COST_BYTES, HeldRecords, cost_of
from services.ingest.records.identified_records import AddressRun, IdentifiedRecords, Records
from services.ingest.records.ingest_record import ColumnarRecords, IngestRecord
from services.ingest.records.intake import RefusedReason
from services.ingest.replay.frame_streams import FrameStreams
from services.ingest.replay.replay_memory import Known, ReplayMemory
from services.ingest.replay.stream_replay import HOLD_MS, OnAligned, OnDropped, StreamReplay
from tests.support.ingest_state import IngestState

IDENTITY = b"i" * 16
PARTS = [(IDENTITY, 0, 1)]
SOURCE = EventSource(b"192.0.2.1:601", b"192.0.2.1", b"fluent")
ELSEWHERE = SOURCE._replace(address=b"192.0.2.1:602")
LISTENER = Listener("fluent", Protocol.FLUENT, ListenerTransport.TCP, 0)
RECORDS = [b"one", b"two"]
COST = cost_of(RECORDS)


class RecordingLedger:
    """Stands in for the ledger and settlement."""

    def __init__(self) -> None:
        self.received = 0
        self.refused: list[RefusedReason] = []

    def on_received(self, unit: AckGroup, count: int, arrival_ms: int) -> None:
        self.received += count

    def on_duplicate(self, unit: AckGroup, count: int) -> None:
        unit.duplicate_count += count

    def on_refused(self, listener: Listener, host: bytes, reason: RefusedReason, count: int) -> None:
        self.refused += [reason] * count

    def release(self, unit: AckGroup) -> None:
        unit.pending -= 1


class TakenRecords:
    """A memory, and what was given to the store: with addresses or without."""

    def __init__(self, state: IngestState, held_bytes_max: int) -> None:
        self.memory = ReplayMemory(100, 60_000)
        self.streams = FrameStreams(self.memory, 60_000, b"life")
        self.books: Any = RecordingLedger()
        self.stored: list[bool] = []
        self.identities: list[bytes] = []
        """Of the units that were stored, in their order."""
        self.lines: list[IngestRecord | bytes] = []
        replays: Any = self
        held = HeldRecords(held_bytes_max, state.counters)
        self.state = state
        self.identified = IdentifiedRecords(replays, self.books, self.books, self._store, held, state.clock)

    @property
    def held_bytes(self) -> int:
        return self.state.counter("ingest.held_bytes")

    def open_stream(self, listener: Listener, source: EventSource, on_aligned: OnAligned, on_dropped: OnDropped) -> StreamReplay:
        return StreamReplay(self.streams, (listener.name, source.host), on_aligned, on_dropped)

    def _store(self, unit: AckGroup, records: Records, numbers: Iterable[int], addresses: AddressRun | Sequence[tuple[bytes, int]] | None) -> None:
        self.stored.append(addresses is not None)
        self.identities += unit.identities or ()
        self.lines += records

    def take(self, keeps_identity: bool = False, identity: bytes = IDENTITY, source: EventSource = SOURCE) -> AckGroup:
        unit = AckGroup(LISTENER, source, [identity])
        unit.keeps_identity = keeps_identity
        self.identified.take(unit, RECORDS)
        return unit

    def complete(self, unit: AckGroup) -> None:
        assert not unit.pending
        if unit.outcome is AckOutcome.PENDING:
            unit.outcome = AckOutcome.STORED
        self.identified.on_completed(unit)

    def resolve(self, identity: bytes, is_stored: bool) -> None:
        """A leader has answered."""
        self.memory.resolve("syslog", [(identity, 0, 1)], is_stored, 0)
        self.memory.notify()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[TakenRecords]:
    state = IngestState(tmp_path)
    yield TakenRecords(state, 1 << 20)
    state.close()


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[TakenRecords]:
    """Three of `RECORDS` are more than may be held."""
    state = IngestState(tmp_path)
    yield TakenRecords(state, 2 * COST + 1)
    state.close()


@pytest.mark.parametrize("keeps_identity", [False, True])
def test_a_new_unit_is_remembered_only_if_it_keeps_its_identity(told: TakenRecords, keeps_identity: bool) -> None:
    unit = told.take(keeps_identity)
    told.complete(unit)
    assert told.stored == [keeps_identity] and unit.keeps_identity is keeps_identity
    assert told.memory.lookup(IDENTITY) is (Known.STORED if keeps_identity else Known.NEW) and len(told.memory) == keeps_identity


def test_a_replay_of_what_is_stored_is_a_duplicate_and_is_known_from_then_on(told: TakenRecords) -> None:
    told.complete(told.take(keeps_identity=True))
    unit = told.take()
    assert told.stored == [True] and unit.duplicate_count == len(RECORDS) and unit.keeps_identity


@pytest.mark.parametrize("is_stored", [False, True])
def test_batches_in_flight_of_an_earlier_incarnation_are_waited_for(told: TakenRecords, is_stored: bool) -> None:
    told.memory.add_unresolved(PARTS)
    unit = told.take()
    assert not told.stored and unit.pending == 1
    told.memory.resolve("syslog", PARTS, is_stored, 0)
    told.memory.notify()
    assert told.stored == [is_stored] and unit.pending == 0, "in part: where it is missing; lost: as a new one"
    told.complete(unit)
    assert unit.keeps_identity is is_stored and told.memory.lookup(IDENTITY) is (Known.STORED if is_stored else Known.NEW)


def test_what_follows_on_a_connection_does_not_overtake_a_unit_whose_past_is_not_known(told: TakenRecords) -> None:
    """Two of five are unsure; another connection goes on meanwhile."""
    first, new, third, last, other = (bytes([letter]) * 16 for letter in b"abcde")
    for identity in (first, third):
        told.memory.add_unresolved([(identity, 0, 1)])
    units = [told.take(identity=identity) for identity in (first, new, third, last)]
    told.take(identity=other, source=SOURCE._replace(address=b"192.0.2.1:602"))
    assert told.identities == [other] and [unit.pending for unit in units] == [1, 1, 1, 1]
    told.memory.resolve("syslog", [(first, 0, 1)], True, 0)
    told.memory.notify()
    assert told.identities == [other, first, new] and [unit.pending for unit in units] == [0, 0, 1, 1]
    told.memory.resolve("syslog", [(third, 0, 1)], False, 0)
    told.memory.notify()
    assert told.identities == [other, first, new, third, last] and not any(unit.pending for unit in units)
    told.take(identity=b"f" * 16)
    assert told.identities[-1] == b"f" * 16, "no sender waits any more"


# -- how much may wait


def unresolved(told: TakenRecords, *letters: str) -> list[bytes]:
    """Identities of which a previous incarnation may have stored something."""
    identities = [letter.encode() * 16 for letter in letters]
    for identity in identities:
        told.memory.add_unresolved([(identity, 0, 1)])
    return identities


def test_what_may_be_stored_waits_up_to_a_bound_over_all_connections_and_then_its_sender_does(narrow: TakenRecords) -> None:
    identities = unresolved(narrow, *"abcd")
    units = [narrow.take(identity=identity, source=SOURCE._replace(address=identity)) for identity in identities]
    assert [unit.outcome for unit in units] == [AckOutcome.PENDING] * 3 + [AckOutcome.REFUSED] and narrow.held_bytes == 3 * COST
    assert (narrow.books.refused, narrow.books.received) == ([RefusedReason.BUSY], 0), "what waits was not received yet"
    new = narrow.take(identity=b"e" * 16, source=ELSEWHERE)
    assert narrow.identities == [b"e" * 16] and new.outcome is AckOutcome.PENDING, "an identity without unresolved batches proceeds"
    narrow.complete(units[3])
    assert narrow.take(identity=identities[3], source=ELSEWHERE).outcome is AckOutcome.REFUSED
    for identity in identities:
        narrow.resolve(identity, True)
    assert narrow.held_bytes == 0 and narrow.identities == [b"e" * 16, *identities[:3]] and narrow.books.received == 8
    assert narrow.take(identity=identities[3]).outcome is AckOutcome.PENDING and narrow.identities[-1] == identities[3], "there is free space again"


def test_senders_that_come_again_and_again_are_held_no_more_than_that(narrow: TakenRecords) -> None:
    """A sender without an answer opens one connection after the other and sends the same each time."""
    (identity,) = unresolved(narrow, "a")
    units = [narrow.take(identity=identity, source=SOURCE._replace(address=b"%d" % number)) for number in range(50)]
    assert narrow.held_bytes == 3 * COST and sum(unit.outcome is AckOutcome.REFUSED for unit in units) == 47
    narrow.resolve(identity, False)
    assert len(narrow.stored) == 3 and narrow.held_bytes == 0, "the first connections left it, and they do not keep identities"


def test_a_unit_that_began_below_the_bound_is_held_whole(narrow: TakenRecords) -> None:
    (identity,) = unresolved(narrow, "a")
    unit = AckGroup(LISTENER, SOURCE, [identity])
    for _ in range(5):
        narrow.identified.take(unit, RECORDS)
    assert unit.outcome is AckOutcome.PENDING and narrow.held_bytes == 5 * COST
    narrow.resolve(identity, False)
    assert narrow.lines == RECORDS * 5 and narrow.held_bytes == 0 and not unit.pending


def test_nothing_overtakes_a_refused_unit_on_its_connection(narrow: TakenRecords) -> None:
    first, second, third = unresolved(narrow, *"abc")
    for number, identity in enumerate((first, second, third)):
        narrow.take(identity=identity, source=SOURCE._replace(address=b"%d" % number))
    refused = narrow.take(identity=third)
    follows = narrow.take(identity=b"n" * 16)
    assert follows.outcome is AckOutcome.REFUSED and not narrow.identities
    narrow.resolve(first, True)
    assert narrow.take(identity=b"m" * 16).outcome is AckOutcome.REFUSED, "there is free space, but its sender does not know yet"
    narrow.complete(refused)
    assert narrow.take(identity=b"n" * 16).outcome is AckOutcome.PENDING and narrow.identities == [first, b"n" * 16]


def test_behind_a_unit_whose_past_is_not_known_what_was_refused_is_not_overtaken_either(narrow: TakenRecords) -> None:
    first, other = unresolved(narrow, *"ab")
    narrow.take(identity=first)
    narrow.take(identity=b"1" * 16)
    narrow.take(identity=other, source=ELSEWHERE)
    refused = narrow.take(identity=b"2" * 16)
    narrow.complete(refused)
    narrow.resolve(other, True)
    assert narrow.held_bytes == 2 * COST and narrow.take(identity=b"3" * 16).outcome is AckOutcome.REFUSED, "there is free space, but 2 comes first"
    narrow.resolve(first, True)
    assert narrow.identities == [other, first, b"1" * 16] and narrow.held_bytes == 0


def test_items_with_an_identity_each_are_refused_together_where_one_would_have_to_wait(narrow: TakenRecords) -> None:
    (waits,) = unresolved(narrow, "a")
    for number in range(3):
        narrow.take(identity=waits, source=SOURCE._replace(address=b"%d" % number))
    unit = AckGroup(LISTENER, SOURCE, [b"n" * 16, waits])
    narrow.identified.take(unit, RECORDS)
    assert unit.outcome is AckOutcome.REFUSED and not narrow.stored and not unit.pending and narrow.memory.lookup(b"n" * 16) is Known.NEW


def test_frames_of_sessions_count_too_and_leave_with_them(narrow: TakenRecords) -> None:
    """RELP's senders come back, each with its whole window, while a leader is asked what it has of the frames before."""

    def connect(host: bytes) -> Any:
        return narrow.identified.open_stream(LISTENER, SOURCE._replace(host=host))

    def send(stream: Any, *lines: bytes) -> AckGroup:
        unit = AckGroup(LISTENER, SOURCE._replace(address=lines[0]), [digest_of(line) for line in lines])
        unit.stream = stream
        narrow.identified.take(unit, lines)
        return unit

    for host in (b"a", b"b"):
        before = connect(host)
        narrow.complete(send(before, b"0", b"1"))
        narrow.memory.add_unresolved([(before.identity, 0, 2)])
        before.end(False)
    narrow.lines.clear()
    session, other = connect(b"a"), connect(b"b")
    assert send(session, b"0", b"1").outcome is send(session, b"2", b"3").outcome is AckOutcome.PENDING
    assert send(other, b"0" * MESSAGE_COST_BYTES).outcome is AckOutcome.PENDING
    assert send(session, b"4").outcome is AckOutcome.REFUSED
    held = narrow.held_bytes
    other.end(False)
    assert narrow.held_bytes < held and send(session, b"5").outcome is AckOutcome.REFUSED, "there is free space, but 4 comes first"
    narrow.resolve(session_identity(narrow), False)
    narrow.streams.turn(0)
    narrow.streams.turn(HOLD_MS)
    assert narrow.lines == [b"0", b"1", b"2", b"3"] and narrow.held_bytes == 0


def session_identity(told: TakenRecords) -> bytes:
    """Of the broken stream of host a."""
    (stream,) = told.streams.broken[LISTENER.name, b"a"]
    return stream.identity


def test_the_cost_of_records_is_the_same_however_they_are_held() -> None:
    columns = ColumnarRecords([b"12345", b"1"], [None] * 2, [None] * 2, [None] * 2, [None] * 2, [None] * 2, None, None, [{}] * 2)
    assert cost_of(columns) == cost_of(list(columns)) == 2 * 6 + 2 * RECORD_COST_BYTES
    assert cost_of([b"12345", b"1"]) == 6 + 2 * MESSAGE_COST_BYTES
