"""Streams groups as records of `__consumer_offsets` (Kafka's keys 17 and 19 to 23), and back.

As `consumer_records.py`: `changed_records` is the difference of two states, so the log never differs from memory. Owns nothing. Weak spots: the
hash of a group's topics is not Kafka's, which computes it again; configs of the last assignment that are not known here are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple

from appliance.cluster.state_log import LoadedRecord, StateRecord
from appliance.protocol.schema import INT8, INT32, INT64, STRING, ArrayOf, Field
from appliance.protocol.streams_apis import Endpoint, KeyValue, TaskIds, Topology
from services.coordinator.groups.consumer_member import MemberState
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.state.state_format import StateFormat, version_of
from services.coordinator.streams.streams_group import FIRST_EPOCH, StreamsGroup
from services.coordinator.streams.streams_member import CurrentTasks, StreamsMember, StreamsWish, Task, Tasks, TaskSet, as_rows, tasks_of

STANDBYS: Final = "num.standby.replicas"


class StreamsGroupKey(NamedTuple):
    """A group."""

    group_id: Annotated[str, Field(STRING)]


class StreamsMemberKey(NamedTuple):
    """A member of a group."""

    group_id: Annotated[str, Field(STRING)]
    member_id: Annotated[str, Field(STRING)]


class StreamsGroupMetadataValue(NamedTuple):
    """The group's epoch, and what it was made for."""

    epoch: Annotated[int, Field(INT32)]
    metadata_hash: Annotated[int, Field(INT64)] = 0
    validated_topology_epoch: Annotated[int, Field(INT32, tag=0)] = -1
    last_assignment_configs: Annotated[tuple[KeyValue, ...] | None, Field(ArrayOf(KeyValue), nullable_since=0, tag=1)] = None


class StreamsGroupMemberMetadataValue(NamedTuple):
    """What a member said of itself."""

    instance_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rack_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    client_id: Annotated[str, Field(STRING)] = ""
    client_host: Annotated[str, Field(STRING)] = ""
    rebalance_timeout_ms: Annotated[int, Field(INT32)] = -1
    topology_epoch: Annotated[int, Field(INT32)] = -1
    process_id: Annotated[str, Field(STRING)] = ""
    user_endpoint: Annotated[Endpoint | None, Field(Endpoint, nullable_since=0)] = None
    client_tags: Annotated[tuple[KeyValue, ...], Field(ArrayOf(KeyValue))] = ()


class StreamsGroupTargetAssignmentMetadataValue(NamedTuple):
    """The group epoch that the target was made for, and when (since Kafka 4.3)."""

    assignment_epoch: Annotated[int, Field(INT32)]
    assignment_timestamp_ms: Annotated[int, Field(INT64, tag=0)] = 0


class StreamsGroupTargetAssignmentMemberValue(NamedTuple):
    """What one member is to have in the end."""

    active_tasks: Annotated[tuple[TaskIds, ...], Field(ArrayOf(TaskIds))] = ()
    standby_tasks: Annotated[tuple[TaskIds, ...], Field(ArrayOf(TaskIds))] = ()
    warmup_tasks: Annotated[tuple[TaskIds, ...], Field(ArrayOf(TaskIds))] = ()


class TaskIdsSince(NamedTuple):
    """Tasks of one subtopology; of active ones the epochs in which the member got them."""

    subtopology_id: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()
    assignment_epochs: Annotated[tuple[int, ...] | None, Field(ArrayOf(INT32), nullable_since=0, tag=0)] = None


_Rows = tuple[TaskIdsSince, ...]


class StreamsGroupCurrentMemberAssignmentValue(NamedTuple):
    """What one member has, and what it is to give up."""

    member_epoch: Annotated[int, Field(INT32)]
    previous_member_epoch: Annotated[int, Field(INT32)] = 0
    state: Annotated[int, Field(INT8)] = 0
    active_tasks: Annotated[_Rows, Field(ArrayOf(TaskIdsSince))] = ()
    standby_tasks: Annotated[_Rows, Field(ArrayOf(TaskIdsSince))] = ()
    warmup_tasks: Annotated[_Rows, Field(ArrayOf(TaskIdsSince))] = ()
    revoked_active_tasks: Annotated[_Rows, Field(ArrayOf(TaskIdsSince))] = ()
    revoked_standby_tasks: Annotated[_Rows, Field(ArrayOf(TaskIdsSince))] = ()
    revoked_warmup_tasks: Annotated[_Rows, Field(ArrayOf(TaskIdsSince))] = ()


