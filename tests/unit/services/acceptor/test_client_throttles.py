"""Throttled clients at one acceptor: responses, muted connections, quotas that several acceptors share."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.logging import Logger
from appliance.base.settings import KafkaListener
from appliance.cluster.quota_image import QuotaFollower, QuotaImage, write_quota_image
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader, frame
from appliance.protocol.group_apis import LIST_GROUPS_RESPONSE, ListGroupsResponse
from appliance.protocol.wire import INT32
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.runtime.systemd import SystemdNotifier
from appliance.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    SAMPLES,
    WINDOW_MS,
    ClientQuotas,
    QuotaEntity,
    QuotaLimit,
    QuotaScope,
)
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.quota_use import QuotaUse, QuotaUseReader
from lab.scratch_layout import scratch_layout
from services.acceptor.client_connections import ClientConnections
from services.acceptor.client_throttles import UNLIMITED_MAX, UNMUTED_MAX, ClientThrottles, QuotaSharing, QuotaUsage
from services.acceptor.connection import Connection
from services.acceptor.dispatch import Dispatch
from services.acceptor.fetch.cold_reads import ColdReads
from tests.unit.base.test_settings import make_box

PATIENCE_SECONDS = 20
LISTENER = KafkaListener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0, "127.0.0.1", 0, {})
VERSION = 3


class BusyHandler:
    """Answers ListGroups after `used_ms` of processor time."""

    def __init__(self, clock: ManualClock, connections: ClientConnections) -> None:
        self.clock = clock
        self.connections = connections
        self.used_ms = 0
        self.served: list[Connection] = []

    @property
    def taken(self) -> int:
        return len(self.served)

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        self.served.append(connection)
        self.clock.advance_ms(self.used_ms)
        reply = connection.expect_reply(False)
        reply.pieces = [LIST_GROUPS_RESPONSE.encode_response(VERSION, header.correlation_id, ListGroupsResponse())]
        reply.ready = True
        self.connections.mark_dirty(connection)


class ThrottledDoor:
    """The connections of one acceptor whose only request is ListGroups."""

    def __init__(self, context: ServiceContext, arena: Arena, listening: socket.socket, clock: ManualClock) -> None:
        self.context, self.clock = context, clock
        self.is_box = False
        """whether boxes connect from the clients' address"""
        self.address = listening.getsockname()
        self.connections = ClientConnections(context, arena, 0)
        self.handler = BusyHandler(clock, self.connections)
        dispatch = Dispatch(None, {ApiKey.LIST_GROUPS: self.handler})  # type: ignore[arg-type]
        cold = ColdReads({}, clock, context.counters, lambda _: None, lambda _: None)
        self.connections.serve(dispatch.on_request, cold)
        self.throttles = ClientThrottles(context, dispatch.on_request, self.connections.mute, self.connections.unmute, lambda _address: self.is_box)
        self.connections.on_closed = self.throttles.forget
        self.connections.accept()

    def use(self, **percent_by_client: float) -> None:
        self.throttles.set_quotas(ClientQuotas({QuotaEntity(None, client): {REQUEST_PERCENTAGE: percent} for client, percent in percent_by_client.items()}))
        self.connections.serve_by(self.throttles.on_request)

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.address, PATIENCE_SECONDS)
        client.setblocking(False)
        return client

    def turn(self, wait_ms: int = 0) -> None:
        self.context.poller.poll(wait_ms)
        self.throttles.do_work(self.clock.monotonic_ns())
        self.connections.do_work(self.clock.monotonic_ns())
        self.connections.send_dirty()

    def reaches(self, condition: Callable[[], Any]) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition() and time.monotonic() < deadline:
            self.turn(1)
        return bool(condition())

    def closed(self, reason: str) -> int:
        return self.context.counters.counter(f'acceptor.closed{{reason="{reason}"}}').value

    def receive(self, client: socket.socket) -> bytes:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            self.turn(1)
            try:
                return client.recv(65536)
            except BlockingIOError:
                pass
        raise AssertionError("no answer in time")


def list_groups(client_id: bytes) -> bytes:
    head = int(ApiKey.LIST_GROUPS).to_bytes(2, "big") + VERSION.to_bytes(2, "big") + b"\x00\x00\x00\x07" + len(client_id).to_bytes(2, "big")
    return frame(head + client_id + b"\x00" + b"\x01\x00")


def throttle_ms(response: bytes) -> int:
    return int(INT32.unpack_from(response, 9)[0])


