"""Work over turns: shares by address and CPU time, order on a connection, and what blocks or ends it."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from appliance.base.clock import ManualClock
from appliance.senders.sender_accounts import network_of
from services.ingest.listeners.sender_connection import GONE, OPEN, PauseReason, SenderConnection
from services.ingest.listeners.sliced_work import INLINE_NS, SlicedWork
from services.ingest.protocols.steps import Steps


class Connection:
    """As much of a connection as work needs."""

    def __init__(self, address: str) -> None:
        self.network = network_of(address)
        self.work: deque[Steps] = deque()
        self.work_network: str | bytes = ""
        self.pauses = 0
        self.phase = OPEN


class World:
    """Steps take the milliseconds that a test says; `log` has the name of each step that was run."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log: list[str] = []
        self.done: list[object] = []
        self.unstarted: list[str] = []
        self.work = SlicedWork(self.clock, lambda _connection: None, self._on_done, lambda _connection, steps: self.unstarted.append(steps.__name__))

    def _on_done(self, connection: SenderConnection) -> None:
        connection.pauses &= ~PauseReason.WORK
        self.done.append(connection)

    def steps(self, name: str, count: int, step_ms: int = 1) -> Steps:
        for number in range(count):
            self.log.append(name)
            self.clock.advance_ms(step_ms)
            if number < count - 1:
                yield

    def run(self, connection: Connection, name: str, count: int, step_ms: int = 1) -> None:
        self.work.run(cast("SenderConnection", connection), self.steps(name, count, step_ms))

    def turns(self, count: int) -> list[str]:
        """What was run in so many turns."""
        self.log.clear()
        for _ in range(count):
            self.work.do_work()
        return self.log


def test_a_small_request_is_done_at_once_and_reads_on() -> None:
    world, connection = World(), Connection("a")
    world.run(connection, "small", 1)
    assert world.log == ["small"] and world.work.is_empty and not connection.pauses


def test_the_rest_of_a_large_request_waits_and_its_connection_is_not_read() -> None:
    world, connection = World(), Connection("a")
    world.run(connection, "large", 10)
    assert world.log == ["large"] and connection.pauses == PauseReason.WORK
    assert len(world.turns(1)) == 2, "two milliseconds a turn"
    world.turns(4)
    assert world.work.is_empty and world.done == [connection] and not connection.pauses


def test_an_address_with_many_connections_has_one_share() -> None:
    world = World()
    many = [Connection("a") for _ in range(50)]
    for connection in many:
        world.run(connection, "many", 100)
    world.run(Connection("b"), "one", 20)
    shares = world.turns(18)
    assert shares.count("one") >= len(shares) // 2 - 2
    assert sum(connection.work[0].gi_running or connection.work[0].gi_frame.f_lasti > 0 for connection in cast("Any", many)) <= 2, "one at a time"


def test_a_long_step_is_repaid() -> None:
    world = World()
    world.run(Connection("a"), "long", 3, 200)
    world.run(Connection("b"), "short", 400)
    ran = world.turns(100)
    assert ran.count("long") == 1 and ran.count("short") > 90


def test_requests_of_a_connection_keep_their_order() -> None:
    world, connection = World(), Connection("a")
    world.run(connection, "first", 5)
    world.run(connection, "second", 1)
    assert world.turns(10) == ["first"] * 4 + ["second"]


def test_work_that_adds_work_comes_before_nothing_else() -> None:
    world, connection = World(), Connection("a")

    def outer() -> Steps:
        world.log.append("outer")
        world.clock.advance_ms(5)
        yield
        world.run(connection, "inner", 2)
        world.log.append("outer ends")

    world.work.run(cast("SenderConnection", connection), outer())
    assert world.turns(10) == ["outer ends", "inner", "inner"] and world.work.is_empty


def test_a_blocked_partition_suspends_its_work_and_no_other() -> None:
    world, blocked, other = World(), Connection("a"), Connection("b")
    world.run(blocked, "blocked", 10)
    world.run(other, "other", 10)
    blocked.pauses |= PauseReason.PARTITION
    assert set(world.turns(20)) == {"other"}
    assert not world.work.do_work(), "the process may park"
    blocked.pauses &= ~PauseReason.PARTITION
    assert set(world.turns(20)) == {"blocked"} and world.work.is_empty


def test_the_work_of_a_lost_connection_is_closed() -> None:
    world, connection = World(), Connection("a")
    ended: list[str] = []

    def steps() -> Steps:
        try:
            world.clock.advance_ms(1 + INLINE_NS // 1_000_000)
            yield
        except GeneratorExit:
            ended.append("closed")
            raise

    world.work.run(cast("SenderConnection", connection), steps())
    connection.phase = GONE
    world.work.finish(cast("SenderConnection", connection))
    assert ended == ["closed"] and world.work.is_empty and not connection.work


def test_work_that_never_began_is_reported_when_its_connection_ends() -> None:
    """Closing such a generator runs nothing of it: its request would be neither refused nor counted."""
    world, connection = World(), Connection("a")
    for name in ("begun", "waits", "waits too"):
        world.run(connection, name, 100)
    connection.phase = GONE
    world.work.finish(cast("SenderConnection", connection))
    assert world.unstarted == ["steps", "steps"] and world.work.is_empty


def test_the_addresses_of_an_ipv6_network_have_one_share() -> None:
    world = World()
    for host in range(1, 10):
        world.run(Connection(f"2001:db8::{host}"), "many", 100)
    world.run(Connection("2001:db8:0:1::1"), "one", 100)
    ran = world.turns(40)
    assert 0.8 < ran.count("one") / ran.count("many") < 1.25
