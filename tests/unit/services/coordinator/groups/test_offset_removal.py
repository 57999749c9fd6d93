"""The end of offsets and of groups: by request, with their topic, by age."""

from __future__ import annotations

from struct import pack

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import JoinGroupProtocol
from services.coordinator.groups.offset_removal import TOMBSTONES_MAX
from services.coordinator.groups.ports import MINUTE_MS
from tests.support.group_world import World, codes

A0 = ("syslog", 0)
A1 = ("syslog", 1)
B0 = ("audit", 0)
WEEK_MS = 10_080 * MINUTE_MS
CHECK_MS = 600_000


def subscribed_to(*topics: str) -> list[JoinGroupProtocol]:
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return [JoinGroupProtocol("range", pack(">hi", 1, len(topics)) + names + b"\xff\xff\xff\xff")]


def world_that_looks(**settings: object) -> World:
    world = World(**settings)
    world.coordinator.begin(world.now_ms)
    return world


def keep_alive(world: World, member_id: str, generation_id: int, milliseconds: int) -> None:
    """The members of a group are heard of all the time."""
    end_ms = world.now_ms + milliseconds
    while world.now_ms < end_ms:
        world.pass_ms(min(1_700_000, end_ms - world.now_ms))
        assert world.heartbeat(member_id, generation_id) is ErrorCode.NONE


# ---- OffsetDelete


def test_deleted_offsets_are_gone_when_their_tombstones_are_in_the_log() -> None:
    world = World()
    world.commit({A0: 1, A1: 2})
    world.settle()
    told = world.delete_offsets(A0, B0)
    assert not told and world.offsets() == {A0: 1, A1: 2}
    world.settle()
    assert codes(told.only) == {A0: ErrorCode.NONE, B0: ErrorCode.NONE}, "what was never there is gone too"
    assert world.offsets() == {A1: 2}
    world.restart()
    assert world.offsets() == {A1: 2}


def test_a_tombstone_that_is_refused_takes_nothing() -> None:
    world = World()
    world.commit({A0: 1})
    world.settle()
    told = world.delete_offsets(A0)
    world.log.answer_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.turn()
    assert codes(told.only) == {A0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert world.offsets() == {A0: 1}


def test_a_commit_that_comes_after_a_tombstone_stays() -> None:
    world = World()
    world.commit({A0: 1})
    world.settle()
    world.delete_offsets(A0)
    world.commit({A0: 2})
    world.settle()
    assert world.offsets() == {A0: 2}
    world.restart()
    assert world.offsets() == {A0: 2}


def test_offsets_of_topics_that_members_read_are_not_deleted() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1, protocols=subscribed_to("syslog"))
    world.commit({A0: 1, B0: 2}, member_id=member_id, generation_id=generation_id)
    world.settle()
    told = world.delete_offsets(A0, B0)
    world.settle()
    assert codes(told.only) == {A0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, B0: ErrorCode.NONE}
    assert world.offsets() == {A0: 1}


def test_offsets_of_partitions_that_do_not_exist_are_not_asked_for() -> None:
    world = World()
    world.commit({A0: 1, B0: 1})
    world.settle()
    del world.topics.counts["audit"]
    told = world.delete_offsets(A0, B0)
    world.settle()
    assert codes(told.only) == {A0: ErrorCode.NONE, B0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.offsets() == {B0: 1}, "they go with their topic"


def test_where_a_subscription_cannot_be_read_nothing_is_deleted() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1, protocols=[JoinGroupProtocol("range", b"\0\1\0\0\0\x09")])
    world.commit({A0: 1}, member_id=member_id, generation_id=generation_id)
    world.settle()
    assert codes(world.delete_offsets(A0).only) == {A0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_offsets_are_not_deleted_of_groups_that_are_not_there_or_have_members_of_another_kind() -> None:
    world = World()
    assert world.delete_offsets(A0).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.delete_offsets(A0, group="").error is ErrorCode.INVALID_GROUP_ID
    world.stable_group(1, protocol_type="connect")
    assert world.delete_offsets(A0).error is ErrorCode.NON_EMPTY_GROUP


# ---- DeleteGroups


def test_an_empty_group_goes_with_its_offsets() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1)
    world.commit({A0: 1}, member_id=member_id, generation_id=generation_id)
    world.leave(member_id)
    world.settle()
    told = world.delete_groups("readers", "unheard-of", "readers")
    world.settle()
    assert [tuple(group) for group in told.only.groups] == [("readers", 0), ("unheard-of", 69), ("readers", 0)]
    assert world.list_groups().groups == () and world.offsets() == {}
    world.restart()
    assert world.list_groups().groups == () and world.offsets() == {}


def test_a_group_with_members_stays() -> None:
    world = World()
    world.stable_group(1)
    told = world.delete_groups("readers")
    world.settle()
    assert told.only.groups[0].error_code == ErrorCode.NON_EMPTY_GROUP
    assert world.describe().group_state == "Stable"


def test_a_group_whose_tombstones_are_refused_stays() -> None:
    world = World()
    world.commit({A0: 1})
    world.settle()
    told = world.delete_groups("readers")
    world.turn()
    world.log.answer_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.turn()
    assert told.only.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    assert world.offsets() == {A0: 1}