@pytest.fixture
def door() -> Iterator[ThrottledDoor]:
    with scratch_layout() as layout, socket.create_server(("127.0.0.1", 0)) as listening:
        counters = Counters.create_or_adopt(layout, "acceptor@0", 1)
        arena = Arena.create(layout.shared_memory_name("arena", "test", 1), 1 << 16, 1)
        clock, box, log = ManualClock(), make_box(listeners=[LISTENER]), Logger("acceptor@0")
        context = ServiceContext(layout, box, clock, counters, Poller(), "acceptor@0", "0", 1, SystemdNotifier(counters), log, {"kafka": listening})
        made = ThrottledDoor(context, arena, listening, clock)
        yield made
        made.connections.close()
        made.throttles.close()
        made.connections.__dict__.clear()  # its views of the arena
        arena.close()
        counters.close()


def test_a_throttled_client_is_answered_at_once_and_its_next_request_is_taken_when_its_time_is_over(door: ThrottledDoor) -> None:
    door.use(slow=1.0)
    door.handler.used_ms = 150  # of 100 ms in ten seconds
    with door.connect() as client, door.connect() as other:
        client.sendall(list_groups(b"slow") * 2)
        assert throttle_ms(door.receive(client)) == 1_000, "at most one second"
        client.sendall(list_groups(b"slow"))
        door.handler.used_ms = 0
        other.sendall(list_groups(b"other"))
        assert throttle_ms(door.receive(other)) == 0
        assert door.handler.taken == 2 and door.throttles.park_ms(door.clock.monotonic_ns(), 5_000) == 1_000
        door.clock.advance_ms(999)
        door.turn()
        assert door.handler.taken == 2
        door.clock.advance_ms(1)
        assert throttle_ms(door.receive(client)) == 1_000, "the time of the first request still counts"
        door.clock.advance_ms(11_000)
        assert throttle_ms(door.receive(client)) == 0
        assert door.handler.taken == 4
    counters = door.context.counters
    assert counters.counter('acceptor.throttled_requests{quota="request_percentage"}').value == 2
    assert counters.counter('acceptor.throttle_ms{quota="request_percentage"}').value == 2_000


def test_boxes_are_not_limited_by_a_default_quota_and_what_only_has_their_client_id_is(door: ThrottledDoor) -> None:
    door.throttles.set_quotas(ClientQuotas({QuotaEntity(None, ""): {REQUEST_PERCENTAGE: 1.0}}))
    door.connections.serve_by(door.throttles.on_request)
    door.handler.used_ms = 150
    for is_box, client_id, is_limited in (
        (True, "coordinator of broker 2", False),
        (True, "coordinator of broker 2", False),
        (True, "client", True),
        (False, "coordinator of broker 2", True),
    ):
        door.is_box = is_box
        with door.connect() as client:
            client.sendall(list_groups(client_id.encode()))
            assert (throttle_ms(door.receive(client)) > 0) == is_limited, (is_box, client_id)


def test_a_raised_quota_counts_from_the_next_request_and_a_closed_connection_is_forgotten(door: ThrottledDoor) -> None:
    door.use(slow=1.0)
    door.handler.used_ms = 150
    with door.connect() as client:
        client.sendall(list_groups(b"slow"))
        assert throttle_ms(door.receive(client)) > 0
        door.throttles.sweep(door.clock.monotonic_ns())
        assert door.context.counters.gauge("acceptor.connections_muted").value == 1
        door.use(slow=50.0)
        door.clock.advance_ms(1_000)
        client.sendall(list_groups(b"slow"))
        assert throttle_ms(door.receive(client)) == 0
        door.use(slow=2.0)
        client.sendall(list_groups(b"slow"))
        assert throttle_ms(door.receive(client)) > 0, "what was used before the change still counts"
        door.connections.close()
    door.throttles.sweep(door.clock.monotonic_ns())
    assert door.context.counters.gauge("acceptor.connections_muted").value == 0


def ask(door: ThrottledDoor, client: socket.socket, client_id: str) -> int:
    client.sendall(list_groups(client_id.encode()))
    return throttle_ms(door.receive(client))


