"""Any records survive any codec, and hostile bytes are refused without any other exception."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.records.batch import RECORDS_AT, batch_problem, read_batch_header, stored_batch_problem
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec, CorruptBatch, decompress
from appliance.records.crc32c import crc32c
from appliance.records.record import decode_varint, encode_varint, iterate_records

LIMIT = 1_000_000
TIMES = st.integers(-1, 2**52)
FIELDS = st.none() | st.binary(max_size=300)
RECORDS = st.lists(st.tuples(TIMES, FIELDS, FIELDS, st.lists(st.tuples(st.text(max_size=20), FIELDS), max_size=3).map(tuple)), min_size=1, max_size=20)


@given(RECORDS, st.sampled_from(list(Codec)))
def test_records_come_out_as_they_went_in(records: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]], codec: Codec) -> None:
    builder = BatchBuilder(codec)
    for record in records:
        builder.append(*record)
    size_bytes = builder.size_bytes
    raw = builder.build()
    assert batch_problem(raw, 0, len(raw), LIMIT) is None
    assert codec or len(raw) == size_bytes
    assert [each[1:] for each in iterate_records(raw, LIMIT)] == records
    header = read_batch_header(raw)
    assert (header.max_timestamp, header.base_timestamp) == (max(record[0] for record in records), records[0][0])
    assert [each.offset for each in iterate_records(raw, LIMIT)] == list(range(len(records)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_integer_survives(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varint(encoded, 0) == (value, len(encoded))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_nothing_else_happens(raw: bytes) -> None:
    problem = batch_problem(raw, 0, len(raw), LIMIT)
    assert problem is not None
    assert stored_batch_problem(raw, 0, len(raw)) is not None


@given(st.binary(max_size=200), st.integers(0, 2**31 - 1), st.sampled_from(list(Codec)))
def test_arbitrary_records_behind_a_good_header_are_read_or_refused(body: bytes, count: int, codec: Codec) -> None:
    builder = BatchBuilder()
    builder.append(0, None, None)
    header = bytearray(builder.build()[:RECORDS_AT])
    header[8:12] = (RECORDS_AT - 12 + len(body)).to_bytes(4, "big")
    header[22] = codec
    header[57:61] = count.to_bytes(4, "big")
    header[17:21] = crc32c(bytes(header[21:]) + body).to_bytes(4, "big")
    try:
        list(iterate_records(bytes(header) + body, LIMIT))
    except CorruptBatch:
        pass


@given(st.binary(max_size=300), st.sampled_from([codec for codec in Codec if codec]))
def test_an_arbitrary_stream_never_gives_more_than_the_limit(stream: bytes, codec: Codec) -> None:
    try:
        assert len(decompress(codec, stream, 1000)) <= 1000
    except CorruptBatch:
        pass
