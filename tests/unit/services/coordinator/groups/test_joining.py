"""JoinGroup: which clients become members, which errors the others get, and when a rebalance ends."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import DescribeGroupsRequest, DescribeGroupsResponse, JoinGroupProtocol
from appliance.protocol.group_offset_apis import OffsetCommitPartition, OffsetFetchGroup
from services.coordinator.groups.joining import METADATA_BYTES_MAX
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.ports import NameBound
from services.coordinator.groups.rebalances import NEW_MEMBER_JOIN_TIMEOUT_MS
from tests.support.group_world import CLIENT, GROUP, RANGE, Replies, World

STICKY = JoinGroupProtocol("sticky", b"s")


def test_a_dynamic_member_gets_its_id_first_and_joins_with_it() -> None:
    world = World()
    told = world.join(client=ClientIdentity("loader", "/10.1.1.1"))
    assert told.error is ErrorCode.MEMBER_ID_REQUIRED and told.only.member_id == "loader-id1"
    assert told.only.generation_id == -1 and told.only.protocol_name is None
    joined = world.join("loader-id1")
    world.settle()
    assert joined.error is ErrorCode.NONE
    assert joined.only.generation_id == 1 and joined.only.group_leader_id == joined.only.member_id == "loader-id1"
    assert (joined.only.protocol_type, joined.only.protocol_name) == ("consumer", "range")
    assert [(member.member_id, member.metadata) for member in joined.only.members] == [("loader-id1", b"")]


def test_before_version_4_a_member_joins_without_knowing_its_id() -> None:
    world = World()
    told = world.join(version=3)
    world.settle()
    assert told.error is ErrorCode.NONE and told.only.member_id == "reader-id1"


def test_members_of_an_empty_group_are_waited_for_as_long_as_more_of_them_come() -> None:
    world = World(group_initial_rebalance_delay_ms=3_000)
    _, first = world.join_new(rebalance_ms=8_000)
    world.pass_ms(2_000)
    _, second = world.join_new(rebalance_ms=8_000)
    world.pass_ms(2_000)
    assert not first and not second, "the second one came within the delay, which begins again at its end"
    world.pass_ms(2_000)
    assert first.only.generation_id == second.only.generation_id == 1
    assert len(first.only.members) == 2 and second.only.members == ()


def test_the_wait_for_more_members_ends_at_the_largest_rebalance_time_out() -> None:
    world = World(group_initial_rebalance_delay_ms=3_000)
    told = [world.join_new(rebalance_ms=8_000)[1]]
    for _ in range(7):
        world.pass_ms(1_000)
        told.append(world.join_new(rebalance_ms=8_000)[1])
    assert not any(told)
    world.pass_ms(1_000)
    assert all(each.only.generation_id == 1 for each in told)


def test_a_rebalance_is_over_as_soon_as_all_have_joined() -> None:
    world = World()
    (leader, other), _ = world.stable_group(2)
    newcomer, joined = world.join_new()
    assert world.describe().group_state == "PreparingRebalance"
    again = [world.join(leader), world.join(other)]
    assert [each.only.generation_id for each in (*again, joined)] == [2, 2, 2]
    assert {member.member_id for member in again[0].only.members} == {leader, other, newcomer}
    assert world.describe().group_state == "CompletingRebalance"


def test_a_member_that_does_not_join_again_in_time_is_out() -> None:
    world = World()
    (leader, other), _ = world.stable_group(2, rebalance_ms=20_000, session_ms=30_000)
    told = world.join(leader, rebalance_ms=20_000)
    world.pass_ms(19_999)
    assert not told
    world.pass_ms(1)
    assert told.only.generation_id == 2 and [member.member_id for member in told.only.members] == [leader]
    assert world.heartbeat(other, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_if_the_leader_does_not_join_again_another_one_leads() -> None:
    world = World()
    (leader, other), _ = world.stable_group(2, rebalance_ms=20_000, session_ms=30_000)
    told = world.join(other, rebalance_ms=20_000, protocols=[JoinGroupProtocol("range", b"new")])
    world.pass_ms(20_000)
    assert told.only.group_leader_id == other != leader
    assert [member.member_id for member in told.only.members] == [other]


def test_a_pending_member_is_waited_for_until_its_session_is_over() -> None:
    world = World()
    (leader,), _ = world.stable_group(1, session_ms=30_000)
    pending = world.join(session_ms=7_000).only.member_id
    told = world.join(leader, session_ms=30_000)
    assert not told, "a client got an id and has not joined with it"
    world.pass_ms(7_000)
    assert told.only.generation_id == 2
    assert world.join(pending).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_protocol_that_most_members_prefer_among_those_that_all_speak_is_chosen() -> None:
    world = World()
    own = JoinGroupProtocol("own", b"")
    for protocols in ([own, RANGE, STICKY], [STICKY, RANGE], [RANGE, STICKY], [STICKY, own, RANGE]):
        world.join_new(protocols=protocols)
    _, told = world.join_new(protocols=[STICKY, RANGE])
    world.settle()
    assert told.only.protocol_name == "sticky"


def test_a_member_that_speaks_no_common_protocol_or_another_type_is_refused() -> None:
    world = World()
    world.stable_group(1)
    assert world.join(protocols=[STICKY]).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.describe().group_state == "Stable"


@pytest.mark.parametrize("how", [{"protocols": ()}, {"protocol_type": ""}])
def test_even_an_empty_group_wants_a_type_and_a_protocol(how: dict[str, object]) -> None:
    world = World()
    assert world.join(**how).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    world = World()
    _, told = world.join_new(protocols=[RANGE, RANGE])
    _, other = world.join_new(protocols=[RANGE])
    world.settle()
    assert told.only.protocol_name == other.only.protocol_name == "range"


@pytest.mark.parametrize(("session_ms", "error"), [(5_999, 26), (6_000, 79), (1_800_000, 79), (1_800_001, 26), (-1, 26)])
def test_sessions_have_bounds(session_ms: int, error: int) -> None:
    assert World().join(session_ms=session_ms).error == error


def test_the_empty_name_is_no_group_and_a_long_one_is() -> None:
    world = World()
    assert world.join(group="").error is ErrorCode.INVALID_GROUP_ID
    assert world.join(group="g" * 300).error is ErrorCode.MEMBER_ID_REQUIRED


def test_an_unassigned_member_id_is_unknown() -> None:
    world = World()
    assert world.join("nobody").error is ErrorCode.UNKNOWN_MEMBER_ID
    world.stable_group(1)
    assert world.join("nobody").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("nobody").only.member_id == "nobody"


def test_a_pending_id_is_of_no_static_member() -> None:
    world = World()
    pending = world.join().only.member_id
    assert world.join(pending, instance="one").error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_follower_that_joins_again_unchanged_receives_the_generation_at_once() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    told = world.join(other)
    assert told.only.generation_id == generation_id and told.only.members == () and told.only.group_leader_id == leader
    assert world.describe().group_state == "Stable"


def test_a_leader_that_joins_again_makes_the_group_rebalance() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    told = world.join(leader)
    assert not told and world.heartbeat(other, generation_id) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_changed_its_subscription_makes_the_group_rebalance() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    told = world.join(other, protocols=[JoinGroupProtocol("range", b"more")])
    assert not told and world.heartbeat(leader, generation_id) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_whose_reply_was_lost_asks_again_before_the_assignment() -> None:
    world = World()
    joined = [world.join_new() for _ in range(2)]
    world.settle()
    for member_id, first in joined:
        again = world.join(member_id)
        assert again.only == first.only
    assert world.describe().group_state == "CompletingRebalance"


def test_a_changed_subscription_before_the_assignment_makes_all_members_rejoin() -> None:
    world = World()
    (leader, _), (other, _) = world.join_new(), world.join_new()
    world.settle()
    waiting = world.sync(other, 1)
    told = world.join(leader, protocols=[JoinGroupProtocol("range", b"more")])
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS and not told
    assert world.join(other).only.generation_id == told.only.generation_id == 2


def test_a_full_group_refuses_new_members_and_keeps_its_own() -> None:
    world = World(group_max_size=2)
    (leader, other), generation_id = world.stable_group(2)
    refused = world.join()
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED and refused.only.member_id == ""
    assert world.heartbeat(other, generation_id) is ErrorCode.NONE
    again = [world.join(leader), world.join(other)]
    assert all(told.error is ErrorCode.NONE for told in again)


def test_the_metadata_of_a_groups_members_is_bounded() -> None:
    half = [JoinGroupProtocol("range", b"x" * (METADATA_BYTES_MAX // 2 - 10))]
    world = World()
    ids = [world.join(version=3, protocols=half) for _ in range(3)]
    assert [bool(told) for told in ids] == [False, False, True]
    assert ids[2].error is ErrorCode.GROUP_MAX_SIZE_REACHED and world.refused == [NameBound.MEMBERS]
    world.settle()
    again = world.join(ids[0].only.member_id, version=3, protocols=half)
    assert not again or again.error is ErrorCode.NONE, "its metadata takes the place of its own"


def test_while_a_full_group_rebalances_the_last_to_join_is_refused() -> None:
    world = World(group_max_size=2)
    ids = [world.join(version=3) for _ in range(3)]
    assert [bool(told) for told in ids] == [False, False, True]
    assert ids[2].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.settle()
    assert [told.only.generation_id for told in ids[:2]] == [1, 1]


def test_a_new_member_that_is_never_answered_is_forgotten_after_five_minutes() -> None:
    world = World()
    (leader, other), _ = world.stable_group(2, session_ms=1_000_000, rebalance_ms=1_000_000)
    _, told = world.join_new(session_ms=6_000, rebalance_ms=1_000_000)
    world.pass_ms(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert not told, "the session timeout does not apply to a member that cannot send heartbeats"
    world.pass_ms(1)
    assert told.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert [world.join(leader), world.join(other)][1].only.generation_id == 2


def test_a_second_join_while_the_first_waits_answers_both() -> None:
    world = World()
    (leader, other), _ = world.stable_group(2)
    first, second = world.join(leader), world.join(leader)
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS and not second
    world.join(other)
    assert second.only.generation_id == 2


def test_a_client_id_too_long_for_a_member_id_is_refused() -> None:
    world = World()
    assert world.join(client=ClientIdentity("c" * 32_767, "/10.0.0.1")).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.join(instance="i" * 32_767).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.describe().members == ()


# ---- bounds


def test_a_further_group_is_refused_whatever_would_create_it_and_groups_that_exist_are_served() -> None:
    world = World(max_groups=2)
    world.join_new(group="first")
    world.commit({("syslog", 0): 1}, group="second")
    world.settle()
    assert world.join(group="third").error is ErrorCode.POLICY_VIOLATION
    for told in (world.commit({("syslog", 0): 1}, group="third"), world.txn_commit(7, {("syslog", 0): 1}, group="third")):
        world.settle()
        assert [each.error_code for topic in told.only.topics for each in topic.partitions] == [ErrorCode.POLICY_VIOLATION]
    assert world.refused == [NameBound.GROUPS] * 3
    world.commit({("syslog", 0): 2}, group="second")
    world.settle()
    assert world.offsets("second") == {("syslog", 0): 2} and world.join(group="first").error is ErrorCode.MEMBER_ID_REQUIRED


def test_more_groups_than_the_bound_load_from_the_log() -> None:
    world = World()
    for group in ("first", "second", "third"):
        world.commit({("syslog", 0): 1}, group=group)
    world.settle()
    world.settings = world.settings._replace(max_groups=2)
    world.restart()
    assert {group.group_id for group in world.list_groups().groups} == {"first", "second", "third"}
    assert world.join(group="first").error is ErrorCode.MEMBER_ID_REQUIRED and world.join(group="fourth").error is ErrorCode.POLICY_VIOLATION


def test_ids_that_no_member_joins_with_count_against_the_size_of_the_group() -> None:
    world = World(group_max_size=2)
    assert [world.join().error for _ in range(3)] == [ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert world.refused == [NameBound.MEMBERS]
    world.pass_ms(10_000)
    assert world.join().error is ErrorCode.MEMBER_ID_REQUIRED


def test_without_memory_nothing_grows_and_what_is_there_goes_on() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    world.commit({("syslog", 0): OffsetCommitPartition(0, 1, metadata="note")}, group="known")
    world.settle()
    world.coordinator.directory.has_memory = lambda: False
    assert world.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.join(group="new").error is ErrorCode.POLICY_VIOLATION
    told = [
        world.commit({("syslog", 0): OffsetCommitPartition(0, 2, metadata="longer"), ("syslog", 1): 1}, group="known"),
        world.commit({("syslog", 0): 1}, group="new"),
        world.txn_commit(7, {("syslog", 0): 1}, group="known"),
    ]
    codes = [each.error_code for answer in told for topic in answer.only.topics for each in topic.partitions]
    assert codes == [ErrorCode.POLICY_VIOLATION] * 4 and not world.log.waiting
    assert world.refused.count(NameBound.MEMORY) == 6

    assert world.heartbeat(other, generation_id) is ErrorCode.NONE
    world.commit({("syslog", 0): OffsetCommitPartition(0, 3, metadata="as l")}, group="known")
    again = [world.join(leader), world.join(other)]
    world.settle()
    assert world.offsets("known") == {("syslog", 0): 3} and [each.error for each in again] == [ErrorCode.NONE] * 2
    assert world.refused.count(NameBound.MEMORY) == 6


def test_a_request_that_names_a_group_again_and_again_gets_a_bounded_answer_at_once() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2, protocols=[JoinGroupProtocol("range", b"x" * 100_000)])
    world.sync(leader, generation_id, {leader: b"", other: b""})
    world.settle()
    told = Replies[DescribeGroupsResponse]()
    world.coordinator.describe_groups(DescribeGroupsRequest((GROUP,) * 10_000), 5, CLIENT, world.now_ms, told)
    codes = [group.error_code for group in told.only.groups]
    described = codes.count(ErrorCode.NONE)
    assert 100 < described < 200 and codes == [ErrorCode.NONE] * described + [ErrorCode.INVALID_REQUEST] * (10_000 - described)

    world.commit({("syslog", 0): OffsetCommitPartition(0, 1, metadata="m" * 4_000)})
    world.commit({("syslog", 0): OffsetCommitPartition(0, 1, metadata="m" * 4_000)}, group="without members")
    world.settle()
    fetched = world.fetch_groups(*[OffsetFetchGroup("without members", topics=None)] * 10_000)
    codes = [group.error_code for group in fetched.only.groups]
    assert 0 < codes.count(ErrorCode.NONE) < 10_000 and set(codes) == {ErrorCode.NONE, ErrorCode.INVALID_REQUEST}


def test_ids_of_new_groups_are_short_enough_for_one_list_of_all() -> None:
    world = World()
    assert world.join(group="g" * 1_024).error is ErrorCode.MEMBER_ID_REQUIRED
    assert world.join(group="g" * 1_025).error is ErrorCode.INVALID_GROUP_ID
    assert world.join(protocol_type="p" * 1_025).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
