"""Partitions that other boxes lead: their lines go there by Produce, each once, or wait: in memory, in the spool, at the sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from appliance.base.errors import ErrorCode
from appliance.records.keys import partition_of_key
from services.ingest.producer.partition_queues import PartitionQueue
from tests.support.produce_leader import ProduceLeader
from tests.unit.services.ingest.stepped_ingest import SteppedIngest

PARTITIONS = 4
HOSTS = [next(f"h{number}" for number in range(999) if partition_of_key(b"h%d" % number, PARTITIONS) == partition) for partition in range(PARTITIONS)]
"""A host for each partition."""


class World:
    """This box, and box 2, which the test plays."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.box = SteppedIngest(directory, partitions=PARTITIONS, **settings)
        self.box.start()
        self.leader = ProduceLeader(self.box.step)

    def led_by_other(self, *partitions: int) -> None:
        """From now on box 2 leads these."""
        self.box.publish(PARTITIONS, leaders=dict.fromkeys(partitions, 2), brokers={2: self.leader.peer.address})

    @property
    def queues(self) -> Mapping[tuple[str, int], PartitionQueue]:
        return self.box.agent._sender.queues.by_key

    def run_until(self, condition: Callable[[], object], what: str) -> None:
        def has_batches_of() -> object:
            self.leader.work()
            return condition()

        self.box.run_until(has_batches_of, what)

    def run_until_stored(self, count: int) -> None:
        self.run_until(lambda: self.box.ledger().received == count and self.box.ledger().balances, f"{count} lines are settled")

    def numbers_there(self, partition: int) -> list[int]:
        """Of the lines in a log of box 2, in its order."""
        return [int(orjson.loads(record.value or b"")["message"]) for record in self.leader.logs.get(partition, ())]

    def numbers_here(self, partition: int) -> list[int]:
        return [int(orjson.loads(record.value or b"")["message"]) for record in self.box.records_of(partition)]

    def close(self) -> None:
        self.leader.close()
        self.box.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def maker(**settings: Any) -> World:
        made.append(World(tmp_path, **settings))
        return made[-1]

    yield maker
    for world in made:
        world.close()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


def lines(numbers: range, app: str = "app") -> bytes:
    return b"".join(f"<13>1 2026-01-01T00:00:00Z {HOSTS[number % 4]} {app} - - - {number}\n".encode() for number in numbers)


def test_lines_go_to_the_boxes_that_lead_their_partitions(world: World) -> None:
    world.led_by_other(0, 3)
    world.box.connect().sendall(lines(range(400)))
    world.run_until_stored(400)
    assert (world.box.ledger().stored, world.box.ledger().counted, world.box.counter("ingest.partitions_led")) == (400, 0, 2)
    for partition in (0, 3):
        assert world.numbers_there(partition) == list(range(partition, 400, 4))
        assert not world.numbers_here(partition)
    for partition in (1, 2):
        assert world.numbers_here(partition) == list(range(partition, 400, 4))
    assert world.leader.acks == {-1}


def test_what_was_under_way_to_a_lost_connection_goes_again_under_its_sequences_and_is_there_once(world: World) -> None:
    world.led_by_other(0, 1, 2, 3)
    sender = world.box.connect()
    sender.sendall(lines(range(400)))
    world.run_until_stored(400)
    world.leader.answers = False
    sender.sendall(lines(range(400, 800)))
    world.run_until(lambda: len(world.leader.logs[0]) > 100, "box 2 appends what it will not answer")
    world.leader.peer.hang_up()
    world.leader.answers = True
    world.run_until_stored(800)
    assert [world.numbers_there(partition) for partition in range(4)] == [list(range(partition, 800, 4)) for partition in range(4)]
    assert (world.leader.duplicates > 0, world.box.ledger().stored, world.box.ledger().resent > 0) == (True, 800, True)


def test_a_leader_that_refuses_for_now_gets_everything_again_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.ingest.producer.batch_answers.RETRY_NS", 1_000)
    world.led_by_other(0, 1, 2, 3)
    world.leader.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.box.connect().sendall(lines(range(400)))
    world.run_until(lambda: world.box.ledger().resent > 0, "it was refused")
    world.leader.error = ErrorCode.NONE
    world.run_until_stored(400)
    assert [world.numbers_there(partition) for partition in range(4)] == [list(range(partition, 400, 4)) for partition in range(4)]


