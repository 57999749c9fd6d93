"""How much work large groups are: a turn is bounded, a rebalance is one append, a heartbeat costs the log nothing."""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from services.coordinator.groups.group_coordinator import REPLIES_A_TURN
from tests.support.group_world import World


def test_a_hundred_members_settle_in_one_generation_with_one_append() -> None:
    world = World()
    ids, generation_id = world.stable_group(100)
    assert generation_id == 1 and world.log.batches == 1
    assert all(world.heartbeat(member_id, 1) is ErrorCode.NONE for member_id in ids)
    assert world.log.batches == 1 and len(world.coordinator._timers) == 100


def test_the_answers_of_a_large_rebalance_take_several_turns() -> None:
    world = World()
    joined = [world.join_new()[1] for _ in range(2 * REPLIES_A_TURN + 1)]
    answered = []
    while (world.coordinator.next_deadline_ms() or 0) <= world.now_ms:
        world.coordinator.tick(world.now_ms)
        answered.append(sum(bool(told) for told in joined))
    assert answered == [REPLIES_A_TURN, 2 * REPLIES_A_TURN, len(joined)]
    assert sum(bool(told.only.members) for told in joined) == 1


def test_many_heartbeats_leave_one_timer_a_member_and_nothing_to_do() -> None:
    world = World()
    ids, _ = world.stable_group(3)
    before = len(world.coordinator._timers._heap)
    for _ in range(1_000):
        world.now_ms += 1
        for member_id in ids:
            world.heartbeat(member_id, 1)
    assert len(world.coordinator._timers._heap) == before
    assert world.coordinator.next_deadline_ms() == world.now_ms + 10_000
    assert world.coordinator.tick(world.now_ms) == 0
