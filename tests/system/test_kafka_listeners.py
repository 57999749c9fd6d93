"""Several listeners for Kafka clients on a real box: each client receives the endpoints of its own."""

from __future__ import annotations

import select
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from appliance.base.settings import Box, load_box
from lab.running_box import COMMAND, RunningBox, environment, eventually, run_and_wait, run_arguments

pytestmark = pytest.mark.system
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "advertised.listeners": "CLIENTS://localhost:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
    "listener.name.clients.max.connections.per.ip": 3,
    "listener.name.plaintext.max.connections.per.ip": 10,
    "max.connections": 30,
}

API_VERSIONS = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
"""version 0"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    box = start_shared(tmp_path_factory.mktemp("listeners") / "box", disks=1, settings=SETTINGS)
    yield box
    box.stop()
    assert box.leftovers() == []


@pytest.fixture
def box(running: RunningBox) -> RunningBox:
    """Without connections of the test before, which would count against the limits."""
    eventually(lambda: running.counters("acceptor@0").values["acceptor.connections"] == 0, "no client is connected")
    return running


def ports(box: RunningBox) -> dict[str, int]:
    found: Box = load_box(box.layout)
    return {listener.name: listener.port for listener in found.kafka_listeners}


def test_each_client_receives_the_endpoints_of_its_listener(box: RunningBox) -> None:
    port = ports(box)
    assert box.kafka.port == port["PLAINTEXT"] != port["CLIENTS"]
    brokers = {}
    for name, number in port.items():
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{number}"})
        (broker,) = admin.list_topics(timeout=30).brokers.values()
        brokers[name] = broker.host, broker.port
    assert brokers == {"PLAINTEXT": ("127.0.0.1", port["PLAINTEXT"]), "CLIENTS": ("localhost", port["CLIENTS"])}


def test_a_client_of_the_second_listener_produces_and_consumes_in_a_group(box: RunningBox) -> None:
    bootstrap = {"bootstrap.servers": f"127.0.0.1:{ports(box)['CLIENTS']}"}
    producer = Producer(bootstrap)
    producer.produce("syslog", b"by the second listener")
    assert producer.flush(30) == 0
    consumer = Consumer({**bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["syslog"])
    message = consumer.poll(20)
    assert message is not None and message.error() is None and message.value() == b"by the second listener"
    consumer.close()


def test_the_limits_of_a_listener_are_its_own(box: RunningBox) -> None:
    port = ports(box)
    clients = [socket.create_connection(("127.0.0.1", port["CLIENTS"])) for _ in range(4)]
    others = [socket.create_connection(("127.0.0.1", port["PLAINTEXT"])) for _ in range(4)]
    refused = 0
    for client in clients:
        client.settimeout(30)
    refused = int(clients[3].recv(1) == b"")
    assert refused == 1
    for each in others:
        each.sendall(API_VERSIONS)
        each.settimeout(30)
        assert each.recv(4) != b""
    for each in (*clients, *others):
        each.close()


def test_clients_of_another_listener_keep_no_box_out(box: RunningBox) -> None:
    port = ports(box)
    with ExitStack() as stack:
        for number in range(36):
            source = f"127.0.1.{1 + number // 3}", 0
            stack.enter_context(socket.create_connection(("127.0.0.1", port["CLIENTS"]), source_address=source))
        eventually(lambda: box.counters("acceptor@0").values["acceptor.connections"] == 30, "all connections are taken")
        for _ in range(3):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port["PLAINTEXT"]), timeout=30))
            peer.sendall(API_VERSIONS)
            assert peer.recv(4) != b""


def test_a_client_over_the_limit_of_its_address_pushes_none_out(box: RunningBox) -> None:
    port = ports(box)
    with ExitStack() as stack:
        address = "127.0.2.1", 0
        for _ in range(10):
            stack.enter_context(socket.create_connection(("127.0.0.1", port["PLAINTEXT"]), source_address=address))
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port["CLIENTS"]), source_address=(f"127.0.1.{1 + number // 3}", 0)))
            for number in range(36)
        ]
        eventually(lambda: box.counters("acceptor@0").values["acceptor.connections"] == 30, "all connections are taken")
        # Connections are accepted in the order in which they came: when the last is refused, all before it are decided.
        clients[-1].settimeout(30)
        assert clients[-1].recv(1) == b""
        open_clients = [client for client in clients if not select.select([client], [], [], 0)[0]]
        refused = stack.enter_context(socket.create_connection(("127.0.0.1", port["PLAINTEXT"]), source_address=address, timeout=30))
        assert refused.recv(1) == b""
        assert select.select(open_clients, [], [], 0)[0] == []


def test_every_mistake_in_listeners_is_reported_before_the_start(tmp_path: Path) -> None:
    wrong = {"listeners": "A://127.0.0.1:0,B://127.0.0.1:0", "listener.name.c.max.connections": 1}
    ended = run_and_wait(run_arguments(tmp_path, disks=1, settings=wrong))
    assert ended.returncode == 2
    for words in ("listeners has A, but listener.security.protocol.map does not have it", "listeners has B", "there is no listener C"):
        assert words in ended.stderr + ended.stdout


def test_a_box_that_serves_other_machines_without_authentication_says_so(tmp_path: Path, start_shared: Callable[..., RunningBox]) -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0,OPEN://0.0.0.0:0", "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OPEN:PLAINTEXT"}
    running = start_shared(tmp_path, disks=1, settings=settings)
    try:
        words = f"listener OPEN (0.0.0.0:{ports(running)['OPEN']}) serves Kafka clients of other machines without authentication"
        assert words in running.messages
        for command in ("status", "doctor"):
            shown = subprocess.run(
                [*COMMAND[:-1], command, "--data", str(tmp_path / "d0")], env=environment(), capture_output=True, text=True, timeout=60, check=False
            )
            assert f"OPEN (0.0.0.0:{ports(running)['OPEN']})" in shown.stdout, shown
    finally:
        running.stop()
