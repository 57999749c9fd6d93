"""Share groups on a log in memory: members, sessions, acknowledgements that the log refuses, locks that end, a coordinator that dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol import share_apis as apis
from appliance.protocol import share_state_apis as apis_of_states
from appliance.protocol.share_state_apis import KeptBatch, ReadStateResult
from appliance.protocol.topic_partitions import TopicIdPartitions
from appliance.runtime.timers import Timers
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.ports import NAME_COST, KnownTopic
from services.coordinator.share.share_group_records import ShareGroupPlaces
from services.coordinator.share.share_groups import (
    NAME_CHARACTERS_MAX,
    NEW_A_HEARTBEAT,
    SUBSCRIPTION_CHARACTERS_MAX,
    ShareGroups,
    ShareSettings,
    simple_targets,
)
from services.coordinator.share.share_leaders import LogBounds, ShareEvent, ShareLeaders
from services.coordinator.share.share_offsets import OnEnds, ShareOffsets
from services.coordinator.share.share_partition import ACCEPT, RELEASE, RENEW, ShareLimits
from services.coordinator.share.share_persister import TIMEOUT_MS, SharePersister
from services.coordinator.share.share_sessions import LEAVE_MS, OnRead, ReadBatch, ShareAsker, SharedRead, ShareRange, ShareSessions
from services.coordinator.share.share_states import SHARE_SNAPSHOT, Place, ShareKey, ShareSnapshot, ShareStates, state_partition_of
from tests.support.group_world import LogInMemory, Replies

TOPIC = TopicId(b"t" * 16)
CLIENT = ClientIdentity("worker", "/10.0.0.1")
LOCK_MS = 1_000
STATE_PARTITIONS = 3


class PromptReads(SharePersister):
    """The log has at once what a read appends; all other appends wait for the test."""

    log: LogInMemory

    def read(self, key: ShareKey, leader_epoch: int, on_done: Callable[[ReadStateResult], None], timeout_ms: int = TIMEOUT_MS) -> None:
        before = len(self.log.waiting)
        super().read(key, leader_epoch, on_done, timeout_ms)
        if len(self.log.waiting) > before:
            self.log.waiting.insert(0, self.log.waiting.pop())
            self.log.answer_one()


class World:
    """One box: a topic `jobs` with two partitions, batches of two records, and logs that answer when a test says so."""

    broker_id = 1

    def __init__(self, former: World | None = None, sessions_max: int = 3, limit: int = 2, lock_ms: int = LOCK_MS) -> None:
        self.log = former.log if former is not None else LogInMemory()
        self.groups_log = former.groups_log if former is not None else LogInMemory()
        self.now_ms = 1_000_000
        self.high_watermark = 6
        self.leader_epoch = 0
        self.problem = ErrorCode.NONE
        self.generation = 1
        self.can_read = True
        self.has_lease = True
        self.timers = Timers()
        settings = ShareSettings(group_share_max_size=2, group_share_max_share_sessions=sessions_max)
        self.of_group = ShareLimits(limit, lock_ms, 100)
        self.last_stable_offset: int | None = None
        """Of a group with read_committed."""
        self.events: Counter[ShareEvent] = Counter()
        self.states = ShareStates(self.log, lambda: self.now_ms)
        self.places = ShareGroupPlaces(self.groups_log, self.name_of)
        for topic in (self.states, self.places):
            topic.partition_count = STATE_PARTITIONS
        for partition in range(STATE_PARTITIONS):
            self.states.begin_load(partition)
            self.states.load(partition, self.log.content.get(partition, ()))
            self.states.finish_load(partition, self.now_ms)
            self.places.begin_load(partition)
            for record in self.groups_log.content.get(partition, ()):
                self.places.load(partition, record)
            self.places.finish_load(partition)
        persister = PromptReads(self.states, self, cast(Any, None), self.timers, lambda: self.now_ms)
        persister.log = self.log
        self.leaders = ShareLeaders(persister, self, self.timers, lambda: self.now_ms, lambda event, count: self.events.update({event: count}))
        self.sessions = ShareSessions(settings, self.leaders, self, lambda: self.now_ms)
        self.groups = ShareGroups(settings, self.places, persister, self, self.timers, self.sessions.on_member_gone)
        self.offsets = ShareOffsets(self.groups, self.places, persister, self, self)
        self.offsets.on_begun_anew = self.leaders.forget_group

    def state_leaders(self) -> tuple[int, ...]:
        return (self.broker_id,) * STATE_PARTITIONS

    def ends(self, places: Collection[Place], on_ends: OnEnds) -> None:
        on_ends(dict.fromkeys(places, self.high_watermark))

    def settle(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Answer all appends, and those that follow them."""
        while self.log.waiting or self.groups_log.waiting:
            self.log.answer_all(code)
            self.groups_log.answer_all(code)

    # ---- `SharedTopics` and `SharedLogs`

    def find(self, topic: str) -> KnownTopic | None:
        return KnownTopic(TOPIC, 2) if topic == "jobs" else None

    def name_of(self, topic_id: TopicId) -> str | None:
        return "jobs" if topic_id == TOPIC else None

    def refusal(self, group_id: str) -> tuple[ErrorCode, str | None]:
        return (ErrorCode.GROUP_ID_NOT_FOUND if group_id == "readers" else ErrorCode.NONE), None

    def first_offset(self, group_id: str, bounds: LogBounds) -> int:
        return bounds.log_start_offset

    def bounds(self, topic_id: TopicId, partition: int) -> LogBounds:
        if self.problem is not ErrorCode.NONE:
            return LogBounds(self.problem)
        if topic_id != TOPIC or partition > 1:
            return LogBounds(ErrorCode.UNKNOWN_TOPIC_ID if topic_id != TOPIC else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return LogBounds(ErrorCode.NONE, 0, self.high_watermark, self.leader_epoch, self.last_stable_offset or 0)

    def is_certain(self, topic_id: TopicId) -> bool:
        return self.has_lease

    def is_named(self, topic_id: TopicId, partition: int) -> bool:
        return self.problem is not ErrorCode.NONE

    def timing(self, group_id: str) -> tuple[int, int]:
        return 45_000, 5_000

    def limits(self, group_id: str) -> ShareLimits:
        return self.of_group

    def is_committed(self, group_id: str) -> bool:
        return self.last_stable_offset is not None

    def read(self, wanted: ShareRange, on_read: OnRead) -> bool:
        """Batches have two records and two bytes."""
        offset, end_offset = wanted.offset, self.high_watermark if self.last_stable_offset is None else self.last_stable_offset
        if self.can_read:
            batches = [ReadBatch(base, base + 1, at, at + 2, False) for at, base in zip(range(0, 99, 2), range(offset & ~1, end_offset, 2), strict=False)]
            on_read(SharedRead(bytes(range(offset & ~1, end_offset)), batches, end_offset))
        return self.can_read

    # ---- requests

    def heartbeat(self, member_id: str = "m", member_epoch: int = 0, topics: tuple[str, ...] | None = ("jobs",), group: str = "workers") -> Replies[Any]:
        replies: Replies[Any] = Replies()
        self.groups.heartbeat(apis.ShareGroupHeartbeatRequest(group, member_id, member_epoch, None, topics), CLIENT, self.now_ms, replies)
        return replies

    def join(self, member_id: str = "m") -> Any:
        replies = self.heartbeat(member_id)
        self.settle()
        return replies.only

    def fetch(self, epoch: int, *batches: tuple[int, int, tuple[int, ...]], member_id: str = "m", partition: int = 0, **fields: Any) -> Replies[Any]:
        part = apis.SharePartitionRequest(partition, tuple(apis.AcknowledgementBatch(*each) for each in batches))
        request = apis.ShareFetchRequest("workers", member_id, epoch, max_records=100, topics=(apis.ShareTopicRequest(TOPIC, (part,)),))
        replies: Replies[Any] = Replies()
        self.sessions.fetch(request._replace(**fields), 2, self.now_ms, replies)
        return replies

    def acknowledge(self, epoch: int, *batches: tuple[int, int, tuple[int, ...]], member_id: str = "m", renews: bool = False) -> Replies[Any]:
        part = apis.SharePartitionRequest(0, tuple(apis.AcknowledgementBatch(*each) for each in batches))
        replies: Replies[Any] = Replies()
        request = apis.ShareAcknowledgeRequest("workers", member_id, epoch, renews, (apis.ShareTopicRequest(TOPIC, (part,)),))
        self.sessions.acknowledge(request, 2, self.now_ms, replies)
        return replies

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.timers.fire_due(self.now_ms, 1_000)
        self.sessions.work(self.now_ms)


def acquired(replies: Replies[Any]) -> list[tuple[int, int, int]]:
    return [tuple(each) for topic in replies.only.topics for part in topic.partitions for each in part.acquired]


def code_of(replies: Replies[Any]) -> int:
    (topic,) = replies.only.topics
    return int(topic.partitions[0].error_code)


def test_a_coordinator_without_memory_adds_nothing_and_serves_what_it_has() -> None:
    world = World()
    epoch = world.join("m").member_epoch
    world.groups.may_grow = lambda growth: growth <= 0
    for added in (world.heartbeat("other"), world.heartbeat("m", group="others"), world.heartbeat("m", epoch, ("jobs", "more"))):
        assert added.only.error_code == ErrorCode.POLICY_VIOLATION and "coordinator.heap.bytes" in added.only.error_message
    assert world.groups.names() == {"workers"}
    assert world.heartbeat("m", epoch, None).only.error_code == world.heartbeat("m", 0).only.error_code == ErrorCode.NONE
    assert world.groups.room("workers")[0] == ErrorCode.POLICY_VIOLATION
    assert world.heartbeat("m", -1, None).only.error_code == ErrorCode.NONE


def test_a_member_gets_its_partitions_when_their_start_is_in_the_log() -> None:
    world = World()
    replies = world.heartbeat()
    assert not replies
    world.settle()
    assert replies.only.assignment.topic_partitions == (TopicIdPartitions(TOPIC, (0, 1)),)
    assert world.heartbeat(member_epoch=replies.only.member_epoch).only.assignment is None


def test_what_a_heartbeat_may_not_say() -> None:
    world = World()
    assert world.heartbeat(member_epoch=3).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(topics=None).error == ErrorCode.INVALID_REQUEST
    assert world.heartbeat(group="readers").error == ErrorCode.GROUP_ID_NOT_FOUND
    world.join("a"), world.join("b")
    assert world.heartbeat("c").error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.heartbeat("a", member_epoch=9).error == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.heartbeat("a", member_epoch=-1).only.member_epoch == -1
    assert world.heartbeat("a", member_epoch=1).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_every_member_and_every_partition_has_another() -> None:
    places = {"jobs": ((TOPIC, 0), (TOPIC, 1))}
    three = simple_targets(dict.fromkeys("abc", ("jobs",)), places)
    assert [len(three[member]) for member in "abc"] == [1, 1, 1] and three["a"] != three["b"]
    assert simple_targets({"a": ("jobs",)}, places) == {"a": frozenset(places["jobs"])}


class Unsearched(tuple[str, ...]):
    """The topics of a subscription, in which nothing looks for one: there may be a hundred thousand."""

    def __contains__(self, _topic: object) -> bool:
        raise AssertionError("a subscription was searched")


def test_an_assignment_looks_once_at_each_name_of_a_subscription() -> None:
    places = {f"jobs{number}": ((TOPIC, number),) for number in range(3)}
    targets = simple_targets({"a": Unsearched(("absent", "jobs0", "jobs2")), "b": Unsearched(("jobs1",))}, places)
    assert targets == {"a": frozenset({(TOPIC, 0), (TOPIC, 2)}), "b": frozenset({(TOPIC, 1)})}


def test_many_short_names_are_as_much_as_a_few_long_ones() -> None:
    """A heartbeat with 100,000 names held the coordinator for seconds."""
    world = World()
    world.join()
    names = tuple(f"{number:04x}" for number in range(SUBSCRIPTION_CHARACTERS_MAX // (4 + NAME_COST) + 1))
    assert world.heartbeat(topics=names).error == ErrorCode.INVALID_REQUEST
    assert world.heartbeat(topics=names[1:]).only.error_code == ErrorCode.NONE


def test_a_record_is_acknowledged_when_the_log_has_it() -> None:
    world = World()
    world.join()
    assert acquired(world.fetch(0)) == [(0, 5, 1)]
    replies = world.acknowledge(1, (0, 5, (ACCEPT,)))
    assert not replies
    world.settle()
    assert code_of(replies) == ErrorCode.NONE
    assert acquired(world.fetch(2)) == []


def test_an_acknowledgement_that_the_log_refuses_leaves_the_records_to_the_member() -> None:
    world = World(lock_ms=60_000)
    world.join()
    world.fetch(0)
    refused = world.acknowledge(1, (0, 5, (ACCEPT,)))
    for _ in range(TIMEOUT_MS // 50):
        assert not refused, "an error that passes"
        world.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        world.wait(50)
    assert code_of(refused) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = world.acknowledge(2, (0, 5, (ACCEPT,)))
    world.settle()
    assert code_of(again) == ErrorCode.NONE


def test_a_lock_ends_unless_it_is_renewed_and_after_the_last_delivery_no_member_gets_the_record() -> None:
    world = World()
    world.join("a"), world.join("b")
    assert acquired(world.fetch(0, member_id="a", max_records=2)) == [(0, 1, 1)]
    world.wait(LOCK_MS - 1)
    assert code_of(world.acknowledge(1, (0, 0, (RENEW,)), member_id="a", renews=True)) == ErrorCode.NONE
    assert code_of(world.acknowledge(2, (0, 0, (RENEW,)), member_id="a")) == ErrorCode.INVALID_REQUEST
    world.wait(1)
    assert acquired(world.fetch(0, member_id="b", max_records=1)) == [(1, 1, 2)]
    assert code_of(world.acknowledge(1, (0, 0, (ACCEPT,)), member_id="b")) == ErrorCode.INVALID_RECORD_STATE
    world.wait(LOCK_MS)  # both locks are over; the record 1 was delivered as often as the limit says
    world.settle()
    assert acquired(world.fetch(2, member_id="b", max_records=1)) == [(0, 0, 2)]
    assert world.events == {ShareEvent.ACQUIRED: 4, ShareEvent.AGAIN: 2, ShareEvent.EXPIRED: 3, ShareEvent.REFUSED: 2}


def test_the_next_incarnation_delivers_what_was_not_acknowledged() -> None:
    world = World()
    world.join()
    world.fetch(0)
    world.acknowledge(1, (1, 2, (ACCEPT,)), (4, 4, (RELEASE,)))
    world.settle()
    after = World(world)
    assert after.heartbeat(member_epoch=1).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert after.fetch(1).error == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert acquired(after.fetch(0)) == [(0, 0, 2), (3, 5, 2)]


def test_the_end_of_a_session_releases_its_records_and_so_does_the_end_of_its_member() -> None:
    world = World(limit=5)
    world.join("a"), world.join("b")
    world.fetch(0, member_id="a")
    world.fetch(-1, member_id="a")
    assert acquired(world.fetch(0, member_id="b")) == [(0, 5, 2)]
    world.heartbeat("b", member_epoch=-1)
    world.wait(LEAVE_MS)
    assert acquired(world.fetch(0, member_id="a")) == [(0, 5, 3)]


def test_a_member_that_has_left_acknowledges_what_it_has_in_hand() -> None:
    """librdkafka sends the heartbeat that leaves and the last acknowledgements at once, by two connections."""
    world = World()
    world.join()
    assert acquired(world.fetch(0))
    world.heartbeat(member_epoch=-1)
    answer = world.acknowledge(-1, (0, 5, (1,)))
    world.settle()
    assert answer.only.topics[0].partitions[0].error_code == ErrorCode.NONE
    world.join("n")
    world.high_watermark = 8
    assert acquired(world.fetch(0, member_id="n")) == [(6, 7, 1)]


def test_what_a_member_that_has_left_does_not_acknowledge_is_for_others_after_a_moment() -> None:
    world = World()
    world.join()
    assert acquired(world.fetch(0))
    parked = world.fetch(1, max_wait_ms=60_000)
    world.heartbeat(member_epoch=-1)
    world.high_watermark = 8
    world.wait(1)
    assert not acquired(parked), "nothing is acquired for it any more"
    world.join("n")
    world.wait(LEAVE_MS)
    assert acquired(world.fetch(0, member_id="n")) == [(0, 5, 2), (6, 7, 1)]
    assert world.acknowledge(-1, (0, 5, (1,))).only.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_sessions_are_numbered_and_bounded() -> None:
    world = World(sessions_max=1)
    world.join()
    assert world.acknowledge(0).error == ErrorCode.SHARE_SESSION_NOT_FOUND
    world.fetch(0)
    assert world.fetch(2).error == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert world.fetch(0, member_id="another").error == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert world.fetch(0, group_id=None).error == ErrorCode.INVALID_REQUEST


def test_a_fetch_without_records_waits_for_them() -> None:
    world = World()
    world.join()
    world.high_watermark = 0
    replies = world.fetch(0, max_wait_ms=500)
    world.wait(100)
    assert not replies
    world.high_watermark = 2
    world.wait(100)
    assert acquired(replies) == [(0, 1, 1)] and replies.only.topics[0].partitions[0].records == bytes((0, 1))
    due = world.fetch(1, max_wait_ms=500)
    world.wait(500)
    assert acquired(due) == []


def test_a_fetch_that_could_not_be_read_is_tried_again() -> None:
    world = World()
    world.join()
    world.can_read = False
    replies = world.fetch(0, max_wait_ms=500)
    world.can_read = True
    world.wait(99)
    assert not replies
    world.wait(1)
    assert acquired(replies) == [(0, 5, 1)]


def test_without_a_lease_the_share_coordinator_confirms_the_leader_before_each_delivery() -> None:
    world = World()
    world.join()
    world.has_lease = False
    assert acquired(world.fetch(0, max_records=1)) == [(0, 1, 1)]
    later = apis_of_states.ReadShareGroupStateRequest("workers", (apis_of_states.TopicReadStates(TOPIC, (apis_of_states.ReadState(0, 9),)),))
    world.states.read(later, lambda _response: None)  # another box leads, and this one has not heard of it
    world.settle()
    parked = world.fetch(1, max_wait_ms=500)
    world.wait(100)
    assert code_of(parked) == ErrorCode.NOT_LEADER_OR_FOLLOWER and acquired(parked) == []


def test_a_leader_in_another_epoch_delivers_what_was_not_acknowledged() -> None:
    world = World(lock_ms=60_000)
    world.join()
    assert acquired(world.fetch(0)) == [(0, 5, 1)]
    world.acknowledge(1, (0, 1, (ACCEPT,)))
    world.settle()
    world.problem = ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.leaders.refresh(), world.leaders.work()
    assert world.leaders.find("workers", (TOPIC, 0)) is not None, "its log-writer restarts"
    world.problem = ErrorCode.NONE
    world.leader_epoch += 1
    world.leaders.refresh(), world.leaders.work()
    refused = world.acknowledge(2, (2, 3, (ACCEPT,)))
    assert code_of(refused) == ErrorCode.INVALID_RECORD_STATE
    assert acquired(world.fetch(3)) == [(2, 5, 2)]


def test_a_group_with_read_committed_gets_nothing_beyond_the_last_stable_offset() -> None:
    world = World()
    world.last_stable_offset = 2
    world.join()
    assert acquired(world.fetch(0)) == [(0, 1, 1)]
    parked = world.fetch(1, max_wait_ms=500)
    world.wait(1)
    assert not parked
    world.last_stable_offset = 6
    world.wait(1)
    assert acquired(parked) == [(2, 5, 1)]


def test_a_groups_limits_hold_for_what_is_delivered_from_then_on() -> None:
    world = World(lock_ms=60_000)
    world.join()
    world.of_group = ShareLimits(2, 500, 100)
    assert acquired(world.fetch(0, max_records=2)) == [(0, 1, 1)]
    world.wait(500)
    world.settle()
    answer = world.fetch(1)
    assert acquired(answer) == [(0, 1, 2), (2, 5, 1)] and answer.only.acquisition_lock_timeout_ms == 500


def test_administrators_see_move_and_delete_what_an_empty_group_has_done() -> None:
    world = World()
    world.join()
    world.fetch(0)
    world.acknowledge(1, (0, 1, (ACCEPT,)), (3, 3, (ACCEPT,)))
    world.settle()

    def offsets() -> list[tuple[int, int]]:
        replies: Replies[Any] = Replies()
        world.offsets.describe_offsets(apis.DescribeShareGroupOffsetsRequest((apis.ShareOffsetsGroup("workers"),)), replies)
        (group,) = replies.only.groups
        return [(part.start_offset, part.lag) for topic in group.topics for part in topic.partitions]

    def alter() -> Replies[Any]:
        replies: Replies[Any] = Replies()
        new = apis.NewStartOffsets("jobs", (apis.NewStartOffset(0, 5), apis.NewStartOffset(1, 99)))
        world.offsets.alter_offsets(apis.AlterShareGroupOffsetsRequest("workers", (new,)), replies)
        world.settle()
        return replies

    assert offsets() == [(2, 3), (0, 6)]
    assert alter().error == ErrorCode.NON_EMPTY_GROUP
    world.heartbeat(member_epoch=-1)
    assert [part.error_code for part in alter().only.topics[0].partitions] == [0, 0]
    assert offsets() == [(5, 1), (6, 0)]
    assert acquired(world.fetch(0, member_id="n")) == [(5, 5, 1)], "the leader has heard of it"
    world.fetch(-1, member_id="n")
    assert [group.group_state for group in world.groups.listed(set(), {"share"})] == ["Empty"]
    codes: list[ErrorCode] = []
    world.offsets.delete_group("workers", codes.append)
    world.settle()
    assert codes == [ErrorCode.NONE] and not world.groups.has("workers") and not World(world).groups.has("workers")


def test_a_partition_that_was_deleted_while_it_was_written_stays_deleted() -> None:
    world = World()
    world.join()
    world.fetch(0)
    first, second = world.acknowledge(1, (0, 1, (ACCEPT,))), world.acknowledge(2, (2, 3, (ACCEPT,)))
    world.offsets.on_topics_deleted({TOPIC})
    world.settle()
    assert (code_of(first), code_of(second)) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not World(world).groups.has("workers")


def test_a_session_has_partitions_of_its_group_only_and_a_request_each_of_them_once() -> None:
    world = World()
    world.join()
    assert code_of(world.fetch(0, partition=7)) == code_of(world.fetch(0, group_id="others")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    part = apis.SharePartitionRequest(0, (apis.AcknowledgementBatch(0, 0, (ACCEPT,)),))
    twice = world.fetch(1, topics=(apis.ShareTopicRequest(TOPIC, (part, part)),))
    assert twice.only.topics[0].partitions[0].acknowledge_error_code == ErrorCode.INVALID_REQUEST
    assert acquired(twice) == [(0, 5, 1)]


def test_a_large_topic_is_assigned_in_parts() -> None:
    world = World()
    world.find = lambda topic: KnownTopic(TOPIC, NEW_A_HEARTBEAT + 1)  # type: ignore[method-assign]
    joined = world.join()
    assert len(joined.assignment.topic_partitions[0].partitions) == NEW_A_HEARTBEAT
    world.now_ms += 5_000
    more = world.heartbeat(member_epoch=joined.member_epoch, topics=None)
    world.settle()
    assert len(more.only.assignment.topic_partitions[0].partitions) == NEW_A_HEARTBEAT + 1
    assert world.heartbeat(member_epoch=more.only.member_epoch, topics=None).only.member_epoch == more.only.member_epoch


def test_a_hole_that_is_longer_than_the_window_is_passed() -> None:
    world = World()
    world.join()
    far = SharedRead(b"ab", [ReadBatch(1_000_000, 1_000_001, 0, 2, False)], 1_000_002)
    world.read = lambda _wanted, on_read: on_read(far) or True  # type: ignore[method-assign]
    assert acquired(world.fetch(0)) == [(1_000_000, 1_000_001, 1)]


def test_records_that_a_member_may_not_read_are_not_acquired_for_it() -> None:
    world = World()
    world.join()
    replies: Replies[Any] = Replies()
    topics = (apis.ShareTopicRequest(TOPIC, (apis.SharePartitionRequest(0),)),)
    world.sessions.fetch(
        apis.ShareFetchRequest("workers", "m", 0, max_records=100, topics=topics), 2, world.now_ms, replies, ShareAsker(lambda _topic_id: False)
    )
    assert (acquired(replies), code_of(replies)) == ([], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert acquired(world.fetch(1)) == [(0, 5, 1)]


def test_names_are_bounded() -> None:
    long = "n" * (NAME_CHARACTERS_MAX + 1)
    assert World().heartbeat(group=long).error == World().heartbeat(long).error == ErrorCode.INVALID_REQUEST


def test_a_description_is_bounded_and_each_group_is_in_it_once() -> None:
    world = World()
    world.heartbeat("a", topics=tuple(f"{number:249}" for number in range(300)))
    world.join("b")
    (group,) = world.groups.describe(apis.ShareGroupDescribeRequest(("workers", "workers"))).groups
    assert (group.error_code, len(group.members)) == (0, 2)
    answer = apis.SHARE_GROUP_DESCRIBE_RESPONSE.encode(1, apis.ShareGroupDescribeResponse(groups=(group,)))
    assert len(answer) < 2 * 300 * 249  # what `_described_bytes` counts


def test_a_snapshot_is_the_bytes_that_kafka_reads() -> None:
    """Kafka 4.3.1's ShareSnapshotKey and ShareSnapshotValue read these bytes, and its hash finds this partition of 50."""
    key = ShareKey("workers", TOPIC, 3)
    record = SHARE_SNAPSHOT.record(key, ShareSnapshot(4, 1, 0, 17, 1_000, 2_000, (KeptBatch(17, 20, 0, 2), KeptBatch(21, 25, 2, 1))))
    value = "0000000000040000000100000000000000000000001100000000000003e800000000000007d0"
    value += "030000000000000011000000000000001400000200000000000000001500000000000000190200010000"
    assert (record.key.hex(), (record.value or b"").hex()) == ("00000007776f726b6572737474747474747474747474747474747400000003", value)
    assert state_partition_of(key, 50) == 43


def test_nothing_is_acquired_for_a_client_whose_acceptor_has_died() -> None:
    world = World()
    world.join()
    world.high_watermark = 0
    topics = (apis.ShareTopicRequest(TOPIC, (apis.SharePartitionRequest(0),)),)
    orphan: Replies[Any] = Replies()
    is_open = [True]
    request = apis.ShareFetchRequest("workers", "m", 0, max_wait_ms=5_000, max_records=100, topics=topics)
    world.sessions.fetch(request, 2, world.now_ms, orphan, ShareAsker(is_connected=lambda: is_open[0]))
    is_open[0] = False
    world.high_watermark = 6
    world.wait(1)
    assert acquired(orphan) == []
    assert acquired(world.fetch(0)) == [(0, 5, 1)]


def test_windows_are_bounded_together_and_what_is_in_them_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.join()
    monkeypatch.setattr("services.coordinator.share.share_leaders.WINDOW_RUNS_MAX", 6)
    assert acquired(world.fetch(0)) == [(0, 5, 1)]
    waits = world.fetch(1, (0, 0, (RELEASE,)), partition=0, max_wait_ms=500)
    other = world.fetch(2, partition=1, max_wait_ms=500)
    world.settle()
    assert acquired(waits) == [(0, 0, 2)] and not other  # the other window may not grow
    world.acknowledge(3, (0, 5, (ACCEPT,)))
    world.settle()
    world.wait(1)
    assert acquired(other) == [(0, 5, 1)]


def test_what_a_dead_member_had_in_hand_is_not_missing_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(limit=5)
    world.join("m"), world.join("n")
    monkeypatch.setattr("services.coordinator.share.share_leaders.WINDOW_RUNS_MAX", 6)
    assert acquired(world.fetch(0)) == [(0, 5, 1)]
    assert acquired(world.fetch(0, member_id="n", partition=1)) == []
    world.wait(LOCK_MS)
    world.settle()
    assert acquired(world.fetch(1, member_id="n", partition=1)) == [(0, 5, 1)]
