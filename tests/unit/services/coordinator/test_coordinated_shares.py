"""Share groups in the coordinator process (`services/coordinator/coordinated_shares.py`): when requests are answered, and when refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from appliance.base.errors import ErrorCode
from appliance.base.model import LeaderEpoch, TopicId
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.cluster.state_log import SHARE_TOPIC
from appliance.protocol import offset_apis
from appliance.protocol import share_apis as apis
from appliance.protocol import share_state_apis as states
from services.coordinator.coordinated_shares import HELD_MS, HELD_SIZE_MAX, CoordinatedShares, without_aborted
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.share.share_leaders import LogBounds
from services.coordinator.share.share_sessions import ReadBatch
from tests.support.group_world import LogInMemory, Replies

CLIENT = ClientIdentity("worker", "/10.0.0.1")
JOIN = apis.ShareGroupHeartbeatRequest("workers", "m", 0, None, ("jobs",))
TOPIC = TopicId(b"t" * 16)


class World:
    """A box over an image that the test changes; it leads all partitions of both state topics once they are loaded."""

    def __init__(self, *, leads: bool = True) -> None:
        self.now_ms = 1_000
        self.groups_log, self.states_log = LogInMemory(), LogInMemory()
        for log in (self.groups_log, self.states_log):
            log.count_partitions = lambda: 1  # type: ignore[attr-defined]
            log.refresh = log.end_all = lambda: None  # type: ignore[attr-defined]
            log.serve = lambda _states: None  # type: ignore[attr-defined]
        self.view = SimpleNamespace(
            broker_id=0, placement=lambda _topic, _partition: None, why_absent=lambda _topic, _partition: ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        self.see(jobs=TOPIC)
        self.asked: list[tuple[int, Any, Callable[[Any], None]]] = []
        peers = SimpleNamespace(ask=lambda box, _question, _reply, body, on_answer, _ms, channel: self.asked.append((box, body, on_answer)))
        counters = cast(Any, SimpleNamespace(counter=lambda _label: SimpleNamespace(add=lambda _count: None)))
        box = cast(Any, SimpleNamespace(integer=lambda _name: 5, text=lambda _name: "latest"))
        topics = cast(Any, SimpleNamespace(groups=self.groups_log, states=self.states_log))
        self.shares = CoordinatedShares(box, topics, cast(Any, self.view), {}, cast(Any, peers), lambda: self.now_ms, lambda name: name == "readers", counters)
        self.shares.places.partition_count = 1
        self.shares.refresh()
        if leads:
            self.shares.places.begin_load(0)

    def see(self, state_leader: int = 0, **topics: TopicId) -> None:
        images = {name: TopicImage(name, topic_id, (PartitionImage(1, LeaderEpoch(5), (1,), (1,)),), {}) for name, topic_id in topics.items()}
        state = PartitionImage(state_leader, LeaderEpoch(1), (0,), (0,))
        images[SHARE_TOPIC] = TopicImage(SHARE_TOPIC, TopicId(b"s" * 16), (state,), {})
        self.view.image = MetadataImage(1, "", 1, {each: BrokerImage(each, "h", 1) for each in range(2)}, images)

    def load(self) -> None:
        self.shares.places.finish_load(0)
        self.shares.states.begin_load(0)
        self.shares.states.finish_load(0, self.now_ms)

    def answer_all(self) -> None:
        while self.groups_log.waiting or self.states_log.waiting:
            self.states_log.answer_all()
            self.groups_log.answer_all()

    def ask(self, rule: str, request: Any, version: int = 1) -> Replies[Any]:
        replies: Replies[Any] = Replies()
        getattr(self.shares, rule)(request, version, CLIENT, self.now_ms, replies)
        return replies


def test_a_group_that_another_box_coordinates_is_refused() -> None:
    world = World(leads=False)
    assert world.ask("share_group_heartbeat", JOIN).error == ErrorCode.NOT_COORDINATOR
    (group,) = world.ask("share_group_describe", apis.ShareGroupDescribeRequest(("workers",))).only.groups
    assert group.error_code == ErrorCode.NOT_COORDINATOR
    (offsets,) = world.ask("describe_share_group_offsets", apis.DescribeShareGroupOffsetsRequest((apis.ShareOffsetsGroup("workers"),))).only.groups
    assert offsets.error_code == ErrorCode.NOT_COORDINATOR


def test_a_member_joins_when_the_group_is_loaded() -> None:
    world = World()
    replies = world.ask("share_group_heartbeat", JOIN)
    world.shares.tick(world.now_ms)
    assert not replies and world.shares.next_deadline_ms() == world.now_ms + HELD_MS
    world.load()
    world.shares.tick(world.now_ms)
    world.answer_all()
    assert replies.error == ErrorCode.NONE
    assert world.ask("share_group_heartbeat", JOIN._replace(group_id="readers")).error == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_waits_for_the_load_for_a_bounded_time_and_in_bounded_memory() -> None:
    world = World()
    replies = world.ask("share_group_heartbeat", JOIN)
    long = JOIN._replace(subscribed_topic_names=("jobs",) * HELD_SIZE_MAX)
    assert world.ask("share_group_heartbeat", long).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.now_ms += HELD_MS
    world.shares.tick(world.now_ms)
    assert replies.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_the_state_is_where_the_image_says_and_an_offset_is_altered_there() -> None:
    world = World()
    world.load()
    world.see(state_leader=1, jobs=TOPIC)
    request = apis.AlterShareGroupOffsetsRequest("workers", (apis.NewStartOffsets("jobs", (apis.NewStartOffset(0, 3),)),))
    altered = world.ask("alter_share_group_offsets", request)
    box, summarize, on_answer = world.asked.pop()
    assert (box, summarize.group_id) == (1, "workers")
    on_answer(states.ReadShareGroupStateSummaryResponse((states.TopicStateSummaries(TOPIC, (states.StateSummary(0, 0, None, 7),)),)))
    box, initialize, on_answer = world.asked.pop()
    assert (box, initialize.topics[0].partitions) == (1, (states.InitializedState(0, 8, 3),))
    world.see(state_leader=0, jobs=TOPIC)  # it moves to this box, which has no state of it, and the question goes there
    on_answer(None)
    world.now_ms += 100
    world.shares.tick(world.now_ms)
    world.answer_all()
    assert altered.only.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert world.shares.groups.has("workers")


def test_what_a_group_has_done_goes_with_its_topic() -> None:
    world = World()
    world.load()
    world.ask("share_group_heartbeat", JOIN)
    world.answer_all()
    world.ask("share_group_heartbeat", JOIN._replace(member_epoch=-1))
    assert world.shares.groups.names() == {"workers"}
    world.see()
    world.shares.refresh()
    world.answer_all()
    assert not world.shares.groups.has("workers")


def test_the_end_of_a_partition_elsewhere_is_asked_for() -> None:
    world = World()
    found: list[Any] = []
    world.shares.ends([(TOPIC, 0), (TopicId(b"x" * 16), 0)], found.append)
    box, request, on_answer = world.asked.pop()
    assert (box, request.topics) == (1, (offset_apis.ListOffsetsTopic("jobs", (offset_apis.ListOffsetsPartition(0),)),))
    result = offset_apis.ListOffsetsPartitionResult(0, offset=12)
    on_answer(offset_apis.ListOffsetsResponse(topics=(offset_apis.ListOffsetsTopicResult("jobs", (result,)),)))
    assert found == [{(TOPIC, 0): 12}]


def test_batches_of_aborted_transactions_are_left_out() -> None:
    def batch(base_offset: int, producer_id: int) -> ReadBatch:
        return ReadBatch(base_offset, base_offset + 1, 0, 1, False, producer_id)

    batches = [batch(0, 7), batch(2, 8), batch(4, -1), batch(6, 7), ReadBatch(8, 8, 0, 1, True, 7), batch(10, 7)]
    left = without_aborted(batches, [(7, 6, 8)])
    assert [each.base_offset for each in left] == [0, 2, 4, 8, 10]


def test_a_group_has_limits_and_timing_of_its_own() -> None:
    world = World()
    assert (world.shares.limits("workers").lock_ms, world.shares.timing("workers"), world.shares.is_committed("workers")) == (5, (5, 5), False)
    own = {"share.record.lock.duration.ms": "20000", "share.heartbeat.interval.ms": "6000", "share.isolation.level": "read_committed"}
    world.view.image.group_configs = {"workers": {**own, "share.auto.offset.reset": "earliest"}}
    assert (world.shares.limits("workers").lock_ms, world.shares.timing("workers"), world.shares.is_committed("workers")) == (20_000, (5, 6_000), True)
    bounds = LogBounds(ErrorCode.NONE, 3, 9)
    assert (world.shares.first_offset("workers", bounds), world.shares.first_offset("others", bounds)) == (3, 9)
