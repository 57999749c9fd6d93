"""The acceptor at its socket: reply order, long polls, hostile frames. Requests are built with kio, replies are read with it."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.records.builder import BatchBuilder
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually, proportional_kib

pytestmark = [pytest.mark.system, pytest.mark.slow]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18


@pytest.fixture
def client(shared_box: RunningBox) -> Iterator[RawClient]:
    client = RawClient(shared_box.kafka)
    yield client
    client.close()


def _batch(text: str) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, text.encode())
    return builder.build()


def _closed(sock: socket.socket) -> bool:
    sock.settimeout(10)
    try:
        return sock.recv(4096) == b""
    except ConnectionError:
        return True


def test_replies_leave_in_the_order_of_their_requests(shared_box: RunningBox, client: RawClient) -> None:
    client.create_topic("order", 2)
    for number in range(200):
        client.send_produce("order", number % 2, _batch(str(number)), correlation_id=number)
        if number % 50 == 49:
            client.send_metadata(["order"], correlation_id=1000 + number)
    expected = [number for base in range(0, 200, 50) for number in (*range(base, base + 50), 1000 + base + 49)]
    assert [client.receive_correlation_id() for _ in expected] == expected


def test_a_long_poll_answers_when_data_comes_and_at_its_deadline_without(client: RawClient, shared_box: RunningBox) -> None:
    client.create_topic("poll", 1)
    started = time.monotonic()
    assert client.fetch("poll", 0, 0, max_wait_ms=400, min_bytes=1).records == b""
    assert time.monotonic() - started > 0.35
    client.send_fetch("poll", 0, 0, max_wait_ms=20_000, min_bytes=1)
    other = RawClient(shared_box.kafka)
    started = time.monotonic()
    other.produce("poll", 0, _batch("news"))
    assert b"news" in client.receive_fetch().records
    assert time.monotonic() - started < 15, "not at its deadline"
    other.close()


def test_the_first_batch_comes_whole_however_little_was_asked_for(client: RawClient) -> None:
    client.create_topic("whole", 1)
    client.produce("whole", 0, _batch("x" * 100_000))
    client.produce("whole", 0, _batch("y"))
    assert len(client.fetch("whole", 0, 0, max_bytes=10, partition_max_bytes=10).records) > 100_000
    assert b"y" in client.fetch("whole", 0, 1, max_bytes=10, partition_max_bytes=10).records


def test_errors_carry_kafkas_codes(client: RawClient) -> None:
    client.create_topic("errors", 1)
    good = _batch("good")
    torn = bytearray(good)
    torn[-1] ^= 1
    assert client.produce("errors", 0, bytes(torn)).error_code == 2
    assert client.produce("errors", 7, good).error_code == 3
    assert client.produce("nowhere", 0, good).error_code == 3
    assert client.produce("errors", 0, good, acks=5).error_code == 21
    assert client.produce("errors", 0, good).error_code == 0
    assert client.fetch("errors", 0, 99).error_code == 1
    assert client.fetch("errors", 0, 0, leader_epoch=50).error_code == 75
    assert client.fetch("nowhere", 0, 0).error_code == 3


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(struct.pack(">i", 2**31 - 1) + b"x" * 64, id="a frame of 2 GiB"),
        pytest.param(struct.pack(">i", -5), id="a negative size"),
        pytest.param(struct.pack(">ihhih", 10, 999, 0, 1, -1), id="an unknown API"),
        pytest.param(struct.pack(">ihhih", 10, PRODUCE, 99, 1, -1), id="a version that is not served"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(struct.pack(">ihhihhhiihsiii", 37, PRODUCE, 7, 1, -1, -1, 1, 1000, 1, 1, b"t", 1, 0, 2**30), id="a produce that lies about its records"),
    ],
)
def test_hostile_bytes_close_their_connection_and_affect_no_other(shared_box: RunningBox, client: RawClient, hostile: bytes) -> None:
    closed_before = _closed_count(shared_box)
    with socket.create_connection(shared_box.kafka) as sock:
        sock.sendall(hostile)
        assert _closed(sock)
    assert client.api_versions() > 5
    assert _closed_count(shared_box) == closed_before + 1


def test_garbage_and_half_frames_do_not_grow_the_acceptor(shared_box: RunningBox, client: RawClient) -> None:
    pid = shared_box.pid("acceptor@0")
    for _ in range(50):
        with socket.create_connection(shared_box.kafka) as sock:
            sock.sendall(os.urandom(4096))
    before = proportional_kib(pid)
    for _ in range(10):
        half_open = [socket.create_connection(shared_box.kafka) for _ in range(40)]
        for sock in half_open:
            sock.sendall(struct.pack(">ihhih", 1 << 20, PRODUCE, 7, 1, -1) + b"x" * 5000)
        assert client.api_versions() > 5
        for sock in half_open:
            sock.close()
    eventually(lambda: shared_box.counters("acceptor@0").values["acceptor.connections"] == 1, "hostile connections are gone")
    assert proportional_kib(pid) - before < 64 * 1024


def test_acks_0_gets_no_reply_and_its_error_closes_the_connection(shared_box: RunningBox) -> None:
    client = RawClient(shared_box.kafka)
    client.create_topic("silent", 1)
    client.send_produce("silent", 0, _batch("1"), acks=0)
    assert client.api_versions() > 5
    assert client.list_offset("silent", 0, -1) == 1
    client.send_produce("nowhere", 0, _batch("1"), acks=0)
    assert _closed(client.sock)
    client.close()


def _closed_count(box: RunningBox) -> int:
    """By the box: clients of earlier tests leave when they like."""
    values = box.counters("acceptor@0").values
    return sum(count for label, count in values.items() if label.startswith("acceptor.closed{") and "client-left" not in label)


def _listening_socket(box: RunningBox) -> socket.socket:
    """A second descriptor of the socket on which all acceptors of the box accept: pidfd_getfd(2), which Python has not."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    pidfd = os.pidfd_open(box.process.pid)
    try:
        for name in os.listdir(f"/proc/{box.process.pid}/fd"):
            descriptor = syscall(438, pidfd, int(name), 0)
            if descriptor < 0:
                continue
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found = socket.socket(fileno=descriptor)
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == box.kafka.port:
                    return found
                found.close()
            else:
                os.close(descriptor)
    finally:
        os.close(pidfd)
    pytest.skip("the box's descriptors cannot be borrowed here (ptrace)")


def test_a_connection_that_woke_an_acceptor_which_does_not_take_it_is_taken_by_another(shared_box: RunningBox) -> None:
    """A connection wakes one of those who wait. Here that is a process of ours; an acceptor that is stopped or killed at that moment does the same."""
    with _listening_socket(shared_box) as listening, select.epoll() as ours:
        ours.register(listening.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE)
        shared_box.await_restart("acceptor@0", shared_box.kill("acceptor@0"))  # it waits behind us now
        waiter = os.fork()
        if waiter == 0:
            ours.poll(20)
            os._exit(0)
        eventually(lambda: Path(f"/proc/{waiter}/stat").read_text().rpartition(")")[2].split()[0] == "S", "a process waits for the connection")
        client = RawClient(shared_box.kafka)
        client.create_topic("taken", 1)
        assert os.waitpid(waiter, 0)[1] == 0, "it was woken"
        client.close()
