"""The share coordinator: the states of the share partitions whose partitions of `__share_group_state` this box leads.

Each record is a whole snapshot (Kafka's ShareSnapshot, key version 0) that replaces the one before, so compaction keeps the last one.
A write says all that the leader of the partition knows, and is *joined* with the last snapshot: start offset and delivery counts only
grow, and what is done stays done. So a write that is repeated, late, or of an unknown outcome does no harm. A read raises the leader
epoch in the log, which refuses every later write of an earlier leader, and shows that no other box coordinates; a new state epoch, with
which an administrator sets a start offset, refuses writes of what was before. Changes of a share partition are made one after the other.
Owned by the coordinator. Weak spots: with a window full of single records in turn acknowledged and not, a snapshot has 40 KB; Kafka's
ShareUpdate records are not read.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.state_log import LoadedRecord, StateLog, StateRecord, partition_of
from appliance.protocol import share_state_apis as apis
from appliance.protocol.schema import INT32, INT64, STRING, UUID, ArrayOf, Field
from appliance.protocol.share_state_apis import KeptBatch
from services.coordinator.share.share_partition import TERMINAL
from services.coordinator.state.state_format import StateFormat, UnreadableRecord, version_of

Place = tuple[TopicId, int]
"""A partition by its topic's id."""
WRITE_TIMEOUT_MS: Final = 5_000
INT32_MAX: Final = (1 << 31) - 1
_ELSEWHERE: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class ShareKey(NamedTuple):
    """A share partition; the key of its snapshots."""

    group_id: Annotated[str, Field(STRING)]
    topic_id: Annotated[TopicId, Field(UUID)]
    partition: Annotated[int, Field(INT32)]


class ShareSnapshot(NamedTuple):
    """A share partition; epochs as in Kafka, times in ms."""

    snapshot_epoch: Annotated[int, Field(INT32)]
    state_epoch: Annotated[int, Field(INT32)]
    leader_epoch: Annotated[int, Field(INT32)]
    start_offset: Annotated[int, Field(INT64)]
    create_timestamp_ms: Annotated[int, Field(INT64)]
    write_timestamp_ms: Annotated[int, Field(INT64)]
    state_batches: Annotated[tuple[KeptBatch, ...], Field(ArrayOf(KeptBatch))] = ()


SHARE_SNAPSHOT: Final = StateFormat("ShareSnapshot", 0, ShareKey, ShareSnapshot, flexible_since=0)


class _Next(NamedTuple):
    """What a change makes of a state: a snapshot, None to delete it. Without `must_write` it stays as it is."""

    code: ErrorCode
    snapshot: ShareSnapshot | None
    must_write: bool = True


_Plan = Callable[[ShareSnapshot | None], _Next]
_OnDone = Callable[[ErrorCode, ShareSnapshot | None], None]


class _State:
    """One share partition: its last snapshot in the log, and the changes that wait."""

    __slots__ = ("is_writing", "key", "snapshot", "state_partition", "waiting")

    def __init__(self, key: ShareKey, state_partition: int, snapshot: ShareSnapshot | None) -> None:
        self.key = key
        self.state_partition = state_partition
        self.snapshot = snapshot
        self.waiting: deque[tuple[_Plan, _OnDone]] = deque()
        self.is_writing = False


def state_partition_of(key: ShareKey, count: int) -> int:
    """Return the partition of `__share_group_state`, by Kafka's hash of "group:topic id:partition"."""
    topic_id = base64.urlsafe_b64encode(key.topic_id).decode().rstrip("=")
    return partition_of(f"{key.group_id}:{topic_id}:{key.partition}", count)


def _rank(batch: KeptBatch) -> tuple[bool, int, int]:
    return batch.delivery_state in TERMINAL, batch.delivery_count, batch.delivery_state


