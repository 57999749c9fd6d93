"""Which share partitions each group has: Kafka's ShareGroupStatePartitionMetadata in `__consumer_offsets`.

A group exists while it has members or share partitions. A record names all of a group's whose state is initialized; one write of a group
is under way at a time, and changes that come meanwhile are written together. Owned by the coordinator. Weak spot: a group with very many
share partitions writes all their numbers at each change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.state_log import LoadedRecord, StateLog, StateRecord, partition_of
from appliance.protocol.schema import INT32, STRING, UUID, ArrayOf, Field
from services.coordinator.share.share_states import Place
from services.coordinator.state.state_format import StateFormat, UnreadableRecord
from services.coordinator.state.state_topic import TopicCoordinator

OnWritten = Callable[[ErrorCode], None]
WRITE_TIMEOUT_MS: Final = 3_000


class ShareGroupKey(NamedTuple):
    """A group."""

    group_id: Annotated[str, Field(STRING)]


class InitializedTopic(NamedTuple):
    """Partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()


class DeletingTopic(NamedTuple):
    """Kafka's; none is written here."""

    topic_id: Annotated[TopicId, Field(UUID)]
    topic: Annotated[str, Field(STRING)]


class ShareGroupPartitions(NamedTuple):
    """Share partitions by what is done with their state; only initialized ones are written here."""

    initializing: Annotated[tuple[InitializedTopic, ...], Field(ArrayOf(InitializedTopic))] = ()
    initialized: Annotated[tuple[InitializedTopic, ...], Field(ArrayOf(InitializedTopic))] = ()
    deleting: Annotated[tuple[DeletingTopic, ...], Field(ArrayOf(DeletingTopic))] = ()


SHARE_PARTITIONS: Final = StateFormat("ShareGroupStatePartitionMetadata", 15, ShareGroupKey, ShareGroupPartitions, flexible_since=0)
_KEY_BEGINS: Final = SHARE_PARTITIONS.encode_key(ShareGroupKey(""))[:2]


class _Change(NamedTuple):
    """Share partitions that a group gets and loses."""

    added: Collection[Place]
    removed: Collection[Place]
    on_written: OnWritten


class _GroupPlaces:
    """Those of one group, as the log has them, and the changes that wait."""

    def __init__(self, partition: int, places: dict[Place, None]) -> None:
        self.partition = partition
        self.places = places
        self.waiting: list[_Change] = []
        self.is_writing = False


