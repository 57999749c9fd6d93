"""The share partitions that this box has, and their snapshots in `__share_group_state`.

Each write is a whole snapshot (Kafka's ShareSnapshot, key version 0) that replaces the one before, so compaction keeps the last one
and a lost answer does no harm: the next snapshot says everything again. One write of a share partition is under way at a time;
acknowledgements that come meanwhile wait for the next one together. Owned by the coordinator. Weak spots: with a window full of
single records in turn acknowledged and not, a snapshot has 40 KB; Kafka's ShareUpdate records are not read.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Annotated, Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.state_log import LoadedRecord, StateLog, partition_of
from appliance.protocol.schema import INT8, INT16, INT32, INT64, STRING, UUID, ArrayOf, Field
from appliance.runtime.timers import Timer, Timers
from services.coordinator.share.share_partition import ShareLimits, SharePartition, StateBatch
from services.coordinator.state.state_format import StateFormat, UnreadableRecord, version_of

OnWritten = Callable[[ErrorCode], None]
WRITE_TIMEOUT_MS: Final = 5_000
WINDOW_RUNS_MAX: Final = 1_000_000
"""Of all share partitions of a box, before nothing more is delivered for the first time: at most 300 MB. What a member that has died had in
hand counts once its lock has ended as one run, so that abandoned groups do not use up what others need."""


class ShareEvent(Enum):
    """What is counted, in records; the value is the label of the counter. REFUSED: acknowledgements, one for each partition of a request."""

    ACQUIRED = "acquired"
    AGAIN = "delivered_again"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    REFUSED = "refused"


OnEvent = Callable[[ShareEvent, int], None]


class ShareKey(NamedTuple):
    """A share partition; the key of its snapshots."""

    group_id: Annotated[str, Field(STRING)]
    topic_id: Annotated[TopicId, Field(UUID)]
    partition: Annotated[int, Field(INT32)]


class SnapshotBatch(NamedTuple):
    """A `StateBatch` as it is stored."""

    first_offset: Annotated[int, Field(INT64)]
    last_offset: Annotated[int, Field(INT64)]
    delivery_state: Annotated[int, Field(INT8)]
    delivery_count: Annotated[int, Field(INT16)]


class ShareSnapshot(NamedTuple):
    """A share partition; epochs as in Kafka, times in ms."""

    snapshot_epoch: Annotated[int, Field(INT32)]
    state_epoch: Annotated[int, Field(INT32)]
    leader_epoch: Annotated[int, Field(INT32)]
    start_offset: Annotated[int, Field(INT64)]
    create_timestamp_ms: Annotated[int, Field(INT64)]
    write_timestamp_ms: Annotated[int, Field(INT64)]
    state_batches: Annotated[tuple[SnapshotBatch, ...], Field(ArrayOf(SnapshotBatch))] = ()


SHARE_SNAPSHOT: Final = StateFormat("ShareSnapshot", 0, ShareKey, ShareSnapshot, flexible_since=0)


class HostedShare:
    """One share partition and its writes."""

    def __init__(self, key: ShareKey, state_partition: int, share: SharePartition, snapshot: ShareSnapshot) -> None:
        """`snapshot`: the last one; its batches are not kept."""
        self.key = key
        self.state_partition = state_partition
        self.share = share
        self.snapshot = snapshot._replace(state_batches=())
        self.window_runs = 0
        """As far as `ShareStates` has counted it."""
        self.is_reading = False
        """A fetch reads records for it; others wait, or they would get the same ones."""
        self.read_again_ms = 0
        self.is_gone = False
        self.is_initialized = True
        self.is_writing = False
        self.last_write = 0
        self.waiting: list[OnWritten] = []
        self.timer: Timer | None = None

    @property
    def next_write(self) -> int:
        """The number of the write that begins next."""
        return self.last_write + 1


def state_partition_of(key: ShareKey, count: int) -> int:
    """Return the partition of `__share_group_state`, by Kafka's hash of "group:topic id:partition"."""
    topic_id = base64.urlsafe_b64encode(key.topic_id).decode().rstrip("=")
    return partition_of(f"{key.group_id}:{topic_id}:{key.partition}", count)


