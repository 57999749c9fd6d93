"""Senders that mean no good at a real box: memory stays within its bounds, each is counted once and by its reason, and no other sender is affected.

How fast others are meanwhile is not judged here. Every parser has a target in tests/fuzz.
"""

from __future__ import annotations

import gzip
import http.client
import os
import resource
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import cache

import cramjam
import h2.config
import h2.connection
import h2.events
import msgpack
import pytest

from lab.certificates import Authority
from lab.hostile_clients import raise_descriptor_limit
from lab.reconcile import Reconciliation, balances_of
from lab.running_box import RunningBox, eventually, listener, proportional_kib
from lab.topic_documents import read_documents
from services.ingest.protocols.http.grpc_call import EXPORT_PATH

pytestmark = [pytest.mark.system, pytest.mark.slow]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
INFLATED_BYTES_MAX = 1 * MIB
"""What the table of this box lets a compressed body become: so a bomb is one at 64 MiB."""
BOMB_BYTES = 64 * MIB
OVERHEAD_KIB = 24 * KIB
"""What the allocator keeps, with buffers of one connection."""
IDLE = ("syslog", "relp", "fluent", "lumberjack", "gelf", "http")
"""Protocols that have a listener `…-1` of little patience and small frames."""
CONNECTIONS = 10_000
CONNECTION_KIB_MAX = 12
ADDRESSES = 100


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    raise_descriptor_limit()  # the box is our child and inherits it
    directory = tmp_path_factory.mktemp("hostile")
    server = Authority(directory).sign("localhost", "DNS:localhost")
    tls = {"certificate": str(server.certificate), "private_key": str(server.private_key)}
    listeners = [
        listener("slow", "syslog", topic="slow", idle_seconds=1),
        listener("tls", "syslog", "tls", topic="tls", **tls),
        listener("relp", "relp", topic="relp"),
        listener("fluent", "fluent", topic="fluent"),
        listener("beats", "lumberjack", topic="beats"),
        listener("gelf", "gelf", "udp", topic="gelf"),
        listener("gelft", "gelf", topic="gelf"),
        *(listener(f"{name}-1", name, topic="loris", idle_seconds=1, max_frame_bytes=MIB) for name in IDLE),
        listener("tls-1", "syslog", "tls", topic="loris", idle_seconds=1, **tls),
        listener("proxy-1", "syslog", topic="loris", idle_seconds=1, proxy="required"),
    ]
    settings = {
        "ingest.syslog.partitions": 1,
        "ingest.decompressed.bytes.max": INFLATED_BYTES_MAX,
        "max.connections": CONNECTIONS + 1000,
        "max.connections.per.ip": CONNECTIONS // ADDRESSES + 100,
    }
    box = start_shared(directory / "box", settings=settings, senders={"listener": listeners})
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
    eventually(lambda: counter(box, 'ingest.truncated{listener="slow"}') == truncated + 1, "it is counted as cut")
    found = eventually(lambda: [document for document in read_documents(box, "slow") if document["host"] == "endless"], "it is stored")
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


BEGINNINGS = {
    "syslog-1": b"99 <13>1 - drip ",
    "relp-1": b"1 open 8",
    "fluent-1": b"\x93\xa1t",
    "lumberjack-1": b"2J\0\0",
    "gelf-1": b'{"host":"drip',
    "http-1": b"POST /ingest/syslog HTTP/1.1\r\nHo",
    "tls-1": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "proxy-1": b"PROXY TCP4 192.0.2.7 ",
}
HTTP_BODY = b"POST /ingest/syslog HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n"


def closed(box: RunningBox) -> int:
    """Connections that were ended for whatever reason."""
    return sum(value for label, value in box.counters("ingest@0").values.items() if label.startswith("ingest.closed{"))


