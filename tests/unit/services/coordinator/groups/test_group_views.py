"""DescribeGroups and ListGroups."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import DescribeGroupsRequest, DescribeGroupsResponse
from tests.support.group_world import CLIENT, Replies, World


def test_a_stable_group_is_described_with_metadata_and_assignments() -> None:
    world = World()
    (leader, other), _ = world.stable_group(2)
    group = world.describe()
    assert (group.group_state, group.protocol_type, group.protocol_name) == ("Stable", "consumer", "range")
    assert {member.member_id: member.assignment for member in group.members} == {leader: leader.encode(), other: other.encode()}
    assert {(member.client_id, member.client_host) for member in group.members} == {("reader", "/10.0.0.1")}


def test_in_a_rebalance_there_are_members_but_no_assignments() -> None:
    world = World()
    (leader, _other), _ = world.stable_group(2)
    world.join(leader)
    group = world.describe()
    assert (group.group_state, group.protocol_type, group.protocol_name) == ("PreparingRebalance", "consumer", "")
    assert [(member.metadata, member.assignment) for member in group.members] == [(b"", b"")] * 2


def test_an_unknown_group_is_dead_or_from_version_6_on_not_found() -> None:
    world = World()
    assert (world.describe().error_code, world.describe().group_state) == (0, "Dead")
    group = world.describe(version=6)
    assert (group.error_code, group.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert group.error_message == "Group readers not found."


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ((), (), {"stable", "simple"}),
        (("stable",), (), {"stable"}),
        (("EMPTY", "Stable"), ("classic",), {"stable", "simple"}),
        ((), ("consumer",), set()),
        (("Dead",), (), set()),
        ((), ("Classic",), {"stable", "simple"}),
    ],
)
def test_lists_are_filtered_by_state_and_type_in_any_case(states: tuple[str, ...], types: tuple[str, ...], found: set[str]) -> None:
    world = World()
    world.join_new(group="stable")
    world.settle()
    member_id = world.describe("stable").members[0].member_id
    world.sync(member_id, 1, {}, group="stable")
    world.commit({("syslog", 0): 1}, group="simple")
    world.settle()
    answer = world.list_groups(states, types)
    assert {group.group_id for group in answer.groups} == found and answer.error_code == 0
    assert {group.group_type for group in answer.groups} <= {"classic"}


def test_while_partitions_load_a_list_says_that_it_is_not_whole() -> None:
    world = World()
    world.coordinator.unload(0, world.now_ms)
    world.coordinator.begin_load(0)
    assert world.list_groups().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_authorized_operations_of_a_group_are_returned_if_requested() -> None:
    world = World()
    world.stable_group(1)
    told = Replies[DescribeGroupsResponse]()
    world.coordinator.describe_groups(DescribeGroupsRequest(("readers", "unheard-of"), True), 5, CLIENT, world.now_ms, told)
    assert [group.authorized_operations for group in told.only.groups] == [0b101001000] * 2
    assert world.describe().authorized_operations == -(2**31)
