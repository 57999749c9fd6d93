"""A group coordinator in memory with members of the newer protocol, and clients of both protocols that behave as Kafka's do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol.consumer_group_apis import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from appliance.protocol.group_apis import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroupResponse,
)
from appliance.protocol.schema import struct_codec
from appliance.protocol.topic_partitions import TopicPartitions
from services.coordinator.groups.consumer_member import as_topics, partitions_of
from services.coordinator.groups.consumer_migration import EmbeddedAssignment, EmbeddedSubscription, read_assignment, read_subscription
from services.coordinator.groups.member import ClientIdentity
from tests.support.group_world import CLIENT, GROUP, Replies, World

Places = frozenset[tuple[str, int]]
SYSLOG = ("syslog",)
EVERYTHING: Places = frozenset({("syslog", partition) for partition in range(4)})


class ConsumerWorld(World):
    """`beat` sends any heartbeat; a test that wants a member which keeps the rules takes a
    `NewReader`.
    """

    def beat(
        self,
        member_id: str = "a",
        epoch: int = 0,
        *,
        topics: Sequence[str] | None = None,
        owned: Iterable[tuple[str, int]] | None = None,
        version: int = 1,
        group: str = GROUP,
        client: ClientIdentity = CLIENT,
        **fields: Any,
    ) -> Replies[ConsumerGroupHeartbeatResponse]:
        """A join is complete by itself."""
        if epoch == 0:
            topics, owned = SYSLOG if topics is None and "subscribed_topic_regex" not in fields else topics, () if owned is None else owned
            fields.setdefault("rebalance_timeout_ms", 60_000)
        told = Replies[ConsumerGroupHeartbeatResponse]()
        request = ConsumerGroupHeartbeatRequest(
            group,
            member_id,
            epoch,
            subscribed_topic_names=None if topics is None else tuple(topics),
            topic_partitions=None if owned is None else as_topics(frozenset((self.topic_id(topic), partition) for topic, partition in owned)),
            **fields,
        )
        self.coordinator.consumer_group_heartbeat(request, version, client, self.now_ms, told)
        return told

    def told(self, *args: Any, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """The answer, when the log has answered."""
        told = self.beat(*args, **fields)
        self.settle()
        return told.only

    def heartbeat(self, member_id: str, generation_id: int, *, instance: str | None = None, group: str = GROUP) -> ErrorCode:
        """It waits, where it is the first to see that topics have changed."""
        told = Replies[HeartbeatResponse]()
        self.coordinator.heartbeat(HeartbeatRequest(group, generation_id, member_id, instance), 4, CLIENT, self.now_ms, told)
        if not told:
            self.settle()
        return told.error

    def leave_all(self, *members: LeavingMember) -> Replies[LeaveGroupResponse]:
        """LeaveGroup, which is answered when the log has it."""
        told = Replies[LeaveGroupResponse]()
        self.coordinator.leave_group(LeaveGroupRequest(GROUP, members), 5, CLIENT, self.now_ms, told)
        return told

    def topic_id(self, topic: str) -> TopicId:
        found = self.topics.find(topic)
        assert found is not None
        return found.topic_id

    def places(self, response: ConsumerGroupHeartbeatResponse) -> Places:
        """What the member is to read; topics that are gone are left out."""
        assert response.assignment is not None
        named = ((self.topics.name_of(topic_id), partition) for topic_id, partition in partitions_of(response.assignment.topic_partitions))
        return frozenset((name, partition) for name, partition in named if name is not None)

    def describe_consumer(self, group: str = GROUP) -> DescribedConsumerGroup:
        told = Replies[ConsumerGroupDescribeResponse]()
        self.coordinator.consumer_group_describe(ConsumerGroupDescribeRequest((group,)), 1, CLIENT, self.now_ms, told)
        return told.only.groups[0]

    def run(self, *readers: Reader, rounds: int = 40) -> None:
        """Members send requests in turn until no answer changes anything."""
        quiet_rounds = 0
        for _ in range(rounds):
            before = [reader.holds for reader in readers]
            for reader in readers:
                reader.step()
            is_quiet = before == [reader.holds for reader in readers] and self.is_quiet() and not any(reader.is_joining for reader in readers)
            quiet_rounds = quiet_rounds + 1 if is_quiet else 0
            if quiet_rounds == 2:
                return
        raise AssertionError(f"not settled after {rounds} rounds")

    def is_quiet(self) -> bool:
        hosted = self.coordinator.directory.find(GROUP)
        return hosted is None or hosted.membership.state_name in ("Stable", "Empty")


class Reader:
    """A client of either protocol; `holds` is what it reads now."""

    def __init__(self, world: ConsumerWorld) -> None:
        self.world = world
        self.holds: Places = frozenset()

    @property
    def is_joining(self) -> bool:
        return False

    def step(self) -> None:
        raise NotImplementedError


class NewReader(Reader):
    """Speaks the newer protocol. Reads its assignment until it receives another one."""

    def __init__(self, world: ConsumerWorld, member_id: str, topics: Sequence[str] = SYSLOG, **fields: Any) -> None:
        super().__init__(world)
        self.member_id = member_id
        self.topics = tuple(topics)
        self.fields = fields
        self.epoch = 0
        self.said: Places | None = None
        self.waiting: Replies[ConsumerGroupHeartbeatResponse] | None = None

    def ask(self) -> None:
        """It says what it holds when that has changed since it said so; and everything when it joins, or was not answered."""
        if self.epoch == 0:
            self.holds = frozenset()
            self.waiting = self.world.beat(self.member_id, topics=self.topics, **self.fields)
        elif self.said is None:
            everything = {"rebalance_timeout_ms": 60_000, **self.fields}
            self.waiting = self.world.beat(self.member_id, self.epoch, topics=self.topics, owned=self.holds, **everything)
        else:
            owned = self.holds if self.said != self.holds else None
            instance = {"instance_id": self.fields["instance_id"]} if "instance_id" in self.fields else {}
            self.waiting = self.world.beat(self.member_id, self.epoch, owned=owned, **instance)
        self.said = self.holds

    def look(self) -> None:
        """Take in the answer, if there is one."""
        if not self.waiting:
            return
        response, self.waiting = self.waiting.only, None
        if response.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.holds, self.said = 0, frozenset(), None
        elif response.error_code:
            self.said = None  # it asks again with everything
        else:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.holds = self.world.places(response)

    def step(self) -> None:
        self.ask()
        self.world.settle()
        self.look()

    def lose_answer(self) -> None:
        self.waiting = self.said = None

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        instance = {"instance_id": self.fields["instance_id"]} if "instance_id" in self.fields else {}
        self.holds, self.epoch, self.said = frozenset(), 0, None
        return self.world.told(self.member_id, epoch, **instance)


def subscription(topics: Sequence[str] = SYSLOG, owned: Iterable[tuple[str, int]] = (), version: int = 1) -> bytes:
    """As a consumer of the classic protocol says it."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(owned):
        by_topic.setdefault(topic, []).append(partition)
    value = EmbeddedSubscription(tuple(topics), None, tuple(TopicPartitions(topic, tuple(each)) for topic, each in by_topic.items()))
    return version.to_bytes(2, "big") + struct_codec(EmbeddedSubscription, version, flexible=False).write(value)


