"""Senders that mean no good at a real box: memory stays within its bounds, each is counted once and by its reason, and nobody else notices.

How fast others are meanwhile is not judged here. Every parser has a target in tests/fuzz.
"""

from __future__ import annotations

import gzip
import http.client
import os
import resource
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import cramjam
import msgpack
import pytest

from tests.support.certificates import Authority
from tests.support.hostile_clients import raise_descriptor_limit
from tests.support.reconcile import Reconciliation
from tests.support.running_box import RunningBox, eventually, proportional_kib, start_box
from tests.support.topic_documents import read_documents

pytestmark = [pytest.mark.system, pytest.mark.slow]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
INFLATED_BYTES_MAX = 1 * MIB
"""What the table of this box lets a compressed body become: so a bomb is one at 64 MiB."""
BOMB_BYTES = 64 * MIB
OVERHEAD_KIB = 24 * KIB
"""What the allocator keeps, with buffers of one connection."""
CONNECTIONS = 10_000
CONNECTION_KIB_MAX = 12
ADDRESSES = 100


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    raise_descriptor_limit()  # the box is our child and inherits it
    directory = tmp_path_factory.mktemp("hostile")
    server = Authority(directory).sign("localhost", "DNS:localhost")
    table = directory / "ingest.table"
    table.write_text(f"""
listen slow   syslog     tcp :0 topic=slow idle-seconds=1
listen tls    syslog     tls :0 topic=tls certificate={server.certificate} private-key={server.private_key}
listen relp   relp       tcp :0 topic=relp
listen fluent fluent     tcp :0 topic=fluent
listen beats  lumberjack tcp :0 topic=beats
listen gelf   gelf       udp :0 topic=gelf
listen gelft  gelf       tcp :0 topic=gelf
""")
    settings = {
        "ingest.table.file": str(table),
        "ingest.syslog.partitions": 1,
        "ingest.decompressed.bytes.max": INFLATED_BYTES_MAX,
        "max.connections": CONNECTIONS + 1000,
        "max.connections.per.ip": CONNECTIONS // ADDRESSES + 100,
    }
    box = start_box(directory / "box", settings=settings)
    yield box
    box.stop()
    assert box.leftovers() == []


@pytest.fixture
def good(box: RunningBox) -> Iterator[Callable[[], None]]:
    """A sender that was there before: each call sends a line, and it is stored."""
    books = Reconciliation(box)
    sent = 0
    with socket.create_connection(box.syslog, 10) as sender:

        def send() -> None:
            nonlocal sent
            sent += 1
            sender.sendall(b"<13>Jan  5 12:00:00 good app: line %d\n" % sent)
            assert books.hold("syslog-tcp", sent).stored == sent

        send()
        yield send
        send()
    books.close()


def memory_kib(box: RunningBox) -> int:
    return proportional_kib(box.pids()["ingest@0"])


def counter(box: RunningBox, label: str) -> int:
    return box.counters("ingest@0").values.get(label, 0)


def has_ended(sock: socket.socket) -> bool:
    """Whether the box has hung up; what it says before is let pass."""
    sock.settimeout(20)
    with suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True


def test_a_line_of_a_gibibyte_without_an_end_is_one_cut_line(box: RunningBox, good: Callable[[], None]) -> None:
    before = memory_kib(box)
    truncated = counter(box, 'ingest.truncated{listener="slow"}')
    piece = b"x" * MIB
    with socket.create_connection(box.sender("slow"), 60) as sender:
        sender.sendall(b"<13>Jan  5 12:00:00 endless app: ")
        for number in range(GIB // MIB):
            sender.sendall(piece)
            if number % 256 == 0:
                good()
        assert memory_kib(box) - before < OVERHEAD_KIB
        sender.shutdown(socket.SHUT_WR)
        assert has_ended(sender)
    eventually(lambda: counter(box, 'ingest.truncated{listener="slow"}') == truncated + 1, "it is counted as cut", 20)
    found = eventually(lambda: [document for document in read_documents(box, "slow") if document["host"] == "endless"], "it is stored", 20)
    assert len(found) == 1 and found[0]["message"].startswith("xxxx") and len(found[0]["message"]) < 65 * KIB


def test_a_frame_that_never_ends_is_given_up_and_its_sender_hung_up_on(box: RunningBox, good: Callable[[], None]) -> None:
    closed = counter(box, 'ingest.closed{reason="idle"}')
    with ExitStack() as stack:
        senders = [stack.enter_context(socket.create_connection(box.sender("slow"), 10)) for _ in range(20)]
        for sender in senders:
            sender.sendall(b"99 <13>1 - slow ")
        good()
        assert all(has_ended(sender) for sender in senders)
    assert counter(box, 'ingest.closed{reason="idle"}') == closed + 20


def test_ten_thousand_connections_cost_what_is_said_and_keep_nobody_out(box: RunningBox, good: Callable[[], None]) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limit >= 2 * CONNECTIONS, f"this machine allows {limit} descriptors (ulimit -Hn), the test and the box want {2 * CONNECTIONS} each"
    pid = box.pids()["ingest@0"]  # with so many descriptors of our own nobody can be asked any more
    before = proportional_kib(pid)
    with ExitStack() as stack:
        senders = []
        for number in range(CONNECTIONS):
            sender = socket.create_connection(box.sender("relp"), 30, source_address=(f"127.0.1.{1 + number % ADDRESSES}", 0))
            senders.append(stack.enter_context(sender))
        eventually(lambda: counter(box, "ingest.connections") >= CONNECTIONS, "all are accepted", 60)
        good()
        for sender in senders:
            sender.sendall(b"1 open 85 relp_version=0")
        good()
        grown = proportional_kib(pid) - before
        assert grown < CONNECTIONS * CONNECTION_KIB_MAX + OVERHEAD_KIB, f"{grown / CONNECTIONS:.1f} KiB a connection"
    eventually(lambda: counter(box, "ingest.connections") < 10, "they are forgotten", 60)


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(bytes(BOMB_BYTES), 9),
    "deflate": lambda: zlib.compress(bytes(BOMB_BYTES), 9),
    "zstd": lambda: bytes(cramjam.zstd.compress(bytes(BOMB_BYTES))),
    "snappy": lambda: bytes(cramjam.snappy.compress(bytes(BOMB_BYTES))),
}


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/ingest/syslog", "application/x-ndjson"),
        ("/_bulk", "application/x-ndjson"),
        ("/v1/logs", "application/x-protobuf"),
        ("/loki/api/v1/push", "application/json"),
        ("/services/collector/event", "application/json"),
        ("/gelf", "application/json"),
    ],
)
def test_bodies_that_inflate_without_end_are_refused(box: RunningBox, good: Callable[[], None], path: str, media_type: str) -> None:
    before = memory_kib(box)
    for coding, make in BOMBS.items():
        connection = http.client.HTTPConnection(*box.ingest, timeout=30)
        connection.request("POST", path, make(), {"Content-Type": media_type, "Content-Encoding": coding})
        answer = connection.getresponse()
        assert answer.status == 413, (coding, answer.status, answer.read())
        connection.close()
        good()
    assert memory_kib(box) - before < OVERHEAD_KIB


