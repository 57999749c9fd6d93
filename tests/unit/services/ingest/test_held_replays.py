"""A leader away after a death of ingest, a sender that comes again and again: what may be stored already waits up to a bound; nothing is lost."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.services.ingest.test_ingest_elsewhere import HOSTS, World

pytestmark = pytest.mark.slow

REQUESTS, PER_REQUEST, ROUNDS = 10, 60, 12
HELD_BYTES_MAX = 1 << 20
UNIT_COST_BYTES = PER_REQUEST * 3_700
_STATUS = re.compile(rb"HTTP/1\.1 (\d+) ")


def request(number: int) -> bytes:
    numbers = range(number * PER_REQUEST, (number + 1) * PER_REQUEST)
    body = b"".join(json.dumps({"host": HOSTS[0], "message": str(each), "text": "x" * 1000}).encode() + b"\n" for each in numbers)
    return b"POST /ingest/syslog HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: %d\r\nContent-Length: %d\r\n\r\n%b" % (number, len(body), body)


class Visit:
    """A connection on which requests are sent without waiting for their answers."""

    def __init__(self, world: World, *numbers: int) -> None:
        self._socket = socket.create_connection(world.box.http.getsockname())
        self._socket.setblocking(False)
        self._unsent = b"".join(map(request, numbers))
        self._heard = b""

    def work(self) -> list[bytes]:
        """The answers so far."""
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) if self._unsent else 0 :]
        except BlockingIOError:
            pass
        try:
            self._heard += self._socket.recv(65536)
        except BlockingIOError:
            pass
        return _STATUS.findall(self._heard)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, ingest_held_bytes=HELD_BYTES_MAX)
    yield made
    made.close()


def test_repeated_requests_while_a_leader_is_away_are_held_up_to_a_bound_and_stored_once_in_order(world: World) -> None:
    box, busy = world.box, 'ingest.refused{reason="busy"}'
    world.led_by_other(0)
    world.leader.answers = False
    visit = Visit(world, *range(REQUESTS))
    world.run_until(lambda: not visit.work() and box.ledger().received == REQUESTS * PER_REQUEST, "all is received")
    world.run_until(lambda: world.leader.logs.get(0), "box 2 has some of it, and has not said so")
    visit.close()
    box.kill_ingest()
    world.leader.peer.hang_up()
    world.leader.answers = True
    world.leader.postponed = []
    box.start_ingest()
    world.run_until(lambda: box.is_ready, "the next incarnation takes requests")
    held: list[int] = []
    for _ in range(ROUNDS):
        visit = Visit(world, 0)
        before = box.counter("ingest.held_bytes"), box.counter(busy)
        world.run_until(lambda: visit.work() or before != (box.counter("ingest.held_bytes"), box.counter(busy)), "it is held, or refused")  # noqa: B023
        if box.counter(busy) > before[1]:
            world.run_until(lambda: visit.work() == [b"503"], "its sender receives it")  # noqa: B023
        held.append(box.counter("ingest.held_bytes"))
        visit.close()  # it does not wait for more
    assert HELD_BYTES_MAX <= max(held) < HELD_BYTES_MAX + UNIT_COST_BYTES and held[-1] == max(held)
    assert box.counter(busy) > ROUNDS / 3
    world.leader.answer_postponed()
    for number in range(REQUESTS):
        answers: list[bytes] = []
        while answers != [b"200"]:
            visit = Visit(world, number)
            world.run_until(lambda: visit.work(), "it is answered")  # noqa: B023
            answers = visit.work()
            assert answers in ([b"200"], [b"503"])
            visit.close()
    world.run_until(lambda: box.ledger().balances, "nothing is in flight")
    assert world.numbers_there(0) == list(range(REQUESTS * PER_REQUEST))
    assert box.counter("ingest.held_bytes") == 0