def test_a_member_that_joins_while_a_group_is_deleted_keeps_the_group() -> None:
    world = World()
    (member_id,), _ = world.stable_group(1)
    world.leave(member_id)
    world.settle()
    told = world.delete_groups("readers")
    world.turn()
    _, joined = world.join_new()
    world.settle()
    assert told.only.groups[0].error_code == 0
    assert joined.error is ErrorCode.NONE and world.describe().group_state == "CompletingRebalance"


def test_a_large_group_is_deleted_in_several_batches() -> None:
    world = World()
    world.topics.counts["wide"] = 3 * TOMBSTONES_MAX
    world.commit({("wide", partition): 1 for partition in range(2 * TOMBSTONES_MAX + 1)})
    world.settle()
    before = world.log.batches
    world.delete_groups("readers")
    world.settle()
    assert world.log.batches - before == 3 and world.offsets() == {}


# ---- deleted topics


def test_offsets_go_with_their_topic_in_all_groups() -> None:
    world = World()
    world.commit({A0: 1, B0: 2}, group="one")
    world.commit({A0: 1}, group="two")
    world.settle()
    world.coordinator.on_topics_deleted({"syslog"}, world.now_ms)
    world.settle()
    assert world.offsets(group="one") == {B0: 2}
    assert [group.group_id for group in world.list_groups().groups] == ["one"], "nothing is left of the other"


# ---- age


def test_offsets_of_a_simple_group_grow_old_since_their_own_commit() -> None:
    world = world_that_looks()
    world.commit({A0: 1})
    world.pass_ms(WEEK_MS // 2)
    world.commit({A1: 2})
    world.pass_ms(WEEK_MS // 2 + CHECK_MS)
    assert world.offsets() == {A1: 2}
    world.pass_ms(WEEK_MS // 2)
    assert world.list_groups().groups == ()
    world.restart()
    assert world.list_groups().groups == ()


def test_offsets_of_an_empty_group_grow_old_since_it_is_empty() -> None:
    world = world_that_looks()
    (member_id,), generation_id = world.stable_group(1, session_ms=1_800_000, protocols=subscribed_to("syslog"))
    world.commit({A0: 1}, member_id=member_id, generation_id=generation_id)
    keep_alive(world, member_id, generation_id, WEEK_MS + 2 * CHECK_MS)
    assert world.offsets() == {A0: 1}
    world.leave(member_id)
    world.pass_ms(WEEK_MS - CHECK_MS)
    assert world.offsets() == {A0: 1}
    world.pass_ms(2 * CHECK_MS)
    assert world.list_groups().groups == ()


def test_in_a_stable_group_offsets_of_unsubscribed_topics_expire() -> None:
    world = world_that_looks()
    (member_id,), generation_id = world.stable_group(1, session_ms=1_800_000, protocols=subscribed_to("syslog"))
    world.commit({A0: 1, B0: 2}, member_id=member_id, generation_id=generation_id)
    keep_alive(world, member_id, generation_id, WEEK_MS + 2 * CHECK_MS)
    assert world.offsets() == {A0: 1}


def test_in_a_group_that_is_not_of_consumers_nothing_grows_old() -> None:
    world = world_that_looks()
    (member_id,), generation_id = world.stable_group(1, session_ms=1_800_000, protocol_type="connect")
    world.commit({A0: 1}, member_id=member_id, generation_id=generation_id)
    keep_alive(world, member_id, generation_id, WEEK_MS + 2 * CHECK_MS)
    assert world.offsets() == {A0: 1}


def test_an_offset_with_its_own_retention_follows_that_alone() -> None:
    world = world_that_looks()
    world.commit({A0: 1}, retention_ms=2 * WEEK_MS, version=4)
    world.commit({A1: 1}, retention_ms=1_000, version=4)
    world.pass_ms(CHECK_MS)
    assert world.offsets() == {A0: 1}
    world.pass_ms(WEEK_MS + CHECK_MS)
    world.restart()
    world.coordinator.begin(world.now_ms)
    world.pass_ms(CHECK_MS)
    assert world.offsets() == {A0: 1}, "its end is in the log too"
    world.pass_ms(WEEK_MS)
    assert world.offsets() == {}


def test_an_undecided_commit_keeps_its_partition_and_its_group() -> None:
    world = world_that_looks(offsets_retention_minutes=1)
    world.commit({A0: 1})
    world.txn_commit(9, {A0: 5})
    world.txn_commit(9, {B0: 5}, group="other")
    world.pass_ms(2 * CHECK_MS)
    assert world.offsets() == {A0: 1}
    assert {group.group_id for group in world.list_groups().groups} == {"readers", "other"}
    world.end_transaction(9, is_commit=False)
    world.pass_ms(CHECK_MS)
    assert world.offsets() == {}


def test_the_look_at_many_offsets_takes_many_turns() -> None:
    world = world_that_looks()
    world.topics.counts["wide"] = 3_000
    world.commit({("wide", partition): 1 for partition in range(3_000)})
    world.settle()
    world.now_ms += CHECK_MS
    turns = 0
    while (world.coordinator.next_deadline_ms() or 0) <= world.now_ms:
        world.coordinator.tick(world.now_ms)
        turns += 1
    assert turns >= 6
