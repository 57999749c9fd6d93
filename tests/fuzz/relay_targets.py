"""Fuzzed streams of relays: RELP, the headers of proxies, TLS that is none. As in `targets`: bytes in, nothing out; whatever is raised is a finding."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from appliance.agents.senders.sender_stream import StreamError
from appliance.agents.senders.tls_contexts import make_context
from appliance.agents.senders.tls_stream import TlsStream
from appliance.ingest.listener import Listener, Protocol, ProxyMode, Transport
from appliance.ingest.proxy_header import V2_START, BadProxyHeader, read_proxy_header
from appliance.ingest.syslog.relp_session import RelpSession
from tests.support.certificates import Authority
from tests.support.recording_connection import RecordingConnection

FRAME_BYTES_MAX, TEXT_BYTES_MAX = 4096, 256
_LISTENER = Listener("relp", Protocol.RELP, Transport.TCP, 0, message_bytes_max=TEXT_BYTES_MAX, frame_bytes_max=FRAME_BYTES_MAX)
_OPEN = b"1 open 15 commands=syslog\n"


def fuzz_relp(data: bytes) -> None:
    """The same lines and the same answers whether a stream comes whole or in pieces; no more is kept than a line and a piece."""
    if not data:
        return
    step, stream = data[0] + 1, _OPEN + data[1:]
    outcomes = []
    for size_bytes in (len(stream), step):
        connection = RecordingConnection(_LISTENER)
        session = RelpSession(connection)
        for start in range(0, len(stream), size_bytes):
            session.received(stream[start : start + size_bytes])
            assert session._splitter.buffered_bytes <= TEXT_BYTES_MAX + 64 + size_bytes
        session.finished()
        connection.intake.settle_all()
        session.lost()
        assert session.unsettled_bytes == 0
        assert all(len(message) <= TEXT_BYTES_MAX for message in connection.intake.messages)
        outcomes.append((connection.intake.messages, bytes(connection.sent).count(b"200 OK"), connection.closed))
    assert outcomes[0] == outcomes[1]


def fuzz_proxy_header(data: bytes) -> None:
    """Waited for, refused, or read; never longer than what is there."""
    if not data:
        return
    mode = (ProxyMode.V1, ProxyMode.V2, ProxyMode.YES, ProxyMode.REQUIRED)[data[0] % 4]
    with suppress(BadProxyHeader):
        header = read_proxy_header(data[1:], mode)
        assert header is None or 0 <= header.size_bytes < len(data)


@cache
def _tls_context() -> ssl.SSLContext:
    with tempfile.TemporaryDirectory() as directory:
        made = Authority(Path(directory)).sign("localhost")
        return make_context(Listener("tls", Protocol.SYSLOG, Transport.TLS, 0, certificate=str(made.certificate), private_key=str(made.private_key)))


def fuzz_tls(data: bytes) -> None:
    """Whoever has no handshake gets nothing through, and an alert at most."""
    stream = TlsStream(_tls_context(), ())
    with suppress(StreamError):
        for start in range(0, len(data), 97):
            assert stream.decode(data[start : start + 97]) == b""
            if stream.broken is not None:
                break
    stream.take_outgoing()
    stream.end()
    assert not stream.is_established


def _relp_seeds() -> Iterator[bytes]:
    yield b"\x10" + b"2 syslog 7 <13>one3 syslog 7 <13>two\n"
    yield b"\x03" + b"2 syslog 7 <13>one\n3 syslog 7 <13>two\n4 close 0\n"
    yield b"\xff" + b"2 syslog 300 " + b"x" * 300 + b"\n3 syslog 1 y\n"
    yield b"\x20" + b"2 starttls 0\n2 syslog 1 a\n3 syslog 1 b\n3 syslog 1 b\n9 syslog 1 c\n"
    yield b"\x20" + b"2 syslog 999999999 x"


def _proxy_seeds() -> Iterator[bytes]:
    for mode in range(4):
        yield bytes([mode]) + b"PROXY TCP4 192.0.2.7 198.51.100.1 40312 514\r\n<13>x"
        yield bytes([mode]) + b"PROXY TCP6 2001:db8::7 2001:db8::1 40312 514\n"
        yield bytes([mode]) + V2_START + b"\x21\x11\x00\x0c" + bytes(12) + b"<13>x"
        yield bytes([mode]) + V2_START + b"\x21\x21\x00\x27" + bytes(39)


def _tls_seeds() -> Iterator[bytes]:
    client, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(client, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    yield outgoing.read()
    yield b"<13>plaintext\n"
    yield b"\x16\x03\x01\x00\x05hello"


RELAY_TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], Iterator[bytes]], int]] = {
    "relp": (fuzz_relp, _relp_seeds, 2048),
    "proxy_header": (fuzz_proxy_header, _proxy_seeds, 256),
    "tls": (fuzz_tls, _tls_seeds, 1024),
}
"""Function, seeds, longest input."""