def drip(senders: Sequence[socket.socket], seconds: float) -> int:
    """A byte of each every tenth of a second, until the box has hung up on all of them; how many it has in that time."""
    alive, deadline = set(senders), time.monotonic() + seconds
    while alive and time.monotonic() < deadline:
        for sender in list(alive):
            try:
                sender.send(b"1")
                sender.settimeout(0.001)
                if not sender.recv(65536):
                    alive.discard(sender)
            except TimeoutError:
                pass
            except OSError:
                alive.discard(sender)
        time.sleep(0.1)  # the sender's, not the test's
    return len(senders) - len(alive)


def test_a_dripping_sender_is_disconnected_in_every_protocol_and_counted_once(box: RunningBox, good: Callable[[], None]) -> None:
    before = closed(box)
    with ExitStack() as stack:
        senders = []
        for listener, beginning in (*BEGINNINGS.items(), ("http-1", HTTP_BODY)):
            sender = stack.enter_context(socket.create_connection(box.sender(listener), 10))
            sender.sendall(beginning)
            senders.append(sender)
        good()
        assert drip(senders, 10) == len(senders)
    eventually(lambda: closed(box) - before == len(senders), "each is counted once")


ENDLESS = {
    "relp-1": (b"1 open 15 commands=syslog\n2 syslog 999999999 ", b"x", "relp-frame-too-large"),
    "fluent-1": (b"\x93\xa1t\xdb\x3f\xff\xff\xff", b"x", "fluent-too-large"),
    "lumberjack-1": (b"2W\0\0\0\x012J\0\0\0\x01\x3f\xff\xff\xff", b"x", "lumberjack-too-large"),
    "gelf-1": (b"", b"x", ""),
    "http-1": (b"GET / HTTP/1.1\r\nHost: ", b"x", "ended"),
}


@pytest.mark.parametrize("listener", ENDLESS)
def test_a_stream_without_an_end_is_given_up_at_its_limit_in_every_protocol(box: RunningBox, good: Callable[[], None], listener: str) -> None:
    beginning, piece, reason = ENDLESS[listener]
    before, balance_before = memory_kib(box), balances_of(box)[listener]
    with socket.create_connection(box.sender(listener), 30) as sender:
        with suppress(ConnectionError):
            sender.sendall(beginning)
            for _ in range(32):
                sender.sendall(piece * MIB)
            sender.shutdown(socket.SHUT_WR)
        assert has_ended(sender)
        good()
    assert memory_kib(box) - before < OVERHEAD_KIB
    eventually(lambda: sum(balances_of(box)[listener].since(balance_before)) > 0, "it is counted")
    balance = balances_of(box)[listener].since(balance_before)
    assert (balance.received, balance.refused >= 1) == (0, True), balance
    assert not reason or counter(box, f'ingest.closed{{reason="{reason}"}}'), reason


def test_ten_thousand_connections_cost_what_is_documented_and_exclude_no_other(box: RunningBox, good: Callable[[], None]) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limit >= 2 * CONNECTIONS, f"this machine allows {limit} descriptors (ulimit -Hn), the test and the box want {2 * CONNECTIONS} each"
    pid = box.pids()["ingest@0"]  # with so many descriptors of our own no other process can be queried
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
    "gzip": cache(lambda: gzip.compress(bytes(BOMB_BYTES), 6)),
    "deflate": cache(lambda: zlib.compress(bytes(BOMB_BYTES), 6)),
    "zstd": cache(lambda: bytes(cramjam.zstd.compress(bytes(BOMB_BYTES)))),
    "snappy": cache(lambda: bytes(cramjam.snappy.compress(bytes(BOMB_BYTES)))),
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


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "snappy-framed"])
def test_a_journal_that_inflates_without_end_takes_no_memory(box: RunningBox, good: Callable[[], None], coding: str) -> None:
    """Its body may be endless, but not an entry."""
    before = memory_kib(box)
    connection = http.client.HTTPConnection(*box.ingest, timeout=60)
    bomb = BOMBS[coding.removesuffix("-framed")]()
    connection.request("POST", "/upload", bomb, {"Content-Type": "application/vnd.fdo.journal", "Content-Encoding": coding})
    answer = connection.getresponse()
    assert answer.status in (400, 413), (coding, answer.status, answer.read())
    connection.close()
    good()
    assert memory_kib(box) - before < OVERHEAD_KIB + 48 * KIB  # a frame may have 16 MiB