METADATA: Final = StateFormat("StreamsGroupMetadata", 17, StreamsGroupKey, StreamsGroupMetadataValue, flexible_since=0)
MEMBER: Final = StateFormat("StreamsGroupMemberMetadata", 19, StreamsMemberKey, StreamsGroupMemberMetadataValue, flexible_since=0)
TARGET: Final = StateFormat("StreamsGroupTargetAssignmentMetadata", 20, StreamsGroupKey, StreamsGroupTargetAssignmentMetadataValue, flexible_since=0)
MEMBER_TARGET: Final = StateFormat("StreamsGroupTargetAssignmentMember", 21, StreamsMemberKey, StreamsGroupTargetAssignmentMemberValue, flexible_since=0)
MEMBER_CURRENT: Final = StateFormat("StreamsGroupCurrentMemberAssignment", 22, StreamsMemberKey, StreamsGroupCurrentMemberAssignmentValue, flexible_since=0)
TOPOLOGY: Final = StateFormat("StreamsGroupTopology", 23, StreamsGroupKey, Topology, flexible_since=0)

FORMATS: Final[tuple[StateFormat[Any, Any], ...]] = (METADATA, MEMBER, TARGET, MEMBER_TARGET, MEMBER_CURRENT, TOPOLOGY)
_BY_KEY_VERSION: Final = {kind.key_version: kind for kind in FORMATS}
_OF_MEMBERS: Final = (MEMBER_CURRENT, MEMBER_TARGET, MEMBER)
_OF_GROUPS: Final = (TARGET, TOPOLOGY, METADATA)


# ---- differences


def changed_records(group_id: str, before: StreamsGroup, after: StreamsGroup) -> list[StateRecord]:
    """Return the records that change the log from `before` to `after`."""
    records: list[StateRecord] = []
    key = StreamsGroupKey(group_id)
    for member_id in before.members.keys() - after.members.keys():
        records += [kind.record(StreamsMemberKey(group_id, member_id), None) for kind in _OF_MEMBERS]
    changed = [member for member_id, member in after.members.items() if before.members.get(member_id) is not member]
    for member in changed:
        known = before.members.get(member.member_id)
        if known is None or known.wish != member.wish:
            records.append(_member_record(group_id, member))
    if before.topology != after.topology and after.topology is not None:
        records.append(TOPOLOGY.record(key, after.topology))
    metadata = _metadata(after)
    if _metadata(before) != metadata:
        records.append(METADATA.record(key, metadata))
    if before.targets is not after.targets:
        for member_id, target in after.targets.items():
            if before.targets.get(member_id) != target:
                value = StreamsGroupTargetAssignmentMemberValue(*map(as_rows, target))
                records.append(MEMBER_TARGET.record(StreamsMemberKey(group_id, member_id), value))
    if before.target_epoch != after.target_epoch:
        records.append(TARGET.record(key, StreamsGroupTargetAssignmentMetadataValue(after.target_epoch, after.assigned_ms)))
    moved = [member for member in changed if member.member_id not in before.members or before.members[member.member_id].current != member.current]
    # What a member loses precedes what another one gains.
    moved.sort(key=lambda member: member.member_id not in before.members or not before.members[member.member_id].current.assigned - member.current.assigned)
    records += [MEMBER_CURRENT.record(StreamsMemberKey(group_id, member.member_id), _current_value(member.current)) for member in moved]
    return records


def all_tombstones(group_id: str, states: Iterable[StreamsGroup]) -> list[StateRecord]:
    """What takes the group out of a log that is in one of `states`."""
    member_ids: dict[str, None] = {}
    was_written = False
    for state in states:
        member_ids.update(dict.fromkeys(state.members))
        was_written |= state.group_epoch > FIRST_EPOCH or bool(state.members)
    records = [kind.record(StreamsMemberKey(group_id, member_id), None) for member_id in member_ids for kind in _OF_MEMBERS]
    return records + ([kind.record(StreamsGroupKey(group_id), None) for kind in _OF_GROUPS] if was_written else [])


def _metadata(group: StreamsGroup) -> StreamsGroupMetadataValue:
    configs = (KeyValue(STANDBYS, str(group.standby_count)),)
    return StreamsGroupMetadataValue(group.group_epoch, group.topics_hash, group.validated_epoch, configs if group.group_epoch > FIRST_EPOCH else None)


def _member_record(group_id: str, member: StreamsMember) -> StateRecord:
    wish = member.wish
    value = StreamsGroupMemberMetadataValue(
        None, wish.rack_id, *wish.client, wish.rebalance_timeout_ms, wish.topology_epoch, wish.process_id, wish.endpoint, wish.tags
    )
    return MEMBER.record(StreamsMemberKey(group_id, member.member_id), value)


def _current_value(current: CurrentTasks) -> StreamsGroupCurrentMemberAssignmentValue:
    rows = []
    for tasks in (current.assigned, current.revoking):
        rows.append(_rows_since(tasks.active, current.since))
        rows += [_rows_since(tasks.standby, None), _rows_since(tasks.warmup, None)]
    return StreamsGroupCurrentMemberAssignmentValue(current.epoch, current.previous_epoch, current.state, *rows)