def test_lines_go_where_the_leadership_goes(world: World) -> None:
    world.led_by_other(0, 1, 2, 3)
    world.leader.answers = False
    sender = world.box.connect()
    sender.sendall(lines(range(40)))
    world.run_until(lambda: world.leader.logs.get(0), "something is there")
    world.led_by_other(2, 3)
    world.leader.peer.hang_up()  # what it has of 0 and 1 stays unknown: another box leads now
    world.leader.answers = True
    sender.sendall(lines(range(40, 80)))
    world.run_until_stored(80)
    assert [world.numbers_here(partition) for partition in (0, 1)] == [list(range(partition, 80, 4)) for partition in (0, 1)]
    assert [world.numbers_there(partition) for partition in (2, 3)] == [list(range(partition, 80, 4)) for partition in (2, 3)]


def test_what_a_leader_has_and_does_not_remember_is_not_stored_again(world: World) -> None:
    world.led_by_other(0)
    sender = world.box.connect()
    sender.sendall(lines(range(0, 400, 4)))
    world.run_until_stored(100)
    world.leader.answers = False
    for first in range(400, 800, 80):
        sender.sendall(lines(range(first, first + 80, 4)))
        world.run_until(lambda end=first + 80: world.numbers_there(0)[-1] == end - 4, "a batch more is there")  # type: ignore[misc]
    world.leader.forget_all_but_the_last(0)
    world.leader.peer.hang_up()
    world.leader.answers = True
    world.run_until_stored(200)
    assert world.numbers_there(0) == list(range(0, 800, 4))
    assert set(world.leader.epochs) == {0}


def test_a_leader_that_lost_what_it_acknowledged_gets_what_follows_in_a_new_epoch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.ingest.replay.journalled_batches.GRACE_MS", 0)
    world.led_by_other(0)
    sender = world.box.connect()
    sender.sendall(lines(range(0, 400, 4)))
    world.run_until_stored(100)
    world.leader.lose_all(0)
    sender.sendall(lines(range(400, 800, 4)))
    world.run_until_stored(200)
    assert world.numbers_there(0) == list(range(400, 800, 4))
    assert (set(world.leader.epochs), world.box.counter("ingest.producer_epochs_raised")) == ({0, 1}, 1)


def test_a_batch_that_is_refused_for_good_is_counted_and_those_behind_it_go_on(world: World) -> None:
    world.led_by_other(0)
    sender = world.box.connect()
    world.leader.error = ErrorCode.INVALID_RECORD
    sender.sendall(lines(range(0, 40, 4)))
    world.run_until(lambda: world.box.ledger().counted > 0, "it was refused")
    world.leader.error = ErrorCode.NONE
    sender.sendall(lines(range(40, 80, 4)))
    world.run_until_stored(20)
    refused = world.box.counter('ingest.counted{reason="refused"}')
    assert world.numbers_there(0) == list(range(0, 80, 4))[refused:]
    assert world.box.ledger().stored == 20 - refused


def fill(world: World, first: int) -> int:
    """Send lines for partition 0 until nothing more is taken; how many were received."""
    sender = world.box.connect()
    sender.setblocking(False)
    text = lines(range(first, first + 48_000, 4), "a" * 1000)
    sent = idle_turns = 0
    while idle_turns < 100:
        try:
            count = sender.send(text[sent : sent + 65536])
        except BlockingIOError:
            count = 0
        sent += count
        idle_turns = 0 if count else idle_turns + 1
        world.box.step()
    assert sent < len(text), "the sender is slowed down"
    return world.box.ledger().received


@pytest.mark.slow
def test_lines_for_a_leader_that_is_away_wait_in_memory_then_in_the_spool_then_at_the_sender(make: Callable[..., World]) -> None:
    world = make(ingest_spool_bytes=1 << 20, disk_budget_bytes=1 << 18)
    world.led_by_other(0)
    world.leader.peer.die()
    received = fill(world, 0)
    assert world.box.counter("ingest.spool_bytes") > 900_000
    assert (world.box.ledger().stored, world.box.ledger().counted) == (0, 0)
    world.leader.peer.come_back()
    world.run_until(lambda: world.box.ledger().stored >= received, "all that waited is stored")
    assert world.numbers_there(0)[:received] == list(range(0, received * 4, 4))


def live_again(world: World) -> None:
    """Ingest is killed, and its next incarnation finds the leader that was away."""
    world.box.kill_ingest()
    world.leader.peer.come_back()
    world.box.start_ingest()
    world.run_until(lambda: world.box.is_ready and world.box.ledger().balances, "the next incarnation has stored what it found")


@pytest.mark.slow
def test_a_killed_ingest_leaves_its_spool_to_the_next_incarnation_and_the_ledger_balances(make: Callable[..., World]) -> None:
    world = make(ingest_spool_bytes=1 << 20, disk_budget_bytes=1 << 18)
    world.led_by_other(0)
    world.leader.peer.die()
    received = fill(world, 0)
    live_again(world)
    crash = world.box.counter('ingest.counted{reason="crash"}')
    assert 0 < crash < received, "what waited in memory is lost with it, what waited on disk is not"
    assert world.numbers_there(0) == sorted(world.numbers_there(0))
    assert (len(world.numbers_there(0)), world.box.ledger().stored) == (received - crash, received - crash)


