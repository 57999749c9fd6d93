"""A follower's fetcher and its leader, when requests and answers cross, disks are slow and
connections end: one thing at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, ValuesView
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.cluster.metadata_image import BrokerImage
from services.replica_fetcher.follower_fetch import Need
from services.replica_fetcher.replica_partition import FollowedPartition
from services.replica_fetcher.replica_session import Key
from tests.support.crossing_fetches import ARENA_BYTES, LEADER_ID, OWN_ID, PARK_MS, RECORDS, WAIT_MS, CrossingFetches
from tests.support.stepped_fetches import BROKER_EPOCH, TOPIC_ID


@pytest.fixture
def world(layout: BoxLayout, tmp_path: Path) -> Iterator[CrossingFetches]:
    made = CrossingFetches(layout, tmp_path / "segment.log")
    yield made
    made.close()


def parked(world: CrossingFetches, *partitions: int) -> None:
    """They are followed, and a fetch of their session lies at the leader, which has nothing new."""
    for partition in partitions:
        world.follow(partition)
        world.grow(partition, 1)
    world.until_even()
    while not world.side.delayed or world.lane.session.is_new or len(world.lane.session.asked) < len(partitions):
        step(world)
    world.check_session()


def step(world: CrossingFetches, milliseconds: int = 1) -> None:
    """All is well for a moment, at both ends and between them."""
    world.clock.advance_ms(milliseconds)
    world.turn()
    world.connect()
    while world.deliver_request():
        pass
    world.leader_turn()
    while world.deliver_answer():
        pass
    for disk in world.disks:
        disk.go_on(100)


def test_a_newcomer_hastens_the_parked_fetch_and_both_sides_agree(world: CrossingFetches) -> None:
    parked(world, 0)
    world.follow(1)
    world.grow(1, 3)
    assert world.until_even() < 20
    assert (world.counted("hastened"), world.counted("sessions"), world.side.counters.counter("fetch.hastened").value) == (1, 1, 1)


def test_no_turn_spins_while_a_part_of_the_answer_has_arrived(world: CrossingFetches) -> None:
    parked(world, 0)
    world.grow(0, 1)
    world.leader_turn()
    assert world.stream is not None
    world.stream.begin_frame()
    world.follow(1)
    for _ in range(20):
        world.clock.advance_ms(1)
        world.disks[1].go_on(1)
        world.turn()  # says so if it would
    assert world.counted("hastened") == 0
    world.until_even()


def test_no_turn_spins_for_a_slow_disk_while_its_leader_is_away(world: CrossingFetches) -> None:
    parked(world, 0)
    world.grow(0, 1)
    world.leader_turn()
    world.deliver_answer()
    world.turn()
    assert world.disks[0].orders
    world.lane.set_brokers(None, BROKER_EPOCH)
    for _ in range(100):
        world.clock.advance_ms(1)
        world.turn()
    world.lane.set_brokers(BrokerImage(LEADER_ID, "127.0.0.1", 1, None, 6), BROKER_EPOCH)
    world.until_even()


def test_a_fetch_that_waits_for_a_connection_is_not_overtaken_and_includes_new_partitions(world: CrossingFetches) -> None:
    """A peer may close an unused connection; its session survives."""
    parked(world, 0)
    world.grow(0, 1)
    world.leader_turn()
    world.deliver_answer()
    world.turn()
    stream = world.stream
    assert stream is not None and world.is_quiet
    stream.end()  # while the disk is at it, nothing is under way
    assert not world.lane.session.is_new
    world.disks[0].go_on(1)
    world.turn()
    world.follow(1)
    for _ in range(10):
        world.clock.advance_ms(1)
        world.disks[1].go_on(1)
        world.turn()
    world.connect()
    assert world.stream is not None and len(world.stream.to_leader) == 1 and world.counted("hastened") == 0
    assert set(world.lane.session.asked) == {(TOPIC_ID, 0), (TOPIC_ID, 1)}


def test_a_high_watermark_that_arrived_while_a_partition_restarted_is_sent_again(world: CrossingFetches) -> None:
    parked(world, 0, 1)
    world.commit(0)
    world.grow(1, 1)
    world.leader_turn()  # the answer has the records of one and the high watermark of the other, and is on its way
    world.unfollow(0)
    world.follow(0)
    world.deliver_answer()
    world.until_even()
    assert world.logs[0].high_watermark == RECORDS


def test_a_high_watermark_in_the_second_of_two_answers_is_not_lost_with_records_that_came_twice(world: CrossingFetches) -> None:
    parked(world, 0)
    world.follow(1)
    world.turn()
    world.disks[1].go_on(1)
    world.clock.advance_ms(6)
    world.grow(0, 1)
    world.leader_turn()  # it answers the first
    world.turn()  # before that comes, the second goes
    assert world.counted("hastened") == 1
    world.commit(0)
    world.deliver_request()
    world.leader_turn()
    world.deliver_answer()
    world.turn()
    world.deliver_answer()
    world.turn()
    world.until_even()
    assert world.logs[0].high_watermark == 2 * RECORDS


def test_a_second_fetch_that_comes_while_a_log_reader_is_asked_ends_the_first_when_that_is_parked(world: CrossingFetches) -> None:
    parked(world, 0)
    world.raise_epoch(2)
    world.grow(2, 1)
    world.logs[2].log_end_offset = RECORDS  # it has the records of the epoch before, so the leader has to ask where that ends
    world.follow(2)
    world.turn()
    world.disks[0].go_on(1)
    world.clock.advance_ms(6)
    world.turn()
    world.deliver_request()
    world.leader_turn(serves=False)
    world.deliver_answer()
    world.follow(1)
    world.turn()
    world.disks[1].go_on(1)
    world.clock.advance_ms(6)
    world.turn()
    world.deliver_request()
    assert world.stream is not None and world.stream.connection.read_paused, "the first is not parked yet"
    world.leader_turn()
    world.leader_turn()
    assert not world.stream.connection.read_paused
    world.check_session()
    assert len(world.lane.session.asked) == 3


def test_a_throttled_partition_that_is_in_sync_now_is_fetched_again_at_once(world: CrossingFetches) -> None:
    throttle = world.throttle
    throttle.bytes_per_second = 100
    throttle.replicas = frozenset({(TOPIC_ID, 0)})
    world.follow(1)
    parked(world, 0)
    now_ns = world.clock.monotonic_ns()
    throttle.record(1_000, now_ns)  # it is shut for ten seconds
    world.turn()
    world.grow(1, 1)
    for _ in range(5):
        step(world)
    assert (TOPIC_ID, 0) not in world.lane.session.asked
    throttle.replicas = frozenset()
    for _ in range(20):
        step(world)
    assert (TOPIC_ID, 0) in world.lane.session.asked


def test_a_session_begins_without_a_long_wait(world: CrossingFetches) -> None:
    """A newcomer has to wait for it."""
    parked(world, 0)
    world.clock.advance_ms(5_000)
    world.end_session()
    for _ in range(3):
        step(world)
    began_ms = world.clock.monotonic_ms()
    assert world.lane.session.is_new and world.side.delayed
    while world.lane.session.is_new:
        step(world)
    assert world.clock.monotonic_ms() - began_ms < PARK_MS < WAIT_MS


def test_partitions_that_are_not_ready_are_not_looked_at_turn_by_turn(world: CrossingFetches, monkeypatch: pytest.MonkeyPatch) -> None:
    parked(world, 0)
    looks = []
    is_fetchable = world.lane.is_fetchable
    for partition in range(1, 5):
        world.follow(partition)
    world.turn()
    monkeypatch.setattr(world.lane, "is_fetchable", lambda followed: looks.append(followed.key) or is_fetchable(followed))
    for _ in range(20):
        world.clock.advance_ms(1)
        world.turn()
    assert not looks
    monkeypatch.undo()


class _ScanCountingPartitions(dict[Key, FollowedPartition]):
    """Counts how often all partitions were visited."""

    scans = 0

    def values(self) -> ValuesView[FollowedPartition]:
        self.scans += 1
        return super().values()


def test_turns_without_a_fetchable_partition_do_not_scan_all_partitions(world: CrossingFetches) -> None:
    for partition in range(4):
        world.follow(partition)
    world.lane.partitions = counted = _ScanCountingPartitions(world.lane.partitions)
    for _ in range(20):  # the log-writers do not answer, so the log end offsets are unknown
        world.clock.advance_ms(1)
        world.turn()
    assert counted.scans == 0
    world.until_even()


def test_a_partition_in_back_off_is_not_looked_at_before_its_time_and_fetched_then(world: CrossingFetches, monkeypatch: pytest.MonkeyPatch) -> None:
    parked(world, 0)
    world.side.assign((LEADER_ID,))
    world.grow(0, 1)
    step(world)
    step(world)
    world.turn()
    assert world.followed[0].rules.failures == 1 and world.is_quiet, "the leader refused it"
    looks = []
    is_fetchable = world.lane.is_fetchable
    monkeypatch.setattr(world.lane, "is_fetchable", lambda followed: looks.append(followed.key) or is_fetchable(followed))
    for _ in range(10):
        world.clock.advance_ms(1)
        world.turn()
    assert not looks
    world.side.assign((LEADER_ID, OWN_ID))
    assert world.until_even() < 30
    monkeypatch.undo()


def test_a_disk_that_hangs_with_a_little_of_each_answer_does_not_fill_the_arena_with_what_others_have_in_them(layout: BoxLayout, tmp_path: Path) -> None:
    world = CrossingFetches(layout, tmp_path / "segment.log", partitions=60)
    parked(world, *range(60))
    on_time, least = 0, ARENA_BYTES
    for turn in range(200):
        world.grow(turn % 30 * 2 + 1, 1)  # on the disk that hangs
        for partition in (0, 2):
            world.grow(partition, 1)
        world.clock.advance_ms(1)
        while world.turn():
            pass
        while world.deliver_request():
            pass
        world.leader_turn()
        world.deliver_answer()
        while world.turn():
            pass
        least = min(least, world.arena.free_bytes)
        world.disks[0].go_on(100)
        on_time += world.logs[0].log_end_offset >= (turn - 40) * RECORDS
    assert least >= ARENA_BYTES // 4
    assert on_time == 200, "the other disk's partitions are not held up for longer than it is waited for"
    world.until_even()
    world.close()


def test_no_second_fetch_follows_one_that_leaves_the_session_empty(world: CrossingFetches) -> None:
    """The leader ends such a session, and answers at once."""
    parked(world, 0)
    world.unfollow(0)
    world.follow(0)
    world.turn()
    world.grow(0, 1)
    world.leader_turn()
    world.deliver_answer()
    while world.turn():
        pass
    world.disks[0].go_on(1)
    world.turn()
    assert not world.lane.session.asked
    world.clock.advance_ms(10)
    world.turn()
    assert world.stream is not None and len(world.stream.to_leader) <= 1
    world.until_even()
    assert len(world.streams) == 1 and world.followed[0].rules.need == Need.FETCH and world.lane.own_id == OWN_ID
