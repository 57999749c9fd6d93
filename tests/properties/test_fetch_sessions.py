"""The rules of fetch sessions against a model that keeps everything in one list and looks through all of it each time (KIP-227)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol.fetch import FetchPartition, FetchPartitionResult, ForgottenPartition
from services.acceptor.fetch.fetch_session import EPOCH_MAX, EVICTION_MS, FetchSession, FetchSessions, SessionPartition

SLOTS = 4
PARTITIONS_MAX = 14
SESSION_PARTITIONS_MAX = 5
IDS = {"a": TopicId(b"a" * 16), "b": TopicId(b"b" * 16)}

PARTITIONS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=6, unique=True)
OUTCOME = st.tuples(st.sampled_from([0, 0, 0, 6]), st.integers(0, 2), st.integers(0, 1), st.booleans())
"""error code, high watermark, log start offset, whether there are records"""


class Model:
    """One session, as the KIP describes it."""

    def __init__(self, session_id: int, privileged: bool, by_id: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.privileged = privileged
        self.by_id = by_id
        self.created_ms = self.used_ms = now_ms
        self.session_epoch = 1
        self.partitions: list[tuple[str, int]] = []
        """in the order in which they are read"""
        self.offsets: dict[tuple[str, int], int] = {}
        self.told: dict[tuple[str, int], tuple[int, int]] = {}
        self.counted = 0


class FetchSessionMachine(RuleBasedStateMachine):
    """Whatever clients ask, in whatever order and at whatever times, `FetchSessions` answers as the model does."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.ids = 0
        self.created = 0
        self.released: list[SessionPartition] = []
        self.closed: list[int] = []
        self.sessions = FetchSessions(SLOTS, self._new_id, self.released.append, self._on_close, PARTITIONS_MAX, SESSION_PARTITIONS_MAX)
        self.models: list[Model] = []

    def _on_close(self, session: FetchSession) -> None:
        assert not session.partitions and not session.awake, "its partitions know it: no cycle may be left"
        self.closed.append(session.session_id)

    def _new_id(self) -> int:
        """Chance may give 0, or an id that is taken."""
        self.ids += 1
        return 0 if self.ids % 7 == 0 else 1 if self.ids % 11 == 0 else self.ids

    def _wanted(self, names: list[tuple[str, int]], by_id: bool, offset: int = 0) -> list[FetchPartition]:
        return [FetchPartition("" if by_id else name, IDS[name] if by_id else NO_TOPIC_ID, partition, -1, offset, -1, -1, 100) for name, partition in names]

    def _results(self, names: list[tuple[str, int]], outcomes: list[tuple[int, int, int, bool]]) -> list[FetchPartitionResult]:
        results = []
        for number, (name, partition) in enumerate(names):
            error_code, high_watermark, log_start_offset, has_records = outcomes[number % len(outcomes)] if outcomes else (0, 0, 0, False)
            if error_code:
                results.append(FetchPartitionResult(name, IDS[name], partition, error_code))
            else:
                records = b"records" if has_records else None
                results.append(FetchPartitionResult(name, IDS[name], partition, 0, high_watermark, high_watermark, log_start_offset, records))
        return results

    @rule(milliseconds=st.sampled_from([1, 1000, EVICTION_MS, EVICTION_MS + 1]))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(names=PARTITIONS, outcomes=st.lists(OUTCOME, max_size=5), privileged=st.booleans(), by_id=st.booleans())
    def create(self, names: list[tuple[str, int]], outcomes: list[tuple[int, int, int, bool]], privileged: bool, by_id: bool) -> None:
        results = self._results(names, outcomes)
        created = self.sessions.maybe_create(self._wanted(names, by_id), results, privileged, by_id, 0, self.now_ms)
        has_room = self._evict(len(names), privileged)
        assert (created is not None) == has_room
        if created is None:
            return
        self.created += 1
        assert created.session_id > 0 and all(created.session_id != model.session_id for model in self.models)
        model = Model(created.session_id, privileged, by_id, self.now_ms)
        model.partitions = list(names)
        model.offsets = dict.fromkeys(names, 0)
        model.told = {name: (result.high_watermark, result.log_start_offset) for name, result in zip(names, results, strict=True)}
        model.counted = len(names)
        self.models.append(model)

    def _evict(self, size: int, privileged: bool) -> bool:
        def stale() -> Model | None:
            return self.models[0] if self.models and self.now_ms - self.models[0].used_ms > EVICTION_MS else None

        if size > SESSION_PARTITIONS_MAX:
            return False
        while sum(model.counted for model in self.models) + size > PARTITIONS_MAX:
            oldest = stale()
            if oldest is None:
                return False
            self.models.remove(oldest)
        if len(self.models) < SLOTS:
            return True
        victim = stale()
        if victim is None:
            # An old session, or one that is not privileged and faces one that is, goes for one that is worth more.
            victims = [model for model in self.models if model.used_ms - model.created_ms > EVICTION_MS or (privileged and not model.privileged)]
            victim = min(victims, key=lambda model: (model.privileged, model.counted, model.session_id), default=None)
            if victim is None or (victim.privileged, victim.counted) >= (privileged, size):
                return False
        self.models.remove(victim)
        return True

    @rule(
        number=st.integers(0, 5),
        names=PARTITIONS,
        gone=PARTITIONS,
        offset=st.integers(0, 3),
        epoch_error=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        other_kind=st.sampled_from([False] * 6 + [True]),
        outcomes=st.lists(OUTCOME, min_size=1, max_size=6),
        answered=st.booleans(),
    )
    def go_on(
        self,
        number: int,
        names: list[tuple[str, int]],
        gone: list[tuple[str, int]],
        offset: int,
        epoch_error: int,
        other_kind: bool,
        outcomes: list[tuple[int, int, int, bool]],
        answered: bool,
    ) -> None:
        model = self.models[number] if number < len(self.models) else None
        session_id = model.session_id if model else 10_000
        session_epoch = (model.session_epoch if model else 1) + epoch_error
        by_id = (model.by_id if model else False) != other_kind
        forgotten = [ForgottenPartition("" if by_id else name, IDS[name] if by_id else NO_TOPIC_ID, partition) for name, partition in gone]
        found = self.sessions.continued(session_id, session_epoch, self._wanted(names, by_id, offset), forgotten, by_id, 0, self.now_ms)
        if model is None:
            assert found == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return
        if epoch_error:
            assert found == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return
        if other_kind:
            assert found == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
            return
        for name in names:
            if name not in model.partitions:
                model.partitions.append(name)
                model.told[name] = (-1, -1)
            model.offsets[name] = offset
        model.partitions = [name for name in model.partitions if name not in gone]
        everywhere = sum(other.counted for other in self.models if other is not model) + len(model.partitions)
        if everywhere > PARTITIONS_MAX or len(model.partitions) > SESSION_PARTITIONS_MAX:
            assert found == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self.models.remove(model)
            return
        assert isinstance(found, FetchSession)
        assert found.closed == (not model.partitions)
        if not model.partitions:
            self.models.remove(model)
            return
        model.session_epoch = 1 if session_epoch == EPOCH_MAX else session_epoch + 1
        model.used_ms = self.now_ms
        self.models.remove(model)
        self.models.append(model)  # the last used session is the last entry
        model.counted = len(model.partitions)
        self._read(found, model, outcomes, answered)

    def _read(self, session: FetchSession, model: Model, outcomes: list[tuple[int, int, int, bool]], answered: bool) -> None:
        """Everything is awake here, so all are read, in order; what must be sent is sent."""
        session.wake_all()
        partitions = session.awake_in_order()
        results = self._results([(self._name(partition), partition.wanted.partition) for partition in partitions], outcomes)
        assert [(result.topic, result.partition) for result in results] == model.partitions
        assert [partition.wanted.fetch_offset for partition in partitions] == [model.offsets[name] for name in model.partitions]
        news = [(partition, result) for partition, result in zip(partitions, results, strict=True) if partition.must_report(result)]
        expected = [
            (result.topic, result.partition)
            for result in results
            if result.error_code or result.records or (result.high_watermark, result.log_start_offset) != model.told[result.topic, result.partition]
        ]
        assert [(result.topic, result.partition) for _, result in news] == expected
        if not answered:
            return
        for partition, result in news:
            partition.on_reported(result)
            name = (result.topic, result.partition)
            model.told[name] = (-1 if result.error_code else result.high_watermark, result.log_start_offset)
            if result.records:
                model.partitions.remove(name)
                model.partitions.append(name)

    @staticmethod
    def _name(partition: SessionPartition) -> str:
        return partition.wanted.topic or next(name for name, topic_id in IDS.items() if topic_id == partition.wanted.topic_id)

    @rule(number=st.integers(0, 5))
    def wrap(self, number: int) -> None:
        """Two thousand million fetches later."""
        if number < len(self.models):
            self.models[number].session_epoch = EPOCH_MAX
            self._held()[self.models[number].session_id].expected_epoch = EPOCH_MAX

    @rule(number=st.integers(0, 5))
    def close(self, number: int) -> None:
        model = self.models.pop(number) if number < len(self.models) else None
        self.sessions.close(model.session_id if model else 10_000)

    def _held(self) -> dict[int, Any]:
        return self.sessions.by_id

    @invariant()
    def the_counts_match(self) -> None:
        held = self._held()
        assert sorted(held) == sorted(model.session_id for model in self.models)
        assert len(held) <= SLOTS
        assert self.sessions.partition_count == sum(model.counted for model in self.models) <= PARTITIONS_MAX
        ranks = sorted(session.ranked_for_all for session in held.values() if session.ranked_for_all)
        assert self.sessions.evictable_by_all == ranks
        assert self.sessions.evictable_by_privileged == sorted(session.ranked_for_privileged for session in held.values() if session.ranked_for_privileged)
        assert len(self.closed) == self.created - len(held)
        assert len({id(partition) for partition in self.released}) == len(self.released), "a partition leaves once"
        assert all(partition.session.closed or partition.session.partitions.get(partition.key) is not partition for partition in self.released)


TestFetchSessions = FetchSessionMachine.TestCase
TestFetchSessions.settings = settings(max_examples=max(60, settings().max_examples), stateful_step_count=40, deadline=None)
