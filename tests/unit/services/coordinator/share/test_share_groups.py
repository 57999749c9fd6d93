"""Share groups on a log in memory: their members, what administrators see and change, bounds."""

from __future__ import annotations

from typing import Any

from appliance.base.errors import ErrorCode
from appliance.protocol import share_apis as apis
from appliance.protocol.share_state_apis import KeptBatch
from appliance.protocol.topic_partitions import TopicIdPartitions
from services.coordinator.groups.ports import NAME_COST, KnownTopic
from services.coordinator.share.share_groups import (
    NAME_CHARACTERS_MAX,
    NEW_A_HEARTBEAT,
    SUBSCRIPTION_CHARACTERS_MAX,
    simple_targets,
)
from services.coordinator.share.share_partition import ACCEPT
from services.coordinator.share.share_states import SHARE_SNAPSHOT, ShareKey, ShareSnapshot, state_partition_of
from tests.support.group_world import Replies
from tests.support.share_world import TOPIC, World, acquired, code_of


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