def _rows_since(tasks: Tasks, since: Mapping[Task, int] | None) -> _Rows:
    return tuple(
        TaskIdsSince(name, partitions, None if since is None else tuple(since.get((name, partition), 0) for partition in partitions))
        for name, partitions in as_rows(tasks)
    )


# ---- back


class _LoadedGroup:
    """The last value of every key so far."""

    def __init__(self) -> None:
        self.metadata: StreamsGroupMetadataValue | None = None
        self.target: StreamsGroupTargetAssignmentMetadataValue | None = None
        self.topology: Topology | None = None
        self.members: dict[str, StreamsGroupMemberMetadataValue] = {}
        self.targets: dict[str, StreamsGroupTargetAssignmentMemberValue] = {}
        self.currents: dict[str, StreamsGroupCurrentMemberAssignmentValue] = {}


class StreamsLoad:
    """What was read of one partition."""

    def __init__(self) -> None:
        self._groups: dict[str, _LoadedGroup] = {}

    def load(self, record: LoadedRecord) -> bool:
        """Whether it is a record of a streams group; `UnreadableRecord` if it is one that cannot be read."""
        kind = _BY_KEY_VERSION.get(version_of(record.key))
        if kind is None:
            return False
        key = kind.decode_key(record.key)
        value: Any = None if record.value is None else kind.decode_value(record.value)
        group = self._groups.setdefault(key.group_id, _LoadedGroup())
        if kind is METADATA:
            group.metadata = value
        elif kind is TARGET:
            group.target = value
        elif kind is TOPOLOGY:
            group.topology = value
        else:
            of_kind: dict[str, Any] = group.members if kind is MEMBER else group.targets if kind is MEMBER_TARGET else group.currents
            if value is None:
                of_kind.pop(key.member_id, None)
            else:
                of_kind[key.member_id] = value
        return True

    def forget(self, group_id: str) -> None:
        """A record of a classic group of this name stands behind what was loaded."""
        self._groups.pop(group_id, None)

    def groups(self) -> dict[str, StreamsGroup]:
        """Those that there are."""
        return {group_id: _restored(loaded, loaded.metadata) for group_id, loaded in self._groups.items() if loaded.metadata is not None}


def _restored(loaded: _LoadedGroup, metadata: StreamsGroupMetadataValue) -> StreamsGroup:
    """Members with what they have; an active task that two members have is the first one's."""
    group = StreamsGroup()
    group.group_epoch, group.topics_hash, group.validated_epoch = metadata.epoch, metadata.metadata_hash, metadata.validated_topology_epoch
    group.standby_count = _standby_count(metadata.last_assignment_configs)
    group.topology = loaded.topology
    if loaded.target is not None:
        group.target_epoch, group.assigned_ms = loaded.target.assignment_epoch, loaded.target.assignment_timestamp_ms
    taken: set[Task] = set()
    for member_id, value in loaded.members.items():
        client = ClientIdentity(value.client_id, value.client_host)
        wish = StreamsWish(value.rack_id, client, value.rebalance_timeout_ms, value.topology_epoch, value.process_id, value.user_endpoint, value.client_tags)
        current = _restored_current(loaded.currents.get(member_id))
        others = TaskSet(frozenset(taken & (current.assigned.active | current.revoking.active)))
        current = current._replace(assigned=current.assigned - others, revoking=current.revoking - others)
        taken |= current.assigned.active | current.revoking.active
        group.put(StreamsMember(member_id, wish, current))
    group.targets = {
        member_id: TaskSet(*map(tasks_of, (value.active_tasks, value.standby_tasks, value.warmup_tasks)))
        for member_id, value in loaded.targets.items()
        if member_id in group.members
    }
    return group


def _standby_count(configs: Iterable[KeyValue] | None) -> int:
    text = next((config.value for config in configs or () if config.key == STANDBYS), "0")
    return int(text) if text.isdecimal() and len(text) < len("1000") else 0


def _restored_current(value: StreamsGroupCurrentMemberAssignmentValue | None) -> CurrentTasks:
    """States of a later release are UNKNOWN."""
    if value is None:
        return CurrentTasks()
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN
    assigned = TaskSet(*(tasks_of((row.subtopology_id, row.partitions) for row in rows) for rows in value[3:6]))  # type: ignore[misc]
    revoking = TaskSet(*(tasks_of((row.subtopology_id, row.partitions) for row in rows) for rows in value[6:9]))  # type: ignore[misc]
    since = {}
    for row in (*value.active_tasks, *value.revoked_active_tasks):
        epochs = row.assignment_epochs or ()
        if len(epochs) != len(row.partitions):
            epochs = (value.member_epoch,) * len(row.partitions)
        since.update({(row.subtopology_id, partition): epoch for partition, epoch in zip(row.partitions, epochs, strict=True)})
    return CurrentTasks(value.member_epoch, value.previous_member_epoch, state, assigned, revoking - assigned, since)
