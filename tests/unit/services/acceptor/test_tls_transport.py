"""TLS on a client's socket, driven by hand over a socket pair (`appliance/security/tls_transport.py`)."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.settings import KafkaListener, default_settings
from appliance.security.distinguished_names import PrincipalMapping
from appliance.security.tls_contexts import TlsSettings, make_context
from appliance.security.tls_transport import ESTABLISHED, RECORD_BYTES, CertificateRefused, TlsTransport
from appliance.security.transport import WOULD_BLOCK
from lab.certificates import Authority


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Server's and client's."""
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    made = authority.sign("localhost")
    keystore = made.write_keystore(directory / "keystore.pem")
    listener = KafkaListener("SSL", "SSL", "127.0.0.1", 0, "localhost", 0, {"ssl.keystore.location": str(keystore)})
    return make_context(TlsSettings.of(listener, default_settings())), ssl.create_default_context(cafile=str(authority.certificate))


class Pair:
    """An established connection; the client reads only on `read`."""

    def __init__(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        server, client = contexts
        self.transport = TlsTransport(server.wrap_socket(ours, server_side=True, do_handshake_on_connect=False))
        self.client = client.wrap_socket(theirs, server_hostname="localhost", do_handshake_on_connect=False)
        states = [False, False]
        while not all(states):
            states[0] = states[0] or self.transport.handshake() == ESTABLISHED
            try:
                self.client.do_handshake()
                states[1] = True
            except ssl.SSLWantReadError:
                pass

    def read(self, size_bytes: int) -> bytes:
        try:
            return self.client.recv(size_bytes)
        except ssl.SSLWantReadError:
            return b""

    def close(self) -> None:
        self.transport.close()
        self.client.close()


@pytest.fixture
def pair(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Pair]:
    made = Pair(contexts)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(8))
def test_every_byte_arrives_once_whatever_the_caller_offers_after_a_full_socket(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    stream = chance.randbytes(600_000)
    sent, received, blocked = 0, bytearray(), 0
    while len(received) < len(stream):
        if sent < len(stream):
            size_bytes = chance.choice((1, 60, 5_000, RECORD_BYTES, 70_000, 256_000))
            offered = stream[sent : sent + size_bytes]
            count = pair.transport.send(memoryview(offered), more=sent + len(offered) < len(stream) and chance.random() < 0.5)
            blocked += count == WOULD_BLOCK
            assert count == WOULD_BLOCK or 0 < count <= len(offered)
            sent += max(0, count)
        if sent == len(stream) or chance.random() < 0.4:
            received += pair.read(chance.choice((100, 20_000, 100_000)))
    assert received == stream
    assert blocked


def test_small_pieces_share_the_record_of_what_follows(pair: Pair) -> None:
    assert pair.transport.send(b"head", True) == 4
    assert pair.read(100) == b""
    assert pair.transport.send(b"body", False) == 4
    assert pair.read(100) == b"headbody"


def test_input_that_the_poller_does_not_report_is_known(pair: Pair) -> None:
    pair.client.sendall(b"x" * 1000)
    buffer = memoryview(bytearray(400))
    assert pair.transport.receive_into(buffer) == 400
    assert pair.transport.has_buffered
    assert pair.transport.receivable_bytes() == 600
    assert [pair.transport.receive_into(buffer) for _ in range(2)] == [400, 200]
    assert not pair.transport.has_buffered
    assert pair.transport.receive_into(buffer) == WOULD_BLOCK


def test_a_file_is_sent_like_other_bytes(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with (tmp_path / "file").open("rb") as file:
        assert pair.transport.send_file(file.fileno(), 2, 5) == 5
    assert pair.read(100) == b"23456"


def test_the_end_of_the_client_is_the_end_of_the_stream(pair: Pair) -> None:
    pair.client.close()
    assert pair.transport.receive_into(memoryview(bytearray(10))) == 0


def test_no_mapping_rule_makes_a_certificate_that_of_a_local_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    made = authority.sign("localhost")
    keystore = made.write_keystore(tmp_path / "keystore.pem")
    settings = {"ssl.keystore.location": str(keystore), "ssl.truststore.location": str(authority.certificate), "ssl.client.auth": "required"}
    listener = KafkaListener("SSL", "SSL", "127.0.0.1", 0, "localhost", 0, settings)  # type: ignore[arg-type]
    client = ssl.create_default_context(cafile=str(authority.certificate))
    client.load_cert_chain(made.certificate, made.private_key)
    pair = Pair((make_context(TlsSettings.of(listener, default_settings())), client))
    assert pair.transport.client_name(PrincipalMapping("RULE:^CN=([a-z]+).*$/$1/")) == "localhost"
    with pytest.raises(CertificateRefused, match="local users"):
        pair.transport.client_name(PrincipalMapping("RULE:^CN=([a-z]{5})(.*)$/$1:1000/"))
    pair.close()
