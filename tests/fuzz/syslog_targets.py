"""Fuzzed syslog: framings, datagrams, lines; RELP, the headers of proxies, TLS that is none. Every byte of syslog is kept or counted."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import orjson

from appliance.senders.listener import Listener, ListenerTransport, Protocol, ProxyMode
from lab.certificates import Authority
from services.ingest.listeners.proxy_header import NO_HEADER, V2_START, BadProxyHeader, ProxyHeader, read_proxy_header
from services.ingest.listeners.sender_stream import StreamError
from services.ingest.listeners.tls_stream import TlsStream, make_context
from services.ingest.protocols.syslog.relp_session import RelpSession
from services.ingest.protocols.syslog.syslog_framing import SyslogSplitter
from services.ingest.protocols.syslog.syslog_message import SyslogParser, read_structured_data
from services.ingest.protocols.syslog.syslog_session import SyslogDatagrams, SyslogSession
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.event import EventBuilder, EventSource
from tests.fuzz.target import Target, Targets, talk, whole_and_pieces
from tests.support.recording_intake import RecordingIntake

MESSAGE_BYTES = 128
FRAME_BYTES_MAX = 1024
_ARRIVAL_MS = 1_728_684_860_000
_SYSLOG = Listener("syslog", Protocol.SYSLOG, ListenerTransport.TCP, 0, message_bytes_max=MESSAGE_BYTES)
_RELP = _SYSLOG._replace(name="relp", protocol=Protocol.RELP, frame_bytes_max=FRAME_BYTES_MAX)
_SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"tcp")
_BERLIN = ZoneInfo("Europe/Berlin")
_PARSERS = SyslogParser(), SyslogParser(_BERLIN)
_EVENTS, _RAW_EVENTS = EventBuilder(), EventBuilder("app", b"raw", True)
_OPEN = b"1 open 15 commands=syslog\n"
_DIGITS_AND_SEPARATORS = b"0123456789 \n\r\0"


def fuzz_syslog_framing(data: bytes) -> None:
    """The same messages however it is cut; what does not come out is framing, or was counted."""
    if (cut := whole_and_pieces(data)) is None:
        return
    stream, steps = cut
    outcomes = []
    for step in steps:
        splitter = SyslogSplitter(MESSAGE_BYTES)
        messages: list[bytes] = []
        for start in range(0, len(stream), step):
            messages += splitter.feed(stream[start : start + step])
            assert splitter.buffered_bytes <= MESSAGE_BYTES + 1 + len(b"12345678 <191>")
        messages += splitter.finish()
        outcomes.append((messages, splitter.cut_messages, splitter.discarded_bytes, splitter.resynchronisations))
    assert outcomes[0] == outcomes[1]
    assert all(0 < len(message) <= MESSAGE_BYTES for message in messages)
    missing = len(stream) - sum(map(len, messages)) - splitter.discarded_bytes
    assert 0 <= missing <= len(stream) - len(stream.translate(None, _DIGITS_AND_SEPARATORS))
    if steps[1] & 3:
        return
    said = talk(SyslogSession, _SYSLOG, stream, steps[1])
    assert said.records == messages and sum(said.oddities.values()) == splitter.cut_messages + splitter.resynchronisations


def fuzz_syslog_datagram(data: bytes) -> None:
    """A datagram is a message: all of it, without an octet count, or cut and counted."""
    if data:
        intake = RecordingIntake()
        SyslogDatagrams(_SYSLOG, intake).received(AckGroup(_SYSLOG, _SOURCE), [data, b"<13>behind"])
        message, behind = intake.messages
        assert behind == b"<13>behind" and len(message) <= MESSAGE_BYTES
        assert message in data and (len(data) - len(message) <= 9 or sum(intake.oddities.values()) == 1)


def fuzz_syslog_message(data: bytes) -> None:
    """Any line becomes a record; routes may look into it."""
    for parser in _PARSERS:
        message = parser.parse(data, _ARRIVAL_MS)
        assert message.raw == data and message == parser.parse(data, _ARRIVAL_MS)
        orjson.loads(_EVENTS.build(message, _SOURCE, _ARRIVAL_MS).value)
    assert message == SyslogParser(_BERLIN).parse(data, _ARRIVAL_MS)  # whatever was read before
    assert _RAW_EVENTS.build(message, _SOURCE, _ARRIVAL_MS).value == data
    read_structured_data(message.structured_data.decode("utf-8", "replace"))


def fuzz_relp(data: bytes) -> None:
    """The same lines and the same answers however it is cut; no more is kept than a line and a piece; what was refused for now is not answered."""
    if (cut := whole_and_pieces(data)) is None:
        return
    stream, steps = _OPEN + cut[0], cut[1]
    if steps[1] & 1:
        refused = talk(RelpSession, _RELP, stream, steps[1], None, AckOutcome.REFUSED, False)
        assert b"rsp 6 200 OK" not in refused.sent and (refused.closed or not refused.records)
        return
    said = [talk(RelpSession, _RELP, stream, step, _relp_bounds) for step in (len(stream), steps[1])]
    assert said[0].records == said[1].records and said[0].refused == said[1].refused and said[0].closed == said[1].closed
    assert [each.sent.count(b"rsp 6 200 OK") for each in said] == [len(said[0].records)] * 2
    assert all(len(message) <= MESSAGE_BYTES for message in said[0].records)


def _relp_bounds(session: RelpSession, piece: int) -> None:
    assert session.buffered_bytes <= MESSAGE_BYTES + 64 + piece


def fuzz_proxy_header(data: bytes) -> None:
    """Waited for, refused, or read, and the same whether more is behind it; never longer than what is there."""
    if not data:
        return
    mode, stream = (ProxyMode.V1, ProxyMode.V2, ProxyMode.YES, ProxyMode.REQUIRED)[data[0] % 4], data[1:]
    whole = _proxy_header(stream, mode)
    assert not isinstance(whole, ProxyHeader) or 0 <= whole.size_bytes <= len(stream)
    for end in range(len(stream)):
        found = _proxy_header(stream[:end], mode)
        if found is not None:  # it is known from here on
            assert found == whole
            break


def _proxy_header(data: bytes, mode: ProxyMode) -> ProxyHeader | str | None:
    try:
        header = read_proxy_header(data, mode)
    except BadProxyHeader:
        return "bad"
    assert header is None or header == NO_HEADER or header.size_bytes > 0
    return header


@cache
def _tls_context() -> ssl.SSLContext:
    with tempfile.TemporaryDirectory() as directory:
        made = Authority(Path(directory)).sign("localhost")
        return make_context(Listener("tls", Protocol.SYSLOG, ListenerTransport.TLS, 0, certificate=str(made.certificate), private_key=str(made.private_key)))


def fuzz_tls(data: bytes) -> None:
    """Without a handshake nothing gets through, and one alert at most is sent."""
    stream = TlsStream(_tls_context(), ())
    with suppress(StreamError):
        for start in range(0, len(data), 97):
            assert stream.decode(data[start : start + 97]) == b""
            if stream.broken is not None:
                break
    stream.take_outgoing()
    stream.end()
    assert not stream.is_established


def _lines() -> Iterator[bytes]:
    yield b'<165>1 2003-10-11T22:14:15.003Z host app 12 ID47 [x@1 a="b" c="\\"\\]"] \xef\xbb\xbfmessage'
    yield b"<34>Oct 11 22:14:15 mymachine su[230]: 'su root' failed for lonvick on /dev/pts/8"
    yield b"<189>123: *Mar  1 18:46:11 2024 UTC: %SYS-5-CONFIG_I: Configured from console"
    yield b"<13>2026-10-25 02:30:00,5 host app: in the hour that is there twice"
    yield b"no priority at all \xff\xfe"
    yield b"<191>1 - - - - - -"


def _streams() -> Iterator[bytes]:
    lines = list(_lines())
    yield b"\x10" + b"\n".join(lines) + b"\n"
    yield b"\x10" + b"\0".join(lines) + b"\0"
    yield b"\x07" + b"".join(b"%d %s" % (len(line), line) for line in lines)
    yield b"\xff" + b"\r\n".join(lines)
    yield b"\x30" + b"99999999 <13>x" + b"x" * 2 * MESSAGE_BYTES
    yield b"\x02" + b"4 <13>" + b"x" * MESSAGE_BYTES + b"4 <13>\n300 <13>"


def _datagrams() -> Iterator[bytes]:
    yield from _lines()
    yield b"9 <13>hello"
    yield b"10 <13>hello\n"
    yield b"<13>" + b"\xc3\xa9" * MESSAGE_BYTES


def _relp_streams() -> Iterator[bytes]:
    yield b"\x10" + b"2 syslog 7 <13>one3 syslog 7 <13>two\n"
    yield b"\x03" + b"2 syslog 7 <13>one\n3 syslog 7 <13>two\n4 close 0\n"
    yield b"\xff" + b"2 syslog 300 " + b"x" * 300 + b"\n3 syslog 1 y\n"
    yield b"\x20" + b"2 starttls 0\n2 syslog 1 a\n3 syslog 1 b\n3 syslog 1 b\n9 syslog 1 c\n"
    yield b"\x20" + b"2 syslog 999999999 x"


def _proxy_headers() -> Iterator[bytes]:
    for mode in range(4):
        yield bytes([mode]) + b"PROXY TCP4 192.0.2.7 198.51.100.1 40312 514\r\n<13>x"
        yield bytes([mode]) + b"PROXY TCP6 2001:db8::7 2001:db8::1 40312 514\n"
        yield bytes([mode]) + V2_START + b"\x21\x11\x00\x0c" + bytes(12) + b"<13>x"
        yield bytes([mode]) + V2_START + b"\x21\x21\x00\x27" + bytes(39)


def _tls_hellos() -> Iterator[bytes]:
    client, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(client, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    yield outgoing.read()
    yield b"<13>plaintext\n"
    yield b"\x16\x03\x01\x00\x05hello"


SYSLOG_TARGETS: Targets = {
    "syslog_framing": Target(fuzz_syslog_framing, _streams, 512),
    "syslog_datagram": Target(fuzz_syslog_datagram, _datagrams, 300),
    "syslog_message": Target(fuzz_syslog_message, _lines, 256),
    "relp": Target(fuzz_relp, _relp_streams, 512),
    "proxy_header": Target(fuzz_proxy_header, _proxy_headers, 200),
    "tls": Target(fuzz_tls, _tls_hellos, 1024),
}
