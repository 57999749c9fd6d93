"""Bytes of strangers: whatever they say, a decoder answers with a message or a ProtocolViolation, in bounded time and memory."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.base.errors import ProtocolViolation
from appliance.protocol import group_apis, group_offset_apis, offset_apis
from appliance.protocol.fetch import decode_fetch
from appliance.protocol.metadata import decode_metadata
from appliance.protocol.produce import ProduceRequest, decode_produce
from appliance.protocol.schema import BODY_SIZE_MAX
from appliance.protocol.wire import ELEMENTS_MAX, STRING_SIZE_MAX, read_nullable_string, read_string, read_uvarint, write_uvarint
from lab import kio_adapter
from tests.unit.protocol.sample_requests import Sample, samples

SAMPLES = [pytest.param(sample, id=str(sample)) for sample in samples()]


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_whole_request_is_read(sample: Sample) -> None:
    assert sample.decode(sample.body, 0, len(sample.body))


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_truncation_is_a_violation_whatever_lies_behind_the_frame(sample: Sample) -> None:
    arena = memoryview(bytearray(sample.body + bytes(100)))
    for limit in range(len(sample.body)):
        with pytest.raises(ProtocolViolation):
            sample.decode(sample.body[:limit], 0, limit)
        with pytest.raises(ProtocolViolation):
            sample.decode(arena, 0, limit)


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_changed_byte_gives_a_message_or_a_violation(sample: Sample) -> None:
    size = len(sample.body)
    for position in range(size):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            body = bytearray(sample.body)
            body[position] = value
            with suppress(ProtocolViolation):
                request = sample.decode(memoryview(body), 0, size)
                if isinstance(request, ProduceRequest):
                    assert all(0 <= part.records_position <= part.records_position + part.records_size <= size for part in request.partitions)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("lie", [struct.pack(">i", 2**31 - 1), struct.pack(">i", -2), struct.pack(">i", -(2**31)), b"\xff\xff\xff\xff\x0f"])
def test_no_lying_count_or_length_costs_memory(sample: Sample, lie: bytes) -> None:
    tracemalloc.start()
    try:
        for position in range(len(sample.body)):
            body = sample.body[:position] + lie + sample.body[position + len(lie) :]
            with suppress(ProtocolViolation):
                sample.decode(body, 0, len(body))
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_request_of_countless_topics_is_refused_before_they_are_read() -> None:
    topics = write_uvarint(ELEMENTS_MAX + 2) + b"\2a\1\0" * (ELEMENTS_MAX + 1)
    body = b"\0" + struct.pack(">hi", 1, 1000) + topics + b"\0"
    with pytest.raises(ProtocolViolation, match="compact array of length 100001"):
        decode_produce(body, 0, len(body), 9)


def test_partitions_are_counted_over_all_topics_of_a_request() -> None:
    half = ELEMENTS_MAX // 2 + 1
    topic = b"\2a" + write_uvarint(half + 1) + bytes(6) * half + b"\0"
    body = b"\0" + struct.pack(">hi", 1, 1000) + b"\3" + topic * 2 + b"\0"
    with pytest.raises(ProtocolViolation) as refused:
        decode_produce(body, 0, len(body), 9)
    assert refused.value.reason == "too-many-elements"


def test_elements_are_counted_over_all_arrays_of_a_message() -> None:
    # A topic without name and partitions has three bytes: a million of them in 4 MiB would take seconds.
    groups = 200
    topics = write_uvarint(ELEMENTS_MAX // groups + 1) + b"\1\1\0" * (ELEMENTS_MAX // groups)
    body = write_uvarint(groups + 1) + (b"\1" + topics + b"\0") * groups + b"\0\0"
    with pytest.raises(ProtocolViolation) as refused:
        group_offset_apis.OFFSET_FETCH_REQUEST.decode(body, 0, len(body), 8)
    assert refused.value.reason == "too-many-elements"

    fewer = write_uvarint(groups) + (b"\1" + topics + b"\0") * (groups - 1) + b"\0\0"
    for _ in range(2):
        assert len(group_offset_apis.OFFSET_FETCH_REQUEST.decode(fewer, 0, len(fewer), 8).groups) == groups - 1


def test_no_text_is_longer_than_an_old_message_or_a_record_can_repeat() -> None:
    for size, is_read in ((STRING_SIZE_MAX, True), (STRING_SIZE_MAX + 1, False)):
        body = write_uvarint(size + 1) + b"g" * size + struct.pack(">i", 1) + b"\2m\0\0"
        if is_read:
            assert len(group_apis.HEARTBEAT_REQUEST.decode(body, 0, len(body), 4).group_id) == size
            continue
        with pytest.raises(ProtocolViolation) as refused:
            group_apis.HEARTBEAT_REQUEST.decode(body, 0, len(body), 4)
        assert refused.value.reason == "lying-length"


def test_a_body_without_records_has_a_largest_size() -> None:
    body = bytes(BODY_SIZE_MAX + 1)
    with pytest.raises(ProtocolViolation) as refused:
        offset_apis.decode_list_offsets(body, 0, len(body), 7)
    assert refused.value.reason == "body-too-large"


def test_records_never_reach_behind_their_frame() -> None:
    body = b"\xff\xff" + struct.pack(">hi", 1, 1000) + struct.pack(">i", 1) + b"\0\1a" + struct.pack(">iii", 1, 0, 100) + bytes(99)
    arena = memoryview(bytearray(body + bytes(1000)))
    with pytest.raises(ProtocolViolation, match="100 bytes of records for a-0"):
        decode_produce(arena, 0, len(body), 8)


def test_a_topic_id_is_not_taken_from_a_neighbours_bytes() -> None:
    head = struct.pack(">iiibii", 1, 1, 1, 0, 0, -1)
    arena = memoryview(bytearray(head + b"\2" + bytes(1000)))
    with pytest.raises(ProtocolViolation):
        decode_fetch(arena, 0, len(head) + 5, 16)


def test_the_last_byte_of_a_frame_is_not_a_neighbours() -> None:
    head = struct.pack(">iiibii", 1, 1, 1, 0, 0, -1)
    arena = memoryview(bytearray(head + b"\1\1\1\0" + bytes(100)))
    assert decode_fetch(arena, 0, len(head) + 4, 16).partitions == []
    with pytest.raises(ProtocolViolation, match="Fetch v16 ends at byte 25, but its frame ends at byte 24"):
        decode_fetch(arena, 0, len(head) + 3, 16)


def test_only_minus_one_is_null() -> None:
    with pytest.raises(ProtocolViolation):
        decode_metadata(struct.pack(">i", -2), 0, 4, 1)
    with pytest.raises(ProtocolViolation):
        read_nullable_string(struct.pack(">h", -2), 0, 2)
    with pytest.raises(ProtocolViolation):
        read_string(b"\0\5abcdefgh", 0, 6)


def test_a_varint_without_end_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        read_uvarint(b"\x80" * 100, 0)
    with pytest.raises(ProtocolViolation):
        read_uvarint(b"\xff\xff\xff\xff\x7f", 0)
    assert read_uvarint(b"\xff\xff\xff\xff\x0f", 0) == (2**32 - 1, 5)


def test_tagged_fields_are_skipped_and_their_number_is_bounded() -> None:
    body = b"\0" + struct.pack(">hi", 1, 1000) + b"\1"
    tags = b"\2" + b"\5\3abc" + b"\x99\1\0"
    assert decode_produce(body + tags, 0, len(body + tags), 9).partitions == []
    many = b"\x64" + b"\5\0" * 100
    with pytest.raises(ProtocolViolation, match="tagged section"):
        decode_produce(body + many, 0, len(body + many), 9)


def test_text_that_is_not_utf8_is_a_violation() -> None:
    body = struct.pack(">hi", 1, 1000) + struct.pack(">i", 1) + b"\0\2\xff\xfe" + struct.pack(">i", 0)
    with pytest.raises(ProtocolViolation, match="Produce v2 cannot be read"):
        decode_produce(body, 0, len(body), 2)


@pytest.mark.slow
def test_no_claim_makes_kio_end_the_process() -> None:
    # kio reserves memory for the claimed size, and aborts if an address space of 2 GiB cannot hold
    # 17 GB.
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from appliance.base.errors import ProtocolViolation
from lab import kio_adapter
try:
    kio_adapter.decode_request(19, 4, bytes.fromhex("7fffffff") + bytes(100))
except ProtocolViolation as violation:
    print(violation.reason)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert (found.returncode, found.stdout) == (0, "lying-length\n"), found.stderr[-500:]


@pytest.mark.parametrize("sample", [parameter for parameter in SAMPLES if kio_adapter.serves(*parameter.values[0][:2])])  # type: ignore[index]
def test_kio_is_never_shown_a_lying_count(sample: Sample) -> None:
    # Without kio_bounds some of these claims end the process: kio reserves memory for what is claimed.
    for position in range(len(sample.body)):
        for lie in (struct.pack(">i", 2**31 - 1), b"\xff\xff\xff\xff\x07"):
            body = bytearray(sample.body)
            body[position : position + len(lie)] = lie
            with suppress(ProtocolViolation):
                kio_adapter.decode_request(sample.api_key, sample.version, body)
