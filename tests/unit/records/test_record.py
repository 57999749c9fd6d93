"""Hostile record bytes are refused, and light modules stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from appliance.records.batch import ATTRIBUTES_AT, BATCH_HEADER, CRC_AT
from appliance.records.builder import BatchBuilder, encode_headers
from appliance.records.compression import CorruptBatch
from appliance.records.crc32c import crc32c
from appliance.records.record import decode_varint, encode_varint, iterate_records


def batch_of(body: bytes, count: int = 1) -> bytes:
    header = bytearray(61)
    BATCH_HEADER.pack_into(header, 0, 0, 49 + len(body), -1, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    raw = header + body
    raw[CRC_AT:ATTRIBUTES_AT] = crc32c(raw[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(raw)


def record_of(inside: bytes) -> bytes:
    return encode_varint(len(inside)) + inside


EMPTY = b"\x00\x00\x00\x01\x01\x00"  # attributes, timestamp delta, offset delta, no key, no value, no headers


def test_the_smallest_record_is_read() -> None:
    (record,) = iterate_records(batch_of(record_of(EMPTY)), 100)
    assert record == (0, 0, None, None, ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode_varint(100) + EMPTY,
        encode_varint(-1) + EMPTY,
        record_of(EMPTY) + b"x",
        record_of(EMPTY + b"x"),
        record_of(EMPTY[:-1]),
        record_of(b"\x00\x00\x00" + encode_varint(50) + b"short"),
        record_of(EMPTY[:-1] + encode_varint(-1)),
        record_of(EMPTY[:-1] + encode_varint(2**30)),
        record_of(EMPTY[:-1] + encode_varint(1) + encode_varint(-1) + encode_varint(-1)),
        b"\xff" * 11,
    ],
)
def test_records_that_lie_about_their_lengths_are_refused(body: bytes) -> None:
    with pytest.raises(CorruptBatch):
        list(iterate_records(batch_of(body), 1000))


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, 8191, 8192, -8193, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_integers_survive(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varint(b"?" + encoded, 1) == (value, 1 + len(encoded))


def test_a_builder_counts_its_bytes_and_can_be_used_again() -> None:
    builder = BatchBuilder()
    headers = encode_headers([("source", b"10.0.0.1")])
    for _ in range(2):
        builder.append(5, b"key", b"value", headers)
        builder.append(3, None, b"", [("source", b"10.0.0.1")])
        size_bytes, raw = builder.size_bytes, builder.build()
        assert len(raw) == size_bytes
        assert [(each.timestamp, each.headers) for each in iterate_records(raw, 1000)] == [(5, (("source", b"10.0.0.1"),)), (3, (("source", b"10.0.0.1"),))]
    with pytest.raises(ValueError, match="without records"):
        builder.build()


@pytest.mark.slow
def test_what_a_log_writer_imports_brings_no_codecs_and_no_command_line() -> None:
    modules = "appliance.storage.log, appliance.storage.log_directory, appliance.records.builder"
    heavy = "{'argparse', 'cramjam', 'numpy', 'kio', 'asyncio', 'subprocess', 'dataclasses', 'importlib.metadata', 'mmap'}"
    program = f"import sys; import {modules}; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-S", "-c", _with_path(program)], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def _with_path(program: str) -> str:
    return f"import sys; sys.path[:] = {sys.path!r}; {program}"