class ShareStates:
    """Implements `state_topic.TopicCoordinator`."""

    def __init__(self, log: StateLog, limits: ShareLimits, timers: Timers, now_ms: Callable[[], int], count_event: OnEvent) -> None:
        """`count_event` is called with what is counted, and how much of it."""
        self._log = log
        self._limits = limits
        self._timers = timers
        self._now_ms = now_ms
        self.count_event = count_event
        self._by_group: dict[str, dict[tuple[TopicId, int], HostedShare]] = {}
        self._loading: dict[int, dict[ShareKey, ShareSnapshot]] = {}
        self._active: set[int] = set()
        self.count = 0
        self._window_runs = 0
        self.partition_count = 0
        self.skipped_records = 0

    @property
    def is_ready(self) -> bool:
        """Whether all partitions of the topic are loaded: a group has share partitions in any of them."""
        return self.partition_count > 0 and len(self._active) == self.partition_count

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def groups(self) -> Iterable[str]:
        return self._by_group.keys()

    def of_group(self, group_id: str) -> dict[tuple[TopicId, int], HostedShare]:
        """Return the share partitions of a group, by topic id and partition."""
        return self._by_group.get(group_id, {})

    def find(self, group_id: str, place: tuple[TopicId, int]) -> HostedShare | None:
        found = self.of_group(group_id).get(place)
        return found if found is not None and found.is_initialized else None

    def __iter__(self) -> Iterator[HostedShare]:
        for shares in self._by_group.values():
            yield from shares.values()

    # ---- changes

    def initialize(self, key: ShareKey, start_offset: int, on_written: OnWritten) -> None:
        """Let delivery begin at `start_offset`, at first or once more; what was in flight is forgotten."""
        now_ms = self._now_ms()
        place = key.topic_id, key.partition
        hosted = self.of_group(key.group_id).get(place)
        if hosted is None:
            share = SharePartition(start_offset, self._limits)
            snapshot = ShareSnapshot(0, 0, 0, start_offset, now_ms, now_ms)
            hosted = self._host(HostedShare(key, state_partition_of(key, self.partition_count), share, snapshot))
            hosted.is_initialized = False
        elif hosted.is_initialized:
            hosted.share = SharePartition(start_offset, self._limits)
            hosted.snapshot = hosted.snapshot._replace(state_epoch=hosted.snapshot.state_epoch + 1)
        found = hosted

        def on_done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                found.is_initialized = True
            elif not found.is_initialized and not found.is_writing and not found.waiting:
                self._forget(found)
            on_written(code)

        self.persist(hosted, on_done)

    def persist(self, hosted: HostedShare, on_written: OnWritten | None = None) -> None:
        """Write a snapshot after the one under way, if there is one."""
        if hosted.is_gone:
            if on_written is not None:
                on_written(ErrorCode.NOT_COORDINATOR)
            return
        if on_written is not None:
            hosted.waiting.append(on_written)
        if not hosted.is_writing:
            self._begin_write(hosted)
        elif on_written is None:
            hosted.waiting.append(_ignore)

    def _begin_write(self, hosted: HostedShare) -> None:
        hosted.is_writing = True
        hosted.last_write += 1
        number, share, waiting, hosted.waiting = hosted.last_write, hosted.share, hosted.waiting, []
        start_offset, batches = share.snapshot()
        hosted.snapshot = hosted.snapshot._replace(
            snapshot_epoch=hosted.snapshot.snapshot_epoch + 1,
            start_offset=start_offset,
            write_timestamp_ms=self._now_ms(),
        )
        written = hosted.snapshot._replace(state_batches=tuple([SnapshotBatch(*batch) for batch in batches]))

        def on_appended(code: ErrorCode) -> None:
            hosted.is_writing = False
            share.end_write(number, code is ErrorCode.NONE)
            for on_written in waiting:
                on_written(code)
            if hosted.waiting and not hosted.is_writing and not hosted.is_gone:
                self._begin_write(hosted)
            self.watch_locks(hosted)

        self._log.append(hosted.state_partition, (SHARE_SNAPSHOT.record(hosted.key, written),), on_appended, timeout_ms=WRITE_TIMEOUT_MS)

    def delete(self, hosted: HostedShare, on_written: OnWritten) -> None:
        """Forget a share partition, in the log too: the tombstone comes behind the write under way, and no other follows."""
        self._forget(hosted)
        self._log.append(hosted.state_partition, (SHARE_SNAPSHOT.record(hosted.key, None),), on_written, timeout_ms=WRITE_TIMEOUT_MS)

    def watch_locks(self, hosted: HostedShare) -> None:
        """After a change: count the window, and end the first lock in time."""
        self._count_window(hosted)
        deadline_ms = hosted.share.next_deadline_ms()
        timer = hosted.timer
        if deadline_ms is None or hosted.is_gone or (timer is not None and timer.is_live and timer.deadline_ms <= deadline_ms):
            return
        if timer is not None and timer.is_live:
            self._timers.cancel(timer)
        hosted.timer = self._timers.schedule(deadline_ms, lambda now_ms: self._on_deadline(hosted, now_ms))

    @property
    def has_room(self) -> bool:
        """Whether windows may grow: each run takes memory, and a part of the snapshot."""
        return self._window_runs < WINDOW_RUNS_MAX

    def _count_window(self, hosted: HostedShare) -> None:
        runs = 0 if hosted.is_gone else hosted.share.runs_max
        self._window_runs += runs - hosted.window_runs
        hosted.window_runs = runs

    def _on_deadline(self, hosted: HostedShare, now_ms: int) -> None:
        if hosted.is_gone:
            return
        expired = hosted.share.expire(now_ms)
        if expired:
            self.count_event(ShareEvent.EXPIRED, expired)
            self.persist(hosted)
        self.watch_locks(hosted)

    def release(self, group_id: str, member_id: str) -> None:
        """A member has gone, and its locks end."""
        for hosted in self.of_group(group_id).values():
            if hosted.share.release(member_id):
                self.persist(hosted)

    def _host(self, hosted: HostedShare) -> HostedShare:
        self._by_group.setdefault(hosted.key.group_id, {})[hosted.key[1:]] = hosted
        self.count += 1
        self._count_window(hosted)
        return hosted

    def _forget(self, hosted: HostedShare) -> None:
        hosted.is_gone = True
        self._count_window(hosted)
        self._timers.cancel(hosted.timer)
        waiting, hosted.waiting = hosted.waiting, []
        for on_written in waiting:
            on_written(ErrorCode.NOT_COORDINATOR)
        shares = self._by_group.get(hosted.key.group_id, {})
        if shares.get(hosted.key[1:]) is hosted:
            del shares[hosted.key[1:]]
            self.count -= 1
            if not shares:
                del self._by_group[hosted.key.group_id]

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
            batches = (StateBatch(*batch) for batch in snapshot.state_batches)
            self._host(HostedShare(key, partition, SharePartition(snapshot.start_offset, self._limits, batches), snapshot))
        self._active.add(partition)

    def unload(self, partition: int, now_ms: int) -> None:
        """Another box leads the partition, or none."""
        self._loading.pop(partition, None)
        self._active.discard(partition)
        for hosted in [hosted for hosted in self if hosted.state_partition == partition]:
            self._forget(hosted)


def _ignore(_code: ErrorCode) -> None:
    """No request waits for this write."""
