"""Both ways of sending only what is in the page cache, over a real socket from a real file."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from appliance.ipc.log_reader_proxy import ArenaPart
from appliance.security.transport import NOT_RESIDENT, PlainTransport
from appliance.storage.page_cache import has_cachestat
from lab.other_users import STRANGER, needs_root, new_directory, run_python
from services.acceptor.connection import ARENA_HOLD_NS, Connection
from services.acceptor.fetch.record_ranges import SEND_BYTES_A_TURN, ArenaRange, FileRange, Residency, SegmentOrigin, ServedSegment
from services.acceptor.fetch.residency import CachestatResidency, MincoreResidency, choose_residency
from tests.support.cold_segments import make_cold, resident_bytes

SIZE = 3 * (1 << 20) + 77
ORIGIN = SegmentOrigin("d0", "logs", 0, 0)


@pytest.fixture(params=["cachestat", "mincore"])
def residency(request: pytest.FixtureRequest) -> Residency:
    if request.param == "cachestat" and not has_cachestat():
        pytest.skip("the kernel has no cachestat")
    return choose_residency(request.param)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname(), 10)
        served, _ = listening.accept()
    served.setblocking(False)
    yield served, client
    served.close()
    client.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(SIZE))
    return path


def open_file(path: Path, residency: Residency) -> ServedSegment:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return ServedSegment(descriptor, ORIGIN, residency)


def receive(client: socket.socket, connection: Connection, size_bytes: int) -> bytes:
    received = b""
    while len(received) < size_bytes:
        connection.send_outgoing()
        received += client.recv(1 << 20)
    return received


def test_what_is_resident_arrives_whole(residency: Residency, path: Path, sockets: tuple[socket.socket, socket.socket]) -> None:
    connection = Connection(PlainTransport(sockets[0]), "here", 0)
    connection.outgoing += [b"head", FileRange(open_file(path, residency), 1000, SIZE - 1000, True), b"foot"]
    wanted = b"head" + path.read_bytes()[1000:] + b"foot"
    assert receive(sockets[1], connection, len(wanted)) == wanted
    assert not connection.waits_for_disk and not connection.outgoing


def test_what_is_cold_is_not_sent_and_not_read(residency: Residency, path: Path, sockets: tuple[socket.socket, socket.socket]) -> None:
    make_cold(path)
    file = open_file(path, residency)
    assert not residency.is_resident(file, 0, SIZE) and not residency.is_resident(file, SIZE - 1, 1)
    assert residency.send(PlainTransport(sockets[0]), FileRange(file, 0, SIZE), False) == NOT_RESIDENT
    assert resident_bytes(path) == 0


def test_the_sending_stops_where_cold_bytes_begin(residency: Residency, path: Path, sockets: tuple[socket.socket, socket.socket]) -> None:
    """As when pages are evicted while a slow client takes its response."""
    content = path.read_bytes()
    make_cold(path)
    hot = 1 << 20
    file = open_file(path, residency)
    os.pread(file.descriptor, hot, 0)
    assert residency.is_resident(file, 0, hot)
    connection = Connection(PlainTransport(sockets[0]), "here", 0)
    connection.outgoing += [FileRange(file, 0, SIZE, True)]
    received = b""
    while not connection.waits_for_disk:
        connection.send_outgoing()
        received += sockets[1].recv(1 << 20) if not connection.waits_for_disk else b""
    (left,) = connection.outgoing
    assert isinstance(left, FileRange) and left.position == hot
    while len(received) < hot:
        received += sockets[1].recv(1 << 20)
    assert received == content[:hot] and resident_bytes(path) == hot


SERVED_BY_A_STRANGER = """
import os, socket, sys
from services.acceptor.fetch.record_ranges import FileRange, SegmentOrigin, ServedSegment
from services.acceptor.fetch.residency import choose_residency
from appliance.security.transport import NOT_RESIDENT, PlainTransport

hot_bytes, piece_bytes = 1 << 20, 128 << 10
for way, path in zip(("cachestat", "mincore"), sys.argv[1:]):
    residency = choose_residency(way)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    file = ServedSegment(descriptor, SegmentOrigin("d0", "logs", 0, 0), residency)
    served, client = socket.socketpair()
    served.setblocking(False)
    cold = iter(range(hot_bytes, 3 * hot_bytes, piece_bytes))  # a miss may bring in what it asked for, so each is asked once

    def is_cold():
        return not residency.is_resident(file, next(cold), 1)

    def is_refused(is_checked):
        return residency.send(PlainTransport(served), FileRange(file, next(cold), piece_bytes, is_checked), False) == NOT_RESIDENT

    tries = range(4)  # a disk may be as quick as the question
    answers = [residency.is_resident(file, 0, hot_bytes), any(is_cold() for _ in tries)]
    answers += [any(is_refused(False) for _ in tries), any(is_refused(True) for _ in tries)]
    served, client = socket.socketpair()
    client.setblocking(False)
    answers += [residency.send(PlainTransport(served), FileRange(file, 100, 1000), False), client.recv(2000) == os.pread(descriptor, 1000, 100)]
    print(answers)