@pytest.mark.slow
def test_records_that_a_dead_incarnation_left_for_an_idle_topic_go_to_its_leader(make: Callable[..., World]) -> None:
    world = make(ingest_spool_bytes=1 << 20, disk_budget_bytes=1 << 18, senders={"listener": [{"name": "syslog-tcp", "topic": "far"}]})
    world.box.create_other("far")
    world.box.leader_of_others = 2
    world.led_by_other(0)
    world.leader.peer.die()
    received = fill(world, 0)
    live_again(world)
    assert len(world.numbers_there(0)) == world.box.ledger().stored == received - world.box.counter('ingest.counted{reason="crash"}') > 0


def test_what_is_all_behind_finds_out_that_its_box_is_back(make: Callable[..., World]) -> None:
    """Another partition used up the memory for box 2 and then moved elsewhere: no request goes to
    box 2 any more.
    """
    world = make(ingest_spool_bytes=4 << 20, disk_budget_bytes=1 << 18)
    world.led_by_other(0, 1)
    world.leader.die()
    sender = world.box.connect()
    sender.sendall(lines(range(1, 1_601, 4), "a" * 1000))
    world.run_until(lambda: world.box.ledger().received == 400 and world.box.counter("ingest.spool_bytes") > 0, "memory for box 2 is used up")
    sender.sendall(lines(range(1)))
    world.run_until(lambda: ("syslog", 0) in world.queues, "one waits, and none before it")
    world.led_by_other(0)
    world.run_until(lambda: world.box.ledger().stored == 400, "the other partition's are stored")
    world.leader.peer.come_back()
    world.run_until_stored(401)
    assert world.numbers_there(0) == [0]


def stop(world: World) -> None:
    """A clean stop whose deadline has passed."""
    agent = world.box.agent
    agent.begin_stop()
    for _ in range(20):
        world.box.step()
    assert not agent.stopped()
    agent.close()
    world.box.ingest = None


@pytest.mark.parametrize("is_there", [True, False], ids=["appended", "lost on the way"])
def test_batches_in_flight_at_a_stop_are_stored_once_by_the_next_incarnation(world: World, is_there: bool) -> None:
    """Plain syslog, which no sender repeats."""
    world.led_by_other(0)
    world.leader.answers = False
    world.box.connect().sendall(lines(range(0, 400, 4)))
    world.run_until(lambda: world.leader.logs.get(0), "box 2 has some of it, and does not say so")
    stop(world)
    assert (world.box.ledger().in_flight, world.box.ledger().counted) == (100, 0)
    if not is_there:
        world.leader.logs.clear()
        world.leader._producers.clear()
    world.leader.peer.hang_up()
    world.leader.answers = True
    world.box.start_ingest()
    world.run_until(lambda: world.box.ledger().stored == 100, "the next incarnation has stored it, or found it")
    assert world.numbers_there(0) == list(range(0, 400, 4)) and world.box.ledger().balances


def test_what_a_dead_log_writer_gave_back_waits_in_the_spool_over_a_stop(world: World) -> None:
    world.box.publish(PARTITIONS, brokers={1: world.leader.peer.address})  # box 1 is asked what it has stored
    sender = world.box.connect()
    sender.sendall(lines(range(0, 400, 4)))
    world.run_until_stored(100)
    sender.sendall(lines(range(400, 800, 4)))
    while not world.box.agent._sender.queues.in_flight:
        assert world.box.ingest is not None
        world.box.ingest.turn()
    world.box.kill_log_writer()
    stop(world)
    assert (world.box.ledger().in_flight, world.box.ledger().counted) == (100, 0)
    world.box.start_log_writer()
    for partition in range(PARTITIONS):
        world.box.lead(partition)
    world.box.start_ingest()
    world.run_until(lambda: world.box.ledger().stored == 200, "the next incarnation has stored it")
    assert world.numbers_here(0) == list(range(0, 800, 4)) and world.box.ledger().balances


def test_an_ingest_of_a_box_that_leads_nothing_is_ready(tmp_path: Path) -> None:
    made = SteppedIngest(tmp_path, partitions=PARTITIONS)
    try:
        made.publish(PARTITIONS, leaders=dict.fromkeys(range(PARTITIONS), 2))
        made.start_ingest()
        made.run_until(lambda: made.is_ready)
    finally:
        made.close()
