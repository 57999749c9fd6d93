"""Producer ids out of leased blocks (`ipc/producer_id_leases.py`): none twice, the next block in time, a controller that is away or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import orjson
import pytest

from appliance.base.clock import ManualClock
from appliance.base.logging import Logger, Severity
from appliance.ipc.producer_id_leases import ASK_AGAIN_NS, ProducerIdLeases
from appliance.ipc.request_frames import LEASE_PRODUCER_IDS
from appliance.ipc.request_link import ControllerLink
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout


class PlayedController:
    def __init__(self) -> None:
        self.connected = True
        self.waiting: list[Callable[[bytes | None], None]] = []
        self.kinds: list[int] = []

    def request(self, kind: int, _payload: bytes, _timeout_ms: int, on_answer: Callable[[bytes | None], None]) -> None:
        self.kinds.append(kind)
        self.waiting.append(on_answer)

    def answer(self, document: dict[str, Any] | None) -> None:
        self.waiting.pop(0)(orjson.dumps(document) if document is not None else None)

    def lease(self, first: int, last: int) -> None:
        self.answer({"error": 0, "first": first, "last": last})


class World:
    def __init__(self, counters: Counters) -> None:
        self.clock = ManualClock()
        self.clock.advance_ms(1_000)
        self.controller = PlayedController()
        self.counters = counters
        self.begin(Severity.ERROR)  # the expected warnings of these tests are not printed

    def begin(self, severity: Severity) -> None:
        given = self.counters.counter("coordinator.producer_ids")
        self.leases = ProducerIdLeases(cast(ControllerLink, self.controller), self.clock, given, Logger("coordinator", severity))

    def turn(self) -> int:
        return self.leases.turn(self.clock.monotonic_ns())

    def take(self, count: int) -> list[int | None]:
        return [self.leases.next() for _ in range(count)]


@pytest.fixture
def world() -> Iterator[World]:
    with scratch_layout() as layout:
        counters = Counters.create_or_adopt(layout, "coordinator", 1)
        yield World(counters)
        counters.close()


def test_the_first_block_is_requested_before_an_id_is_needed(world: World) -> None:
    world.turn()
    assert world.controller.kinds == [LEASE_PRODUCER_IDS]
    assert world.take(1) == [None]
    assert len(world.controller.waiting) == 1, "one question at a time"
    world.controller.lease(1, 3)
    assert world.take(4) == [1, 2, 3, None]


def test_the_next_block_is_asked_for_when_a_tenth_is_left_and_follows_without_a_gap(world: World) -> None:
    world.turn()
    world.controller.lease(1_000, 1_019)
    world.clock.advance_ms(ASK_AGAIN_NS // 1_000_000)
    assert world.take(17) == list(range(1_000, 1_017))
    assert world.turn() == 0
    assert world.take(1) == [1_017]
    assert world.turn() == 1
    world.controller.lease(5_000, 5_019)
    world.clock.advance_ms(ASK_AGAIN_NS // 1_000_000)
    assert world.turn() == 0, "two blocks are enough"
    assert world.take(4) == [1_018, 1_019, 5_000, 5_001]


@pytest.mark.parametrize("answer", [None, {"error": 15}])
def test_a_controller_that_gives_none_is_asked_again_after_a_while(world: World, answer: dict[str, Any] | None) -> None:
    world.turn()
    world.controller.answer(answer)
    assert world.take(1) == [None]
    assert world.turn() == 0
    world.clock.advance_ms(ASK_AGAIN_NS // 1_000_000)
    assert world.turn() == 1
    world.controller.lease(1, 2)
    assert world.take(1) == [1]


def test_nothing_is_asked_of_a_controller_that_is_away(world: World) -> None:
    world.controller.connected = False
    world.turn()
    assert world.take(1) == [None]
    assert world.controller.kinds == []
    world.controller.connected = True
    assert world.take(1) == [None]
    world.controller.lease(7, 7)
    assert world.take(1) == [7]


def test_a_repeated_refusal_is_logged_once(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    world.begin(Severity.WARNING)
    for answer in ({"error": 15}, {"error": 15}, {"error": 15}, {"error": -1}, {"error": 0, "first": 1, "last": 1}, {"error": 15}):
        world.turn()
        world.controller.answer(answer)
        world.take(1)
        world.clock.advance_ms(ASK_AGAIN_NS // 1_000_000)
    lines = [line for line in capfd.readouterr().err.splitlines() if "no producer ids" in line]
    assert [line.partition("Kafka error ")[2].partition(")")[0] for line in lines] == ["15", "-1", "15"]
