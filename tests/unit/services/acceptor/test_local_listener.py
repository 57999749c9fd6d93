"""The listener on the Unix socket, with an acceptor's connections stepped by hand."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from appliance.base.clock import ManualClock
from appliance.base.logging import Logger
from appliance.base.settings import KafkaListener
from appliance.protocol.apis import ApiKey
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.runtime.systemd import SystemdNotifier
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout
from services.acceptor.client_connections import ClientConnections
from services.acceptor.connection import Connection
from services.acceptor.dispatch import ApiVersionsHandler, Dispatch
from services.acceptor.fetch.cold_reads import ColdReads
from tests.unit.base.test_settings import make_box

API_VERSIONS = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
PATIENCE_SECONDS = 20


class Place:
    """Two connections are allowed."""

    def __init__(self, context: ServiceContext, arena: Arena, addresses: list[tuple[str, int]]) -> None:
        self.context = context
        self.addresses = addresses
        self.connections = ClientConnections(context, arena, 0)
        self.seen: list[Connection] = []
        handler = ApiVersionsHandler(self.connections.mark_dirty)
        cold = ColdReads({}, context.clock, context.counters, lambda _: None, lambda _: None)
        dispatch = Dispatch(None, {ApiKey.API_VERSIONS: handler})  # type: ignore[arg-type]

        def on_request(connection: Connection, *rest: object) -> bool:
            self.seen.append(connection)
            return dispatch.on_request(connection, *rest)  # type: ignore[arg-type]

        self.connections.serve(on_request, cold)
        self.connections.accept()

    def run_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline
            self.context.poller.poll(1)
            self.connections.do_work(self.context.clock.monotonic_ns())
            self.connections.send_dirty()


def _place(listeners: list[KafkaListener]) -> Iterator[Place]:
    with scratch_layout() as layout, socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as other:
        counters = Counters.create_or_adopt(layout, "acceptor@0", 1)
        arena = Arena.create(layout.shared_memory_name("arena", "test", 1), 1 << 16, 1)
        box, log = make_box(settings={"max.connections": 2}, listeners=listeners), Logger("acceptor@0")
        sockets = {"kafka": listening, "kafka-clients": other}
        context = ServiceContext(layout, box, ManualClock(), counters, Poller(), "acceptor@0", "0", 1, SystemdNotifier(counters), log, sockets)
        made = Place(context, arena, [each.getsockname() for each in (listening, other)])
        yield made
        made.connections.close()
        made.connections.__dict__.clear()  # its views of the arena
        made.seen.clear()
        arena.close()
        counters.close()


@pytest.fixture
def place() -> Iterator[Place]:
    yield from _place([])


@pytest.fixture
def place_of_boxes() -> Iterator[Place]:
    """Boxes have a listener of their own."""
    yield from _place([KafkaListener(name, "PLAINTEXT", "127.0.0.1", 0, "127.0.0.1") for name in ("BOXES", "CLIENTS")])


def test_the_user_of_the_box_is_a_super_user_by_what_the_kernel_says(place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(place.context.layout.kafka_socket)
        client.sendall(API_VERSIONS)
        place.run_until(lambda: bool(place.seen))
        (connection,) = place.seen
        assert str(connection.principal) == f"User:local:{os.geteuid()}" and connection.origin.is_privileged
        assert (connection.address, connection.listening.own_path) == ("127.0.0.1", place.context.layout.kafka_socket)
        client.settimeout(PATIENCE_SECONDS)
        place.run_until(lambda: len(place.connections) == 1 and not place.connections.has_dirty)
        assert client.recv(4) != b""


def test_clients_of_the_network_keep_no_administrator_out(place: Place) -> None:
    clients = [socket.create_connection(place.addresses[0]) for _ in range(2)]
    place.run_until(lambda: len(place.connections) == 2)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(place.context.layout.kafka_socket)
        client.sendall(API_VERSIONS)
        place.run_until(lambda: bool(place.seen))
        assert place.seen[0].origin.is_privileged and len(place.connections) == 2
    for each in clients:
        each.close()


def test_an_administrator_takes_the_place_of_no_box(place_of_boxes: Place) -> None:
    place = place_of_boxes
    box = socket.create_connection(place.addresses[0])
    place.run_until(lambda: len(place.connections) == 1)
    other = socket.create_connection(place.addresses[1])
    place.run_until(lambda: len(place.connections) == 2)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(place.context.layout.kafka_socket)
        client.sendall(API_VERSIONS)
        place.run_until(lambda: bool(place.seen))
        box.sendall(API_VERSIONS)
        place.run_until(lambda: len(place.seen) == 2)
        assert [each.listening.name for each in place.seen] == ["local", "BOXES"] and len(place.connections) == 2
    for each in (box, other):
        each.close()
