"""SyncGroup and Heartbeat: assignments are sent when they are in the log; silent members are
removed.
"""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from tests.support.group_world import Replies, World


def joined_pair(world: World) -> tuple[str, str]:
    (leader, _), (other, _) = world.join_new(), world.join_new()
    world.settle()
    return leader, other


def test_assignments_go_out_when_the_groups_metadata_is_in_the_log() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = world.sync(other, 1)
    told = world.sync(leader, 1, {leader: b"L", other: b"O"})
    assert not waiting and not told and len(world.log.waiting) == 1
    assert world.describe().group_state == "CompletingRebalance"
    world.settle()
    assert (told.only.assignment, waiting.only.assignment) == (b"L", b"O")
    assert (told.only.protocol_type, told.only.protocol_name) == ("consumer", "range")
    assert world.describe().group_state == "Stable"


def test_a_late_sync_gets_the_stored_assignment_at_once() -> None:
    world = World()
    leader, other = joined_pair(world)
    world.sync(leader, 1, {leader: b"L", other: b"O"})
    world.settle()
    assert world.sync(other, 1).only.assignment == b"O"
    assert world.sync(other, 1).only.assignment == b"O"


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = world.sync(other, 1)
    world.sync(leader, 1, {leader: b"L", "invented": b"X"})
    world.settle()
    assert waiting.error is ErrorCode.NONE and waiting.only.assignment == b""


