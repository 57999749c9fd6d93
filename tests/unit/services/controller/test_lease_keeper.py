"""The box's lease over a ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from appliance.base.clock import ManualClock
from appliance.shm.lease import LeaseReader
from appliance.shm.mapping import unlink
from lab.scratch_layout import scratch_layout
from services.controller.zookeeper.box_session import LeaseKeeper
from services.controller.zookeeper.requests import Create, Delete
from services.controller.zookeeper.session import ZooKeeperSession
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

TIMEOUT_MS = 1_600


class Side:
    """A registered box 1 that has neighbours."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.zookeeper = MemoryZooKeeper()
        self.session: MemorySession = self.zookeeper.session("zk", TIMEOUT_MS, None, lambda _: None, lambda _: None)
        self.session.start()
        self.session.drain()
        for path in ("/brokers", "/brokers/ids"):
            self.session.submit(Create(path, b""), lambda _: None)
        self.register()

    def register(self) -> None:
        self.session.submit(Create("/brokers/ids/1", b"", ephemeral=True), lambda _: None)
        self.session.drain()


@pytest.fixture
def kept() -> Iterator[tuple[Side, LeaseKeeper, LeaseReader]]:
    with scratch_layout() as layout:
        side = Side()
        keeper = LeaseKeeper(layout, 1, 1, TIMEOUT_MS, cast(ZooKeeperSession, side.session), side.clock)
        keeper.do_work(True)
        reader = LeaseReader(layout)
        yield side, keeper, reader
        reader.close()
        keeper.close()
        unlink(layout.shared_memory_name("lease", "controller"))


def holds(side: Side, reader: LeaseReader) -> bool:
    return reader.holds(side.clock.boottime_ns())


Kept = tuple[Side, LeaseKeeper, LeaseReader]


def test_an_answer_is_good_for_the_time_out_from_its_question_on(kept: Kept) -> None:
    side, _, reader = kept
    assert not holds(side, reader), "no answer has arrived yet"
    side.clock.advance_ms(1_000)
    side.session.drain()
    side.clock.advance_ms(599)
    assert holds(side, reader)
    side.clock.advance_ms(1)
    assert not holds(side, reader)


def test_it_is_asked_four_times_in_that_time_and_never_twice_at_once(kept: Kept) -> None:
    side, keeper, reader = kept
    assert keeper.do_work(True) == 0
    side.session.drain()
    assert keeper.do_work(True) == 0 and keeper.park_ms(1_000) == 400
    side.clock.advance_ms(400)
    assert keeper.park_ms(1_000) == 0
    assert keeper.do_work(True) == 1 and keeper.do_work(True) == 0
    side.session.drain()
    side.clock.advance_ms(1_599)
    assert holds(side, reader)


def test_a_registration_that_is_gone_or_anothers_ends_it_at_once(kept: Kept) -> None:
    side, keeper, reader = kept
    side.session.drain()
    assert holds(side, reader)
    side.zookeeper.write(Delete("/brokers/ids/1"))
    side.clock.advance_ms(400)
    keeper.do_work(True)
    side.session.drain()
    assert not holds(side, reader)


def test_an_answer_to_an_older_session_says_nothing_and_an_expired_one_ends_it(kept: Kept) -> None:
    side, keeper, reader = kept
    side.session.session_id += 1
    side.session.drain()
    assert not holds(side, reader)
    side.session.session_id -= 1
    side.clock.advance_ms(400)
    keeper.do_work(True)
    side.session.drain()
    assert holds(side, reader)
    keeper.end()
    assert not holds(side, reader)


def test_a_box_that_has_left_parks_as_long_as_it_may(kept: Kept) -> None:
    """Without ZooKeeper no request becomes due; the controller took half a processor meanwhile."""
    side, keeper, _ = kept
    side.session.drain()
    side.clock.advance_ms(5_000)
    assert keeper.do_work(False) == 0 and keeper.park_ms(1_000) == 1_000
    assert keeper.do_work(True) == 1, "the request is due when the box is back"


def test_a_box_without_neighbours_asks_nothing() -> None:
    with scratch_layout() as layout:
        side = Side()
        keeper = LeaseKeeper(layout, 1, 1, TIMEOUT_MS, cast(ZooKeeperSession, side.session), side.clock)
        asked = len(side.zookeeper.requests)
        assert keeper.do_work(False) == 0 and keeper.park_ms(1_000) == 1_000
        side.session.drain()
        keeper.end()
        keeper.close()
        assert len(side.zookeeper.requests) == asked
