"""What is fuzzed: one function a target, bytes in, nothing out; whatever it raises is a finding.

Bytes of strangers may only ever give a value or the one exception that closes their connection (`ProtocolViolation`), refuses their batch
(`CorruptBatch`) or nothing at all (syslog: every byte is kept or counted). Each target has seeds: golden frames of real clients and one sample of
every request and version. Owned by nobody. Weak spot: a target runs alone; what two requests do to each other is for the system tests.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import crc32c
import orjson

from appliance.base.errors import ProtocolViolation, RequestRefused
from appliance.broker.receiver import OTHER_REQUEST_BYTES_MAX
from appliance.ingest.event import EventBuilder, EventSource
from appliance.ingest.syslog.syslog_framing import SyslogSplitter
from appliance.ingest.syslog.syslog_message import SyslogParser
from appliance.protocol import kio_adapter
from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.framing import FrameSplitter
from appliance.protocol.produce import ProduceRequest
from appliance.protocol.request_header import parse_request_header
from appliance.records.batch import batch_problem
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.conversion import convert_down, convert_up
from appliance.records.corrupt_batch import CorruptBatch
from appliance.records.legacy import build_message, build_message_set, read_message_set
from appliance.records.record import iterate_records
from tests.fuzz.agents_targets import AGENTS_TARGETS
from tests.fuzz.http_targets import HTTP_TARGETS
from tests.fuzz.push_targets import PUSH_TARGETS
from tests.fuzz.relay_targets import RELAY_TARGETS
from tests.support.coded_header import parse_coded_header
from tests.unit.protocol.sample_requests import DECODERS, samples

GOLDEN = Path(__file__).parent.parent / "golden"
NEIGHBOUR = b"\x7f" * 256
"""What lies behind a request in the arena and belongs to somebody else."""
SYSLOG_MESSAGE_BYTES = 512
DECOMPRESSED_BYTES = 1 << 20
_CRC_AT, _CRC_FROM = 17, 21
_ENTRY_MAGIC_AT = 16
_ARRIVAL_MS = 1_728_684_860_000
_CODED = tuple(CODED_APIS.values())
_PARSER, _EVENTS, _SOURCE = SyslogParser(), EventBuilder(), EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"tcp")


def fuzz_framing(data: bytes) -> None:
    """The same frames whether a stream comes whole or in pieces; never more kept than one frame."""
    if not data:
        return
    step, stream = data[0] + 1, data[1:]
    whole, pieces = FrameSplitter(1 << 16), FrameSplitter(1 << 16)
    try:
        expected: list[bytes] | None = whole.feed(stream)
    except ProtocolViolation:
        expected = None
    found: list[bytes] = []
    try:
        for start in range(0, len(stream), step):
            found += pieces.feed(stream[start : start + step])
            assert pieces.pending_bytes <= 4 + (1 << 16) + step
    except ProtocolViolation:
        assert expected is None
        return
    assert found == expected


def fuzz_header(data: bytes) -> None:
    """A header never ends behind its frame, whatever lies there."""
    with suppress(ProtocolViolation):
        header = parse_request_header(memoryview(data + NEIGHBOUR), 0, len(data))
        assert header.body_position <= len(data) and header.api_key in DECODERS


def fuzz_request(data: bytes) -> None:
    """A whole request as an acceptor takes it: header, then the decoder of its API."""
    buffer, limit = memoryview(data + NEIGHBOUR), len(data)
    with suppress(ProtocolViolation):
        header = parse_request_header(buffer, 0, limit)
        if header.api_key != ApiKey.PRODUCE and limit > OTHER_REQUEST_BYTES_MAX:
            return
        request = DECODERS[ApiKey(header.api_key)](buffer, header.body_position, limit, header.api_version)
        if isinstance(request, ProduceRequest):
            for part in request.partitions:
                assert 0 <= part.records_position <= part.records_position + part.records_size <= limit
                batch_problem(buffer, part.records_position, part.records_position + part.records_size, 1 << 20)


def fuzz_body(data: bytes) -> None:
    """A body of any API and version that has a codec, served or not: the first two bytes say which."""
    if len(data) < 2:
        return
    api = _CODED[data[0] % len(_CODED)]
    version = api.version_min + data[1] % (api.version_max - api.version_min + 1)
    with suppress(ProtocolViolation):
        DECODERS[api.key](memoryview(data + NEIGHBOUR), 2, len(data), version)


def fuzz_controller_request(data: bytes) -> None:
    """A request as the controller takes it from an acceptor: through kio, which is native code."""
    with suppress(ProtocolViolation):
        header = parse_request_header(memoryview(data), 0, len(data))
        kio_adapter.decode_request(header.api_key, header.api_version, data[header.body_position :])


def fuzz_records(data: bytes) -> None:
    """A stored batch that a look-up by time opens; its checksum is made right, or nothing behind it would ever be reached."""
    batch = bytearray(data)
    if len(batch) > _CRC_FROM:
        batch[8:12] = struct.pack(">i", len(batch) - 12)
        batch[_CRC_AT:_CRC_FROM] = struct.pack(">I", crc32c.crc32c(bytes(batch[_CRC_FROM:])))
    with suppress(CorruptBatch):
        size_bytes = sum(len(record.value or b"") + len(record.key or b"") for record in iterate_records(bytes(batch), DECOMPRESSED_BYTES))
        assert size_bytes <= max(DECOMPRESSED_BYTES, len(batch))


def fuzz_message_set(data: bytes) -> None:
    """A message set as an old producer sends it, among its neighbours' bytes: it becomes a batch that holds, or is refused. The checksums of its
    entries are made right, or nothing behind them would ever be reached."""
    sent = bytearray(data)
    position = 0
    while len(sent) - position >= _ENTRY_MAGIC_AT:
        (size,) = struct.unpack_from(">i", sent, position + 8)
        end = position + 12 + size
        if size < 4 or end > len(sent):
            break
        struct.pack_into(">I", sent, position + 12, zlib.crc32(sent[position + _ENTRY_MAGIC_AT : end]))
        position = end
    with suppress(RequestRefused):
        batch = convert_up(memoryview(sent + NEIGHBOUR), 0, len(sent), DECOMPRESSED_BYTES, False)
        if batch:
            assert batch_problem(batch, 0, len(batch), 2 * DECOMPRESSED_BYTES) is None
            _, messages, _ = read_message_set(bytes(sent), 0, len(sent), DECOMPRESSED_BYTES)
            assert [record[1:4] for record in iterate_records(batch, 64 << 20)] == [message[3:] for message in messages]


def fuzz_stored_for_old(data: bytes) -> None:
    """What a disk holds, converted down: message sets that can be read, or a refusal."""
    if not data:
        return
    magic, stored = data[0] & 1, bytearray(data[1:])
    if len(stored) > _CRC_FROM:
        stored[8:12] = struct.pack(">i", len(stored) - 12)
        stored[_CRC_AT:_CRC_FROM] = struct.pack(">I", crc32c.crc32c(bytes(stored[_CRC_FROM:])))
    with suppress(RequestRefused):
        sets = convert_down(stored, magic, -(1 << 63), DECOMPRESSED_BYTES)
        _, messages, _ = read_message_set(sets, 0, len(sets), len(sets) + 1)
        assert len(messages) <= 10_000


def fuzz_syslog_framing(data: bytes) -> None:
    """A syslog stream in pieces: no byte is invented, and what is kept is bounded."""
    if not data:
        return
    step, stream = data[0] + 1, data[1:]
    splitter = SyslogSplitter(SYSLOG_MESSAGE_BYTES)
    messages: list[bytes] = []
    for start in range(0, len(stream), step):
        messages += splitter.feed(stream[start : start + step])
        assert splitter.buffered_bytes <= SYSLOG_MESSAGE_BYTES + 64 + step
    messages += splitter.finish()
    assert sum(map(len, messages)) <= len(stream)
    assert all(len(message) <= SYSLOG_MESSAGE_BYTES for message in messages)


def fuzz_syslog_message(data: bytes) -> None:
    """Any line becomes a record."""
    message = _PARSER.parse(data, _ARRIVAL_MS)
    assert message.raw == data
    orjson.loads(_EVENTS.build(message, _SOURCE, _ARRIVAL_MS).value)


class Target(NamedTuple):
    """A function and what it starts from."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    length_max: int


