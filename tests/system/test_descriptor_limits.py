"""An acceptor that may open no more descriptors: what it says, whom it turns away, and what goes on meanwhile."""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from appliance.records.builder import BatchBuilder
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually
from services.acceptor.client_connections import SHED_IDLE_NS

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC, ACCEPTOR = "kept", "acceptor@0"


def batch(value: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, value)
    return builder.build()


@contextmanager
def allowed_descriptors(pid: int, more: int) -> Iterator[None]:
    """The process may open `more` than it has, and those that it closes."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + more, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_closed(sock: socket.socket) -> bool:
    """Whether the box has hung up on it."""
    try:
        return bool(select.select([sock], [], [], 0)[0]) and sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_an_acceptor_without_descriptors_turns_new_clients_away_and_serves_the_others(start: Callable[..., RunningBox]) -> None:
    box = start(disks=1)
    with ExitStack() as stack:
        client = stack.enter_context(closing(RawClient(box.kafka)))
        client.create_topic(TOPIC, 1)
        assert client.produce(TOPIC, 0, batch(b"before")).error_code == 0
        assert client.fetch(TOPIC, 0, 0).records
        pid = box.pid(ACCEPTOR)
        before = box.counters(ACCEPTOR).values
        with allowed_descriptors(pid, 8):
            clients = [stack.enter_context(socket.create_connection(box.kafka, timeout=10)) for _ in range(60)]

            def turned_away() -> int:
                return sum(is_closed(each) for each in clients)

            eventually(lambda: turned_away() >= 30, "new clients are closed instead of waiting in the queue")
            used, failures = cpu_seconds(pid), box.counters(ACCEPTOR).values["acceptor.accept_failures"]
            for number in range(20):
                assert client.produce(TOPIC, 0, batch(b"meanwhile")) == (0, number + 1)
                assert client.fetch(TOPIC, 0, number + 1).records
            assert 0 < len(clients) - turned_away() < 30, "those that got in stay"
            assert cpu_seconds(pid) - used < 5, "it does not spin"
            assert box.counters(ACCEPTOR).values["acceptor.accept_failures"] - failures < 200, "it pauses between two tries"
        values = box.counters(ACCEPTOR).values
        assert values["acceptor.accept_failures"] > before["acceptor.accept_failures"]
        assert values['acceptor.closed{reason="descriptor-limit"}'] >= 30
        assert box.messages.count("cannot accept connections: Too many open files") == 1, "once a minute"
        again = stack.enter_context(closing(RawClient(box.kafka)))
        assert again.produce(TOPIC, 0, batch(b"afterwards")).error_code == 0, "with descriptors it accepts again"


def test_long_idle_clients_are_closed_for_new_ones(start: Callable[..., RunningBox]) -> None:
    box = start(disks=1)
    with ExitStack() as stack:
        client = stack.enter_context(closing(RawClient(box.kafka)))
        client.create_topic(TOPIC, 1)
        pid = box.pid(ACCEPTOR)
        with allowed_descriptors(pid, 8):
            began = time.monotonic()
            idle = [stack.enter_context(socket.create_connection(box.kafka, timeout=10)) for _ in range(4)]
            others = [stack.enter_context(socket.create_connection(box.kafka, timeout=10)) for _ in range(30)]
            eventually(lambda: any(is_closed(each) for each in others), "new clients are turned away while no other has been idle for long")
            assert not any(is_closed(each) for each in idle) or time.monotonic() - began > SHED_IDLE_NS / 1e9

            def crowd() -> bool:
                """One client is busy, and another one comes whenever the last was turned away; whether the idle ones are closed."""
                assert client.produce(TOPIC, 0, batch(b"busy")).error_code == 0
                if is_closed(others[-1]):
                    others.append(stack.enter_context(socket.create_connection(box.kafka, timeout=10)))
                return all(is_closed(each) for each in idle)

            eventually(lambda: is_closed(others[-1]), "the last that came is turned away")
            eventually(crowd, "the idle ones are closed", 60)
            fresh = stack.enter_context(closing(RawClient(box.kafka)))
            assert fresh.produce(TOPIC, 0, batch(b"in their place")).error_code == 0
            assert client.produce(TOPIC, 0, batch(b"never idle")).error_code == 0
