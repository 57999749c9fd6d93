"""LeaveGroup: members go one by one or together."""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import LeavingMember
from tests.support.group_world import World


def test_the_last_member_leaves_an_empty_group_of_the_next_generation() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1)
    assert world.leave(member_id).members[0].error_code == ErrorCode.NONE
    group = world.describe()
    assert (group.group_state, group.protocol_type, group.protocol_name, group.members) == ("Empty", "consumer", "", ())
    assert len(world.log.waiting) == 1, "the log receives it, and no request waits for it"
    world.settle()
    _, told = world.join_new()
    world.settle()
    assert told.only.generation_id == generation_id + 2


def test_several_members_leave_with_one_request_each_with_its_own_answer() -> None:
    world = World()
    (leader, second, third), generation_id = world.stable_group(3)
    answer = world.leave(second, "nobody", LeavingMember("", "no-instance"), third)
    assert [member.error_code for member in answer.members] == [0, 25, 25, 0]
    assert answer.error_code == 0
    assert world.heartbeat(leader, generation_id) is ErrorCode.REBALANCE_IN_PROGRESS
    assert [member.member_id for member in world.join(leader).only.members] == [leader]


def test_a_member_of_an_unknown_group_is_unknown() -> None:
    answer = World().leave("somebody", group="unheard-of")
    assert answer.error_code == 0 and answer.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    world = World()
    (leader, other), _ = world.stable_group(2)
    waiting = world.join(leader)
    world.leave(leader)
    assert waiting.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(other).only.generation_id == 2


def test_the_departure_of_whom_all_wait_for_ends_the_rebalance() -> None:
    world = World()
    (leader, other), _ = world.stable_group(2)
    waiting = world.join(leader)
    world.leave(other)
    assert waiting.only.generation_id == 2


def test_a_pending_member_may_leave_before_it_has_joined() -> None:
    world = World()
    (leader,), _ = world.stable_group(1)
    pending = world.join().only.member_id
    waiting = world.join(leader)
    assert not waiting
    assert world.leave(pending).members[0].error_code == ErrorCode.NONE
    assert waiting.only.generation_id == 2


def test_an_administrator_names_an_instance_without_knowing_its_id() -> None:
    world = World()
    told = world.join(instance="one")
    world.settle()
    answer = world.leave(LeavingMember("", "one"))
    assert answer.members[0] == ("", "one", 0) and told.error is ErrorCode.NONE
    assert world.describe().group_state == "Empty"
