"""Two ingests on one listening socket: if records are recognised, each address belongs to one of
them, and connections wait for it.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from lab.scratch_layout import scratch_layout
from services.ingest.listeners.sender_owners import ANSWER_MS_MAX, OWNER_AWAY_MS_MAX, TRY_AGAIN_MS, WAITING_MAX, AcceptedConnection
from tests.support.stepped_room import SteppedRoom

OPEN = b"1 open 15 commands=syslog\n"
ADDRESSES = [f"127.0.0.{number}" for number in range(1, 17)]


def owner_of(address: str) -> int:
    return zlib.crc32(address.encode()) % 2


OURS = next(address for address in ADDRESSES if owner_of(address) == 0)
OTHERS = next(address for address in ADDRESSES if owner_of(address) == 1)


class TwoRooms:
    """Of one box; ingest 0 is the only one that accepts from the listening socket, so that every
    connection of ingest 1 was handed over.
    """

    def __init__(self, directory: Path) -> None:
        self._layout = scratch_layout()
        layout = self._layout.__enter__()
        self.rooms = [SteppedRoom(directory, ingests=2, index=index, layout=layout) for index in range(2)]
        self._listening = {name: socket.create_server(("0.0.0.0", 0), backlog=512) for name in ("relp", "syslog")}
        self._listening_of_1: dict[str, socket.socket] = {}
        self._senders: list[socket.socket] = []
        self.listen(0)

    def listen(self, index: int) -> None:
        """Ingest 1 has sockets of its own under the same names, for `connect_to_1`."""
        for name, protocol in (("relp", Protocol.RELP), ("syslog", Protocol.SYSLOG)):
            listening = self._listening[name] if index == 0 else socket.create_server(("127.0.0.1", 0))
            if index == 1:
                self._listening_of_1[name] = listening
            self.rooms[index].listen_at(listening, Listener(name, protocol, ListenerTransport.TCP, 0))

    def connect(self, name: str, address: str) -> socket.socket:
        sender = socket.create_connection(("127.0.0.1", self._listening[name].getsockname()[1]), source_address=(address, 0))
        self._senders.append(sender)
        return sender

    def connect_to_1(self, name: str, address: str) -> socket.socket:
        """As if ingest 1 had accepted it, too."""
        sender = socket.create_connection(self._listening_of_1[name].getsockname(), source_address=(address, 0))
        self._senders.append(sender)
        return sender

    def run_until(self, condition: Callable[[], bool], what: str = "the condition") -> None:
        """Both take their turns."""

        def is_so() -> bool:
            self.rooms[1].step(0)
            return condition()

        self.rooms[0].run_until(is_so, what)

    def run_until_there(self, *counts: int) -> None:
        self.run_until(lambda: tuple(len(room.room) for room in self.rooms) == counts, f"{counts} connections")

    def close(self) -> None:
        for sender in self._senders:
            sender.close()
        for room in self.rooms:
            room.close()
        self._layout.__exit__(None, None, None)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoRooms]:
    made = TwoRooms(tmp_path)
    yield made
    made.close()


def test_a_sender_with_recognised_records_is_served_by_the_ingest_that_owns_its_address(two: TwoRooms) -> None:
    two.listen(1)
    for address in ADDRESSES * 2:
        two.connect("relp", address).sendall(OPEN)
    counts = [2 * sum(owner_of(address) == index for address in ADDRESSES) for index in range(2)]
    assert min(counts) > 0
    two.run_until_there(*counts)
    assert two.rooms[0].counter("ingest.connections_handed_over") == counts[1]


def test_nothing_that_was_sent_before_the_connection_was_handed_over_is_lost(two: TwoRooms) -> None:
    two.listen(1)
    sender = two.connect("relp", OTHERS)
    sender.sendall(OPEN + b"2 syslog 6 <13>hi\n")
    two.run_until(lambda: two.rooms[1].intake.messages == [b"<13>hi"])
    ((unit, _),) = two.rooms[1].intake.taken
    assert unit.listener.name == "relp" and unit.source.address == b"%s:%d" % (OTHERS.encode(), sender.getsockname()[1])


def test_plain_syslog_is_served_by_the_ingest_that_accepts_it(two: TwoRooms) -> None:
    two.listen(1)
    for address in ADDRESSES:
        two.connect("syslog", address)
    two.run_until_there(len(ADDRESSES), 0)


def test_a_sender_waits_unread_for_an_owner_that_is_not_there_yet(two: TwoRooms) -> None:
    two.connect("relp", OTHERS).sendall(OPEN)
    two.connect("relp", OURS)
    two.run_until_there(1, 0)
    two.rooms[0].pass_time(OWNER_AWAY_MS_MAX // 1000 - 1)
    two.run_until_there(1, 0)
    two.listen(1)
    two.rooms[0].pass_time(1)
    two.run_until_there(1, 1)
    assert two.rooms[0].counter("ingest.connections_kept") == 0


def test_an_owner_that_stops_takes_what_it_was_given_and_the_next_ones_wait(two: TwoRooms) -> None:
    two.listen(1)
    two.connect("relp", OTHERS)
    two.run_until_there(0, 1)
    two.connect("relp", OTHERS)
    two.rooms[0].run_until(lambda: two.rooms[0].counter("ingest.connections_handed_over") == 2)
    two.rooms[1].room.accept(False)
    assert len(two.rooms[1].room) == 2
    two.connect("relp", OTHERS)
    for _ in range(50):
        two.rooms[0].pass_time(1) if _ < 3 else two.rooms[0].step()
    assert two.rooms[0].counter("ingest.connections_handed_over") == 2
    two.rooms[1].room.accept(True)
    two.rooms[0].pass_time(1)
    two.run_until_there(0, 3)


def test_a_sender_whose_owner_stays_away_is_served_by_the_accepting_ingest_and_counted(two: TwoRooms) -> None:
    two.connect("relp", OTHERS)
    two.connect("relp", OURS)
    two.run_until_there(1, 0)
    two.rooms[0].pass_time(OWNER_AWAY_MS_MAX // 1000 + 1)
    two.run_until_there(2, 0)
    assert two.rooms[0].counter("ingest.connections_kept") == 1


def test_more_senders_than_the_queue_of_their_owner_holds_all_get_there(two: TwoRooms) -> None:
    two.listen(1)
    for _ in range(100):
        two.connect("relp", OTHERS)
    two.run_until_there(0, 100)


def test_the_number_of_connections_that_wait_for_an_absent_owner_is_bounded(two: TwoRooms) -> None:
    owners = two.rooms[0].room._owners
    assert owners is not None
    pairs = [socket.socketpair() for _ in range(WAITING_MAX + 1)]
    taken = [owners.hand_over(AcceptedConnection("relp", near, OTHERS, 1)) for near, _far in pairs]
    assert taken == [True] * WAITING_MAX + [False]
    for near, far in pairs:
        near.close()
        far.close()


def test_a_sender_that_was_cut_and_is_accepted_by_its_owner_is_not_read_before_what_another_one_had_accepted(two: TwoRooms) -> None:
    two.listen(1)
    first = two.connect("relp", OTHERS)
    first.sendall(OPEN + b"2 syslog 9 <13>first\n")
    first.close()
    second = two.connect_to_1("relp", OTHERS)
    second.sendall(OPEN + b"2 syslog 10 <13>second\n")
    for _ in range(20):
        two.rooms[1].step()
    assert two.rooms[1].intake.messages == [], "ingest 0 has not answered"
    two.run_until(lambda: len(two.rooms[1].intake.messages) == 2)
    assert two.rooms[1].intake.messages == [b"<13>first", b"<13>second"]
    assert [stream.has_left for stream in two.rooms[1].intake.streams] == [False, True], "before anything of the second was taken"


def test_one_inquiry_is_under_way_at_a_time_and_the_next_one_serves_all_that_came_meanwhile(two: TwoRooms) -> None:
    two.listen(1)
    owners = two.rooms[1].room._owners
    assert owners is not None
    assert [owners.inquire() for _ in range(4)] == [1, 2, 2, 2] and not owners.is_answered(1)
    two.run_until(lambda: owners.is_answered(2))
    assert owners.inquire() == 3


def test_an_ingest_that_is_not_there_is_not_asked_and_one_that_does_not_answer_is_not_waited_for_long(two: TwoRooms) -> None:
    two.connect("relp", OURS).sendall(OPEN + b"2 syslog 6 <13>hi\n")
    two.rooms[0].run_until(lambda: two.rooms[0].intake.messages == [b"<13>hi"])
    two.listen(1)
    two.connect("relp", OURS).sendall(OPEN + b"2 syslog 6 <13>ho\n")
    for _ in range(20):
        two.rooms[0].step()
    assert two.rooms[0].intake.messages == [b"<13>hi"]
    two.rooms[0].pass_time(ANSWER_MS_MAX // 1000)
    two.rooms[0].run_until(lambda: two.rooms[0].intake.messages == [b"<13>hi", b"<13>ho"])


def test_an_inquiry_reaches_the_next_incarnation_of_an_ingest(two: TwoRooms) -> None:
    two.listen(1)
    owners = two.rooms[0].room._owners
    assert owners is not None
    first = owners.inquire()
    two.run_until(lambda: owners.is_answered(first))
    two.rooms[1].room.accept(False)
    two.rooms[1].room.accept(True)
    second = owners.inquire()
    assert not owners.is_answered(second)
    two.run_until(lambda: owners.is_answered(second))


@pytest.mark.parametrize("by_a_guest", [True, False])
def test_an_ingest_that_dies_with_an_inquiry_is_not_waited_for_once_that_is_seen(two: TwoRooms, by_a_guest: bool) -> None:
    two.listen(1)
    owners, dying = (two.rooms[index].room._owners for index in range(2))
    assert owners is not None and dying is not None and dying._socket is not None
    inquiry = owners.inquire()
    two.rooms[1].poller.unregister(dying._socket.fileno())
    dying._socket.close()
    dying._socket = None
    if by_a_guest:
        two.connect("relp", OTHERS)
    else:
        two.rooms[0].clock.advance_ms(TRY_AGAIN_MS)
    two.rooms[0].run_until(lambda: owners.is_answered(inquiry))
    assert owners.is_answered(owners.inquire()), "nor is it asked"


def test_the_answer_to_an_inquiry_follows_connections_that_wait_in_the_queue_of_their_owner(two: TwoRooms) -> None:
    two.listen(1)
    owners = [two.rooms[index].room._owners for index in range(2)]
    assert owners[0] is not None and owners[1] is not None
    for _ in range(100):
        two.connect("relp", OTHERS)
    two.rooms[0].run_until(lambda: len(owners[0]._owners[1].waiting) + two.rooms[0].counter("ingest.connections_handed_over") == 100)  # type: ignore[union-attr]
    inquiry = owners[1].inquire()
    for _ in range(20):
        two.rooms[0].step(0)
    assert not owners[1].is_answered(inquiry) and two.rooms[0].counter("ingest.connections_handed_over") < 100
    two.run_until(lambda: owners[1].is_answered(inquiry))  # type: ignore[union-attr]
    assert len(two.rooms[1].room) == 100