def golden_frames() -> list[bytes]:
    """Whole frames, size included, as clients sent them."""
    return [bytes.fromhex(path.read_text()) for path in sorted(GOLDEN.rglob("*.hex"))]


def _request_seeds() -> Iterator[bytes]:
    for frame in golden_frames():
        yield frame[4:]
    for sample in samples():
        yield struct.pack(">hhihc", sample.api_key, sample.version, 7, 1, b"f") + sample.body
        # Flexible versions have a tagged section between header and body; both are there, one of them fits.
        yield struct.pack(">hhihc", sample.api_key, sample.version, 7, 1, b"f") + b"\0" + sample.body


def _body_seeds() -> Iterator[bytes]:
    for sample in samples():
        api = CODED_APIS[sample.api_key]
        yield bytes([_CODED.index(api), sample.version - api.version_min]) + sample.body
    for frame in golden_frames():
        header = parse_coded_header(frame[4:])
        api = CODED_APIS[header.api_key]
        yield bytes([_CODED.index(api), header.api_version - api.version_min]) + frame[4 + header.body_position :]


def _framing_seeds() -> Iterator[bytes]:
    frames = golden_frames()
    yield b"\x40" + b"".join(frames[:6])
    yield b"\0" + struct.pack(">i", 1 << 30)
    for frame in frames:
        yield b"\x0f" + frame