"""


@needs_root
def test_of_another_users_file_the_answer_is_honest_too(path: Path) -> None:
    """The kernel refuses cachestat, and mincore calls all of it resident: a send would wait for the disk."""
    directory = new_directory(0, 0o755)
    try:
        segments = [directory / name for name in ("one", "two")]
        for segment in segments:
            segment.write_bytes(path.read_bytes())
            segment.chmod(0o644)
        make_cold(*segments)
        for segment in segments:
            with segment.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                os.pread(file.fileno(), 1 << 20, 0)
        answers = run_python(STRANGER, SERVED_BY_A_STRANGER, *map(str, segments)).splitlines()
        assert answers == [str([True, True, True, True, 1000, True])] * 2
    finally:
        shutil.rmtree(directory)


@pytest.mark.skipif(not has_cachestat(), reason="the kernel has no cachestat")
def test_a_page_that_the_kernel_misses_once_is_resident_and_one_that_it_misses_twice_is_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    residency = CachestatResidency()
    answers = [SIZE // 4096, SIZE // 4096 + 1, SIZE // 4096, SIZE // 4096]
    monkeypatch.setattr(residency, "_cachestat", SimpleNamespace(pages=lambda *_: answers.pop(0)))
    file = open_file(path, residency)
    assert [residency.is_resident(file, 0, SIZE), residency.is_resident(file, 0, SIZE)] == [True, False]


def test_without_a_choice_the_better_way_of_the_kernel_is_taken() -> None:
    assert isinstance(choose_residency("auto"), CachestatResidency if has_cachestat() else MincoreResidency)


def arena_range(released: list[tuple[int, int]], *parts: bytes) -> ArenaRange:
    return ArenaRange([ArenaPart(memoryview(part), released, 9, slot) for slot, part in enumerate(parts)], 0)


def test_a_part_of_a_log_readers_memory_is_let_go_when_it_has_left(sockets: tuple[socket.socket, socket.socket]) -> None:
    released: list[tuple[int, int]] = []
    connection = Connection(PlainTransport(sockets[0]), "here", 0)
    parts = [os.urandom(1 << 20), os.urandom(1000)]
    connection.outgoing += [b"head", arena_range(released, *parts)]
    wanted = b"head" + b"".join(parts)
    assert receive(sockets[1], connection, len(wanted)) == wanted
    assert released == [(9, 0), (9, 1)]


class Greedy:
    """A transport that takes everything at once, like a client that reads as fast as the acceptor
    sends.
    """

    def __init__(self) -> None:
        self.taken = bytearray()

    def send(self, data: bytes | memoryview, more: bool) -> int:
        self.taken += data
        return len(data)

    def send_file(self, descriptor: int, position: int, size_bytes: int) -> int:
        return self.send(os.pread(descriptor, size_bytes, position), False)


@pytest.mark.parametrize("kind", ["file", "memory", "heap"])
def test_a_fast_reader_gets_a_bounded_number_of_bytes_a_turn_and_everything_in_the_end(kind: str, residency: Residency, path: Path) -> None:
    transport = Greedy()
    connection = Connection(transport, "here", 0)  # type: ignore[arg-type]
    content = path.read_bytes()
    if kind == "file":
        connection.outgoing += [b"head", FileRange(open_file(path, residency), 0, SIZE, True)]
    elif kind == "memory":
        connection.outgoing += [b"head", arena_range([], content[: 1 << 20], content[1 << 20 :])]
    else:
        connection.outgoing += [b"head", *(memoryview(content[at : at + (64 << 10)]) for at in range(0, SIZE, 64 << 10))]
    turns, before = 0, 0
    while not connection.send_outgoing():
        turns += 1
        assert 0 < len(transport.taken) - before < 2 * SEND_BYTES_A_TURN
        before = len(transport.taken)
    assert bytes(transport.taken) == b"head" + content
    assert turns >= SIZE // (2 * SEND_BYTES_A_TURN)


def test_a_client_that_takes_nothing_holds_the_memory_for_a_while_only(sockets: tuple[socket.socket, socket.socket]) -> None:
    released: list[tuple[int, int]] = []
    connection = Connection(PlainTransport(sockets[0]), "here", 0)
    parts = [os.urandom(6 << 20), os.urandom(6 << 20), b"end"]
    connection.outgoing += [arena_range(released, *parts)]
    connection.send_outgoing()
    assert not connection.move_to_heap(ARENA_HOLD_NS) and connection.outgoing_bytes == 0
    assert connection.move_to_heap(ARENA_HOLD_NS + 1)
    assert {slot for _, slot in released} == {0, 1, 2} and 0 < connection.outgoing_bytes < 12 << 20
    wanted = b"".join(parts)
    assert receive(sockets[1], connection, len(wanted)) == wanted and connection.outgoing_bytes == 0


def test_a_connection_that_closes_lets_go_of_everything(sockets: tuple[socket.socket, socket.socket]) -> None:
    released: list[tuple[int, int]] = []
    connection = Connection(PlainTransport(sockets[0]), "here", 0)
    connection.outgoing += [arena_range(released, b"a", b"b")]
    connection.outgoing.clear()
    assert len(released) == 2
