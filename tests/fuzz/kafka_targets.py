"""Fuzzed parts of Kafka's protocol: frames, headers, requests, batches, message sets, what group members and other boxes say, what a coordinator kept.

Bytes of strangers may only ever give a value or the one exception that closes their connection (`ProtocolViolation`) or refuses their batch
(`CorruptBatch`, `RequestRefused`). Seeds are golden frames of real clients, and one sample of every request and version. Weak spot: a target runs
alone; what two requests do to each other is for the system tests.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import crc32c

from appliance.base.errors import ProtocolViolation, RequestRefused
from appliance.client.groups import read_assignment as read_member_assignment
from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.framing import FrameSplitter, parse_request_header
from appliance.protocol.produce import ProduceRequest
from appliance.protocol.produce_client import decode_produce_response
from appliance.protocol.replica_fetch import decode_replica_fetch_response
from appliance.records.batch import batch_problem
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec, CorruptBatch
from appliance.records.conversion import convert_down, convert_up
from appliance.records.legacy import build_message, build_message_set, read_message_set
from appliance.records.record import iterate_records
from lab import kio_adapter
from services.acceptor.receiver import OTHER_REQUEST_BYTES_MAX
from services.coordinator.groups.consumer_migration import read_assignment, read_subscription
from services.coordinator.groups.group_records import FORMATS, read_key
from services.coordinator.groups.member import topics_of_subscription
from services.coordinator.state.state_format import UnreadableRecord
from services.coordinator.transactions.transaction_records import decode_transaction, decode_transaction_key
from tests.fuzz.target import Target, Targets, whole_and_pieces
from tests.support.coded_header import parse_coded_header
from tests.unit.protocol.sample_requests import DECODERS, samples

GOLDEN = Path(__file__).parent.parent / "golden"
NEIGHBOUR = b"\x7f" * 256
"""What lies behind a request in the arena and belongs to another request."""
DECOMPRESSED_BYTES = 1 << 20
FRAME_BYTES = 1 << 16
_CRC_AT, _CRC_FROM = 17, 21
_ENTRY_MAGIC_AT = 16
_CODED = tuple(CODED_APIS.values())


def fuzz_framing(data: bytes) -> None:
    """The same frames whether a stream comes whole or in pieces; never more kept than one frame."""
    if (cut := whole_and_pieces(data)) is None:
        return
    stream, (_, step) = cut
    whole, pieces = FrameSplitter(FRAME_BYTES), FrameSplitter(FRAME_BYTES)
    try:
        expected: list[bytes] | None = whole.feed(stream)
    except ProtocolViolation:
        expected = None
    found: list[bytes] = []
    try:
        for start in range(0, len(stream), step):
            found += pieces.feed(stream[start : start + step])
            assert pieces.pending_bytes <= 4 + FRAME_BYTES + step
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


def fuzz_peer_answer(data: bytes) -> None:
    """What another box answers to a produce and to a follower's fetch: places within the answer, or a violation."""
    buffer, limit = memoryview(data + NEIGHBOUR), len(data)
    for version in (7, 8):
        with suppress(ProtocolViolation):
            assert len(decode_produce_response(buffer, 0, limit, version)) <= limit
    with suppress(ProtocolViolation):
        for part in decode_replica_fetch_response(buffer, 0, limit, 16).partitions:
            assert 0 <= part.records_position <= part.records_position + part.records_size <= limit


def fuzz_group_metadata(data: bytes) -> None:
    """What members of a group say to each other, as far as a coordinator and the command read it."""
    topics = topics_of_subscription(data)
    subscription = read_subscription(data)
    assert subscription is None or topics is None or list(subscription.topics) == topics
    read_assignment(data)
    assert len(read_member_assignment(data)) <= len(data)


def fuzz_state_record(data: bytes) -> None:
    """A record of a state topic: the first byte says of which kind; what can be read can be written, and is read the same again."""
    if not data:
        return
    number, content = data[0] % len(FORMATS), data[1:]
    kind = FORMATS[number]
    with suppress(UnreadableRecord):
        read_key(content)
    with suppress(UnreadableRecord):
        value = kind.decode_value(content)
        again = kind.decode_value(kind.encode_value(value))
        assert again == value or number < 2  # the first two are written in another version than some are read
    with suppress(UnreadableRecord):
        decode_transaction_key(content)
    with suppress(ValueError):
        decode_transaction(content)


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


def _peer_answers() -> Iterator[bytes]:
    result = struct.pack(">ihqqq", 0, 0, 7, -1, 0)
    yield struct.pack(">ih", 1, 3) + b"web" + struct.pack(">i", 1) + result + struct.pack(">i", 0)
    yield struct.pack(">ih", 1, 3) + b"web" + struct.pack(">i", 1) + result + struct.pack(">iih", 1, 0, -1) + struct.pack(">hi", -1, 0)
    partition = struct.pack(">ihqqq", 0, 0, 9, 9, 0) + b"\1" + struct.pack(">i", -1) + b"\4abc"
    tagged = b"\2\0\x0d" + struct.pack(">iqB", 3, 8, 0) + b"\1\x09" + struct.pack(">iiB", 1, 4, 0)
    for end in (b"\0", tagged):
        yield struct.pack(">ihi", 0, 0, 5) + b"\2" + b"t" * 16 + b"\2" + partition + end + b"\0\0"


def _group_metadata() -> Iterator[bytes]:
    for version in range(4):
        owned = struct.pack(">ih", 1, 3) + b"web" + struct.pack(">ii", 1, 0) if version else b""
        behind = (struct.pack(">i", 4) if version > 1 else b"") + (struct.pack(">h", -1) if version > 2 else b"")
        yield struct.pack(">hih", version, 1, 3) + b"web" + struct.pack(">i", -1) + owned + behind
    yield struct.pack(">hih", 0, 1, 3) + b"web" + struct.pack(">iiii", 2, 0, 1, -1)
    yield struct.pack(">hihi", 0, 1 << 30, -6, 0)


def _state_records() -> Iterator[bytes]:
    for line in (GOLDEN / "state-records" / "records.txt").read_text().splitlines():
        content = bytes.fromhex(line.split()[-1])
        for number in range(len(FORMATS)):
            yield bytes([number]) + content


KAFKA_TARGETS: Targets = {
    "framing": Target(fuzz_framing, _framing_seeds, 4096),
    "header": Target(fuzz_header, _request_seeds, 512),
    "request": Target(fuzz_request, _request_seeds, 2048),
    "body": Target(fuzz_body, _body_seeds, 2048),
    "controller_request": Target(fuzz_controller_request, _request_seeds, 2048),
    "records": Target(fuzz_records, _record_seeds, 2048),
    "message_set": Target(fuzz_message_set, _message_set_seeds, 2048),
    "stored_for_old": Target(fuzz_stored_for_old, _stored_seeds, 2048),
    "peer_answer": Target(fuzz_peer_answer, _peer_answers, 512),
    "group_metadata": Target(fuzz_group_metadata, _group_metadata, 512),
    "state_record": Target(fuzz_state_record, _state_records, 1024),
}
