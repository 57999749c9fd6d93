"""What an acceptor keeps for its clients: bounded, charged to the connection, logged at a limited
rate, and freed with it.
"""

from __future__ import annotations

import os
import socket
import struct
import tracemalloc
from collections.abc import Iterator

import pytest

from appliance.base.clock import ManualClock
from appliance.base.logging import Logger
from appliance.protocol.apis import ApiKey
from appliance.protocol.fetch import decode_fetch
from appliance.security.transport import PlainTransport
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout
from services.acceptor.closings import LINES_A_PERIOD, PERIOD_NS, Closings
from services.acceptor.connection import Connection
from services.acceptor.receiver import BODY_BYTES_MIN, BODY_GRACE_NS, Receiver
from services.acceptor.request_memory import REQUEST_EXPANSION, ArenaSlot, HeldMemory
from tests.unit.protocol.sample_requests import Sample, samples

ARENA_BYTES = 1 << 20
OBJECT_BYTES = 1_000
"""What a request of any size has of its own; a connection is allowed more than that anyway."""


class _Side:
    """A receiver with its arena, and clients connected to it by socket pairs."""

    def __init__(self, arena: Arena, counters: Counters) -> None:
        self.clock = ManualClock()
        self.arena = arena
        self.requests: list[bytes] = []
        self.slots: list[ArenaSlot] = []
        self.receiver = Receiver(arena, self.clock, counters, ARENA_BYTES // 2, self._on_request, lambda _connection: None)
        self.socks: list[socket.socket] = []

    def _on_request(self, connection: Connection, buffer: memoryview, position: int, limit: int, slot: ArenaSlot | None) -> bool:
        self.requests.append(bytes(buffer[position:limit]))
        if slot is not None:
            self.slots.append(slot)
        return True

    def connect(self) -> tuple[socket.socket, Connection]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.socks += (ours, theirs)
        return theirs, Connection(PlainTransport(ours), "test", self.clock.monotonic_ns())


@pytest.fixture
def counters() -> Iterator[Counters]:
    with scratch_layout() as layout:
        counters = Counters.create_or_adopt(layout, "test", 1)
        yield counters
        counters.close()


@pytest.fixture
def side(counters: Counters) -> Iterator[_Side]:
    with scratch_layout() as layout:
        arena = Arena.create(layout.shared_memory_name("arena", "test", 1), ARENA_BYTES, 1)
        side = _Side(arena, counters)
        yield side
        for sock in side.socks:
            sock.close()
        del side.receiver  # its views of the arena
        arena.close()


def _request(api_key: int, size_bytes: int) -> bytes:
    return struct.pack(">ihhih", size_bytes, api_key, 1, 1, -1) + bytes(size_bytes - 10)


@pytest.mark.parametrize("step", [1, 3, 7, 100, 5_000])
def test_requests_in_pieces_are_the_requests_that_were_sent(side: _Side, step: int) -> None:
    sock, connection = side.connect()
    sizes = [10, 11, 300, 2_000, 10]
    stream = b"".join(_request(ApiKey.METADATA if size % 2 else ApiKey.PRODUCE, size) for size in sizes)
    for start in range(0, len(stream), step):
        sock.sendall(stream[start : start + step])
        assert side.receiver.receive(connection)
    assert b"".join(struct.pack(">i", len(request)) + request for request in side.requests) == stream
    assert connection.pending == b"" and connection.frame_since_ns == 0


def test_a_deadline_counts_from_the_first_bytes_of_the_request_that_is_incomplete_now(side: _Side) -> None:
    sock, connection = side.connect()
    request = _request(ApiKey.PRODUCE, 100)
    sock.sendall(request[:50])
    for _ in range(100):  # every receive ends inside a request, and none of them is late
        side.receiver.receive(connection)
        assert connection.frame_since_ns == side.clock.monotonic_ns()
        side.clock.advance_ms(1_000)
        sock.sendall(request[50:] + request[:50])
    side.receiver.receive(connection)
    side.clock.advance_ms(1)
    sock.sendall(request[50:60])
    began_ns = connection.frame_since_ns
    side.receiver.receive(connection)
    assert connection.frame_since_ns == began_ns


def test_a_client_that_only_announces_a_large_produce_holds_no_arena_slot(side: _Side) -> None:
    sock, connection = side.connect()
    sock.sendall(_request(ApiKey.PRODUCE, 200_000)[: BODY_BYTES_MIN - 1])
    side.receiver.receive(connection)
    assert side.arena.slots_in_use() == 0 and connection.body is None
    sock.sendall(bytes(5))
    side.receiver.receive(connection)
    assert side.arena.slots_in_use() == 1 and connection.body is not None
    side.receiver.drop(connection)
    assert side.arena.slots_in_use() == 0


def test_a_large_produce_that_has_arrived_takes_one_turn(side: _Side) -> None:
    sock, connection = side.connect()
    request = _request(ApiKey.PRODUCE, 150_000)
    sock.sendall(request[:100_000])
    side.receiver.receive(connection)
    assert connection.expects_large and not side.requests
    sock.sendall(request[100_000:])
    side.receiver.receive(connection)
    assert len(side.requests) == 1
    sock.sendall(request)
    assert side.receiver.receive(connection)
    assert side.requests == [request[4:]] * 2 and connection.body is None and connection.frame_since_ns == 0
    sock.sendall(request[:100_000])
    sock.shutdown(socket.SHUT_WR)
    assert side.receiver.receive(connection)
    assert not side.receiver.receive(connection), "the client has left in the middle of a request"
    for slot in side.slots:
        slot.release()
    side.receiver.drop(connection)
    assert side.arena.slots_in_use() == 0


def test_incomplete_bodies_have_half_of_the_arena_and_the_slow_ones_give_way(side: _Side) -> None:
    request = _request(ApiKey.PRODUCE, 400_000)
    (first, holder), (second, waiter) = side.connect(), side.connect()
    for sock, connection in ((first, holder), (second, waiter)):
        sock.sendall(request[:50_000])
        side.receiver.receive(connection)
    assert holder.body is not None and waiter.body is None and waiter.read_paused
    small, third = side.connect()
    small.sendall(_request(ApiKey.PRODUCE, 1_000))
    side.receiver.receive(third)
    assert len(side.requests) == 1
    second.sendall(request[50_000:150_000])
    assert side.receiver.slow_bodies(side.clock.monotonic_ns()) == []
    side.clock.advance_ms(BODY_GRACE_NS // 1_000_000 + 1)
    assert side.receiver.slow_bodies(side.clock.monotonic_ns()) == [holder]
    side.receiver.drop(holder)
    assert side.receiver.retry(side.receiver.resume) == 1
    assert waiter.body is not None and not side.receiver.has_waiting
    side.receiver.drop(waiter)


def test_a_client_that_waits_for_memory_and_sends_no_more_is_slow_too(side: _Side) -> None:
    request = _request(ApiKey.PRODUCE, 400_000)
    (first, holder), (second, waiter) = side.connect(), side.connect()
    for sock, connection in ((first, holder), (second, waiter)):
        sock.sendall(request[:50_000])
        side.receiver.receive(connection)
    side.clock.advance_ms(BODY_GRACE_NS // 1_000_000 + 1)
    assert side.receiver.slow_bodies(side.clock.monotonic_ns()) == [holder, waiter]
    for connection in (holder, waiter):
        side.receiver.drop(connection)


def test_held_memory_is_charged_and_the_oldest_large_holders_leave_first(side: _Side) -> None:
    held = HeldMemory(1_000)
    connections = [side.connect()[1] for _ in range(6)]
    for connection, size_bytes in zip(connections, (1, 200, 300, 2, 300, 300), strict=True):
        connection.pending = bytes(size_bytes)
        held.update(connection)
    assert held.total_bytes == 1_103 and held.is_over
    assert held.plan_shedding() == [connections[1], connections[2]]
    for connection in connections[1:3]:
        held.forget(connection)
    assert not held.is_over and held.plan_shedding() == [] and len(held) == 4
    connections[0].request_bytes, connections[0].pending = 10, b""
    held.update(connections[0])
    assert held.total_bytes == 602 + 10 * REQUEST_EXPANSION
    connections[0].request_bytes = 0
    held.update(connections[0])
    assert len(held) == 3


def test_all_closings_are_counted_and_some_are_logged(counters: Counters) -> None:
    clock = ManualClock()
    reading, writing = os.pipe()
    closings = Closings(counters, clock, Logger("test", descriptor=writing))
    for _ in range(100):
        closings.log("frame-too-large", "192.0.2.1", "x" * 1_000)
    clock.advance_ms(PERIOD_NS // 1_000_000)
    closings.sweep(clock.monotonic_ns())
    os.close(writing)
    with open(reading) as file:
        lines = file.read().splitlines()
    assert len(lines) == LINES_A_PERIOD + 1 and all(len(line) < 400 for line in lines)
    assert f"{100 - LINES_A_PERIOD} frame-too-large" in lines[-1]
    assert counters.counter('acceptor.closed{reason="frame-too-large"}').value == 100


def test_what_a_partly_taken_reply_holds_stays_charged_until_it_is_taken(side: _Side) -> None:
    sock, connection = side.connect()
    reply = connection.expect_reply(False)
    reply.pieces, reply.ready = [bytes(4 << 20)], True
    connection.collect_ready()
    assert not connection.send_outgoing()
    assert connection.outgoing_bytes == 4 << 20
    sock.settimeout(10)
    left = 4 << 20
    while left:
        left -= len(sock.recv(1 << 20))
        connection.send_outgoing()
    assert connection.outgoing_bytes == 0 and not connection.outgoing


@pytest.mark.slow
@pytest.mark.parametrize("sample", [pytest.param(sample, id=str(sample)) for sample in samples() if sample.api_key != ApiKey.PRODUCE])
def test_a_request_is_charged_with_what_it_takes_when_it_is_decoded(sample: Sample) -> None:
    size_bytes = len(sample.body)
    held = []
    sample.decode(sample.body, 0, size_bytes)
    tracemalloc.start()
    try:
        for _ in range(50):
            held.append(sample.decode(sample.body, 0, size_bytes))
        taken = tracemalloc.get_traced_memory()[0] / len(held)
    finally:
        tracemalloc.stop()
    assert taken < size_bytes * REQUEST_EXPANSION + OBJECT_BYTES


def test_a_fetch_of_many_partitions_is_the_dearest_and_fits_its_charge() -> None:
    count = 10_000
    head = struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", count)
    body = head + struct.pack(">iqi", 100_000, 1 << 40, 1 << 20) * count
    tracemalloc.start()
    try:
        request = decode_fetch(body, 0, len(body), 4)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(request.partitions) == count
    assert taken < len(body) * REQUEST_EXPANSION
