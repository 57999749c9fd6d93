"""Consumer groups and their log: batches, refusals, restarts; offsets, deletion, lists."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.protocol.group_offset_apis import OffsetFetchGroup
from services.coordinator.groups.group_records import ConsumerGroupMemberMetadataKey, ConsumerGroupMetadataKey, read_key
from tests.support.consumer_world import EVERYTHING, ConsumerWorld, NewReader
from tests.support.group_world import GROUP, START_MS, as_topics, codes

A0 = ("syslog", 0)
DAY_MS = 24 * 3600 * 1000


def stable() -> tuple[ConsumerWorld, NewReader, NewReader]:
    world = ConsumerWorld()
    a, b = NewReader(world, "a"), NewReader(world, "b")
    world.run(a, b)
    return world, a, b


# ---- turns


def test_requests_that_come_while_a_batch_is_on_its_way_share_the_next_one() -> None:
    world = ConsumerWorld()
    told = [world.beat(name) for name in "abcde"]
    assert world.log.batches == 1
    world.settle()
    assert world.log.batches == 2 and [each.only.error_code for each in told] == [0] * 5
    group = world.describe_consumer()
    assert group.group_epoch == group.assignment_epoch == 5 and len(group.members) == 5


@pytest.mark.parametrize(
    ("error", "told_as"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_the_log_refuses_never_was(error: ErrorCode, told_as: ErrorCode) -> None:
    world, a, b = stable()
    before = world.describe_consumer()
    told = world.beat("c")
    world.settle(error)
    assert told.only.error_code == told_as
    assert world.describe_consumer() == before
    world.run(a, b)
    assert a.holds | b.holds == EVERYTHING


def test_a_batch_that_timed_out_and_is_in_the_log_is_written_over_by_the_next() -> None:
    world, a, b = stable()
    world.beat("c")
    world.log.answer_one(ErrorCode.REQUEST_TIMED_OUT, is_kept=True)
    world.turn()
    d = NewReader(world, "d")
    world.run(a, b, d)
    before = world.describe_consumer()
    world.restart()
    assert sorted(world.describe_consumer().members) == sorted(before.members)
    assert {member.member_id for member in before.members} == {"a", "b", "d"}


def test_a_silent_member_is_out_even_if_the_log_refuses_at_first() -> None:
    world, _, _ = stable()
    world.pass_ms(44_999)
    world.now_ms += 1
    world.turn()
    world.log.answer_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.turn()
    assert world.describe_consumer().members
    world.pass_ms(1_000)
    assert world.describe_consumer().members == ()


# ---- after a restart


def test_members_go_on_after_a_restart_in_the_epoch_in_which_they_were() -> None:
    world, a, b = stable()
    before = world.describe_consumer()
    world.restart()
    assert sorted(world.describe_consumer().members) == sorted(before.members)
    world.pass_ms(1_000)
    assert world.beat("a", a.epoch).only.member_epoch == a.epoch
    world.pass_ms(43_999)
    assert len(world.describe_consumer().members) == 2, "they have a whole session"
    world.pass_ms(1)
    assert [member.member_id for member in world.describe_consumer().members] == ["a"]
    del b


def test_a_restart_in_the_middle_of_giving_up_goes_on_from_there() -> None:
    world = ConsumerWorld()
    world.told("a")
    world.told("b")
    kept = world.places(world.told("a", 1))
    world.restart()
    assert world.told("a", 1).member_epoch == 1
    assert world.told("b", 2).assignment is None, "a has not said that it gave up"
    assert world.told("a", 1, owned=kept).member_epoch == 2
    assert world.places(world.told("b", 2)) == EVERYTHING - kept


def test_requests_that_wait_when_the_partition_is_unloaded_receive_not_coordinator() -> None:
    world, _, _ = stable()
    told, behind = world.beat("c"), world.beat("d")
    world.coordinator.unload(world.partition(), world.now_ms)
    assert [each.only.error_code for each in (told, behind)] == [ErrorCode.NOT_COORDINATOR] * 2
    world.settle()
    assert world.beat("a", 2).only.error_code == ErrorCode.NOT_COORDINATOR
    assert world.describe_consumer().error_code == ErrorCode.NOT_COORDINATOR
    world.coordinator.begin_load(world.partition())
    assert world.beat("a", 2).only.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# ---- offsets


def test_offsets_are_committed_in_the_members_epoch_only() -> None:
    world, a, _ = stable()
    told = [
        world.commit({A0: 1}, member_id="a", generation_id=a.epoch, version=9),
        world.commit({A0: 2}, member_id="a", generation_id=a.epoch - 1, version=9),
        world.commit({A0: 3}, member_id="nobody", generation_id=a.epoch, version=9),
        world.commit({A0: 4}, version=9),
        world.commit({A0: 5}, member_id="a", generation_id=a.epoch, version=8),
    ]
    world.settle()
    wanted = [ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNSUPPORTED_VERSION]
    assert [codes(each.only)[A0] for each in told] == wanted
    transactional = world.txn_commit(7, {A0: 6}, member_id="a", generation_id=a.epoch - 1)
    assert codes(transactional.only)[A0] == ErrorCode.STALE_MEMBER_EPOCH
    world.restart()
    assert world.offsets() == {A0: 1}


def test_a_producer_that_names_the_group_alone_commits_although_the_group_has_members() -> None:
    world, a, _ = stable()
    told = [
        world.txn_commit(7, {A0: 6}),
        world.txn_commit(7, {A0: 7}, member_id="nobody"),
        world.txn_commit(7, {A0: 8}, generation_id=a.epoch),
    ]
    world.settle()
    assert [codes(each.only)[A0] for each in told] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    world.end_transaction(7, is_commit=True)
    assert world.offsets() == {A0: 6}


def test_offsets_are_read_in_the_members_epoch_only() -> None:
    world, a, _ = stable()
    asked = [("a", a.epoch), ("a", a.epoch - 1), ("nobody", 1), (None, -1)]
    groups = [OffsetFetchGroup(GROUP, member_id, epoch, as_topics([A0])) for member_id, epoch in asked]
    told = world.fetch_groups(*groups, version=9).only
    assert [group.error_code for group in told.groups] == [0, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, 0]


def test_offsets_of_topics_that_members_read_are_kept_and_others_grow_old() -> None:
    world = ConsumerWorld(offsets_retention_minutes=60)
    world.coordinator.begin(START_MS)
    a = NewReader(world, "a")
    world.run(a)
    world.commit({A0: 1, ("audit", 0): 1}, member_id="a", generation_id=a.epoch, version=9)
    world.settle()
    for _ in range(120):
        world.pass_ms(40_000)
        a.step()
    assert world.offsets() == {A0: 1}
    refused = world.delete_offsets(A0)
    world.settle()
    assert codes(refused.only)[A0] == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


# ---- groups


def test_a_group_with_members_is_not_deleted_and_an_empty_one_leaves_nothing() -> None:
    world, a, b = stable()
    refused = world.delete_groups(GROUP)
    world.settle()
    assert refused.only.groups[0].error_code == ErrorCode.NON_EMPTY_GROUP
    a.leave()
    b.leave()
    told = world.delete_groups(GROUP)
    world.settle()
    assert told.only.groups[0].error_code == 0
    last = {record.key: record.value for record in world.log.content[world.partition()]}
    assert set(last.values()) == {None}
    world.restart()
    assert world.describe_consumer().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_that_comes_while_its_group_is_deleted_has_one() -> None:
    world, a, b = stable()
    a.leave()
    b.leave()
    world.delete_groups(GROUP)
    world.turn()
    told = world.beat("c")
    world.settle()
    assert told.only.error_code == 0
    before = world.describe_consumer()
    world.restart()
    assert world.describe_consumer() == before and len(before.members) == 1


def test_an_empty_group_takes_the_protocol_of_its_next_member_and_keeps_its_offsets() -> None:
    world, a, b = stable()
    world.commit({A0: 7}, member_id="a", generation_id=a.epoch, version=9)
    world.settle()
    a.leave()
    b.leave()
    (member_id,), _ = world.stable_group(1)
    world.restart()
    assert [member.member_id for member in world.describe().members] == [member_id] and world.offsets() == {A0: 7}
    world.leave(member_id)
    world.settle()
    world.run(NewReader(world, "c"))
    world.restart()
    assert [group.group_type for group in world.list_groups().groups] == ["consumer"] and world.offsets() == {A0: 7}


def test_lists_and_descriptions_tell_the_two_kinds_apart() -> None:
    world, _, _ = stable()
    world.join_new(group="old")
    listed = {group.group_id: (group.protocol_type, group.group_state, group.group_type) for group in world.list_groups().groups}
    assert listed == {GROUP: ("consumer", "Stable", "consumer"), "old": ("consumer", "PreparingRebalance", "classic")}
    assert [group.group_id for group in world.list_groups(states=["stable"], types=["Consumer"]).groups] == [GROUP]
    assert world.describe().group_state == "Dead" and world.describe(version=6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.describe_consumer("old").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.describe_consumer("").error_code == ErrorCode.INVALID_GROUP_ID


def test_what_is_appended_for_a_member_that_joins() -> None:
    world = ConsumerWorld()
    world.told("a")
    kinds = [read_key(record.key) for record in world.log.content[world.partition()]]
    assert [type(kind).__name__ for kind in kinds] == [
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupPartitionMetadataKey",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupCurrentMemberAssignmentKey",
    ]
    assert kinds[0] == ConsumerGroupMemberMetadataKey(GROUP, "a") and kinds[2] == ConsumerGroupMetadataKey(GROUP)
