"""Senders that are cut off and come back at once, with everything that they have no answer for, while we have not noticed that they went: once each."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.running_box import listener
from services.ingest.listeners import sender_connections
from services.ingest.replay import stream_replay
from tests.support.numbered_frames import ENCODE, PROTOCOLS, RELP_OPEN, answered, reset
from tests.unit.services.ingest.stepped_ingest import TOPIC, SteppedIngest

CUTS = ["end", "reset"]


PIECE_BYTES = 4096
"""Of one receive: what a kernel takes of a connection before it is read is many of them."""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SteppedIngest]]:
    monkeypatch.setattr(sender_connections, "RECEIVE_BYTES", PIECE_BYTES)
    made: list[SteppedIngest] = []

    def maker(**settings: Any) -> SteppedIngest:
        listeners = [listener(name, protocol, port=port, topic=TOPIC) for port, (name, protocol) in enumerate(PROTOCOLS.items(), 5044)]
        made.append(SteppedIngest(tmp_path, senders={"listener": listeners}, **settings))
        made[-1].start()
        return made[-1]

    yield maker
    for box in made:
        box.close()


class Visit:
    """A connection on which lines were sent; the kernel has them all."""

    def __init__(self, box: SteppedIngest, protocol: str, lines: list[str]) -> None:
        self.protocol = protocol
        self.count = len(lines)
        self.socket = box.connect(protocol)
        self.socket.sendall(ENCODE[protocol](lines))
        self.socket.setblocking(False)
        self.heard = b""

    @property
    def answered(self) -> int:
        try:
            self.heard += self.socket.recv(65536)
        except BlockingIOError:
            pass
        return answered(self.protocol, self.heard)

    @property
    def has_heard(self) -> bool:
        """Whether all is answered, though nothing of it is read."""
        try:
            return answered(self.protocol, self.socket.recv(65536, socket.MSG_PEEK)) == self.count
        except BlockingIOError:
            return False

    def cut(self, how: str) -> None:
        if how == "half":
            self.socket.shutdown(socket.SHUT_WR)
            return
        if how == "reset":
            reset(self.socket)
        self.socket.close()


def step(box: SteppedIngest, count: int) -> None:
    for _ in range(count):
        box.step()


def lines_of(count: int, width: int = 0) -> list[str]:
    return [f"line {number} {'x' * width}".strip() for number in range(count)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", CUTS)
def test_a_sender_that_was_cut_before_we_accepted_it_and_stands_in_the_queue_again(make: Callable[..., SteppedIngest], protocol: str, how: str) -> None:
    box, lines = make(), lines_of(20)
    Visit(box, protocol, lines).cut(how)
    again = Visit(box, protocol, lines)
    box.run_until(lambda: again.answered == len(lines))
    assert sorted(box.messages()) == sorted(lines)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", CUTS)
def test_a_sender_that_was_cut_with_more_unread_than_one_piece(make: Callable[..., SteppedIngest], protocol: str, how: str) -> None:
    box, lines = make(), lines_of(50, 1000)
    first = Visit(box, protocol, lines)
    box.run_until(lambda: box.ledger().received > 0)
    first.cut(how)
    again = Visit(box, protocol, lines)
    box.run_until(lambda: again.answered == len(lines))
    assert sorted(box.messages()) == sorted(lines)
    assert box.ledger().balances


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", [*CUTS, "half"])
def test_a_sender_that_was_cut_while_too_much_of_it_was_under_way_to_be_read(
    make: Callable[..., SteppedIngest], protocol: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_replay, "HOLD_MS", 20)  # the second session is not read on either, and is decided with what came
    box, lines = make(ingest_connection_window_bytes=2 * PIECE_BYTES), lines_of(50, 1000)
    box.kill_log_writer()
    first = Visit(box, protocol, lines)
    step(box, 50)
    assert 0 < box.ledger().in_flight < len(lines)
    first.cut(how)
    again = Visit(box, protocol, lines)
    step(box, 50)
    assert box.ledger().in_flight < len(lines)
    box.start_log_writer()
    box.run_until(lambda: again.answered == len(lines))
    step(box, 50)
    assert sorted(box.messages()) == sorted(lines)
    assert box.ledger().balances


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sender_that_ends_its_side_and_leaves_without_reading_its_answers(make: Callable[..., SteppedIngest], protocol: str) -> None:
    box, lines = make(), lines_of(20)
    first = Visit(box, protocol, lines)
    box.run_until(lambda: first.has_heard)
    first.socket.shutdown(socket.SHUT_WR)
    first.socket.close()
    again = Visit(box, protocol, lines)
    box.run_until(lambda: again.answered == len(lines))
    assert sorted(box.messages()) == sorted(lines)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sender_that_was_refused_is_known_though_its_connection_still_closes(
    make: Callable[..., SteppedIngest], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the old connection open until the new one is there."""
    box, lines = make(partitions=1), lines_of(20)
    first = Visit(box, protocol, lines[:10])
    box.run_until(lambda: first.answered == 10)
    assert box.log_writer is not None
    with monkeypatch.context() as refusing:
        refusing.setattr(box.log_writer.agent._appends, "refusal", lambda _hosted, _entry: 87)
        first.socket.sendall(ENCODE[protocol](lines[10:])[len(RELP_OPEN) * (protocol == "relay") :].replace(b"\n2 ", b"\n12 "))
        box.run_until(lambda: box.counter("ingest.closed") == 1)
    again = Visit(box, protocol, lines)  # the answers for the first ten were not read in time
    box.run_until(lambda: again.answered == len(lines))
    assert sorted(box.messages()) == sorted(lines)