def test_what_is_kept_of_client_ids_is_small_and_idle_clients_are_forgotten(door: ThrottledDoor) -> None:
    long_id = "x" * 20_000
    door.throttles.set_quotas(ClientQuotas({QuotaEntity("User:none"): {REQUEST_PERCENTAGE: 1.0}}))
    door.connections.serve_by(door.throttles.on_request)
    with door.connect() as client:
        for number in range(UNLIMITED_MAX + 10):
            assert ask(door, client, f"unlimited {number}") == 0
        assert len(door.throttles.clients) == UNLIMITED_MAX
        door.throttles.set_quotas(ClientQuotas({QuotaEntity(None, ""): {REQUEST_PERCENTAGE: 1.0}}))
        door.handler.used_ms = 150
        assert ask(door, client, long_id) == 1_000
        assert sum(len(name) for kept in door.throttles.clients for name in kept) < 600
        door.clock.advance_ms(1_000)
        assert ask(door, client, long_id[1:]) == 1_000, "another client"
        door.clock.advance_ms(1_000)
        assert ask(door, client, long_id) == 1_000 and len(door.throttles.clients) == 2
        door.clock.advance_ms(1_000)
        door.throttles.sweep(door.clock.monotonic_ns())
        assert len(door.throttles.clients) == 2
        door.clock.advance_ms(11_000)
        door.throttles.sweep(door.clock.monotonic_ns())
        assert len(door.throttles.clients) == 0


def test_connections_continue_in_the_order_of_their_times_a_number_of_them_each_turn(door: ThrottledDoor) -> None:
    extra = 5
    with ExitStack() as stack:
        clients = [stack.enter_context(door.connect()) for _ in range(UNMUTED_MAX + extra)]
        for client in clients:
            assert ask(door, client, "c") == 0
        connections = door.handler.served[:]
        for number, connection in reversed(list(enumerate(connections))):
            door.throttles.mute(connection, 1_000 + number)
        for client in clients:
            client.sendall(list_groups(b"c"))
        door.throttles.forget(connections[0])
        door.clock.advance_ms(2_000)
        now_ns = door.clock.monotonic_ns()
        assert door.throttles.do_work(now_ns) == UNMUTED_MAX and door.throttles.park_ms(now_ns, 5_000) == 0
        assert [each for each in connections[1:] if each.muted_until_ns] == connections[1 + UNMUTED_MAX :]
        door.throttles.mute(connections[-1], 3_000)
        assert door.throttles.do_work(now_ns) == extra - 2 and door.throttles.park_ms(now_ns, 5_000) == 3_000
        assert all(throttle_ms(door.receive(client)) == 0 for client in clients[1:-1])
        assert len(door.handler.served) == 2 * len(clients) - 2


