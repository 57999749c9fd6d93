"""A live group between the protocols: up with the first new member, mixed, and down with the last."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.protocol.consumer_group_apis import CLASSIC_MEMBER, CONSUMER_MEMBER
from appliance.protocol.group_apis import JoinGroupProtocol, LeavingMember
from tests.support.consumer_world import EVERYTHING, ClassicReader, ConsumerWorld, NewReader, assigned_places, subscription

CLASSIC_SESSION_MS = 10_000


def classic_group(**settings: object) -> tuple[ConsumerWorld, ClassicReader, ClassicReader]:
    world = ConsumerWorld(**settings)
    x, y = ClassicReader(world), ClassicReader(world)
    world.run(x, y)
    assert len(x.holds) == len(y.holds) == 2
    return world, x, y


def mixed_group() -> tuple[ConsumerWorld, ClassicReader, NewReader]:
    world = ConsumerWorld()
    x, a = ClassicReader(world), NewReader(world, "a")
    world.run(x)
    world.run(x, a)
    assert x.holds | a.holds == EVERYTHING
    return world, x, a


def test_a_classic_group_goes_up_with_its_members_and_what_they_read() -> None:
    world, x, y = classic_group()
    generation_id = x.generation_id
    told = world.told("a")
    assert told.member_epoch == generation_id + 1 and world.places(told) == frozenset(), "others have it all"
    group = world.describe_consumer()
    types = {member.member_id: member.member_type for member in group.members}
    assert types == {x.member_id: CLASSIC_MEMBER, y.member_id: CLASSIC_MEMBER, "a": CONSUMER_MEMBER}
    assert world.heartbeat(x.member_id, generation_id) is ErrorCode.REBALANCE_IN_PROGRESS, "it keeps its generation until it joins"
    a = NewReader(world, "a")
    world.run(x, y, a)
    assert sorted(len(reader.holds) for reader in (x, y, a)) == [1, 1, 2]
    assert x.holds | y.holds | a.holds == EVERYTHING


def test_a_member_that_waits_in_the_classic_group_rejoins_in_the_new_one() -> None:
    world, x, y = classic_group()
    joining = world.join(x.member_id, protocols=(JoinGroupProtocol("cooperative-sticky", subscription(("syslog", "audit"))),))
    assert not joining
    world.beat("a")
    assert joining.error is ErrorCode.REBALANCE_IN_PROGRESS
    world.settle()
    world.run(x, y, NewReader(world, "a"))


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_group_stays_classic_where_it_may_not_go_up(policy: str) -> None:
    world, x, _ = classic_group(group_consumer_migration_policy=policy)
    assert world.told("a").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.heartbeat(x.member_id, x.generation_id) is ErrorCode.NONE


def test_a_group_that_is_too_large_or_not_of_consumers_or_unreadable_stays_classic() -> None:
    world, _, _ = classic_group(group_consumer_max_size=1)
    assert world.told("a").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    world = ConsumerWorld()
    world.join_new(group="unreadable")
    world.join_new(group="connectors", protocol_type="connect", protocols=(JoinGroupProtocol("cooperative-sticky", subscription()),))
    assert world.told("a", group="unreadable").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.told("a", group="connectors").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_upgrade_that_the_log_refuses_is_tried_again_and_takes_nothing_from_the_members() -> None:
    world, x, y = classic_group()
    told = world.beat("a")
    world.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert told.only.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    a = NewReader(world, "a")
    world.run(x, y, a)
    before = world.describe_consumer()
    world.restart()
    assert sorted(world.describe_consumer().members) == sorted(before.members)
    assert [group.group_type for group in world.list_groups().groups] == ["consumer"]


def test_a_crash_before_the_upgrade_is_in_the_log_leaves_the_classic_group() -> None:
    world, x, y = classic_group()
    world.beat("a")
    world.restart()
    assert world.describe().group_state == "Stable"
    assert world.heartbeat(x.member_id, x.generation_id) is ErrorCode.NONE
    world.run(x, y)


def test_the_last_new_member_takes_the_newer_protocol_with_it() -> None:
    world, x, a = mixed_group()
    epoch = x.generation_id
    a.leave()
    assert world.describe().group_state == "PreparingRebalance"
    assert world.describe_consumer().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.heartbeat(x.member_id, epoch) is ErrorCode.REBALANCE_IN_PROGRESS, "its generation goes on"
    world.run(x)
    assert x.holds == EVERYTHING and x.generation_id > epoch
    world.restart()
    world.run(x)
    assert world.describe().group_state == "Stable" and x.holds == EVERYTHING


def test_a_new_member_that_falls_silent_takes_the_newer_protocol_with_it_too() -> None:
    world, x, _ = mixed_group()
    for _ in range(9):
        world.pass_ms(5_000)
        x.step()
    world.run(x)
    assert [group.group_type for group in world.list_groups().groups] == ["classic"] and x.holds == EVERYTHING


@pytest.mark.parametrize("policy", ["upgrade"])
def test_a_group_stays_where_it_is_if_it_may_not_go_down(policy: str) -> None:
    world = ConsumerWorld(group_consumer_migration_policy=policy)
    x, a = ClassicReader(world), NewReader(world, "a")
    world.run(x)
    world.run(x, a)
    a.leave()
    world.run(x)
    assert x.holds == EVERYTHING and world.describe_consumer().group_state == "Stable"


def test_a_downgrade_that_the_log_refuses_keeps_all_members() -> None:
    world, x, a = mixed_group()
    told = world.beat("a", -1)
    world.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert told.only.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.run(x, a)
    assert len(world.describe_consumer().members) == 2
    before = world.describe_consumer()
    world.restart()
    assert sorted(world.describe_consumer().members) == sorted(before.members)


def test_requests_that_wait_while_the_group_goes_down_are_answered_by_the_classic_one() -> None:
    world, x, a = mixed_group()
    world.beat("a", -1)
    joining = world.join(x.member_id, protocols=x.protocols())
    late = world.beat("b")
    world.settle()
    assert joining.error is ErrorCode.NONE, "by the classic group"
    assert late.only.error_code == 0, "which b took up again"
    assert {member.member_id for member in world.describe_consumer().members} == {x.member_id, "b"}
    del a


# ---- classic requests in a mixed group


def test_a_classic_member_joins_a_new_group_with_an_id_that_it_is_given_first() -> None:
    world = ConsumerWorld()
    a = NewReader(world, "a")
    world.run(a)
    given = world.join(protocols=(JoinGroupProtocol("range", subscription()),))
    assert given.error is ErrorCode.MEMBER_ID_REQUIRED
    member_id = given.only.member_id
    joined = world.join(member_id, protocols=(JoinGroupProtocol("range", subscription()),))
    world.settle()
    response = joined.only
    assert (response.error_code, response.generation_id, response.protocol_type, response.protocol_name) == (0, 2, "consumer", "range")
    assert response.group_leader_id == "" and response.members == (), "no member leads"
    synced = world.sync(member_id, 2, protocol_type="consumer", protocol_name="range")
    assert assigned_places(synced.only.assignment) == frozenset()
    for _ in range(3):
        a.step()
    assert world.heartbeat(member_id, 2) is ErrorCode.REBALANCE_IN_PROGRESS, "what it waits for is free"
    world.join(member_id, protocols=(JoinGroupProtocol("range", subscription()),))
    world.settle()
    assert len(assigned_places(world.sync(member_id, 2).only.assignment)) == 2
    assert world.heartbeat(member_id, 2) is ErrorCode.NONE


def test_classic_requests_are_refused_for_the_reasons_of_the_classic_protocol() -> None:
    world, x, _ = mixed_group()
    generation_id, cooperative = x.generation_id, (JoinGroupProtocol("cooperative-sticky", subscription()),)
    assert world.heartbeat("a", generation_id) is ErrorCode.UNKNOWN_MEMBER_ID, "it speaks the other protocol"
    assert world.heartbeat(x.member_id, generation_id + 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.sync(x.member_id, generation_id - 1).error is ErrorCode.ILLEGAL_GENERATION
    assert world.sync(x.member_id, generation_id, protocol_name="range").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(x.member_id, protocols=(JoinGroupProtocol("other", subscription()),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(x.member_id, protocol_type="connect", protocols=cooperative).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(x.member_id, protocols=(JoinGroupProtocol("cooperative-sticky", b"?"),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(x.member_id, session_ms=1, protocols=cooperative).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.join("nobody", instance="one", protocols=cooperative).error is ErrorCode.UNKNOWN_MEMBER_ID
    world.beat("b")
    world.settle()
    assert world.sync(x.member_id, generation_id).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_leave_a_mixed_group_each_with_its_own_answer() -> None:
    world, x, a = mixed_group()
    told = world.leave_all(LeavingMember(x.member_id), LeavingMember("no-member"), LeavingMember("", "no-instance"))
    world.settle()
    assert [member.error_code for member in told.only.members] == [0, 25, 25]
    world.run(a)
    assert a.holds == EVERYTHING


def test_an_administrator_removes_members_of_the_consumer_protocol_by_id_and_by_instance() -> None:
    world = ConsumerWorld()
    a, b, c = NewReader(world, "a"), NewReader(world, "b", instance_id="one"), NewReader(world, "c")
    world.run(a, b, c)
    told = world.leave_all(LeavingMember("a"), LeavingMember("", "one"), LeavingMember("c", "one"))
    world.settle()
    assert [member.error_code for member in told.only.members] == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert {member.member_id for member in world.describe_consumer().members} == {"c"}
    assert world.told("a", a.epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    world.run(c)
    assert c.holds == EVERYTHING


def test_a_static_classic_member_goes_over_to_the_newer_protocol_and_back() -> None:
    world, x, a = mixed_group()
    cooperative = (JoinGroupProtocol("cooperative-sticky", subscription()),)
    joined = world.join(instance="one", protocols=cooperative)
    world.settle()
    old_id = joined.only.member_id
    told = world.told("next", instance_id="one")
    assert told.error_code == 0
    assert {member.member_id: member.member_type for member in world.describe_consumer().members}["next"] == CONSUMER_MEMBER
    assert world.heartbeat(old_id, joined.only.generation_id, instance="one") is ErrorCode.FENCED_INSTANCE_ID
    back = world.join(instance="one", protocols=cooperative)
    world.settle()
    assert {member.member_id: member.member_type for member in world.describe_consumer().members}[back.only.member_id] == CLASSIC_MEMBER
    assert world.join("wrong", instance="one", protocols=cooperative).error is ErrorCode.FENCED_INSTANCE_ID
    world.leave_all(LeavingMember("", "one"))
    world.settle()
    world.run(x, a)
    assert x.holds | a.holds == EVERYTHING


def test_a_classic_member_has_its_own_session_and_its_own_rebalance_time_out() -> None:
    world, x, a = mixed_group()
    world.pass_ms(CLASSIC_SESSION_MS)
    assert world.heartbeat(x.member_id, x.generation_id) is ErrorCode.UNKNOWN_MEMBER_ID
    world, x, a = mixed_group()
    b = NewReader(world, "b")
    b.step()
    for _ in range(12):
        assert world.heartbeat(x.member_id, x.generation_id) is ErrorCode.REBALANCE_IN_PROGRESS
        world.pass_ms(5_000)
        a.step()
        b.step()
    assert world.heartbeat(x.member_id, x.generation_id) is ErrorCode.UNKNOWN_MEMBER_ID, "it did not join when requested"


def test_a_classic_member_that_joins_and_does_not_ask_for_its_assignment_is_out() -> None:
    world, x, a = mixed_group()
    world.join(x.member_id, protocols=x.protocols(), rebalance_ms=4_000)
    world.settle()
    world.pass_ms(4_000)
    assert [member.member_id for member in world.describe_consumer().members] == ["a"]
    world.run(a)
    assert a.holds == EVERYTHING
