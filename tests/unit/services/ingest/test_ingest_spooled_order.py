"""A leader that is away until memory is used up, and a death of ingest meanwhile: what senders bring again is there once, and in their order."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.services.ingest.test_ingest_elsewhere import HOSTS, World, fill

pytestmark = pytest.mark.slow

PER_REQUEST = 30
REQUESTS = 30
"""As many as a connection may have waiting, nearly."""
TURNS = 300
"""Far more than a batch needs to its leader."""
_STATUS = re.compile(rb"HTTP/1\.1 (\d+) ")


class KeyedSender:
    """Documents of one host in requests with a key each, all of them under way at once; on a new connection what was not answered goes again, in its order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heard = b""
        self.answered = 0
        self.requests = [self.request(number) for number in range(REQUESTS)]
        self.unsent = b""
        self._socket: socket.socket | None = None

    def request(self, number: int) -> bytes:
        numbers = range(number * PER_REQUEST, (number + 1) * PER_REQUEST)
        body = b"".join(json.dumps({"host": HOSTS[0], "message": str(each), "text": "x" * 1000}).encode() + b"\n" for each in numbers)
        return b"POST /ingest/syslog HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: %d\r\nContent-Length: %d\r\n\r\n%b" % (number, len(body), body)

    def connect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._heard = b""
        self._socket = socket.create_connection(self._world.box.http.getsockname())
        self._socket.setblocking(False)
        self.unsent = b"".join(self.requests[self.answered :])
        self._before = self.answered

    def work(self) -> None:
        assert self._socket is not None
        try:
            self.unsent = self.unsent[self._socket.send(self.unsent) if self.unsent else 0 :]
        except BlockingIOError:
            pass
        try:
            self._heard += self._socket.recv(65536)
        except BlockingIOError:
            pass
        statuses = _STATUS.findall(self._heard)
        assert set(statuses) <= {b"200"}, self._heard
        self.answered = self._before + len(statuses)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, ingest_spool_bytes=4 << 20, disk_budget_bytes=1 << 18)
    yield made
    made.close()


@pytest.mark.parametrize("is_reachable_before_the_death", [False, True], ids=["never offered", "offered and unknown"])
def test_after_a_death_with_a_spool_what_senders_bring_again_is_there_once_and_in_their_order(world: World, is_reachable_before_the_death: bool) -> None:
    world.led_by_other(0)
    sender = KeyedSender(world)
    if is_reachable_before_the_death:
        world.leader.answers = False
    else:
        world.leader.die()
    sender.connect()

    def is_stuck() -> bool:
        sender.work()
        if is_reachable_before_the_death and world.leader.logs.get(0) and world.box.counter("ingest.spool_bytes") == 0:
            world.leader.die()  # it has some of it, and says nothing
        return not sender.unsent and world.box.ledger().received == REQUESTS * PER_REQUEST

    world.run_until(is_stuck, "all is received, and waits")
    assert world.box.counter("ingest.spool_bytes") > 500_000 and not sender.answered
    world.box.kill_ingest()
    world.leader.answers = True
    world.box.start_ingest()
    world.run_until(lambda: world.box.is_ready, "the next incarnation takes requests")
    sender.requests.append(sender.request(REQUESTS))  # a new one, which must not come before those that are asked for
    sender.connect()
    world.leader.postponed = []
    world.leader.peer.come_back()
    if is_reachable_before_the_death:
        world.run_until(lambda: sender.work() or world.leader.postponed, "the leader is asked what it has")
        for _ in range(TURNS):
            sender.work()
            world.leader.work()
            world.box.step()
    world.leader.answer_postponed()

    def is_answered() -> bool:
        sender.work()
        return sender.answered == REQUESTS + 1

    world.run_until(is_answered, "all is answered")
    assert world.numbers_there(0) == list(range((REQUESTS + 1) * PER_REQUEST))
    world.run_until(lambda: world.box.ledger().balances, "nothing is in flight")
    assert world.box.ledger().stored == (REQUESTS + 1) * PER_REQUEST
    sender.close()


def test_after_a_death_the_spool_fills_while_a_leader_that_has_to_be_asked_is_away(world: World) -> None:
    world.led_by_other(0)
    world.leader.die()
    sender = KeyedSender(world)
    sender.connect()
    world.run_until(lambda: sender.work() or world.box.ledger().received == REQUESTS * PER_REQUEST, "all is received, and waits")
    left = world.box.counter("ingest.spool_bytes")
    assert 500_000 < left < 2_000_000
    world.box.kill_ingest()
    world.box.start_ingest()
    world.run_until(lambda: world.box.is_ready, "the next incarnation takes lines")
    first = 1_000_000
    received = fill(world, first) - REQUESTS * PER_REQUEST
    assert world.box.counter("ingest.spool_bytes") > 4_000_000
    sender.connect()
    world.leader.peer.come_back()

    def is_answered() -> bool:
        sender.work()
        return sender.answered == REQUESTS and world.box.ledger().balances

    world.run_until(is_answered, "all is stored")
    found = world.numbers_there(0)
    assert [number for number in found if number < first] == list(range(REQUESTS * PER_REQUEST))
    assert [number for number in found if number >= first][:received] == list(range(first, first + received * 4, 4))
    sender.close()