def test_a_batch_that_continues_costs_nothing_for_those_that_wait(door: ThrottledDoor) -> None:
    looks = 0

    class Muted:
        closed = False
        until_ns = 0

        @property
        def muted_until_ns(self) -> int:
            nonlocal looks
            looks += 1
            return self.until_ns

        @muted_until_ns.setter
        def muted_until_ns(self, until_ns: int) -> None:
            self.until_ns = until_ns

    throttles = ClientThrottles(door.context, lambda *_: True, lambda _: None, lambda _: None, lambda _: False)
    for number in range(10_000):
        throttles.mute(cast(Connection, Muted()), 10 * (number // UNMUTED_MAX) + 10)
    for batch in range(1, 51):
        looks = 0
        door.clock.advance_ms(10)
        assert throttles.do_work(door.clock.monotonic_ns()) == UNMUTED_MAX and looks <= 2 * UNMUTED_MAX
        assert len(throttles.muted) == 10_000 - batch * UNMUTED_MAX
    for connection in list(throttles.muted)[:-1]:
        throttles.forget(connection)
    door.clock.advance_ms(1_000)
    assert throttles.do_work(door.clock.monotonic_ns()) == 1 and not throttles.muted


def test_acceptors_count_what_clients_use_at_the_others() -> None:
    limit = QuotaLimit(QuotaScope(PRODUCER_BYTE_RATE, "", "c"), 1_000.0)
    with scratch_layout() as layout:
        uses = [QuotaUse(layout, f"acceptor@{index}", 1) for index in range(2)]
        sharings = [QuotaSharing(uses[index], [QuotaUseReader(layout, f"acceptor@{1 - index}")]) for index in range(2)]
        for sharing in sharings:
            sharing.attach()
        first, second = (QuotaUsage(limit, sharing, 100) for sharing in sharings)
        assert first.record(6_000, 100) == 0
        assert second.record(6_000, 100) == 2_000
        assert first.record(0, 100) == 2_000
        assert QuotaUsage(limit, sharings[0], 200).record(1_000, 200) == 0, "6,000 of the other and 1,000"
        assert QuotaUsage(limit, sharings[0], 10_100).record(5_001, 10_100) == 1_001
        assert QuotaUsage(limit, sharings[0], 10_101).record(10_000, 10_101) == 0, "it used them too long ago"
        uses[1].close()
        uses[1] = sharings[1].own = QuotaUse(layout, "acceptor@1", 2)
        sharings[0].attach()
        second.record(1_000, 100)
        assert first.record(0, 100) == 3_000, "a new incarnation counts from 0"
        for sharing in sharings:
            sharing.close()


def test_a_slot_that_another_quota_needs_is_the_one_that_was_written_longest_ago() -> None:
    with scratch_layout() as layout:
        use, reader = QuotaUse(layout, "acceptor@0", 1), QuotaUseReader(layout, "acceptor@0")
        assert reader.total(5) == 0
        reader.attach()
        same_place = [5 + 4089 * index for index in range(9)]
        for number, digest in enumerate(same_place):
            use.add(digest, 10 + number, 100 + number)
        assert [reader.total(digest) for digest in same_place] == [0, *range(11, 19)]
        use.add(same_place[0], 1, 200)
        assert [reader.total(digest) for digest in same_place[:3]] == [1, 0, 12]
        reader.close()
        use.close()


def test_a_batch_above_the_quota_is_sent_when_nothing_else_counts() -> None:
    usage = QuotaUsage(QuotaLimit(QuotaScope(CONSUMER_BYTE_RATE, "", "c"), 10.0), None, 0)
    assert usage.offer(1_000, 0) == 0 and usage.fetch_bytes_max == 100
    assert usage.offer(50, 0) == 95_000
    assert usage.offer(50, 11_000) == 0 and usage.offer(50, 11_000) == 0


def test_an_unreadable_image_of_quotas_leaves_the_last_ones_in_use() -> None:
    with scratch_layout() as layout:
        follower = QuotaFollower(layout, Logger("acceptor@0"))
        assert not follower.load() and not follower.quotas.limit_requests
        write_quota_image(layout.quota_image_file, QuotaImage(3, {QuotaEntity("u", ""): {PRODUCER_BYTE_RATE: 5.0}}))
        assert follower.load() and follower.quotas.limit(PRODUCER_BYTE_RATE, "u", "c") is not None
        assert not follower.load()
        with open(layout.quota_image_file, "wb") as file:
            file.write(b"damaged")
        assert not follower.load() and follower.quotas.limit_requests


def is_closed_by_the_other_side(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_connection_above_the_quota_of_its_address_is_closed_after_a_moment(door: ThrottledDoor) -> None:
    """Eleven seconds' worth may come at once; the next ones are refused until a second has left the window."""
    door.throttles.set_quotas(ClientQuotas({QuotaEntity(address="127.0.0.1"): {CONNECTION_CREATION_RATE: 1.0}}))
    door.connections.rates.connection_throttle_ms = door.throttles.connection_throttle_ms
    with ExitStack() as clients:
        taken = [clients.enter_context(door.connect()) for _ in range(SAMPLES)]
        assert door.reaches(lambda: len(door.connections) == SAMPLES - 1)
        refused = taken[-1]
        assert door.closed("connection-rate-of-address") == 1 and not is_closed_by_the_other_side(refused)
        door.clock.advance_ms(WINDOW_MS)
        door.connections.sweep(door.clock.monotonic_ns())
        assert door.reaches(lambda: is_closed_by_the_other_side(refused))
        door.clock.advance_ms(SAMPLES * WINDOW_MS)
        clients.enter_context(door.connect())
        assert door.reaches(lambda: len(door.connections) == SAMPLES)
    assert door.closed("connection-rate-of-address") == 1


@pytest.mark.parametrize("is_own", [False, True])
def test_a_listener_above_its_rate_takes_no_connection_for_a_moment(door: ThrottledDoor, is_own: bool) -> None:
    (listening,) = (each for each in door.connections.listening if each.name == LISTENER.name)
    if is_own:
        listening.creation_rate = 1
    else:
        door.connections.rates.wanted = 1
    with ExitStack() as clients:
        for _ in range(SAMPLES + 3):
            clients.enter_context(door.connect())
        assert door.reaches(lambda: listening.paused_until_ns)
        assert len(door.connections) == SAMPLES
        door.turn()
        door.connections.sweep(door.clock.monotonic_ns())
        assert len(door.connections) == SAMPLES
        door.clock.advance_ms(WINDOW_MS)
        assert door.reaches(lambda: len(door.connections) == SAMPLES + 1)
        door.clock.advance_ms(SAMPLES * WINDOW_MS)
        assert door.reaches(lambda: len(door.connections) == SAMPLES + 3)
    assert door.closed("connection-rate-of-address") == 0