@pytest.mark.parametrize("coding", BOMBS)
def test_a_call_that_inflates_without_end_is_an_invalid_argument(box: RunningBox, good: Callable[[], None], coding: str) -> None:
    before = memory_kib(box)
    bomb = BOMBS[coding]()
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "localhost",
        ":path": EXPORT_PATH,
        "content-type": "application/grpc",
        "grpc-encoding": coding,
    }
    client.send_headers(1, list(headers.items()))
    call = b"\1" + len(bomb).to_bytes(4, "big") + bomb
    trailers: dict[bytes, bytes] = {}
    with socket.create_connection(box.ingest, 30) as sender:
        while not trailers:
            while call and (window := min(client.local_flow_control_window(1), client.max_outbound_frame_size)):
                client.send_data(1, call[:window], end_stream=len(call) <= window)
                call = call[window:]
            sender.sendall(client.data_to_send())
            for event in client.receive_data(sender.recv(65536)):
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    trailers.update((name, value) for name, value in event.headers if name == b"grpc-status")
    assert trailers == {b"grpc-status": b"3"}
    good()
    assert memory_kib(box) - before < OVERHEAD_KIB


def _fluent_bomb(compressed: str = "gzip") -> bytes:
    return bytes(msgpack.packb(["tag", BOMBS[compressed](), {"compressed": compressed, "chunk": "bomb"}]))


def _fluent_zstd_bomb() -> bytes:
    return _fluent_bomb("zstd")


def _lumberjack_bomb() -> bytes:
    compressed = zlib.compress(bytes(BOMB_BYTES), 9)
    return b"2W" + struct.pack(">I", 1) + b"2C" + struct.pack(">I", len(compressed)) + compressed


@pytest.mark.parametrize(("listener", "attack"), [("fluent", _fluent_bomb), ("fluent", _fluent_zstd_bomb), ("beats", _lumberjack_bomb)])
def test_frames_that_inflate_without_end_cost_their_connection(box: RunningBox, good: Callable[[], None], listener: str, attack: Callable[[], bytes]) -> None:
    before = memory_kib(box)
    with closing(Reconciliation(box)) as books, socket.create_connection(box.sender(listener), 30) as sender:
        sender.sendall(attack())
        assert has_ended(sender)
        balance = books.balance(listener)
        assert (balance.stored, balance.refused) == (0, 1), balance
    assert memory_kib(box) - before < OVERHEAD_KIB


def _gelf_chunks(message: bytes) -> list[bytes]:
    pieces = [message[start : start + 8000] for start in range(0, len(message), 8000)]
    return [b"\x1e\x0f01234567" + bytes((number, len(pieces))) + piece for number, piece in enumerate(pieces)]


@pytest.mark.parametrize("compress", [zlib.compress, gzip.compress], ids=("zlib", "gzip"))
def test_datagrams_that_inflate_without_end_are_counted(box: RunningBox, good: Callable[[], None], compress: Callable[[bytes, int], bytes]) -> None:
    """Cut off, in one, and whole, in chunks."""
    before = memory_kib(box)
    bomb = compress(bytes(BOMB_BYTES), 9)
    with closing(Reconciliation(box)) as books, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for datagram in (bomb[:60_000], *_gelf_chunks(bomb)):
            sender.sendto(datagram, box.sender("gelf"))
        eventually(lambda: books.balance("gelf").refused == 2, "both are counted")
        assert books.balance("gelf").received == 0
    assert memory_kib(box) - before < OVERHEAD_KIB


