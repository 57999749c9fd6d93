"""Units that keep no identity: a replay of an earlier life is recognised, and what is new leaves no trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from appliance.agents.intake.identified_records import IdentifiedRecords, Records
from appliance.base.clock import ManualClock
from appliance.ingest.event import EventSource
from appliance.ingest.replay.replay_memory import Known, ReplayMemory
from appliance.ingest.unit import Outcome, Unit

IDENTITY = b"i" * 16
PARTS = [(IDENTITY, 0, 1)]
SOURCE = EventSource(b"192.0.2.1:601", b"192.0.2.1", b"fluent")
RECORDS = [b"one", b"two"]


class Nothing:
    """Books and settlement, of which nothing is asked here."""

    def on_received(self, unit: Unit, count: int, arrival_ms: int) -> None: ...

    def on_duplicate(self, unit: Unit, count: int) -> None:
        unit.duplicate_count += count

    def release(self, unit: Unit) -> None:
        unit.pending -= 1


class Told:
    """A memory, and what was given to the store: with addresses or without."""

    def __init__(self) -> None:
        self.memory = ReplayMemory(100, 60_000)
        self.stored: list[bool] = []
        self.identities: list[bytes] = []
        """Of the units that were stored, in their order."""
        nothing: Any = Nothing()
        replays: Any = self
        self.identified = IdentifiedRecords(replays, nothing, nothing, self._store, ManualClock())

    def _store(self, unit: Unit, records: Records, numbers: Iterable[int], addresses: Sequence[tuple[bytes, int]] | None) -> None:
        self.stored.append(addresses is not None)
        self.identities += unit.identities or ()

    def take(self, keeps_identity: bool = False, identity: bytes = IDENTITY, source: EventSource = SOURCE) -> Unit:
        listener: Any = None
        unit = Unit(listener, source, [identity])
        unit.keeps_identity = keeps_identity
        self.identified.take(unit, RECORDS)
        return unit

    def settle(self, unit: Unit) -> None:
        unit.outcome = Outcome.STORED
        self.identified.on_settled(unit)


@pytest.mark.parametrize("keeps_identity", [False, True])
def test_a_new_unit_is_remembered_only_if_it_keeps_its_identity(keeps_identity: bool) -> None:
    told = Told()
    unit = told.take(keeps_identity)
    told.settle(unit)
    assert told.stored == [keeps_identity] and unit.keeps_identity is keeps_identity
    assert told.memory.look(IDENTITY) is (Known.STORED if keeps_identity else Known.NEW) and len(told.memory) == keeps_identity


def test_a_replay_of_what_is_stored_is_a_duplicate_and_is_known_from_then_on() -> None:
    told = Told()
    told.settle(told.take(keeps_identity=True))
    unit = told.take()
    assert told.stored == [True] and unit.duplicate_count == len(RECORDS) and unit.keeps_identity


@pytest.mark.parametrize("is_stored", [False, True])
def test_what_an_earlier_life_had_under_way_is_waited_for(is_stored: bool) -> None:
    told = Told()
    told.memory.add_unsure(PARTS)
    unit = told.take()
    assert not told.stored and unit.pending == 1
    told.memory.resolve("syslog", PARTS, is_stored, 0)
    told.memory.tell()
    assert told.stored == [is_stored] and unit.pending == 0, "in part: where it is missing; lost: as a new one"
    told.settle(unit)
    assert unit.keeps_identity is is_stored and told.memory.look(IDENTITY) is (Known.STORED if is_stored else Known.NEW)


def test_what_follows_on_a_connection_does_not_overtake_a_unit_whose_past_is_not_known() -> None:
    """Two of five are unsure; another connection goes on meanwhile."""
    told = Told()
    first, new, third, last, other = (bytes([letter]) * 16 for letter in b"abcde")
    for identity in (first, third):
        told.memory.add_unsure([(identity, 0, 1)])
    units = [told.take(identity=identity) for identity in (first, new, third, last)]
    told.take(identity=other, source=SOURCE._replace(address=b"192.0.2.1:602"))
    assert told.identities == [other] and [unit.pending for unit in units] == [1, 1, 1, 1]
    told.memory.resolve("syslog", [(first, 0, 1)], True, 0)
    told.memory.tell()
    assert told.identities == [other, first, new] and [unit.pending for unit in units] == [0, 0, 1, 1]
    told.memory.resolve("syslog", [(third, 0, 1)], False, 0)
    told.memory.tell()
    assert told.identities == [other, first, new, third, last] and not any(unit.pending for unit in units)
    told.take(identity=b"f" * 16)
    assert told.identities[-1] == b"f" * 16, "nobody waits any more"
