"""Fuzzed streams of agents: Fluent's forward protocol, Lumberjack, JSON and compressed streams of strangers.

A stream comes whole and in pieces, and must give the same records, answers and end; memory is bounded by what was sent, and every record is JSON.
Weak spot: NaN in JSON is written as a text, which no comparison of values would tell from that text.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator

import cramjam
import orjson
import zstandard

from appliance.ingest.bounded_inflate import CODINGS, NotCompressed, TooLarge, inflate
from appliance.ingest.document import encode_document
from appliance.ingest.fluent.fluent_session import FluentSession
from appliance.ingest.fluent.msgpack_stream import decode_objects, split_objects
from appliance.ingest.json_text import read_json
from appliance.ingest.listener import Listener, Protocol, Transport
from appliance.ingest.lumberjack.lumberjack_session import LumberjackSession
from appliance.ingest.session import MakeSession
from tests.golden.capture_senders import read_stream, stream_names
from tests.support.recording_connection import RecordingConnection

_FRAME_BYTES, _OPENED_BYTES = 1 << 12, 1 << 16
_FLUENT = Listener("fluent", Protocol.FLUENT, Transport.TCP, 0, frame_bytes_max=_FRAME_BYTES, decompressed_bytes_max=_OPENED_BYTES)
_LUMBERJACK = _FLUENT._replace(name="beats", protocol=Protocol.LUMBERJACK)
_CODINGS = (*sorted(CODINGS), "snappy")


def _talk(make: MakeSession, listener: Listener, stream: bytes, step: int) -> tuple[list[bytes], bytes, str]:
    connection = RecordingConnection(listener)
    session = make(connection)
    for start in range(0, len(stream), step):
        session.received(memoryview(stream)[start : start + step])
    connection.intake.settle_all()
    session.finished()
    session.lost()
    assert session.unsettled_bytes == 0
    values = [record.value for record in connection.intake.records]
    for value in values:
        orjson.loads(value)
    return values, bytes(connection.sent), connection.closed


def fuzz_fluent(data: bytes) -> None:
    """The same however it is cut; what is acknowledged was taken."""
    if data:
        step, stream = data[0] + 5, data[1:]
        whole = _talk(FluentSession, _FLUENT, stream, len(stream) or 1)
        assert _talk(FluentSession, _FLUENT, stream, step)[0] == whole[0]
        if stream and stream[0] & 1:
            _talk(FluentSession, _FLUENT._replace(shared_key="secret"), stream, step)


def fuzz_lumberjack(data: bytes) -> None:
    """The same events however it is cut."""
    if data:
        step, stream = data[0] + 1, data[1:]
        whole = _talk(LumberjackSession, _LUMBERJACK, stream, len(stream) or 1)
        pieces = _talk(LumberjackSession, _LUMBERJACK, stream, step)
        assert (pieces[0], pieces[2]) == (whole[0], whole[2])


def fuzz_json_text(data: bytes) -> None:
    """What can be read can be written, and is read the same again."""
    try:
        value = read_json(data)
    except ValueError:
        return
    text = encode_document(value)
    assert encode_document(read_json(text)) == text


def fuzz_msgpack(data: bytes) -> None:
    """Whatever objects there are, they are written."""
    ends, _ = split_objects(data)
    objects = decode_objects(data[: ends[-1]], ends) if ends else []
    assert len(objects) == len(ends)
    for value in objects:
        orjson.loads(encode_document(value, True))


def fuzz_inflate(data: bytes) -> None:
    """The content, or one of two refusals; never more than the limit."""
    if data:
        coding = _CODINGS[data[0] % len(_CODINGS)]
        try:
            assert len(inflate(coding, data[1:], _OPENED_BYTES)) <= _OPENED_BYTES
        except (NotCompressed, TooLarge):
            pass


def _fluent_seeds() -> Iterator[bytes]:
    for name in stream_names():
        if name.startswith("fluent"):
            yield b"\x20" + read_stream(name)
    yield b"\x05" + bytes.fromhex("93a17492920182a16101ff02d7000102030405060708c404ffff00ff81a56368756e6bc40161")
    yield b"\x01" + b"\x96\xa4PING\xa1h\xa1s\xa1d\xa0\xa0"


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
        "gzip": gzip.compress(text) * 2,
        "x-gzip": gzip.compress(text) + bytes(3),
        "zlib": zlib.compress(text),
        "zstd": zstandard.compress(text),
        "deflate": bare.compress(text) + bare.flush(),
        "snappy-framed": bytes(cramjam.snappy.compress(text)),
        "identity": text,
        "snappy": bytes(cramjam.snappy.compress_raw(text)),
    }
    for index, coding in enumerate(_CODINGS):
        yield bytes([index]) + compressed[coding]


AGENTS_TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], Iterator[bytes]], int]] = {
    "fluent": (fuzz_fluent, _fluent_seeds, 512),
    "lumberjack": (fuzz_lumberjack, _lumberjack_seeds, 2048),
    "json_text": (fuzz_json_text, _json_seeds, 512),
    "msgpack": (fuzz_msgpack, _msgpack_seeds, 512),
    "inflate": (fuzz_inflate, _inflate_seeds, 1024),
}
"""Function, seeds, longest input."""
