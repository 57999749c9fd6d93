"""A coordinator that takes over finds in the log what clients were answered."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import LoadedRecord
from tests.support.group_world import GROUP, START_MS, World

A0 = ("syslog", 0)


def test_a_stable_group_goes_on_after_a_restart() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    before = world.describe()
    world.restart()
    assert world.describe() == before and before.group_state == "Stable"
    assert world.heartbeat(leader, generation_id) is ErrorCode.NONE
    assert world.sync(other, generation_id).only.assignment == other.encode()
    assert world.join(other).only.group_leader_id == leader


def test_sessions_begin_anew_after_a_restart() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2, session_ms=10_000)
    world.pass_ms(9_000)
    world.restart()
    world.pass_ms(9_999)
    assert world.heartbeat(leader, generation_id) is ErrorCode.NONE
    world.pass_ms(1)
    assert world.heartbeat(leader, generation_id) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(other, generation_id) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_new_member_id_of_a_static_member_is_known_after_a_restart() -> None:
    world = World()
    one = world.join(instance="one")
    world.settle()
    old = one.only.member_id
    world.sync(old, 1, {old: b"1"})
    world.settle()
    told = world.join(instance="one")
    world.settle()
    world.restart()
    assert world.heartbeat(told.only.member_id, 1, instance="one") is ErrorCode.NONE
    assert world.heartbeat(old, 1, instance="one") is ErrorCode.FENCED_INSTANCE_ID


def test_a_rebalance_that_was_going_on_is_forgotten_and_the_generation_before_is_back() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    world.join(leader), world.join(other)
    world.restart()
    assert world.describe().group_state == "Stable"
    assert world.heartbeat(leader, generation_id) is ErrorCode.NONE
    assert world.heartbeat(leader, generation_id + 1) is ErrorCode.ILLEGAL_GENERATION


def test_an_empty_group_keeps_its_generation_and_the_time_since_when_it_is_empty() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1)
    world.pass_ms(5_000)
    world.leave(member_id)
    world.settle()
    world.restart()
    group = world.coordinator.directory.find_classic(GROUP)
    assert group is not None
    assert (group.generation_id, group.state_since_ms, group.protocol_type) == (generation_id + 1, START_MS + 5_000, "consumer")


def test_only_what_the_log_has_is_there() -> None:
    world = World()
    world.commit({A0: 1})
    world.settle()
    lost = world.commit({A0: 2})
    world.restart()
    assert not lost and world.offsets() == {A0: 1}


def test_a_group_that_grew_too_large_rebalances_when_it_is_loaded() -> None:
    world = World()
    ids, generation_id = world.stable_group(3)
    world.settings = world.settings._replace(group_max_size=2)
    world.restart()
    assert world.heartbeat(ids[0], generation_id) is ErrorCode.REBALANCE_IN_PROGRESS
    told = [world.join(member_id) for member_id in ids]
    assert [each.error for each in told] == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert told[0].only.generation_id == generation_id + 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\0", b""),
        (b"\0\x63future", b"x"),
        (b"\0\3\0\5group", b"\0\0"),
        (b"\0\2\0\5group", b""),
        (b"\0\2\0\5group", b"\0\3\0\1"),
        (b"\0\2\0\5group", b"\0\x63whatever"),
        (b"\0\1\0\5group\0\5topic\0\0\0\0", b"\0\3"),
        (b"\0\1\0\5group", b"\0\3"),
        (b"\0\1\xff\xff\0\5topic\0\0\0\0", None),
    ],
)
def test_a_record_that_cannot_be_read_is_left_out_and_counted(key: bytes, value: bytes | None) -> None:
    world = World()
    world.commit({A0: 1})
    world.settle()
    world.log.content[world.partition()].append(LoadedRecord(1, START_MS, key, value))
    world.restart()
    assert world.coordinator.skipped_records == 1
    assert world.offsets() == {A0: 1} and len(world.list_groups().groups) == 1


def test_a_load_may_come_in_pieces() -> None:
    world = World()
    world.commit({A0: 1})
    world.stable_group(2)
    before = (world.describe(), world.offsets())
    partition = world.partition()
    world.coordinator.unload(partition, world.now_ms)
    world.coordinator.begin_load(partition)
    for record in world.log.content[partition]:
        world.coordinator.load(partition, [record])
    assert world.describe().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.coordinator.finish_load(partition, world.now_ms)
    assert (world.describe(), world.offsets()) == before


def test_a_load_that_is_broken_off_leaves_nothing_behind() -> None:
    world = World()
    world.commit({A0: 1})
    world.settle()
    partition = world.partition()
    world.coordinator.unload(partition, world.now_ms)
    world.coordinator.begin_load(partition)
    world.coordinator.load(partition, world.log.content[partition])
    world.coordinator.unload(partition, world.now_ms)
    assert world.describe().error_code == ErrorCode.NOT_COORDINATOR
    world.load(partition)
    assert world.offsets() == {A0: 1}


def test_appends_after_a_load_stand_behind_what_was_loaded() -> None:
    world = World()
    for offset in range(20):
        world.commit({A0: offset})
    world.settle()
    world.restart()
    world.commit({A0: 100})
    world.settle()
    assert world.offsets() == {A0: 100}
