"""TLS on the connections of senders: Python's own client over real sockets, with certificates made
by openssl.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol, ProxyMode
from lab.certificates import Authority, Certificate
from services.ingest.listeners.sender_connections import HANDSHAKE_STEPS_A_TURN
from services.ingest.listeners.tls_stream import certificate_names, make_context, name_matches
from tests.support.stepped_room import SteppedRoom


class Files:
    """One authority, a server, a client; and a client of an untrusted authority."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.server = self.authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
        self.client = self.authority.sign("web1.example.com")
        self.stranger = Authority(directory, "stranger").sign("stranger.example.com")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def room(tmp_path: Path) -> Iterator[SteppedRoom]:
    room = SteppedRoom(tmp_path)
    yield room
    room.close()


def listen(room: SteppedRoom, server: Certificate, **options: Any) -> None:
    room.listen(transport=ListenerTransport.TLS, certificate=str(server.certificate), private_key=str(server.private_key), **options)


def client_context(files: Files, certificate: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.authority.certificate))
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.private_key)
    return context


def client_hello(files: Files) -> bytes:
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    tls = client_context(files).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def handshake(room: SteppedRoom, sender: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Step by step; the server's no may come with the first read only (TLS 1.3)."""
    tls = context.wrap_socket(sender, server_hostname="localhost", do_handshake_on_connect=False)
    room.adopt(tls)
    for _ in range(1000):
        try:
            tls.do_handshake()
            return tls
        except ssl.SSLWantReadError:
            room.step()
    raise AssertionError("no handshake in 1000 steps")


def test_a_web_page_stores_nothing_through_tls_either(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server)
    tls = handshake(room, room.connect(), client_context(files))
    tls.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n<10>forged\n")
    room.run_until(lambda: room.closed("http-on-plain-port") == 1)
    assert not room.intake.messages


def test_lines_come_through_tls_in_small_records_and_large_ones(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server)
    tls = handshake(room, room.connect(), client_context(files))
    for number in range(200):
        tls.send(b"<13>%d\n" % number)
    tls.send(b"<13>" + b"x" * 15_000 + b"\n")
    room.run_until(lambda: len(room.intake.messages) == 201)
    assert room.intake.messages[199] == b"<13>199"
    tls.close()
    room.run_until(lambda: len(room.room) == 0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_answers_come_back_through_tls(room: SteppedRoom, files: Files, version: ssl.TLSVersion) -> None:
    listen(room, files.server, protocol=Protocol.RELP)
    context = client_context(files)
    context.minimum_version = context.maximum_version = version
    tls = handshake(room, room.connect(), context)
    tls.send(b"1 open 15 commands=syslog\n2 syslog 1 x\n3 close 0\n")
    room.run_until(lambda: len(room.intake.in_flight) == 1)
    room.intake.complete_all()
    room.run_until(lambda: room.closed("relp-closed") == 1)
    room.step()
    tls.settimeout(10)
    received = b"".join(iter(lambda: tls.recv(4096), b""))  # up to TLS's own end, which is not only the connection's
    assert received.endswith(b"commands=syslog\n2 rsp 6 200 OK\n3 rsp 0\n0 serverclose 0\n")


def test_a_sender_that_never_reads_has_nothing_unread_when_it_closes(room: SteppedRoom, files: Files) -> None:
    """Or its close would be a reset, and what it has not sent yet would be thrown away: TLS 1.3's session tickets did that."""
    listen(room, files.server)
    tls = handshake(room, room.connect(), client_context(files))
    tls.send(b"<13>x\n")
    room.run_until(lambda: room.intake.messages == [b"<13>x"])
    assert tls.version() == "TLSv1.3" and not select.select([tls], [], [], 0.0)[0]


def test_old_tls_is_refused(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server)
    assert (
        make_context(
            Listener("x", Protocol.SYSLOG, ListenerTransport.TLS, 0, certificate=str(files.server.certificate), private_key=str(files.server.private_key))
        ).minimum_version
        == ssl.TLSVersion.TLSv1_2
    )
    sender = room.connect()
    hello = b"\x03\x02" + bytes(32) + b"\x00" + b"\x00\x02\xc0\x14" + b"\x01\x00"  # a TLS 1.1 client, written by hand: OpenSSL would not send it
    handshake_message = b"\x01" + len(hello).to_bytes(3, "big") + hello
    sender.sendall(b"\x16\x03\x01" + len(handshake_message).to_bytes(2, "big") + handshake_message)
    room.run_until(lambda: room.closed("tls-handshake") == 1)


def test_client_certificates_are_asked_for_and_their_name_is_the_principal(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server, client_ca=str(files.authority.certificate), client_names=("*.example.com",))
    tls = handshake(room, room.connect(), client_context(files, files.client))
    tls.send(b"<13>x\n")
    room.run_until(lambda: room.intake.messages == [b"<13>x"])
    (connection,) = room.room._connections.values()
    assert connection.principal == "web1.example.com"


@pytest.mark.parametrize(
    ("which", "names", "reason"), [("stranger", (), "tls-certificate"), (None, (), "tls-handshake"), ("client", ("db.example.com",), "tls-client-name")]
)
def test_a_client_without_the_right_certificate_stores_nothing(room: SteppedRoom, files: Files, which: str | None, names: tuple[str, ...], reason: str) -> None:
    listen(room, files.server, client_ca=str(files.authority.certificate), client_names=names)
    certificate = getattr(files, which) if which else None
    sender = room.connect()
    context = client_context(files, certificate)
    try:
        tls = handshake(room, sender, context)
        tls.send(b"<13>x\n")
    except (ssl.SSLError, OSError):
        pass
    room.run_until(lambda: room.closed(reason) == 1)
    assert room.intake.messages == []


@pytest.mark.parametrize(
    ("data", "reason"), [(b"<13>x\n", "tls-plaintext"), (b"GET / HTTP/1.1\r\n", "tls-plaintext"), (b"\x16\x03\x01\x00\x05rubbish", "tls-handshake")]
)
def test_what_is_no_tls_is_counted_and_said_once(room: SteppedRoom, files: Files, data: bytes, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    listen(room, files.server)
    for count in (1, 2):
        sender = room.connect()
        sender.sendall(data)
        room.run_until(lambda count=count: room.closed(reason) == count)  # type: ignore[misc]
    assert room.intake.messages == []
    assert capfd.readouterr().err.count("logged once, always counted") == 1


def test_a_turn_has_few_steps_of_handshakes(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server)
    senders = [room.connect() for _ in range(30)]
    hello = client_hello(files)
    for sender in senders:
        sender.sendall(hello)
    room.step()
    most = before = 0
    for _ in range(20):
        room.step()
        answered = sum(connection.stream.has_started for connection in room.room._connections.values())
        most, before = max(most, answered - before), answered
    assert most <= HANDSHAKE_STEPS_A_TURN and before == len(senders)


def test_an_address_begins_few_handshakes_in_a_second(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server, tls_handshakes_per_second=2)
    senders = [room.connect() for _ in range(10)]
    for sender in senders:
        sender.sendall(client_hello(files))

    def begun() -> int:
        return sum(connection.stream.has_started for connection in room.room._connections.values())

    room.run_until(lambda: room.counter("ingest.tls_handshakes_throttled") >= 6)
    assert begun() == 4, "two seconds' worth at once"
    room.pass_time(1)
    room.step(0)
    assert 5 <= begun() <= 6
    for _ in range(4):
        room.pass_time(1)
        room.step(0)
    assert begun() == 10 and room.counter("ingest.tls_handshakes_throttled") == 6, "each waits once"


def test_a_handshake_that_does_not_go_on_has_a_deadline(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server, idle_ms_max=5_000)
    sender = room.connect()
    sender.sendall(b"\x16\x03\x01")
    room.pass_time(7)
    assert room.closed("handshake-timeout") == 1 and room.is_ended(sender)


def test_records_that_are_broken_end_the_connection_and_keep_what_came_before(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server)
    sender = room.connect()
    tls = handshake(room, sender, client_context(files))
    tls.send(b"<13>good\n")
    raw = tls.detach()
    with socket.socket(fileno=raw) as under:
        under.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        room.run_until(lambda: room.closed("tls-broken") == 1)
    assert room.intake.messages == [b"<13>good"]


def test_a_proxy_header_comes_before_tls(room: SteppedRoom, files: Files) -> None:
    listen(room, files.server, proxy=ProxyMode.REQUIRED, proxy_from=("127.0.0.1",))
    sender = room.connect()
    sender.sendall(b"PROXY TCP4 192.0.2.7 198.51.100.1 40312 514\r\n")
    tls = handshake(room, sender, client_context(files))
    tls.send(b"<13>x\n")
    room.run_until(lambda: room.intake.messages == [b"<13>x"])
    assert room.intake.taken[0][0].source.host == b"192.0.2.7"


def test_a_new_certificate_is_for_new_connections_and_the_old_ones_live_on(room: SteppedRoom, files: Files, tmp_path: Path) -> None:
    current = Certificate(tmp_path / "box.pem", tmp_path / "box.key")
    shutil.copy(files.server.certificate, current.certificate)
    shutil.copy(files.server.private_key, current.private_key)
    listen(room, current)
    old = handshake(room, room.connect(), client_context(files))
    renewed = files.authority.sign("renewed", "DNS:localhost")
    current.certificate.write_text("half a file")
    room.pass_time(1)
    still = handshake(room, room.connect(), client_context(files))
    assert still.getpeercert() == old.getpeercert()  # what cannot be used is not used
    os.replace(renewed.private_key, current.private_key)
    os.replace(renewed.certificate, current.certificate)
    room.pass_time(1)
    new = handshake(room, room.connect(), client_context(files))
    certificate: dict[str, Any] = dict(new.getpeercert() or {})
    assert certificate["subject"] == ((("commonName", "renewed"),),)
    for number, tls in enumerate((old, still, new)):
        tls.send(b"<13>%d\n" % number)
    room.run_until(lambda: sorted(room.intake.messages) == [b"<13>0", b"<13>1", b"<13>2"])


def test_without_a_usable_certificate_senders_are_turned_away_until_there_is_one(room: SteppedRoom, files: Files, tmp_path: Path) -> None:
    current = Certificate(tmp_path / "box.pem", tmp_path / "box.key")
    listen(room, current)
    room.connect()
    room.run_until(lambda: room.closed("tls-no-certificate") == 1)
    shutil.copy(files.server.private_key, current.private_key)
    shutil.copy(files.server.certificate, current.certificate)
    room.pass_time(1)
    handshake(room, room.connect(), client_context(files))


def test_http_listeners_offer_http_2(files: Files, tmp_path: Path) -> None:
    listener = Listener("web", Protocol.HTTP, ListenerTransport.TLS, 0, certificate=str(files.server.certificate), private_key=str(files.server.private_key))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = make_context(listener).wrap_bio(incoming, outgoing, server_side=True)
    context = client_context(files)
    context.set_alpn_protocols(["h2"])
    client = context.wrap_bio(outgoing, incoming, server_hostname="localhost")
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
    assert client.selected_alpn_protocol() == server.selected_alpn_protocol() == "h2"


def test_names_of_certificates_are_the_alternative_ones_and_the_common_one() -> None:
    certificate = {
        "subject": ((("countryName", "DE"),), (("commonName", "web1"),)),
        "subjectAltName": (("DNS", "web1.example.com"), ("IP Address", "192.0.2.7")),
    }
    assert certificate_names(certificate) == ["web1.example.com", "192.0.2.7", "web1"]
    assert certificate_names({}) == []


@pytest.mark.parametrize(
    ("name", "wanted", "expected"),
    [
        ("Web1.example.com", "web1.example.com", True),
        ("web1.example.com", "*.example.com", True),
        ("a.web1.example.com", "*.example.com", False),
        ("example.com", "*.example.com", False),
        (".example.com", "*.example.com", False),
        ("web1.example.com", "*", False),
    ],
)
def test_a_star_stands_for_one_label(name: str, wanted: str, expected: bool) -> None:
    assert name_matches(name, wanted) is expected
