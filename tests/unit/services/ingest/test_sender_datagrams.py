"""Datagrams of senders with real sockets: several listeners, distinct senders, and what the kernel
dropped.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from appliance.base.clock import ManualClock
from appliance.base.logging import Logger, Severity
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.runtime.systemd import SystemdNotifier
from appliance.senders.listener import Listener, ListenerTransport, Protocol
from appliance.shm.counters import Counters
from lab.scratch_layout import make_layout, remove_layout
from services.ingest.listeners.sender_datagrams import SENDERS_MAX, SenderDatagrams
from tests.support.recording_intake import RecordingIntake
from tests.unit.base.test_settings import make_box


class SteppedDatagrams:
    """Two listeners for syslog, `one` and `two`."""

    def __init__(self) -> None:
        self.layout = make_layout()
        self.counters = Counters.create_or_adopt(self.layout, "ingest@0", 1)
        self.intake = RecordingIntake()
        self.poller = Poller()
        self.sockets: dict[str, socket.socket] = {}
        self.room = self._make(self.poller)
        for name in ("one", "two"):
            self.sockets[name] = self._bind()
            self.room.add(Listener(name, Protocol.SYSLOG, ListenerTransport.UDP, 0), self.sockets[name].dup())
        self.room.read(True)

    def _make(self, poller: Poller) -> SenderDatagrams:
        log, box = Logger("ingest@0", Severity.ERROR), make_box()
        notifier = SystemdNotifier(self.counters)
        context = ServiceContext(self.layout, box, ManualClock(), self.counters, poller, "ingest@0", "0", 1, notifier, log, {})
        return SenderDatagrams(context, self.intake)

    @staticmethod
    def _bind() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        return sock

    def send(self, name: str, *messages: bytes) -> bytes:
        """From a port of its own; returns the sender's address."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for message in messages:
                sender.sendto(message, self.sockets[name].getsockname())
            return b"127.0.0.1:%d" % sender.getsockname()[1]

    def counter(self, label: str, listener: str) -> int:
        return self.counters.counter(f'{label}{{listener="{listener}"}}').value

    def close(self) -> None:
        self.room.close()
        self.poller.close()
        for sock in self.sockets.values():
            sock.close()
        remove_layout(self.layout)


@pytest.fixture
def room() -> Iterator[SteppedDatagrams]:
    room = SteppedDatagrams()
    yield room
    room.close()


def test_each_listener_gets_its_own_and_each_sender_its_unit(room: SteppedDatagrams) -> None:
    first, second = room.send("one", b"<13>a", b"", b"<13>b"), room.send("one", b"<13>c")
    third = room.send("two", b"<13>d")
    assert room.poller.poll(1000) == 2
    found = {message: (unit.listener.name, unit.source.address) for unit, message in room.intake.taken}
    assert found == {b"<13>a": ("one", first), b"<13>b": ("one", first), b"<13>c": ("one", second), b"<13>d": ("two", third)}
    assert len({id(unit) for unit, _ in room.intake.taken}) == 3
    assert (room.counter("ingest.input_bytes", "one"), room.counter("ingest.input_bytes", "two")) == (15, 5)


def test_while_reading_is_paused_datagrams_stay_in_the_kernel(room: SteppedDatagrams) -> None:
    room.room.read(False)
    room.send("one", b"<13>a")
    assert room.poller.poll(0) == 0 and room.room.drain()
    room.room.read(True)
    assert room.poller.poll(1000) == 1
    assert room.intake.messages == [b"<13>a"]


def test_a_drain_takes_all_that_has_arrived(room: SteppedDatagrams) -> None:
    room.send("one", *[b"<13>%d" % number for number in range(1500)])
    assert not room.room.drain()
    while not room.room.drain():
        pass
    assert len(room.intake.messages) == 1500


def test_kernel_drops_are_counted_once_for_their_listener_also_by_the_next_incarnation(room: SteppedDatagrams) -> None:
    room.room.read(False)
    room.sockets["two"].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    room.send("two", *[b"x" * 1000] * 50)
    for _ in range(2):
        room.room.sweep()
    dropped = room.counter("ingest.kernel_drops", "two")
    assert dropped > 40 and room.counter("ingest.kernel_drops", "one") == 0
    poller = Poller()
    next_life = room._make(poller)
    next_life.add(Listener("two", Protocol.SYSLOG, ListenerTransport.UDP, 0), room.sockets["two"].dup())
    next_life.sweep()
    assert room.counter("ingest.kernel_drops", "two") == dropped
    next_life.close()
    poller.close()


def test_senders_that_are_too_many_to_remember_are_met_anew(room: SteppedDatagrams) -> None:
    (each, _) = room.room._sockets
    for port in range(SENDERS_MAX + 10):
        each._add_group(("192.0.2.1", port))
    assert len(each._groups) == 10