def assignment(places: Iterable[tuple[str, int]]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    value = EmbeddedAssignment(tuple(TopicPartitions(topic, tuple(each)) for topic, each in by_topic.items()))
    return (1).to_bytes(2, "big") + struct_codec(EmbeddedAssignment, 0, flexible=False).write(value)


def assigned_places(data: bytes) -> Places:
    value = read_assignment(data)
    assert value is not None
    return frozenset((topic, partition) for topic, partitions in value.topics for partition in partitions)


def _said(metadata: bytes) -> EmbeddedSubscription:
    said = read_subscription(metadata)
    assert said is not None
    return said


class ClassicReader(Reader):
    """Speaks the classic protocol with a cooperative assignor; assigns round, if it leads."""

    def __init__(self, world: ConsumerWorld, topics: Sequence[str] = SYSLOG) -> None:
        super().__init__(world)
        self.topics = tuple(topics)
        self.member_id = ""
        self.generation_id = -1
        self.must_join = True
        self.joining: Replies[JoinGroupResponse] | None = None
        self.syncing: Replies[SyncGroupResponse] | None = None

    @property
    def is_joining(self) -> bool:
        return self.must_join or self.joining is not None or self.syncing is not None

    def protocols(self) -> tuple[JoinGroupProtocol, ...]:
        return (JoinGroupProtocol("cooperative-sticky", subscription(self.topics, self.holds)),)

    def step(self) -> None:
        """One request, or a look at the answer to the last one."""
        self.world.settle()
        if self.joining is not None:
            self._look_at_join()
        elif self.syncing is not None:
            self._look_at_sync()
        elif self.must_join:
            self.joining = self.world.join(self.member_id, protocols=self.protocols())
        else:
            self._heartbeat()
        self.world.settle()

    def _look_at_join(self) -> None:
        if not self.joining:
            return
        response, self.joining = self.joining.only, None
        match response.error_code:
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
            case ErrorCode.NONE:
                self.member_id, self.generation_id, self.must_join = response.member_id, response.generation_id, False
                given = self._round(response) if response.group_leader_id == self.member_id else None
                self.syncing = self.world.sync(self.member_id, self.generation_id, given, protocol_type="consumer", protocol_name=response.protocol_name)
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                self._lose()

    def _round(self, response: JoinGroupResponse) -> Mapping[str, bytes]:
        """No member gets a partition that another has not revoked (KIP-429)."""
        said = {member.member_id: _said(member.metadata) for member in sorted(response.members)}
        held = {member_id: frozenset((topic, each) for topic, partitions in one.owned for each in partitions) for member_id, one in said.items()}
        given: dict[str, set[tuple[str, int]]] = {member_id: set() for member_id in said}
        for topic in {topic for one in said.values() for topic in one.topics}:
            member_ids = [member_id for member_id, one in said.items() if topic in one.topics]
            for partition in range(self.world.topics.counts.get(topic, 0)):
                taker = member_ids[partition % len(member_ids)]
                if not any((topic, partition) in held[other] for other in said if other != taker):
                    given[taker].add((topic, partition))
        return {member_id: assignment(places) for member_id, places in given.items()}

    def _look_at_sync(self) -> None:
        if not self.syncing:
            return
        response, self.syncing = self.syncing.only, None
        match response.error_code:
            case ErrorCode.NONE:
                given = assigned_places(response.assignment)
                self.must_join = bool(self.holds - given)  # what it gives up it says by joining again
                self.holds = given
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION | ErrorCode.FENCED_INSTANCE_ID:
                self._lose()
            case _:
                self.must_join = True

    def _heartbeat(self) -> None:
        match self.world.heartbeat(self.member_id, self.generation_id):
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.must_join = True
            case ErrorCode.ILLEGAL_GENERATION:
                self.holds, self.must_join, self.generation_id = frozenset(), True, -1
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                self._lose()

    def lose_answer(self) -> None:
        self.must_join = self.is_joining
        self.joining = self.syncing = None

    def leave(self) -> None:
        if self.member_id:
            self.world.leave_all(LeavingMember(self.member_id))
        self._lose()

    def _lose(self) -> None:
        self.holds, self.must_join, self.member_id, self.generation_id = frozenset(), True, "", -1
