"""Static members: a restarted instance continues with its assignment, and its former member id is
fenced.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import JoinGroupProtocol, JoinGroupResponse, LeavingMember
from tests.support.group_world import RANGE, Replies, World

STICKY = JoinGroupProtocol("sticky", b"")


def static_pair(world: World, session_ms: int = 10_000, rebalance_ms: int = 60_000) -> tuple[str, str]:
    """A stable group of the instances `one`, which leads, and `two`."""
    both = (RANGE, STICKY)
    joined = [world.join(instance=instance, protocols=both, session_ms=session_ms, rebalance_ms=rebalance_ms) for instance in ("one", "two")]
    world.settle()
    one, two = (told.only.member_id for told in joined)
    world.sync(one, 1, {one: b"1", two: b"2"})
    world.sync(two, 1)
    world.settle()
    assert world.describe().group_state == "Stable"
    return one, two


def rejoin(world: World, instance: str, version: int = 9, protocols: tuple[JoinGroupProtocol, ...] = (RANGE, STICKY)) -> Replies[JoinGroupResponse]:
    return world.join(instance=instance, version=version, protocols=protocols)


def test_a_static_member_joins_at_once_under_the_name_of_its_instance() -> None:
    world = World()
    one, two = static_pair(world)
    assert (one, two) == ("one-id1", "two-id2")


def test_an_instance_that_is_started_again_takes_its_place_without_a_rebalance() -> None:
    world = World()
    one, two = static_pair(world)
    told = rejoin(world, "two")
    assert not told, "the new id is not in the log yet"
    world.settle()
    again = told.only.member_id
    assert again != two and told.only.generation_id == 1 and told.only.members == () and not told.only.skip_assignment
    assert told.only.group_leader_id == one
    assert world.sync(again, 1, instance="two").only.assignment == b"2"
    assert world.describe().group_state == "Stable"


def test_every_request_of_the_former_member_id_is_fenced() -> None:
    world = World()
    _, two = static_pair(world)
    rejoin(world, "two")
    world.settle()
    assert world.heartbeat(two, 1, instance="two") is ErrorCode.FENCED_INSTANCE_ID
    assert world.sync(two, 1, instance="two").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.join(two, instance="two").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.leave(LeavingMember(two, "two")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    commit = world.commit({("syslog", 0): 1}, member_id=two, generation_id=1, instance="two")
    assert commit.only.topics[0].partitions[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(two, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unknown_instance_is_an_unknown_member() -> None:
    world = World()
    one, _ = static_pair(world)
    assert world.heartbeat(one, 1, instance="three") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restarted_group_leader_is_asked_to_skip_the_assignment() -> None:
    world = World()
    static_pair(world)
    told = rejoin(world, "one")
    world.settle()
    assert told.only.skip_assignment and told.only.group_leader_id == told.only.member_id
    assert {member.group_instance_id for member in told.only.members} == {"one", "two"}


def test_an_old_client_that_cannot_skip_the_assignment_receives_another_group_leader() -> None:
    world = World()
    one, _ = static_pair(world)
    told = rejoin(world, "one", version=8)
    world.settle()
    assert told.only.group_leader_id == one != told.only.member_id
    assert told.only.members == () and not told.only.skip_assignment


def test_if_the_new_id_does_not_get_into_the_log_the_former_one_stays() -> None:
    world = World()
    one, two = static_pair(world)
    told = rejoin(world, "two")
    world.log.answer_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.turn()
    assert told.error is ErrorCode.COORDINATOR_NOT_AVAILABLE and told.only.member_id == ""
    assert world.heartbeat(two, 1, instance="two") is ErrorCode.NONE
    assert world.heartbeat(one, 1, instance="one") is ErrorCode.NONE


def test_a_rebalance_that_begins_meanwhile_answers_instead() -> None:
    world = World()
    one, _ = static_pair(world)
    told = rejoin(world, "two")
    leader = world.join(one, instance="one", protocols=(RANGE, STICKY))
    assert told.only.generation_id == leader.only.generation_id == 2
    world.settle()
    assert world.heartbeat(told.only.member_id, 2, instance="two") is ErrorCode.NONE


def test_a_restart_that_changes_the_chosen_protocol_makes_the_group_rebalance() -> None:
    world = World()
    one, _ = static_pair(world)
    told = rejoin(world, "two", protocols=(STICKY,))
    assert not told and world.heartbeat(one, 1, instance="one") is ErrorCode.REBALANCE_IN_PROGRESS
    leader = world.join(one, instance="one", protocols=(RANGE, STICKY))
    assert told.only.generation_id == 2 and leader.only.protocol_name == "sticky"


def test_a_restart_before_the_assignment_makes_the_group_rebalance() -> None:
    world = World()
    joined = [world.join(instance=instance) for instance in ("one", "two")]
    world.settle()
    one, two = (told.only.member_id for told in joined)
    waiting = world.sync(two, 1, instance="two")
    again = world.join(instance="two")
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID and not again
    leader = world.join(one, instance="one")
    assert again.only.generation_id == 2
    assert {member.member_id for member in leader.only.members} == {one, again.only.member_id}


def test_a_restart_during_a_rebalance_fences_the_join_that_waits() -> None:
    world = World()
    one, two = static_pair(world)
    waiting = world.join(two, instance="two", protocols=(STICKY, RANGE))
    again = rejoin(world, "two")
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID and waiting.only.member_id == two
    world.join(one, instance="one", protocols=(RANGE, STICKY))
    assert again.only.generation_id == 2


def test_a_static_member_may_miss_a_rebalance() -> None:
    world = World()
    one, _ = static_pair(world, session_ms=100_000, rebalance_ms=10_000)
    told = world.join(one, instance="one", protocols=(RANGE, STICKY), session_ms=100_000, rebalance_ms=10_000)
    world.pass_ms(10_000)
    assert {member.group_instance_id for member in told.only.members} == {"one", "two"}


def test_if_only_static_members_are_left_and_none_comes_they_are_waited_for_until_their_sessions_end() -> None:
    world = World()
    one, _ = static_pair(world, session_ms=30_000, rebalance_ms=6_000)
    told = rejoin(world, "two", protocols=(STICKY,))
    assert world.leave(LeavingMember(group_instance_id="two")).members[0].error_code == 0
    assert told.error is ErrorCode.UNKNOWN_MEMBER_ID
    world.pass_ms(20_000)
    assert world.heartbeat(one, 1, instance="one") is ErrorCode.REBALANCE_IN_PROGRESS
    world.pass_ms(30_000)
    assert world.describe().group_state == "Empty"


def test_a_static_member_that_is_silent_for_too_long_is_out() -> None:
    world = World()
    static_pair(world)
    world.pass_ms(10_000)
    assert world.describe().group_state == "Empty" and world.describe().members == ()
