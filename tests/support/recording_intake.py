"""An intake that remembers what it was given and settles units when the test says so: what sessions are tested with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from appliance.senders.listener import Listener
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.event import EventSource
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Oddity, RefusedReason


class RecordingStream:
    """Remembers how it ended; numbers nothing."""

    def __init__(self) -> None:
        self.identity = b"a stream's digest"[:16]
        self.replayed_end = 0
        self.is_closed = self.is_holding = False
        self.is_hurried = self.has_left = False
        self.ends: list[bool] = []
        """Whether it was clean, at each call; the first counts."""

    def take(self, digests: Sequence[bytes], token: object) -> int | None:
        raise AssertionError("streams are for the intake to number")

    def completed(self, first_serial: int, count: int) -> None:
        raise AssertionError("streams are notified by the intake")

    def hurry(self) -> None:
        self.is_hurried = True

    def leave(self) -> None:
        self.is_hurried = self.has_left = True

    def end(self, is_clean: bool) -> None:
        self.ends.append(is_clean)


class RecordingIntake:
    """`taken` in the order of arrival, `closed` in that of sealing. Nothing settles by itself."""

    def __init__(self) -> None:
        self.taken: list[tuple[AckGroup, IngestRecord | bytes]] = []
        """Records, and syslog messages as their bytes."""
        self.closed: list[AckGroup] = []
        self.completed: list[AckGroup] = []
        self.abandoned: list[AckGroup] = []
        self.refused: Counter[RefusedReason] = Counter()
        self.oddities: Counter[Oddity] = Counter()
        self.streams: list[RecordingStream] = []
        self.forgotten: list[bytes] = []
        self.is_blocked = False
        self.blocked_topics: set[str] = set()
        self.topics: set[str] = set()
        self.routed_topics: set[str] | None = None
        """Where the routes lead; None: to `topics`."""
        self.wall_ms = 1_760_000_000_000
        self.clock_ms = 1_000

    @property
    def records(self) -> list[IngestRecord]:
        return [what for _, what in self.taken if isinstance(what, IngestRecord)]

    @property
    def messages(self) -> list[bytes]:
        return [what for _, what in self.taken if isinstance(what, bytes)]

    @property
    def in_flight(self) -> list[AckGroup]:
        """Sealed, and not settled."""
        return [unit for unit in self.closed if unit not in self.completed]

    def complete(self, unit: AckGroup, outcome: AckOutcome = AckOutcome.STORED, rejected: Sequence[tuple[int, str]] = ()) -> None:
        """As the agent's turn would."""
        assert unit in self.closed and unit not in self.completed, "a unit settles once, when it is sealed"
        unit.outcome = outcome
        unit.rejected += rejected
        self.completed.append(unit)
        if unit.on_completed is not None:
            unit.on_completed(unit)

    def complete_all(self, outcome: AckOutcome = AckOutcome.STORED) -> None:
        for unit in self.in_flight:
            self.complete(unit, outcome)

    # -- Intake

    def take(self, unit: AckGroup, records: Sequence[IngestRecord]) -> None:
        self._add(unit, records)

    def take_syslog(self, unit: AckGroup, messages: Sequence[bytes]) -> None:
        self._add(unit, messages)

    def _add(self, unit: AckGroup, what: Sequence[IngestRecord] | Sequence[bytes]) -> None:
        assert not unit.is_closed, "nothing is taken for a sealed unit"
        self.taken += [(unit, each) for each in what]
        unit.record_count += len(what)

    def close_group(self, unit: AckGroup) -> None:
        assert not unit.is_closed and unit.on_completed is not None, "only a group with a waiting sender is closed, and only once"
        if unit.identities is not None:
            assert len(unit.identities) in (1, unit.record_count), "one identity, or one for each record"
        unit.is_closed = True
        self.closed.append(unit)

    def abandon(self, unit: AckGroup) -> None:
        assert not unit.is_closed
        unit.is_closed, unit.outcome = True, AckOutcome.REFUSED
        self.abandoned.append(unit)

    def open_stream(self, listener: Listener, source: EventSource) -> RecordingStream:
        self.streams.append(RecordingStream())
        return self.streams[-1]

    def forget(self, identity: bytes) -> None:
        self.forgotten.append(identity)

    def records_of(self, listener: Listener, source: EventSource) -> tuple[int, int]:
        return sum(group.source.host == source.host for group, _ in self.taken), len(self.taken)

    def blocked_by(self, listener: Listener, topic: str = "") -> bool:
        return self.is_blocked or topic in self.blocked_topics

    def refuse(self, listener: Listener, source: EventSource, reason: RefusedReason, count: int = 1) -> None:
        self.refused[reason] += count

    def note(self, listener: Listener, source: EventSource, oddity: Oddity, count: int = 1) -> None:
        self.oddities[oddity] += count

    def has_topic(self, topic: str) -> bool:
        return topic in self.topics

    def may_write(self, principal: str, source: EventSource, topic: str) -> bool:
        return True

    def topics_of(self, listener: Listener, record: IngestRecord | None = None) -> Iterable[str]:
        return self.routed_topics if self.routed_topics is not None else self.topics

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.clock_ms
