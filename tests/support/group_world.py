"""A group coordinator with a log in memory, a clock that only tests move, and clients that remember
their replies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from appliance.base.errors import ErrorCode
from appliance.base.model import ProducerId, TopicId, TopicPartition
from appliance.cluster.state_log import LoadedRecord, OnAppended, ProducerIdentity, StateRecord
from appliance.protocol.group_apis import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from appliance.protocol.group_offset_apis import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopic,
    OffsetFetchGroup,
    OffsetFetchPartitionResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import TxnOffsetCommitPartition, TxnOffsetCommitRequest, TxnOffsetCommitResponse, TxnOffsetCommitTopic
from services.coordinator.groups.group_coordinator import GroupCoordinator
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.ports import GroupSettings, InternalTopic, KnownTopic, NameBound, StreamsOptions

Response = TypeVar("Response")

GROUP = "readers"
CLIENT = ClientIdentity("reader", "/10.0.0.1")
START_MS = 1_000_000
RANGE = JoinGroupProtocol("range", b"")
TOPICS: Mapping[str, int] = {"syslog": 4, "audit": 2}


class Replies(Generic[Response], list[Response]):
    """The reply to one request; never a second one."""

    def __call__(self, response: Response) -> None:
        assert not self, f"a request is answered again: {self[0]}, then {response}"
        self.append(response)

    @property
    def only(self) -> Response:
        assert len(self) == 1, "this request was not answered"
        return self[0]

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(getattr(self.only, "error_code"))  # noqa: B009


class Append(NamedTuple):
    """One that was not answered yet."""

    partition: int
    records: Sequence[StateRecord]
    on_appended: OnAppended
    producer: ProducerIdentity | None


class LogInMemory:
    """`StateLog` whose answers a test gives, and whose content a next incarnation can load."""

    def __init__(self) -> None:
        self.waiting: list[Append] = []
        self.content: dict[int, list[LoadedRecord]] = {}
        self.batches = 0

    def append(
        self, partition: int, records: Sequence[StateRecord], on_appended: OnAppended, *, producer: ProducerIdentity | None = None, timeout_ms: int = 5_000
    ) -> None:
        assert records, "a batch without records"
        self.waiting.append(Append(partition, list(records), on_appended, producer))
        self.batches += 1

    def answer_one(self, error: ErrorCode = ErrorCode.NONE, is_kept: bool | None = None) -> None:
        """The oldest append is done or refused; one that timed out may be kept all the same."""
        append = self.waiting.pop(0)
        if is_kept if is_kept is not None else error is ErrorCode.NONE:
            log = self.content.setdefault(append.partition, [])
            for key, value in append.records:
                log.append(LoadedRecord(len(log), START_MS, key, value, append.producer))
        append.on_appended(error)

    def answer_all(self, error: ErrorCode = ErrorCode.NONE) -> None:
        while self.waiting:
            self.answer_one(error)

    def mark(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """The marker of a transaction."""
        log = self.content.setdefault(partition, [])
        log.append(LoadedRecord(len(log), START_MS, b"", None, ProducerIdentity(ProducerId(producer_id), 0), is_commit))


class OffsetsInZooKeeper:
    """`LegacyOffsets` that answers on order of the test."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self.waiting: list[Callable[[], None]] = []

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], on_committed: Callable[[Mapping[TopicPartition, ErrorCode]], None]) -> None:
        self.offsets.update({(group_id, place): offset for place, offset in offsets.items()})
        self.waiting.append(lambda: on_committed(dict.fromkeys(offsets, ErrorCode.NONE)))

    def fetch(self, group_id: str, partitions: Sequence[TopicPartition], on_fetched: Callable[[Mapping[TopicPartition, int]], None]) -> None:
        found = {place: self.offsets[group_id, place] for place in partitions if (group_id, place) in self.offsets}
        self.waiting.append(lambda: on_fetched(found))

    def answer_all(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class KnownTopics:
    """`Topics`: those in `counts`, and no others. A topic that is made anew has another id."""

    def __init__(self) -> None:
        self.counts = dict(TOPICS)
        self.generation = 1
        self.hidden: dict[str, frozenset[str] | None] = {}
        """Member id → topics that it may not see; None: its principal is not known."""
        self._ids = {name: TopicId(bytes([number] * 16)) for number, name in enumerate(self.counts, 1)}
        self._ids_given = len(self._ids)
        self.timing: dict[str, tuple[int, int]] = {}
        self.options = StreamsOptions(0, 0)
        self.asked: dict[str, InternalTopic] = {}
        self.refuses = ""

    def has_partition(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self.counts.get(topic, 0)

    def find(self, topic: str) -> KnownTopic | None:
        return KnownTopic(self._ids[topic], self.counts[topic]) if topic in self.counts else None

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name in self.counts if self._ids[name] == topic_id), None)

    def consumer_timing(self, group_id: str) -> tuple[int, int]:
        return self.timing.get(group_id, (45_000, 5_000))

    def streams_timing(self, group_id: str) -> tuple[int, int]:
        return self.timing.get(group_id, (45_000, 5_000))

    def streams_options(self, group_id: str) -> StreamsOptions:
        return self.options

    def create_internal(self, group_id: str, member_id: str, missing: Sequence[InternalTopic]) -> str:
        """They come with `create_asked`."""
        self.asked.update({topic.name: topic for topic in missing})
        return self.refuses

    def create_asked(self) -> None:
        for name, topic in self.asked.items():
            self.set_count(name, topic.partitions)
        self.asked.clear()

    def visible(self, _group_id: str, member_id: str, names: frozenset[str]) -> frozenset[str] | None:
        hidden = self.hidden.get(member_id, frozenset())
        return None if hidden is None else names - hidden

    def hide(self, member_id: str, names: frozenset[str] | None) -> None:
        self.generation += 1
        self.hidden[member_id] = names

    def names(self) -> list[str]:
        return list(self.counts)

    def set_count(self, topic: str, count: int) -> None:
        """It appears, grows, or (0) is deleted."""
        self.generation += 1
        if not count:
            self.counts.pop(topic, None)
            return
        if topic not in self.counts:
            self._ids_given += 1
            self._ids[topic] = TopicId(bytes([self._ids_given] * 16))
        self.counts[topic] = count


