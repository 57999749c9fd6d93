"""Fuzzed streams of agents: Fluent's forward protocol with and without its handshake, Lumberjack; and what they share: msgpack, JSON, compressed streams.

A stream comes whole and in pieces, and must give the same records, answers and end; memory is bounded by what was sent, every record is JSON, and what
was refused for now is not acknowledged. Weak spot: NaN in JSON is written as a text, which no comparison of values would tell from that text.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress

import cramjam
import msgpack
import orjson
import zstandard

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols import document
from services.ingest.protocols.bounded_inflate import CODINGS, Inflater, NotCompressed, TooLarge, inflate
from services.ingest.protocols.document import encode_document
from services.ingest.protocols.fluent import fluent_messages
from services.ingest.protocols.fluent.fluent_session import FluentHandshake, FluentSession
from services.ingest.protocols.fluent.msgpack_stream import decode_objects, pack, split_objects
from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.lumberjack.lumberjack_frames import ACK, ACK_KIND
from services.ingest.protocols.lumberjack.lumberjack_session import LumberjackSession
from services.ingest.protocols.session import SessionConnection
from services.ingest.protocols.steps import run_to_end
from services.ingest.records.ack_group import AckOutcome
from tests.fuzz.target import Target, Targets, setting, talk, whole_and_pieces
from tests.golden.capture_senders import read_stream, stream_names

_FRAME_BYTES, _OPENED_BYTES = 1 << 12, 1 << 16
_OBJECTS_MAX = 1 << 16
_KEY = "secret"
_FLUENT = Listener("fluent", Protocol.FLUENT, ListenerTransport.TCP, 0, frame_bytes_max=_FRAME_BYTES, decompressed_bytes_max=_OPENED_BYTES)
_LUMBERJACK = _FLUENT._replace(name="beats", protocol=Protocol.LUMBERJACK)
_CODINGS = (*sorted(CODINGS), "snappy")


def _greeted(connection: SessionConnection) -> FluentSession:
    return FluentSession(connection, bytes)


def fuzz_fluent(data: bytes) -> None:
    """The same however it is cut, or if large messages are read entry by entry; a chunk is acknowledged when it was taken. One of the three for an input."""
    if (cut := whole_and_pieces(data, 5)) is None:
        return
    stream, (all_of_it, step) = cut
    said = talk(_greeted, _FLUENT, stream, all_of_it, _fluent_bounds)
    match step % 3:
        case 0:
            assert talk(_greeted, _FLUENT, stream, step, _fluent_bounds) == said
        case 1:
            with setting(fluent_messages, "_LARGE_BYTES", 8):
                by_entry = talk(_greeted, _FLUENT, stream, all_of_it)
            assert by_entry == said or said.closed == "fluent-malformed"  # as a whole it cannot be decoded, entry by entry perhaps
        case _:
            refused = talk(_greeted, _FLUENT, stream, step, None, AckOutcome.REFUSED, False)
            assert not refused.sent and (refused.closed or b"\xa3ack" not in said.sent)


def _fluent_bounds(session: FluentSession, piece: int) -> None:
    assert session.buffered_bytes <= _FRAME_BYTES + piece


def fuzz_fluent_handshake(data: bytes) -> None:
    """A stream that begins with a PING; an odd first byte makes its digest right. Then what is behind it is taken as without a handshake, else nothing is."""
    if (cut := whole_and_pieces(data, 5)) is None:
        return
    stream, (_, step) = cut
    ends, _ = run_to_end(split_objects(stream, _OBJECTS_MAX))
    ping = decode_objects(stream[: ends[0]], ends[:1])[0] if ends else None
    is_right = data[0] & 1 == 1 and type(ping) is list and len(ping) == 6 and ping[0] == "PING"
    if is_right:
        handshake = FluentHandshake(_KEY, bytes)
        behind = stream[ends[0] :]
        stream = pack(["PING", "name", "salt", handshake.digest(b"salt", b"name"), "", ""]) + behind
    listener = _FLUENT._replace(shared_key=_KEY)
    said = talk(_greeted, listener, stream, step)
    if is_right:
        assert said.records == talk(_greeted, _FLUENT, behind, step).records
    else:
        assert not said.records and b"\x95\xa4PONG\xc3" not in said.sent


def fuzz_lumberjack(data: bytes) -> None:
    """The same events however it is cut; the last acknowledged number is the last event's."""
    if (cut := whole_and_pieces(data)) is None:
        return
    stream, (all_of_it, step) = cut
    if step & 1:
        refused = talk(LumberjackSession, _LUMBERJACK, stream, step, None, AckOutcome.REFUSED, False)
        assert refused.sent.replace(ACK.pack(ACK_KIND, 0), b"") == b""
        return
    said, pieces = (talk(LumberjackSession, _LUMBERJACK, stream, size, _lumberjack_bounds) for size in (all_of_it, step))
    assert pieces._replace(sent=b"") == said._replace(sent=b"")
    if said.records and not said.closed:
        assert said.sent[-ACK.size :] == pieces.sent[-ACK.size :]


