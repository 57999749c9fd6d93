"""What a target is, and how one talks to a session: whole or in pieces, settled as it goes or at the end, stored or refused.

Weak spot: what a session keeps between two pieces is looked at only where its splitter says how much that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import orjson

from appliance.senders.listener import Listener
from services.ingest.protocols.session import MakeSession
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Oddity, RefusedReason
from tests.support.recording_connection import RecordingConnection


class Target(NamedTuple):
    """A function, what it starts from, and how long an input gets."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    length_max: int


Targets = dict[str, Target]


class Said(NamedTuple):
    """What came of one conversation."""

    records: list[bytes]
    """Values of records; syslog messages as they are."""
    sent: bytes
    closed: str
    refused: Counter[RefusedReason]
    oddities: Counter[Oddity]


def talk(make: MakeSession, listener: Listener, stream: bytes, step: int, bounds: Callable[[Any, int], None] | None = None,
         outcome: AckOutcome = AckOutcome.STORED, is_completed_late: bool = True) -> Said:  # fmt: skip
    """One connection from its begin to its end; like the ingest, it passes nothing on once it has
    closed. `bounds(session, piece)` after each piece.
    """
    connection = RecordingConnection(listener)
    intake = connection.intake
    session = make(connection)
    for start in range(0, len(stream), step):
        if connection.closed:
            break
        piece = stream[start : start + step]
        session.received(memoryview(piece))
        if bounds is not None:
            bounds(session, len(piece))
        if not is_completed_late:
            intake.complete_all(outcome)
            session.tick(intake.clock_ms)
    session.finished()
    intake.complete_all(outcome)
    session.tick(intake.clock_ms + 1_000_000)
    intake.complete_all(outcome)
    session.lost()
    assert session.unacknowledged_bytes == 0 and not intake.in_flight
    assert sum(unit.record_count for unit in {id(unit): unit for unit, _ in intake.taken}.values()) == len(intake.taken)
    return Said([_value(what) for _, what in intake.taken], bytes(connection.sent), connection.closed, intake.refused, intake.oddities)


def _value(what: IngestRecord | bytes) -> bytes:
    if isinstance(what, bytes):
        return what
    orjson.loads(what.value)
    return what.value


@contextmanager
def setting(module: ModuleType, name: str, value: int) -> Iterator[None]:
    """A limit of a module that is too large for small inputs, made small."""
    usual = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, usual)


def check_records(records: Iterable[IngestRecord]) -> None:
    """Each is JSON."""
    for record in records:
        orjson.loads(record.value)


def whole_and_pieces(data: bytes, least: int = 1) -> tuple[bytes, tuple[int, int]] | None:
    """The stream behind the first byte, and the sizes of the pieces in which it comes: all at once, and as that byte says. None without one."""
    return (data[1:], (len(data), data[0] + least)) if data else None