def joined(start_offset: int, first: Sequence[KeptBatch], second: Sequence[KeptBatch]) -> tuple[int, tuple[KeptBatch, ...]]:
    """Return start offset and batches of what two ascending lists of batches know of the offsets from `start_offset` on.

    At each offset what is done goes before what is not, then the larger delivery count. Batches that are done leave the beginning.
    """
    out: list[KeptBatch] = []
    rest = deque(first), deque(second)
    position = start_offset
    while True:
        for batches in rest:
            while batches and batches[0].last_offset < position:
                batches.popleft()
        heads = [batches[0] for batches in rest if batches]
        if not heads:
            break
        position = max(position, min(batch.first_offset for batch in heads))
        covering = [batch for batch in heads if batch.first_offset <= position]
        end = min([batch.last_offset for batch in covering] + [batch.first_offset - 1 for batch in heads if batch.first_offset > position])
        best = max(covering, key=_rank)._replace(first_offset=position, last_offset=end)
        if not out and best.delivery_state in TERMINAL and position == start_offset:
            start_offset = end + 1
        elif out and out[-1].last_offset + 1 == position and out[-1][2:] == best[2:]:
            out[-1] = out[-1]._replace(last_offset=end)
        else:
            out.append(best)
        position = end + 1
    return start_offset, tuple(out)


