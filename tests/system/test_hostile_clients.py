"""Clients that mean no good at a real box: they are closed and counted, memory stays within its bounds, and no other client is affected.

How slow they make others is not judged here but measured: `loadtest/benchmarks/hostile.py`.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from appliance.base.settings import default_settings
from appliance.protocol.wire import ELEMENTS_MAX
from appliance.records.builder import BatchBuilder
from appliance.records.compression import OPENED_BATCH_BYTES_MIN, Codec
from lab.hostile_clients import (
    METADATA,
    PRODUCE,
    begun_request,
    bomb,
    connect_from,
    connect_many,
    fetch_frame,
    frame,
    metadata_frame,
    raise_descriptor_limit,
)
from lab.raw_client import LIST_OFFSETS, RawClient
from lab.running_box import RunningBox, eventually, proportional_kib
from services.acceptor.closings import ADDRESS_LIMIT, CONNECTION_LIMIT, FRAME_TIMEOUT, LINES_A_PERIOD, MEMORY_LIMIT, SLOW_BODY
from services.acceptor.receiver import SCRATCH_BYTES

pytestmark = [pytest.mark.system, pytest.mark.slow]

ACCEPTOR = "acceptor@0"
KIB, MIB = 1 << 10, 1 << 20
CONNECTION_KIB_MAX = 8
"""Heap of one idle connection, as services/acceptor/README.md says."""
OVERHEAD_KIB = 32 * KIB
"""What Python's allocator keeps beside what it is asked for."""
TIMESTAMP = 1_700_000_000_000


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[RawClient]:
    """A good client of the module's box."""
    client = RawClient(request.getfixturevalue("shared_box").kafka)
    yield client
    client.close()