class World:
    """One coordinator at a time; `now_ms` moves only here."""

    def __init__(self, **settings: Any) -> None:
        self.settings = GroupSettings(**{"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 5, **settings})
        self.log = LogInMemory()
        self.zookeeper = OffsetsInZooKeeper()
        self.topics = KnownTopics()
        self.now_ms = START_MS
        self.ids_given = 0
        self.refused: list[NameBound] = []
        self.coordinator = self.new_coordinator()
        for partition in range(self.settings.offsets_topic_num_partitions):
            self.load(partition)

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.log, self.settings, self.new_member_id, self.topics, self.zookeeper, self.refused.append)

    def new_member_id(self) -> str:
        self.ids_given += 1
        return f"id{self.ids_given}"

    def load(self, partition: int) -> None:
        self.coordinator.begin_load(partition)
        self.coordinator.load(partition, self.log.content.get(partition, ()))
        self.coordinator.finish_load(partition, self.now_ms)

    def restart(self) -> None:
        """The process died: what it had not heard of is lost, and the next one loads the log."""
        self.log.waiting.clear()
        self.coordinator = self.new_coordinator()
        for partition in range(self.settings.offsets_topic_num_partitions):
            self.load(partition)

    def partition(self, group_id: str = GROUP) -> int:
        return self.coordinator.directory.partition_for(group_id)

    # ---- time

    def turn(self) -> None:
        """Everything that is due now."""
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= self.now_ms:
            assert self.coordinator.tick(self.now_ms), "a deadline that is over, and nothing to do"

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The log answers all appends, and those that follow from its answers."""
        self.turn()
        while self.log.waiting:
            self.log.answer_all(error)
            self.turn()

    def pass_ms(self, milliseconds: int, settles: bool = True) -> None:
        """Time goes by, and every deadline on the way is kept."""
        end_ms = self.now_ms + milliseconds
        while True:
            if settles:
                self.settle()
            else:
                self.turn()
            deadline_ms = self.coordinator.next_deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
        self.now_ms = end_ms

    # ---- requests

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 9,
        instance: str | None = None,
        protocols: Sequence[JoinGroupProtocol] = (RANGE,),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        group: str = GROUP,
        client: ClientIdentity = CLIENT,
    ) -> Replies[JoinGroupResponse]:
        told = Replies[JoinGroupResponse]()
        request = JoinGroupRequest(group, session_ms, rebalance_ms, member_id, instance, protocol_type, tuple(protocols))
        self.coordinator.join_group(request, version, client, self.now_ms, told)
        return told

    def join_new(self, **how: Any) -> tuple[str, Replies[JoinGroupResponse]]:
        """A dynamic member that gets its id and joins with it."""
        member_id = self.join(**how).only.member_id
        return member_id, self.join(member_id, **how)

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        group: str = GROUP,
    ) -> Replies[SyncGroupResponse]:
        told = Replies[SyncGroupResponse]()
        given = tuple(SyncGroupAssignment(each, data) for each, data in (assignments or {}).items())
        request = SyncGroupRequest(group, generation_id, member_id, instance, protocol_type, protocol_name, given)
        self.coordinator.sync_group(request, 5, CLIENT, self.now_ms, told)
        return told

    def heartbeat(self, member_id: str, generation_id: int, *, instance: str | None = None, group: str = GROUP) -> ErrorCode:
        told = Replies[HeartbeatResponse]()
        self.coordinator.heartbeat(HeartbeatRequest(group, generation_id, member_id, instance), 4, CLIENT, self.now_ms, told)
        return told.error

    def leave(self, *members: LeavingMember | str, group: str = GROUP) -> LeaveGroupResponse:
        told = Replies[LeaveGroupResponse]()
        leaving = tuple(LeavingMember(each) if isinstance(each, str) else each for each in members)
        self.coordinator.leave_group(LeaveGroupRequest(group, leaving), 5, CLIENT, self.now_ms, told)
        return told.only

    def commit(
        self,
        offsets: Mapping[tuple[str, int], int | OffsetCommitPartition],
        *,
        member_id: str = "",
        generation_id: int = -1,
        instance: str | None = None,
        retention_ms: int = -1,
        version: int = 8,
        group: str = GROUP,
    ) -> Replies[OffsetCommitResponse]:
        told = Replies[OffsetCommitResponse]()
        topics: dict[str, list[OffsetCommitPartition]] = {}
        for (topic, partition), value in offsets.items():
            topics.setdefault(topic, []).append(OffsetCommitPartition(partition, value) if isinstance(value, int) else value)
        given = tuple(OffsetCommitTopic(topic, tuple(partitions)) for topic, partitions in topics.items())
        request = OffsetCommitRequest(group, generation_id, member_id, instance, retention_ms, given)
        self.coordinator.offset_commit(request, version, CLIENT, self.now_ms, told)
        return told

    def txn_commit(
        self, producer_id: int, offsets: Mapping[tuple[str, int], int], *, member_id: str = "", generation_id: int = -1, version: int = 4, group: str = GROUP
    ) -> Replies[TxnOffsetCommitResponse]:
        told = Replies[TxnOffsetCommitResponse]()
        given = tuple(TxnOffsetCommitTopic(topic, (TxnOffsetCommitPartition(partition, offset),)) for (topic, partition), offset in offsets.items())
        request = TxnOffsetCommitRequest("txn", group, ProducerId(producer_id), 0, generation_id, member_id, None, given)
        self.coordinator.txn_offset_commit(request, version, CLIENT, self.now_ms, told)
        return told

    def end_transaction(self, producer_id: int, is_commit: bool, group: str = GROUP) -> None:
        self.log.mark(self.partition(group), producer_id, is_commit)
        self.coordinator.complete_transaction(self.partition(group), ProducerId(producer_id), is_commit)

    def fetch(
        self, partitions: Sequence[tuple[str, int]] | None = None, *, require_stable: bool = False, version: int = 8, group: str = GROUP
    ) -> dict[tuple[str, int], OffsetFetchPartitionResult]:
        """By partition, of a group that may be asked."""
        told = self.fetch_groups(OffsetFetchGroup(group, topics=as_topics(partitions)), require_stable=require_stable, version=version)
        (answer,) = told.only.groups
        assert answer.error_code == ErrorCode.NONE
        return {(topic, each.partition): each for topic, results in answer.topics for each in results}

    def fetch_groups(self, *groups: OffsetFetchGroup, require_stable: bool = False, version: int = 8) -> Replies[OffsetFetchResponse]:
        told = Replies[OffsetFetchResponse]()
        self.coordinator.offset_fetch(OffsetFetchRequest(groups, require_stable), version, CLIENT, self.now_ms, told)
        return told

    def offsets(self, group: str = GROUP) -> dict[tuple[str, int], int]:
        """All that the group has committed."""
        return {place: result.offset for place, result in self.fetch(group=group).items()}

    def delete_offsets(self, *partitions: tuple[str, int], group: str = GROUP) -> Replies[OffsetDeleteResponse]:
        told = Replies[OffsetDeleteResponse]()
        topics = tuple(OffsetDeleteTopic(topic, (OffsetDeletePartition(partition),)) for topic, partition in partitions)
        self.coordinator.offset_delete(OffsetDeleteRequest(group, topics), 0, CLIENT, self.now_ms, told)
        return told

    def delete_groups(self, *groups: str) -> Replies[DeleteGroupsResponse]:
        told = Replies[DeleteGroupsResponse]()
        self.coordinator.delete_groups(DeleteGroupsRequest(groups), 2, CLIENT, self.now_ms, told)
        return told

    def describe(self, group: str = GROUP, version: int = 5) -> DescribedGroup:
        told = Replies[DescribeGroupsResponse]()
        self.coordinator.describe_groups(DescribeGroupsRequest((group,)), version, CLIENT, self.now_ms, told)
        return told.only.groups[0]

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> ListGroupsResponse:
        told = Replies[ListGroupsResponse]()
        self.coordinator.list_groups(ListGroupsRequest(tuple(states), tuple(types)), 5, CLIENT, self.now_ms, told)
        return told.only

    # ---- what most tests begin with

    def stable_group(self, members: int = 2, **how: Any) -> tuple[list[str], int]:
        """Members of a stable group, the leader first, each with its own id as its assignment; and the generation."""
        joined = [self.join_new(**how) for _ in range(members)]
        self.settle()
        waiting = [member_id for member_id, told in joined if not told]
        assert not waiting, f"{waiting} are never answered"
        # The first member's rebalance ended without the others; all members join again until all
        # are in one generation.
        while len({told.only.generation_id for _, told in joined}) > 1:
            joined = [(member_id, self.join(member_id, **how)) for member_id, _ in joined]
            self.settle()
        generation_id = joined[0][1].only.generation_id
        leader_id = joined[0][1].only.group_leader_id
        ids = sorted((member_id for member_id, _ in joined), key=lambda member_id: member_id != leader_id)
        synced = [self.sync(member_id, generation_id, {each: each.encode() for each in ids} if member_id == leader_id else None) for member_id in ids]
        self.settle()
        assert [told.only.assignment for told in synced] == [each.encode() for each in ids]
        return ids, generation_id


def as_topics(partitions: Sequence[tuple[str, int]] | None) -> tuple[TopicPartitions, ...] | None:
    if partitions is None:
        return None
    return tuple(TopicPartitions(topic, (partition,)) for topic, partition in partitions)


def codes(response: OffsetCommitResponse | TxnOffsetCommitResponse | OffsetDeleteResponse) -> dict[tuple[str, int], ErrorCode]:
    """The result of each partition."""
    return {(topic, partition): ErrorCode(code) for topic, results in response.topics for partition, code in results}