def test_lokis_own_compression_is_bounded_too(box: RunningBox, good: Callable[[], None]) -> None:
    before = memory_kib(box)
    connection = http.client.HTTPConnection(*box.ingest, timeout=30)
    connection.request("POST", "/loki/api/v1/push", bytes(cramjam.snappy.compress_raw(bytes(BOMB_BYTES))), {"Content-Type": "application/x-protobuf"})
    assert connection.getresponse().status == 413
    connection.close()
    assert memory_kib(box) - before < OVERHEAD_KIB


def _fluent_bomb() -> bytes:
    return bytes(msgpack.packb(["tag", gzip.compress(bytes(BOMB_BYTES), 9), {"compressed": "gzip", "chunk": "bomb"}]))


def _lumberjack_bomb() -> bytes:
    compressed = zlib.compress(bytes(BOMB_BYTES), 9)
    return b"2W" + struct.pack(">I", 1) + b"2C" + struct.pack(">I", len(compressed)) + compressed


@pytest.mark.parametrize(("listener", "attack"), [("fluent", _fluent_bomb), ("beats", _lumberjack_bomb)])
def test_frames_that_inflate_without_end_cost_their_connection(box: RunningBox, good: Callable[[], None], listener: str, attack: Callable[[], bytes]) -> None:
    before = memory_kib(box)
    with closing(Reconciliation(box)) as books, socket.create_connection(box.sender(listener), 30) as sender:
        sender.sendall(attack())
        assert has_ended(sender)
        balance = books.balance(listener)
        assert (balance.stored, balance.refused) == (0, 1), balance
    assert memory_kib(box) - before < OVERHEAD_KIB


def test_a_datagram_that_inflates_without_end_is_counted(box: RunningBox, good: Callable[[], None]) -> None:
    before = memory_kib(box)
    bomb = zlib.compress(bytes(BOMB_BYTES), 9)[:60_000]
    with closing(Reconciliation(box)) as books, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(bomb, box.sender("gelf"))
        eventually(lambda: books.balance("gelf").refused == 1, "it is counted", 20)
    assert memory_kib(box) - before < OVERHEAD_KIB


@pytest.mark.parametrize("listener", ["relp", "fluent", "beats", "gelft", "slow"])
def test_noise_harms_nobody(box: RunningBox, good: Callable[[], None], listener: str) -> None:
    before = memory_kib(box)
    noise = bytes(byte for byte in os.urandom(4 * MIB))
    for start in range(0, len(noise), MIB):
        with suppress(OSError), socket.create_connection(box.sender(listener), 10) as sender:
            sender.sendall(noise[start : start + MIB])
            sender.shutdown(socket.SHUT_WR)
            has_ended(sender)
        good()
    assert memory_kib(box) - before < OVERHEAD_KIB + 8 * KIB


def test_bytes_that_are_no_text_are_kept(box: RunningBox, good: Callable[[], None]) -> None:
    with socket.create_connection(box.sender("slow"), 10) as sender:
        sender.sendall(b"<13>Jan  5 12:00:00 odd app: caf\xe9 \xff\xfe\n")
    found = eventually(lambda: [document for document in read_documents(box, "slow") if document["host"] == "odd"], "it is stored", 20)
    assert found[0]["message"] == "caf\ufffd \ufffd\ufffd" and "raw_base64" in found[0]


def test_bad_tls_is_counted_and_good_tls_goes_on(box: RunningBox, good: Callable[[], None]) -> None:
    broken = counter(box, 'ingest.closed{reason="tls-handshake"}') + counter(box, 'ingest.closed{reason="tls-broken"}')
    plaintext = counter(box, 'ingest.closed{reason="tls-plaintext"}')
    with socket.create_connection(box.sender("tls"), 10) as sender:
        sender.sendall(b"<13>Jan  5 12:00:00 plain app: text\n")
        assert has_ended(sender)
    with socket.create_connection(box.sender("tls"), 10) as sender:
        sender.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(600))
        assert has_ended(sender)
    assert counter(box, 'ingest.closed{reason="tls-plaintext"}') == plaintext + 1
    assert counter(box, 'ingest.closed{reason="tls-handshake"}') + counter(box, 'ingest.closed{reason="tls-broken"}') == broken + 1