@pytest.mark.parametrize("listener", ["relp", "fluent", "beats", "gelft", "slow"])
def test_noise_affects_no_other_sender(box: RunningBox, good: Callable[[], None], listener: str) -> None:
    before = memory_kib(box)
    noise = bytes(byte for byte in os.urandom(4 * MIB))
    for start in range(0, len(noise), MIB):
        with suppress(OSError), socket.create_connection(box.sender(listener), 10) as sender:
            sender.sendall(noise[start : start + MIB])
            sender.shutdown(socket.SHUT_WR)
            has_ended(sender)
        good()
    assert memory_kib(box) - before < OVERHEAD_KIB + 8 * KIB


BAD_JSON = b'{"host":"odd-%b","message":"caf\xe9 \xff\xfe","\xe9":1}'


def test_bytes_that_are_no_text_are_kept(box: RunningBox, good: Callable[[], None]) -> None:
    lines = {"slow": b"<13>Jan  5 12:00:00 odd-slow app: caf\xe9 \xff\xfe\n", "relp": b"<13>Jan  5 12:00:00 odd-relp app: caf\xe9 \xff\xfe"}
    bodies = {
        "slow": lines["slow"],
        "relp": b"1 open 15 commands=syslog\n2 syslog %d %b\n" % (len(lines["relp"]), lines["relp"]),
        "fluent": bytes(msgpack.packb(["t", 1_760_000_000, {"host": "odd-fluent", "message": "caf\udce9 \udcff\udcfe"}], unicode_errors="surrogateescape")),
        "beats": b"2W\0\0\0\x012J\0\0\0\x01" + len(BAD_JSON % b"beats").to_bytes(4, "big") + BAD_JSON % b"beats",
        "gelf": BAD_JSON.replace(b"message", b"short_message") % b"gelf",
    }
    with ExitStack() as stack:
        for listener, body in bodies.items():
            if listener != "gelf":
                stack.enter_context(socket.create_connection(box.sender(listener), 10)).sendall(body)
        stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).sendto(bodies["gelf"], box.sender("gelf"))
        for listener in bodies:
            host = f"odd-{listener}"
            found = eventually(lambda: [document for document in read_documents(box, listener) if document["host"] == host], f"{listener} is stored")  # noqa: B023
            assert found[0]["message"] == "caf\ufffd \ufffd\ufffd" and {"raw_base64", "bytes_base64"} & found[0].keys(), found
        connection = http.client.HTTPConnection(*box.ingest, timeout=30)
        connection.request("POST", "/ingest/syslog", BAD_JSON % b"http" + b"\n", {"Content-Type": "application/x-ndjson"})
        assert connection.getresponse().status == 200
        connection.close()


def test_bad_tls_is_counted_and_good_tls_goes_on(box: RunningBox, good: Callable[[], None]) -> None:
    broken = counter(box, 'ingest.closed{reason="tls-handshake"}') + counter(box, 'ingest.closed{reason="tls-broken"}')
    plaintext = counter(box, 'ingest.closed{reason="tls-plaintext"}')
    with socket.create_connection(box.sender("tls"), 10) as sender:
        sender.sendall(b"<13>Jan  5 12:00:00 plain app: text\n")
        assert has_ended(sender)
    with socket.create_connection(box.sender("tls"), 10) as sender:
        sender.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(600))
        assert has_ended(sender)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("NULL-SHA256:@SECLEVEL=0")
    with socket.create_connection(box.sender("tls"), 10) as sender, pytest.raises(ssl.SSLError):
        old.wrap_socket(sender)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    raw = socket.create_connection(box.sender("tls"), 10)
    with context.wrap_socket(raw) as sender:
        sender.sendall(b"<13>Jan  5 12:00:00 sealed app: text\n")
        os.write(sender.fileno(), b"\x17\x03\x03\x00\x20" + os.urandom(32))  # a record without a valid seal
        with suppress(ssl.SSLError):
            assert has_ended(sender)
    eventually(lambda: [document for document in read_documents(box, "tls") if document["host"] == "sealed"], "what was whole before is stored")
    assert counter(box, 'ingest.closed{reason="tls-plaintext"}') == plaintext + 1
    assert counter(box, 'ingest.closed{reason="tls-handshake"}') + counter(box, 'ingest.closed{reason="tls-broken"}') == broken + 3