@pytest.mark.parametrize(
    ("refusal", "told_as"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_is_not_in_the_log_is_nobodys(refusal: ErrorCode, told_as: ErrorCode) -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = [world.sync(other, 1), world.sync(leader, 1, {leader: b"L", other: b"O"})]
    world.log.answer_all(refusal)
    world.turn()
    assert [told.error for told in waiting] == [told_as, told_as]
    assert [told.only.assignment for told in waiting] == [b"", b""]
    assert world.describe().group_state == "PreparingRebalance"


def test_a_rebalance_that_begins_during_the_append_takes_the_assignment_back() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = [world.sync(other, 1), world.sync(leader, 1, {leader: b"L", other: b"O"})]
    world.leave(other)
    assert waiting[1].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting[0].error is ErrorCode.UNKNOWN_MEMBER_ID
    world.settle()
    assert world.describe().group_state == "PreparingRebalance"


def test_a_leader_that_asks_again_during_the_append_does_not_assign_twice() -> None:
    world = World()
    leader, other = joined_pair(world)
    first = world.sync(leader, 1, {leader: b"L", other: b"O"})
    second = world.sync(leader, 1, {leader: b"other", other: b"words"})
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS and len(world.log.waiting) == 1
    world.settle()
    assert second.only.assignment == b"L"


def test_a_sync_is_of_its_group_member_generation_and_protocol() -> None:
    world = World()
    (leader, _), generation_id = world.stable_group(2)
    assert world.sync(leader, generation_id, group="other").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync("nobody", generation_id).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync(leader, generation_id - 1).error is ErrorCode.ILLEGAL_GENERATION
    assert world.sync(leader, generation_id, protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(leader, generation_id, protocol_name="sticky").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(leader, generation_id, protocol_type="consumer", protocol_name="range").error is ErrorCode.NONE
    assert world.sync(leader, generation_id, group="").error is ErrorCode.INVALID_GROUP_ID


def test_a_sync_during_a_rebalance_sends_the_member_back_to_join() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    world.join(leader)
    assert world.sync(other, generation_id).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_sync_within_the_rebalance_timeout_is_removed() -> None:
    world = World()
    (leader, _), (other, _) = (world.join_new(session_ms=1_800_000, rebalance_ms=30_000) for _ in range(2))
    world.settle()
    waiting = world.sync(other, 1)
    world.pass_ms(29_999)
    assert not waiting
    world.pass_ms(1)
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    told = world.join(other)
    assert told.only.generation_id == 2 and told.only.group_leader_id == other
    assert world.heartbeat(leader, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_has_not_synced_in_a_stable_group_is_removed_too() -> None:
    world = World()
    (leader, _), (other, _) = (world.join_new(session_ms=1_800_000, rebalance_ms=30_000) for _ in range(2))
    world.settle()
    world.sync(leader, 1, {leader: b"L", other: b"O"})
    world.pass_ms(29_999)
    assert world.describe().group_state == "Stable"
    world.pass_ms(1)
    assert world.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(other, 1) is ErrorCode.UNKNOWN_MEMBER_ID


# ---- heartbeats and sessions


def test_a_member_stays_while_it_sends_heartbeats() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1, session_ms=10_000)
    for _ in range(5):
        world.pass_ms(9_999)
        assert world.heartbeat(member_id, generation_id) is ErrorCode.NONE
    world.pass_ms(10_000)
    assert world.heartbeat(member_id, generation_id) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.describe().group_state == "Empty"


def test_a_commit_counts_as_a_heartbeat() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1, session_ms=10_000)
    world.pass_ms(9_000)
    world.commit({("syslog", 0): 1}, member_id=member_id, generation_id=generation_id)
    world.pass_ms(9_000)
    assert world.heartbeat(member_id, generation_id) is ErrorCode.NONE


def test_the_death_of_a_member_makes_the_others_rebalance() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2, session_ms=10_000)
    world.pass_ms(5_000)
    world.heartbeat(leader, generation_id)
    world.pass_ms(5_000)
    assert world.heartbeat(leader, generation_id) is ErrorCode.REBALANCE_IN_PROGRESS
    told = world.join(leader)
    assert [member.member_id for member in told.only.members] == [leader]
    assert world.heartbeat(other, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_waits_for_us_is_not_silent() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting = world.sync(other, 1)
    for _ in range(5):
        world.pass_ms(9_000)
        assert world.heartbeat(leader, 1) is ErrorCode.NONE
    assert not waiting
    world.sync(leader, 1, {other: b"O"})
    world.settle()
    assert waiting.only.assignment == b"O"
    world.pass_ms(10_000)
    assert world.heartbeat(other, 1) is ErrorCode.UNKNOWN_MEMBER_ID, "its session began anew with the answer, and ends as any other"


def test_heartbeats_are_of_the_current_generation_of_a_known_member() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1)
    assert world.heartbeat(member_id, generation_id - 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(member_id, generation_id + 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("nobody", generation_id) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member_id, generation_id, group="none") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member_id, generation_id, group="") is ErrorCode.INVALID_GROUP_ID


def test_a_partition_that_is_led_elsewhere_is_no_business_of_ours() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    waiting = world.join(leader)
    world.coordinator.unload(world.partition(), world.now_ms)
    assert waiting.error is ErrorCode.NOT_COORDINATOR
    assert world.heartbeat(other, generation_id) is ErrorCode.NOT_COORDINATOR
    assert world.join(other).error is ErrorCode.NOT_COORDINATOR
    assert world.sync(other, generation_id).error is ErrorCode.NOT_COORDINATOR
    assert world.leave(other).error_code == ErrorCode.NOT_COORDINATOR
    world.settle()
    assert world.coordinator.next_deadline_ms() is None, "no timer of theirs is left"


def test_parked_syncs_are_answered_when_the_partition_goes() -> None:
    world = World()
    leader, other = joined_pair(world)
    waiting: list[Replies] = [world.sync(other, 1), world.sync(leader, 1, {})]  # type: ignore[type-arg]
    world.coordinator.unload(world.partition(), world.now_ms)
    assert [told.error for told in waiting] == [ErrorCode.NOT_COORDINATOR] * 2
    world.settle()


def test_while_a_partition_loads_errors_are_those_that_old_clients_understand() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1)
    world.coordinator.unload(world.partition(), world.now_ms)
    world.coordinator.begin_load(world.partition())
    assert world.join(member_id).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.sync(member_id, generation_id).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(member_id, generation_id) is ErrorCode.NONE
    assert world.leave(member_id).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