def _lumberjack_bounds(session: LumberjackSession, piece: int) -> None:
    assert session.buffered_bytes <= _FRAME_BYTES + 10 + piece


def fuzz_json_text(data: bytes) -> None:
    """What can be read can be written, and is read the same again."""
    try:
        value = read_json(data)
    except ValueError:
        return
    text = encode_document(value)
    assert encode_document(read_json(text)) == text


def fuzz_msgpack(data: bytes) -> None:
    """Whatever objects there are, they are written, with space for the bytes of bad texts beside
    them or without.
    """
    ends, _ = run_to_end(split_objects(data, _OBJECTS_MAX))
    objects = decode_objects(data[: ends[-1]], ends) if ends else []
    assert len(objects) == len(ends)
    for value in objects:
        orjson.loads(encode_document(value, True))
        with setting(document, "POINTER_BYTES_MAX", 4):
            orjson.loads(encode_document({"a": value}, True))


def fuzz_inflate(data: bytes) -> None:
    """The content, or one of two refusals, the same however it is cut; never more than the limit."""
    if len(data) < 2:
        return
    coding, step, stream = _CODINGS[data[0] % len(_CODINGS)], data[1] + 1, data[2:]
    whole: bytes | None = None
    with suppress(NotCompressed, TooLarge):
        whole = inflate(coding, stream, _OPENED_BYTES)
        assert len(whole) <= _OPENED_BYTES
    if coding in CODINGS:
        pieces: bytes | None = None
        with suppress(NotCompressed, TooLarge):
            inflater = Inflater(coding, _OPENED_BYTES)
            pieces = b"".join([inflater.feed(stream[start : start + step]) for start in range(0, len(stream), step)]) + inflater.finish()
        assert pieces == whole


def _handshake_seeds() -> Iterator[bytes]:
    ping = msgpack.packb(["PING", "name", "salt", "digest", "", ""])
    yield b"\x21" + ping + read_stream("fluent-logger-python")
    yield b"\x20" + ping + b"\xc0"
    yield b"\x01" + read_stream("fluent-logger-python")


def _fluent_seeds() -> Iterator[bytes]:
    for name in stream_names():
        if name.startswith("fluent"):
            yield b"\x20" + read_stream(name)
    yield b"\x05" + bytes.fromhex("93a17492920182a16101ff02d7000102030405060708c404ffff00ff81a56368756e6bc40161")


def _lumberjack_seeds() -> Iterator[bytes]:
    yield b"\x20" + read_stream("pylogbeat")
    frame = b"2J\0\0\0\x01\0\0\0\x07" + b'{"a":1}'
    packed = zlib.compress(frame * 2)
    yield b"\x07" + b"2W\0\0\0\x03" + frame + b"2C" + len(packed).to_bytes(4, "big") + packed
    yield b"\x07" + b"2J\0\0\0\x01\0\0\0\x02{x1W"


def _json_seeds() -> Iterator[bytes]:
    yield b'{"a":[1,2.5,"x",null,true,{"b":{}}],"c":"\\u00e9\\ud83d\\ude00"}'
    yield b"[NaN,-Infinity,1e999,18446744073709551616,-9223372036854775809]"
    yield b'"\xff\\ud800"'


def _msgpack_seeds() -> Iterator[bytes]:
    yield bytes.fromhex("93a16182a161cb7ff8000000000000a162c0d7ff00000000000000019101dc0001c2")
    yield bytes.fromhex("8192c0c301" + "c70300616263" + "da0001ff" + "cf" + "ff" * 8)


def _inflate_seeds() -> Iterator[bytes]:
    text = b"a line and a line and a line\n" * 9
    bare = zlib.compressobj(wbits=-15)
    compressed = {
        "gzip": gzip.compress(text, mtime=0) * 2,
        "x-gzip": gzip.compress(text, mtime=0) + bytes(3),
        "zlib": zlib.compress(text),
        "zstd": zstandard.compress(text),
        "deflate": bare.compress(text) + bare.flush(),
        "snappy-framed": bytes(cramjam.snappy.compress(text)),
        "identity": text,
        "snappy": bytes(cramjam.snappy.compress_raw(text)),
    }
    for index, coding in enumerate(_CODINGS):
        yield bytes([index, 40]) + compressed[coding]


AGENTS_TARGETS: Targets = {
    "fluent": Target(fuzz_fluent, _fluent_seeds, 512),
    "fluent_handshake": Target(fuzz_fluent_handshake, _handshake_seeds, 256),
    "lumberjack": Target(fuzz_lumberjack, _lumberjack_seeds, 512),
    "json_text": Target(fuzz_json_text, _json_seeds, 256),
    "msgpack": Target(fuzz_msgpack, _msgpack_seeds, 256),
    "inflate": Target(fuzz_inflate, _inflate_seeds, 512),
}
