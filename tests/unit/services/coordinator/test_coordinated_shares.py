"""Share groups in the coordinator process (`services/coordinator/coordinated_shares.py`): when requests are answered, and when refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, TopicImage
from appliance.protocol import share_apis as apis
from services.coordinator.coordinated_shares import HELD_MS, HELD_SIZE_MAX, CoordinatedShares
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.share.share_states import ShareKey
from tests.support.group_world import LogInMemory, Replies

CLIENT = ClientIdentity("worker", "/10.0.0.1")
JOIN = apis.ShareGroupHeartbeatRequest("workers", "m", 0, None, ("jobs",))
TOPIC = TopicId(b"t" * 16)


class World:
    """A box over an image that the test changes, whose topic of share groups has one partition, or none."""

    def __init__(self, partitions: int = 1, brokers: int = 1) -> None:
        self.now_ms = 0
        self.log = LogInMemory()
        self.log.count_partitions = lambda: partitions  # type: ignore[attr-defined]
        self.log.refresh = self.log.end_all = lambda: None  # type: ignore[attr-defined]
        self.log.serve = lambda _states: None  # type: ignore[attr-defined]
        self.view = SimpleNamespace(placement=lambda _topic, _partition: None, why_absent=lambda _topic, _partition: ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.see(brokers, jobs=TOPIC)
        counters = cast(Any, SimpleNamespace(counter=lambda _label: SimpleNamespace(add=lambda _count: None)))
        box = SimpleNamespace(integer=lambda _name: 5, text=lambda _name: "latest")
        view = cast(Any, self.view)
        self.shares = CoordinatedShares(cast(Any, box), cast(Any, self.log), view, {}, lambda: self.now_ms, lambda name: name == "readers", counters)
        self.shares.refresh()

    def see(self, brokers: int = 1, **topics: TopicId) -> None:
        images = {name: TopicImage(name, topic_id, (), {}) for name, topic_id in topics.items()}
        self.view.image = MetadataImage(1, "", 1, {each: BrokerImage(each, "h", 1) for each in range(brokers)}, images)

    def load(self) -> None:
        self.shares.states.begin_load(0)
        self.shares.states.load(0, self.log.content.get(0, ()))
        self.shares.states.finish_load(0, self.now_ms)

    def ask(self, rule: str, request: Any, version: int = 1) -> Replies[Any]:
        replies: Replies[Any] = Replies()
        getattr(self.shares, rule)(request, version, CLIENT, self.now_ms, replies)
        return replies


def test_a_second_box_ends_share_groups() -> None:
    world = World(brokers=2)
    world.load()
    refused = world.ask("share_group_heartbeat", JOIN)
    assert refused.error == ErrorCode.UNSUPPORTED_VERSION and "one box" in refused.only.error_message
    assert world.ask("share_fetch", apis.ShareFetchRequest("workers", "m")).error == ErrorCode.UNSUPPORTED_VERSION


def test_a_member_joins_when_the_topic_is_loaded() -> None:
    world = World()
    replies = world.ask("share_group_heartbeat", JOIN)
    world.shares.tick(world.now_ms)
    assert not replies and world.shares.next_deadline_ms() == HELD_MS
    world.load()
    world.shares.tick(world.now_ms)
    assert replies.error == ErrorCode.NONE
    assert world.ask("share_group_heartbeat", JOIN._replace(group_id="readers")).error == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_waits_for_the_load_for_a_bounded_time_and_in_bounded_memory() -> None:
    world = World()
    replies = world.ask("share_group_heartbeat", JOIN)
    long = JOIN._replace(subscribed_topic_names=("jobs",) * HELD_SIZE_MAX)
    assert world.ask("share_group_heartbeat", long).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.now_ms += HELD_MS
    world.shares.tick(world.now_ms)
    assert replies.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.ask("share_fetch", apis.ShareFetchRequest("workers", "m")).error == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_without_a_topic_there_is_no_share_group() -> None:
    world = World(partitions=0)
    (group,) = world.ask("share_group_describe", apis.ShareGroupDescribeRequest(("workers",))).only.groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_what_a_group_has_done_goes_with_its_topic() -> None:
    world = World()
    world.load()
    key = apis.NewStartOffsets("jobs", (apis.NewStartOffset(0, 3),))
    altered = world.ask("alter_share_group_offsets", apis.AlterShareGroupOffsetsRequest("workers", (key,)))
    assert altered.only.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.shares.states.initialize(ShareKey("workers", TOPIC, 0), 3, lambda _code: None)
    world.log.answer_all()
    assert world.shares.groups.has("workers")
    world.see()
    world.shares.refresh()
    world.log.answer_all()
    assert not world.shares.groups.has("workers")