class ShareStates:
    """Implements `state_topic.TopicCoordinator`; each request is answered once, now or later."""

    def __init__(self, log: StateLog, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._states: dict[ShareKey, _State] = {}
        self._loading: dict[int, dict[ShareKey, ShareSnapshot]] = {}
        self._active: set[int] = set()
        self.partition_count = 0
        self.skipped_records = 0

    def refusal(self, key: ShareKey) -> ErrorCode:
        """Return why nothing can be said about this share partition here, or NONE."""
        partition = state_partition_of(key, self.partition_count) if self.partition_count else -1
        if partition in self._active:
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if partition in self._loading else ErrorCode.NOT_COORDINATOR

    # ---- requests

    def initialize(self, request: apis.InitializeShareGroupStateRequest, reply: Callable[[apis.StateResponse], None]) -> None:
        """Make states, or begin anew with a larger state epoch."""

        def plan(part: apis.InitializedState, snapshot: ShareSnapshot | None) -> _Next:
            now_ms = self._now_ms()
            if snapshot is None:  # the state epoch is none that the share partition had before it was deleted
                return _Next(ErrorCode.NONE, ShareSnapshot(0, part.state_epoch or now_ms // 100 & INT32_MAX, -1, part.start_offset, now_ms, now_ms))
            is_repeated = (part.state_epoch, part.start_offset, ()) == (snapshot.state_epoch, snapshot.start_offset, snapshot.state_batches)
            if not part.state_epoch or is_repeated:
                return _Next(ErrorCode.NONE, snapshot, must_write=False)
            if part.state_epoch <= snapshot.state_epoch:
                return _Next(ErrorCode.FENCED_STATE_EPOCH, snapshot, must_write=False)
            return _Next(ErrorCode.NONE, snapshot._replace(state_epoch=part.state_epoch, start_offset=part.start_offset, state_batches=()))

        self._change_each(request, plan, reply, _changed)

    def read(self, request: apis.ReadShareGroupStateRequest, reply: Callable[[apis.ReadShareGroupStateResponse], None]) -> None:
        """Let the broker that asks be the leader, and return the states."""

        def plan(part: apis.ReadState, snapshot: ShareSnapshot | None) -> _Next:
            if snapshot is None:
                return _Next(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, must_write=False)
            if part.leader_epoch < snapshot.leader_epoch:
                return _Next(ErrorCode.FENCED_LEADER_EPOCH, snapshot, must_write=False)
            return _Next(ErrorCode.NONE, snapshot._replace(leader_epoch=part.leader_epoch))

        def result(part: apis.ReadState, code: ErrorCode, snapshot: ShareSnapshot | None) -> apis.ReadStateResult:
            if code is not ErrorCode.NONE or snapshot is None:
                return apis.ReadStateResult(part.partition, code)
            return apis.ReadStateResult(part.partition, code, None, snapshot.state_epoch, snapshot.start_offset, snapshot.state_batches)

        answer = partial(_answer, apis.ReadShareGroupStateResponse, apis.TopicReadResults, result)
        self._change_each(request, plan, reply, answer)

    def write(self, request: apis.WriteShareGroupStateRequest, reply: Callable[[apis.StateResponse], None]) -> None:
        """Join what a leader knows with what is known."""

        def plan(part: apis.WrittenState, snapshot: ShareSnapshot | None) -> _Next:
            if snapshot is None:
                return _Next(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, must_write=False)
            if part.state_epoch != snapshot.state_epoch:
                return _Next(ErrorCode.FENCED_STATE_EPOCH, snapshot, must_write=False)
            if part.leader_epoch < snapshot.leader_epoch:
                return _Next(ErrorCode.FENCED_LEADER_EPOCH, snapshot, must_write=False)
            start_offset, batches = joined(max(part.start_offset, snapshot.start_offset), snapshot.state_batches, part.state_batches)
            return _Next(ErrorCode.NONE, snapshot._replace(leader_epoch=part.leader_epoch, start_offset=start_offset, state_batches=batches))

        self._change_each(request, plan, reply, _changed)

    def delete(self, request: apis.DeleteShareGroupStateRequest, reply: Callable[[apis.StateResponse], None]) -> None:
        """Forget states; what is not there is deleted."""

        def plan(part: apis.DeletedState, snapshot: ShareSnapshot | None) -> _Next:
            return _Next(ErrorCode.NONE, None, must_write=snapshot is not None)

        self._change_each(request, plan, reply, _changed)

    def summarize(self, request: apis.ReadShareGroupStateRequest, reply: Callable[[apis.ReadShareGroupStateSummaryResponse], None]) -> None:
        """Return epochs and start offsets as they are known here."""

        def result(part: apis.ReadState, code: ErrorCode, snapshot: ShareSnapshot | None) -> apis.StateSummary:
            if code is not ErrorCode.NONE or snapshot is None:
                return apis.StateSummary(part.partition, code)
            done = sum(batch.last_offset - batch.first_offset + 1 for batch in snapshot.state_batches if batch.delivery_state in TERMINAL)
            return apis.StateSummary(part.partition, code, None, snapshot.state_epoch, snapshot.leader_epoch, snapshot.start_offset, done)

        def plan(part: apis.ReadState, snapshot: ShareSnapshot | None) -> _Next:
            return _Next(ErrorCode.NONE if snapshot is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, snapshot, must_write=False)

        self._change_each(request, plan, reply, partial(_answer, apis.ReadShareGroupStateSummaryResponse, apis.TopicStateSummaries, result))

    def _change_each(self, request: Any, plan: Callable[[Any, ShareSnapshot | None], _Next], reply: Callable[[Any], None], answer: Any) -> None:
        """Change each share partition of a request, and answer when all are done."""
        done: dict[int, tuple[ErrorCode, ShareSnapshot | None]] = {}
        parts = [(topic.topic_id, part) for topic in request.topics for part in topic.partitions]

        def on_done(index: int, code: ErrorCode, snapshot: ShareSnapshot | None) -> None:
            done[index] = code, snapshot
            if len(done) == len(parts):
                reply(answer(request, [(part, *done[number]) for number, (_, part) in enumerate(parts)]))

        if not parts:
            reply(answer(request, []))
        for index, (topic_id, part) in enumerate(parts):
            self._change(ShareKey(request.group_id, topic_id, part.partition), partial(plan, part), partial(on_done, index))

    # ---- changes, one after the other

    def _change(self, key: ShareKey, plan: _Plan, on_done: _OnDone) -> None:
        refusal = self.refusal(key)
        if refusal is not ErrorCode.NONE:
            on_done(refusal, None)
            return
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(key, state_partition_of(key, self.partition_count), None)
        state.waiting.append((plan, on_done))
        if not state.is_writing:
            self._work(state)

    def _work(self, state: _State) -> None:
        while state.waiting and not state.is_writing:
            plan, on_done = state.waiting.popleft()
            planned = plan(state.snapshot)
            if planned.must_write:
                self._write(state, planned.snapshot, on_done)
            else:
                on_done(planned.code, planned.snapshot)
        if state.snapshot is None and not state.is_writing and self._states.get(state.key) is state:
            del self._states[state.key]

    def _write(self, state: _State, snapshot: ShareSnapshot | None, on_done: _OnDone) -> None:
        state.is_writing = True
        if snapshot is not None:
            snapshot = snapshot._replace(snapshot_epoch=snapshot.snapshot_epoch + 1 & INT32_MAX, write_timestamp_ms=self._now_ms())

        def on_appended(code: ErrorCode) -> None:
            state.is_writing = False
            if code is ErrorCode.NONE:
                state.snapshot = snapshot
            on_done(code if code is ErrorCode.NONE else _coordinator_error(code), snapshot)
            self._work(state)

        record: StateRecord = SHARE_SNAPSHOT.record(state.key, snapshot)
        self._log.append(state.state_partition, (record,), on_appended, timeout_ms=WRITE_TIMEOUT_MS)

    # ---- partitions of the topic

    def begin_load(self, partition: int) -> None:
        """This box leads the partition; it is not ready before `finish_load`."""
        self._loading[partition] = {}

    def load(self, partition: int, records: Iterable[LoadedRecord]) -> None:
        """Keep the last snapshot of each key."""
        loading = self._loading[partition]
        for record in records:
            try:
                if version_of(record.key) != SHARE_SNAPSHOT.key_version:
                    raise UnreadableRecord("not a snapshot")
                key = SHARE_SNAPSHOT.decode_key(record.key)
                if record.value is None:
                    loading.pop(key, None)
                else:
                    loading[key] = SHARE_SNAPSHOT.decode_value(record.value)
            except UnreadableRecord:
                self.skipped_records += 1

    def finish_load(self, partition: int, now_ms: int) -> None:
        """All that is below the high watermark was loaded."""
        for key, snapshot in self._loading.pop(partition).items():
            self._states[key] = _State(key, partition, snapshot)
        self._active.add(partition)

    def unload(self, partition: int, now_ms: int) -> None:
        """Another box leads the partition, or none."""
        self._loading.pop(partition, None)
        self._active.discard(partition)
        for state in [state for state in self._states.values() if state.state_partition == partition]:
            del self._states[state.key]
            waiting, state.waiting = state.waiting, deque()
            for _, on_done in waiting:
                on_done(ErrorCode.NOT_COORDINATOR, None)


def _coordinator_error(code: ErrorCode) -> ErrorCode:
    """Return what a refused append means: a log that is led elsewhere is a coordinator that is elsewhere."""
    return ErrorCode.NOT_COORDINATOR if code in _ELSEWHERE else ErrorCode.COORDINATOR_NOT_AVAILABLE


def _answer(
    response: type[Any],
    topic_type: type[Any],
    result: Callable[[Any, ErrorCode, ShareSnapshot | None], Any],
    request: Any,
    done: Sequence[tuple[Any, ErrorCode, ShareSnapshot | None]],
) -> Any:
    """Return a response with one result for each share partition of the request, in its order."""
    results = iter([result(*each) for each in done])
    return response(tuple(topic_type(topic.topic_id, tuple(next(results) for _ in topic.partitions)) for topic in request.topics))


_changed: Final = partial(_answer, apis.StateResponse, apis.TopicStateResults, lambda part, code, _snapshot: apis.StateResult(part.partition, code))