def _batch(value: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(TIMESTAMP, None, value)
    return bytes(builder.build())


def _closed(box: RunningBox, reason: str) -> int:
    return box.counters(ACCEPTOR).values.get(f'acceptor.closed{{reason="{reason}"}}', 0)


def _connections(box: RunningBox) -> int:
    return box.counters(ACCEPTOR).values["acceptor.connections"]


def _is_closed(sock: socket.socket) -> bool:
    """Whether the box has closed it, as far as can be seen now."""
    if not select.select([sock], [], [], 0)[0]:
        return False
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


def _peak_kib(pid: int) -> int:
    """The most memory a process ever had (VmHWM)."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


# -- many


def test_ten_thousand_idle_connections_cost_8_kib_each_and_affect_no_other(box: RunningBox, stack: ExitStack) -> None:
    count = 9_990
    if raise_descriptor_limit() < count + 1_500:
        pytest.skip("ten thousand connections need more descriptors than this machine allows (ulimit -Hn)")
    client = RawClient(box.kafka)
    stack.callback(client.close)
    client.create_topic("busy", 1)
    acceptor = box.pid(ACCEPTOR)
    before = proportional_kib(acceptor)
    connect_many(box, count, 1_000, stack)
    eventually(lambda: _connections(box) == count + 1, "all idle connections are taken")
    grown = proportional_kib(acceptor) - before
    print(f"{grown / count:.2f} KiB a connection")
    assert grown < count * CONNECTION_KIB_MAX
    for number in range(100):
        assert client.produce("busy", 0, _batch(b"x")).base_offset == number
    stack.close()
    eventually(lambda: _connections(box) == 0, "closed ones are forgotten")


def test_limits_of_connections_are_counted_and_others_are_unaffected(start: Callable[..., RunningBox], stack: ExitStack) -> None:
    box = start(settings={"max.connections": 20, "max.connections.per.ip": 5})
    socks = [stack.enter_context(connect_from(box, 2)) for _ in range(8)]
    eventually(lambda: _closed(box, ADDRESS_LIMIT) == 3, "an address has five connections")
    assert [_is_closed(sock) for sock in socks] == [False] * 5 + [True] * 3
    client = RawClient(box.kafka)
    stack.callback(client.close)
    assert client.api_versions() > 5
    more = connect_many(box, 30, 4, stack)[4:]  # the first four are one address too many again
    eventually(lambda: _closed(box, ADDRESS_LIMIT) + _closed(box, CONNECTION_LIMIT) == 3 + 34 + 2 - 20, "all are twenty")
    assert _connections(box) == 20 and any(_is_closed(sock) for sock in more)
    assert client.api_versions() > 5
    socks[0].close()
    eventually(lambda: _connections(box) == 19, "one has left")
    late = RawClient(box.kafka)
    stack.callback(late.close)
    assert late.api_versions() > 5


# -- slow


def test_slow_senders_are_closed_when_their_time_is_up(start: Callable[..., RunningBox], stack: ExitStack) -> None:
    box = start(settings={"request.frame.timeout.ms": 1_000})
    client = RawClient(box.kafka)
    stack.callback(client.close)
    client.create_topic("other", 1)
    beginnings = [b"\0", begun_request(METADATA, 1, 1_000), begun_request(PRODUCE, 7, 8 * MIB), frame(18, 0, b"") + b"\0\0"]
    drippers = [stack.enter_context(connect_from(box, 2)) for _ in range(40)]
    for number, dripper in enumerate(drippers):
        dripper.sendall(beginnings[number % len(beginnings)])

    def drip() -> bool:
        for dripper in drippers:
            with suppress(ConnectionError):
                dripper.send(b"\0" if dripper is not drippers[0] else b"")
        assert client.produce("other", 0, _batch(b"x")).error_code == 0
        return _closed(box, FRAME_TIMEOUT) == len(drippers)

    # The first kind completes a request of zeros: those bytes are a violation of their own.
    drippers = [dripper for number, dripper in enumerate(drippers) if number % len(beginnings)]
    eventually(drip, "every slow sender is closed")
    assert client.api_versions() > 5


def test_what_is_announced_and_not_sent_keeps_no_arena_from_others(start: Callable[..., RunningBox], stack: ExitStack) -> None:
    box = start()
    client = RawClient(box.kafka)
    stack.callback(client.close)
    client.create_topic("arena", 1)
    hoarders = connect_many(box, 64, 1_000, stack)
    for number, hoarder in enumerate(hoarders):  # one half announces only, the other half sends a beginning
        hoarder.sendall(begun_request(PRODUCE, 7, 30 * MIB, bytes(40_000 if number % 2 else 1_000)))
    eventually(lambda: box.counters(ACCEPTOR).values["acceptor.arena_full"] >= 30, "announced requests wait for the arena")
    for number in range(100):
        assert client.produce("arena", 0, _batch(b"x" * 1_000)).base_offset == number
    # A large one has to wait until hoarders are thrown out, those before it in the queue too.
    assert client.produce("arena", 0, _batch(b"x" * 1_000_000)).error_code == 0
    assert _closed(box, SLOW_BODY) >= 2
    assert _connections(box) >= 1 + 32  # a client that only announced holds no memory and has its time-out


# -- greedy


def test_fifty_that_fetch_and_never_read_hold_nothing(shared_box: RunningBox, client: RawClient, stack: ExitStack) -> None:
    client.create_topic("unread", 1)
    for _ in range(20):
        client.produce("unread", 0, _batch(b"x" * 1_000_000))
    before = proportional_kib(shared_box.pid(ACCEPTOR))
    readers = connect_many(shared_box, 50, 1_000, stack)
    for reader in readers:
        reader.sendall(fetch_frame("unread") * 100)
    eventually(lambda: shared_box.counters(ACCEPTOR).values["fetch.sendfile_bytes"] > 50 * 100_000, "what the sockets take is sent")
    for _ in range(20):
        assert len(client.fetch("unread", 0, 0, partition_max_bytes=2 * MIB).records) > MIB
    assert proportional_kib(shared_box.pid(ACCEPTOR)) - before < OVERHEAD_KIB


def test_a_topic_named_a_hundred_thousand_times_is_answered_once(shared_box: RunningBox, client: RawClient) -> None:
    client.create_topic("wide", 200)
    before = proportional_kib(shared_box.pid(ACCEPTOR))
    client.sock.sendall(metadata_frame("wide", ELEMENTS_MAX))
    _correlation_id, reply = client.receive()
    assert len(reply) < 100_000
    assert proportional_kib(shared_box.pid(ACCEPTOR)) - before < OVERHEAD_KIB + 32 * KIB


def test_incomplete_requests_have_a_bound_together(start: Callable[..., RunningBox], stack: ExitStack) -> None:
    limit = 16 * MIB
    box = start(settings={"acceptor.heap.bytes": limit})
    client = RawClient(box.kafka)
    stack.callback(client.close)
    client.create_topic("good", 1)
    before = proportional_kib(box.pid(ACCEPTOR))
    hoarders = connect_many(box, 100, 1_000, stack)
    for hoarder in hoarders:
        with suppress(ConnectionError):
            hoarder.sendall(begun_request(METADATA, 1, 2 * MIB, bytes(MIB)))
        assert client.produce("good", 0, _batch(b"x")).error_code == 0
    eventually(lambda: _closed(box, MEMORY_LIMIT) >= 80, "the oldest have to go")
    assert proportional_kib(box.pid(ACCEPTOR)) - before < (limit + limit // 8 + SCRATCH_BYTES) // KIB + OVERHEAD_KIB
    assert client.api_versions() > 5


def test_unread_replies_have_a_common_bound(start: Callable[..., RunningBox], stack: ExitStack) -> None:
    limit = 16 * MIB
    box = start(settings={"acceptor.heap.bytes": limit, "auto.create.topics.enable": False})
    client = RawClient(box.kafka)
    stack.callback(client.close)
    client.create_topic("good", 1)
    names = b"".join(struct.pack(">h100s", 100, b"%0100d" % number) for number in range(30_000))
    question = frame(METADATA, 1, struct.pack(">i", 30_000) + names)
    before = proportional_kib(box.pid(ACCEPTOR))
    for sock in connect_many(box, 30, 1_000, stack):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.settimeout(10)
        with suppress(OSError):
            sock.sendall(question)
        assert client.produce("good", 0, _batch(b"x")).error_code == 0
    eventually(lambda: _closed(box, MEMORY_LIMIT) >= 5, "those who do not read have to go")
    # One request under way is charged with what it takes when decoded, so the bound includes it.
    assert proportional_kib(box.pid(ACCEPTOR)) - before < (2 * limit + 16 * 4 * MIB) // KIB + OVERHEAD_KIB


# -- lying


LIES = {
    "a count of topics": frame(METADATA, 1, struct.pack(">i", 2**31 - 1)),
    "a negative count": frame(METADATA, 1, struct.pack(">i", -2)),
    "a length of a name": frame(METADATA, 1, struct.pack(">ih", 1, 32_000) + b"abc"),
    "a count of partitions": frame(PRODUCE, 7, struct.pack(">hhii", -1, 1, 1000, 1) + b"\0\1a" + struct.pack(">i", 90_000)),
    "a size of records": frame(PRODUCE, 7, struct.pack(">hhiih", -1, 1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, 2**30)),
    "a length of a client id": struct.pack(">ihhih", 10, METADATA, 1, 1, 30_000),
    "a compact count": frame(METADATA, 9, b"\0" + b"\xff\xff\xff\xff\x0f"),
    "tagged fields": frame(METADATA, 9, b"\xff\xff\xff\xff\x0f"),
    "a size of a request that is no produce": struct.pack(">ihhih", 5 * MIB, METADATA, 1, 1, -1),
}


@pytest.mark.parametrize("lie", LIES)
def test_lengths_and_counts_that_lie_close_their_connection(shared_box: RunningBox, client: RawClient, lie: str) -> None:
    with connect_from(shared_box, 2) as sock:
        sock.sendall(LIES[lie])
        eventually(lambda: _is_closed(sock), "the liar is closed")
    assert client.api_versions() > 5


def test_a_flood_of_bad_connections_is_counted_and_does_not_flood_the_log(shared_box: RunningBox, client: RawClient) -> None:
    reason, count = "unknown-api", 400
    before = _closed(shared_box, reason)
    lines_before = shared_box.messages.count("closed a connection from")
    for _ in range(count):
        with connect_from(shared_box, 3) as sock:
            sock.sendall(frame(99, 0, b""))
            assert select.select([sock], [], [], 10)[0] and _is_closed(sock)
    eventually(lambda: _closed(shared_box, reason) == before + count, "each is counted, a moment after it is closed")
    assert shared_box.messages.count("closed a connection from") - lines_before <= 3 * LINES_A_PERIOD
    assert client.api_versions() > 5


def test_a_produce_of_many_partitions_is_taken_whole(shared_box: RunningBox, client: RawClient) -> None:
    partitions = 150
    client.create_topic("many", partitions)
    for value_bytes in (10, 6_000):  # whole in one piece, and received into the arena
        batch = _batch(b"x" * value_bytes)
        body = struct.pack(">hhii", -1, 1, 20_000, 1) + struct.pack(">h", 4) + b"many" + struct.pack(">i", partitions)
        body += b"".join(struct.pack(">ii", index, len(batch)) + batch for index in range(partitions))
        client.sock.sendall(frame(PRODUCE, 7, body))
        _correlation_id, reply = client.receive()
        at, entry = 4 + 2 + 4 + 4, 4 + 2 + 8 + 8 + 8
        errors = [struct.unpack_from(">h", reply, at + entry * index + 4)[0] for index in range(partitions)]
        assert errors == [0] * partitions


# -- bombs


# snappy shrinks at most some 21-fold, within what any batch may become when it is opened: no bomb can be made of it.
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_a_bomb_in_a_log_is_refused_when_it_is_opened_and_the_log_reader_stays_small(shared_box: RunningBox, client: RawClient, codec: Codec) -> None:
    topic = f"bomb-{codec.name.lower()}"
    client.create_topic(topic, 1)
    sent = bomb(codec, 4 * OPENED_BATCH_BYTES_MIN, TIMESTAMP)
    assert client.produce(topic, 0, sent).error_code == 0
    assert client.produce(topic, 0, _batch(b"behind it")).error_code == 0
    name = topic.encode()
    question = struct.pack(">iih", -1, 1, len(name)) + name + struct.pack(">iiq", 1, 0, TIMESTAMP)
    for _ in range(3):
        client.send(LIST_OFFSETS, 1, question)
        _correlation_id, reply = client.receive()
        assert struct.unpack_from(">h", reply, 4 + 2 + len(name) + 4 + 4)[0] == 2  # CORRUPT_MESSAGE
    for disk in shared_box.box.disks:
        pid = shared_box.pid(f"log-reader@{disk.name}")
        print(f"{codec.name}: log-reader@{disk.name} had {_peak_kib(pid) // KIB} MiB at most, has {proportional_kib(pid) // KIB}")
        assert _peak_kib(pid) < 2 * OPENED_BATCH_BYTES_MIN // KIB + 96 * KIB
        eventually(lambda pid=pid: proportional_kib(pid) < 96 * KIB, "the memory is given back")  # type: ignore[misc]
    assert client.fetch(topic, 0, 1).error_code == 0


def test_the_stated_bound_of_an_acceptor_holds_after_all_of_this(shared_box: RunningBox) -> None:
    settings = default_settings()
    bound = int(settings["acceptor.arena.bytes"]) + int(settings["acceptor.heap.bytes"]) + SCRATCH_BYTES
    assert proportional_kib(shared_box.pid(ACCEPTOR)) < bound // KIB + 10_000 * CONNECTION_KIB_MAX + OVERHEAD_KIB
    assert shared_box.status()[ACCEPTOR]["restarts"] == 0