class ShareGroupPlaces:
    """Of all groups whose partitions of `__consumer_offsets` this box leads and has loaded."""

    def __init__(self, log: StateLog, name_of: Callable[[TopicId], str | None]) -> None:
        self._log = log
        self._name_of = name_of
        self._groups: dict[str, _GroupPlaces] = {}
        self._loading: dict[int, dict[str, dict[Place, None]]] = {}
        self._active: set[int] = set()
        self.on_unload: Callable[[Callable[[str], bool]], None] = lambda _is_gone: None
        """Called with what says whether a group is coordinated elsewhere now."""
        self.partition_count = 0
        self.count = 0
        self.skipped_records = 0

    def names(self) -> Iterable[str]:
        return [group_id for group_id, group in self._groups.items() if group.places]

    def of_group(self, group_id: str) -> Collection[Place]:
        """Return the share partitions of a group."""
        group = self._groups.get(group_id)
        return group.places.keys() if group is not None else ()

    def has(self, group_id: str, place: Place) -> bool:
        return place in self.of_group(group_id)

    def refusal(self, group_id: str) -> ErrorCode:
        """Return why nothing can be said about this group here, or NONE."""
        partition = partition_of(group_id, self.partition_count) if self.partition_count else -1
        if partition in self._active:
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if partition in self._loading else ErrorCode.NOT_COORDINATOR

    def change(self, group_id: str, added: Collection[Place], removed: Collection[Place], on_written: OnWritten) -> None:
        """Write what the group has after this change; `on_written` hears the coordinator's error, or NONE."""
        refusal = self.refusal(group_id)
        if refusal is not ErrorCode.NONE:
            on_written(refusal)
            return
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = _GroupPlaces(partition_of(group_id, self.partition_count), {})
        group.waiting.append(_Change(added, removed, on_written))
        if not group.is_writing:
            self._write(group_id, group)

    def _write(self, group_id: str, group: _GroupPlaces) -> None:
        changes, group.waiting = group.waiting, []
        places = dict(group.places)
        for change in changes:
            places.update(dict.fromkeys(change.added))
            for place in change.removed:
                places.pop(place, None)
        if places == group.places:
            self._end_write(group_id, group, changes, ErrorCode.NONE)
            return
        group.is_writing = True

        def on_appended(code: ErrorCode) -> None:
            group.is_writing = False
            if code is ErrorCode.NONE:
                is_ours = self._groups.get(group_id) is group
                self.count += (len(places) - len(group.places)) if is_ours else 0
                group.places = places
            self._end_write(group_id, group, changes, ErrorCode.NONE if code is ErrorCode.NONE else ErrorCode.COORDINATOR_NOT_AVAILABLE)

        self._log.append(group.partition, (self._record(group_id, places),), on_appended, timeout_ms=WRITE_TIMEOUT_MS)

    def _end_write(self, group_id: str, group: _GroupPlaces, changes: Iterable[_Change], code: ErrorCode) -> None:
        for change in changes:
            change.on_written(code)
        if group.waiting and not group.is_writing:
            self._write(group_id, group)
        elif not group.places and not group.is_writing and self._groups.get(group_id) is group:
            del self._groups[group_id]

    def _record(self, group_id: str, places: Iterable[Place]) -> StateRecord:
        topics: dict[TopicId, list[int]] = {}
        for topic_id, partition in sorted(places):
            topics.setdefault(topic_id, []).append(partition)
        rows = tuple(InitializedTopic(topic_id, self._name_of(topic_id) or "", tuple(numbers)) for topic_id, numbers in topics.items())
        return SHARE_PARTITIONS.record(ShareGroupKey(group_id), ShareGroupPartitions((), rows) if rows else None)

    # ---- partitions of the topic

    @staticmethod
    def is_own(record: LoadedRecord) -> bool:
        """Whether it is one of these records."""
        return record.key.startswith(_KEY_BEGINS)

    def begin_load(self, partition: int) -> None:
        self._loading[partition] = {}

    def load(self, partition: int, record: LoadedRecord) -> None:
        """Keep the last record of each group."""
        try:
            group_id = SHARE_PARTITIONS.decode_key(record.key).group_id
            if record.value is None:
                self._loading[partition].pop(group_id, None)
                return
            value = SHARE_PARTITIONS.decode_value(record.value)
            places = {(topic.topic_id, number): None for topic in value.initialized for number in topic.partitions}
            self._loading[partition][group_id] = places
        except UnreadableRecord:
            self.skipped_records += 1

    def finish_load(self, partition: int) -> None:
        for group_id, places in self._loading.pop(partition, {}).items():
            self._groups[group_id] = _GroupPlaces(partition, places)
            self.count += len(places)
        self._active.add(partition)

    def unload(self, partition: int) -> None:
        """Another box leads the partition, or none."""
        self._loading.pop(partition, None)
        self._active.discard(partition)
        gone = {group_id: group for group_id, group in self._groups.items() if group.partition == partition}
        for group_id, group in gone.items():
            del self._groups[group_id]
            self.count -= len(group.places)
            waiting, group.waiting = group.waiting, []
            for change in waiting:
                change.on_written(ErrorCode.NOT_COORDINATOR)
        count = self.partition_count
        self.on_unload(lambda group_id: not count or partition_of(group_id, count) == partition)


class WithShareGroups:
    """Implements `state_topic.TopicCoordinator` for consumer groups and share groups, whose records are in one topic."""

    def __init__(self, groups: TopicCoordinator, shares: ShareGroupPlaces) -> None:
        self._groups = groups
        self._shares = shares

    @property
    def skipped_records(self) -> int:
        return self._groups.skipped_records + self._shares.skipped_records

    def begin_load(self, partition: int) -> None:
        self._groups.begin_load(partition)
        self._shares.begin_load(partition)

    def load(self, partition: int, records: list[LoadedRecord]) -> None:
        others = [record for record in records if not self._shares.is_own(record)]
        if len(others) < len(records):
            for record in records:
                if self._shares.is_own(record):
                    self._shares.load(partition, record)
        self._groups.load(partition, others)

    def finish_load(self, partition: int, now_ms: int) -> None:
        self._groups.finish_load(partition, now_ms)
        self._shares.finish_load(partition)

    def unload(self, partition: int, now_ms: int) -> None:
        self._groups.unload(partition, now_ms)
        self._shares.unload(partition)