def _record_seeds() -> Iterator[bytes]:
    for codec in Codec:
        builder = BatchBuilder(codec=codec)
        builder.append(1_700_000_000_000, b"key", b"value" * 20, (("name", b"value"),))
        builder.append(1_700_000_000_001, None, None, ())
        yield bytes(builder.build())


def _message_set_seeds() -> Iterator[bytes]:
    records = [(0, 1_700_000_000_000, b"key", b"value" * 20), (1, 1_700_000_000_001, None, None)]
    for magic in (0, 1):
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
            yield build_message_set(magic, codec, False, records)
        yield build_message(7, magic, 8 | Codec.GZIP, 1_700_000_000_000, None, b"no stream")
        yield build_message_set(magic, Codec.NONE, True, records) + struct.pack(">qi", 0, -1)


def _stored_seeds() -> Iterator[bytes]:
    for seed in _record_seeds():
        yield b"\0" + seed
        yield b"\1" + seed


def _syslog_lines() -> Iterator[bytes]:
    yield b'<165>1 2003-10-11T22:14:15.003Z host app 12 ID47 [x@1 a="b" c="\\"\\]"] \xef\xbb\xbfmessage'
    yield b"<34>Oct 11 22:14:15 mymachine su[230]: 'su root' failed for lonvick on /dev/pts/8"
    yield b"<189>123: *Mar  1 18:46:11 2024 UTC: %SYS-5-CONFIG_I: Configured from console"
    yield b"no priority at all \xff\xfe"
    yield b"<191>1 - - - - - -"


def _syslog_streams() -> Iterator[bytes]:
    lines = list(_syslog_lines())
    yield b"\x10" + b"\n".join(lines) + b"\n"
    yield b"\x10" + b"\0".join(lines) + b"\0"
    yield b"\x07" + b"".join(b"%d %s" % (len(line), line) for line in lines)
    yield b"\xff" + b"\r\n".join(lines)
    yield b"\x30" + b"99999999 <13>x" + b"x" * 2 * SYSLOG_MESSAGE_BYTES


TARGETS: dict[str, Target] = {
    "framing": Target(fuzz_framing, _framing_seeds, 4096),
    "header": Target(fuzz_header, _request_seeds, 512),
    "request": Target(fuzz_request, _request_seeds, 4096),
    "body": Target(fuzz_body, _body_seeds, 4096),
    "controller_request": Target(fuzz_controller_request, _request_seeds, 4096),
    "records": Target(fuzz_records, _record_seeds, 4096),
    "message_set": Target(fuzz_message_set, _message_set_seeds, 4096),
    "stored_for_old": Target(fuzz_stored_for_old, _stored_seeds, 4096),
    "syslog_framing": Target(fuzz_syslog_framing, _syslog_streams, 4096),
    "syslog_message": Target(fuzz_syslog_message, _syslog_lines, 1024),
    **{name: Target(*target) for name, target in (AGENTS_TARGETS | HTTP_TARGETS | PUSH_TARGETS | RELAY_TARGETS).items()},
}
