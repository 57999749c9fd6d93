"""The pipeline's decoder by columns says what the slow reader says, of anything: it is quick, not lenient."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.pipeline.record_columns import LOG_APPEND_TIME, ColumnDecoder
from appliance.records.batch import RECORDS_AT
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec, CorruptBatch
from appliance.records.crc32c import crc32c
from tests.unit.pipeline.made_batches import Given, compacted, fast_records, made_of, slow_records, stored, with_append_time

TIMES = st.integers(-1, 2**52)
FIELDS = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=20), FIELDS), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(TIMES, FIELDS, FIELDS, HEADERS), min_size=1, max_size=20)
CODECS = st.sampled_from(list(Codec))
LINES = st.lists(st.tuples(TIMES, st.none(), st.text("ab c", min_size=60, max_size=150).map(str.encode), st.just(())), min_size=1, max_size=20)
"""Whose beginnings are found at once."""


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches one behind the other, of any codec, some with the broker's time, some compacted; with gaps between them."""
    log = b""
    next_offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 6))):
        records: list[Given] = draw(LINES | RECORDS)
        batch = made_of(next_offset, records, draw(CODECS))
        if draw(st.booleans()):
            batch = with_append_time(batch)
        if draw(st.booleans()):
            keep = draw(st.sets(st.integers(0, len(records) - 1), min_size=1))
            batch = compacted(batch, sorted(keep))
        log += batch
        next_offset += len(records) + draw(st.integers(0, 3))
    return log


@given(logs(), st.integers(0, 60), st.integers(0, 60))
def test_any_part_of_any_log_is_read_as_the_slow_reader_reads_it(log: bytes, skipped: int, count: int) -> None:
    start = stored(log)[0].header.base_offset + skipped
    assert fast_records(log) == slow_records(log)
    assert fast_records(log, start, start + count) == slow_records(log, start, start + count)


@given(logs())
def test_the_timestamp_type_is_that_of_its_batch(log: bytes) -> None:
    kinds = [kind for columns in ColumnDecoder().decode(memoryview(log), stored(log), 0, 2**62) for kind in columns.timestamp_types.tolist()]
    expected = [batch.header.uses_log_append_time for batch in stored(log) for _ in range(batch.header.records_count)]
    assert kinds == [LOG_APPEND_TIME * is_stamped for is_stamped in expected]


@given(st.binary(max_size=200), st.integers(1, 12), CODECS)
def test_arbitrary_records_behind_a_good_header_are_read_or_refused_as_the_slow_reader_does(body: bytes, count: int, codec: Codec) -> None:
    builder = BatchBuilder()
    builder.append(0, None, None)
    batch = bytearray(builder.build()[:RECORDS_AT])
    batch[8:12] = (RECORDS_AT - 12 + len(body)).to_bytes(4, "big")
    batch[22] = codec
    batch[57:61] = count.to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:]) + body).to_bytes(4, "big")
    outcomes = []
    for read in (fast_records, slow_records):
        try:
            outcomes.append(read(bytes(batch) + body))
        except CorruptBatch:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


@given(LINES | RECORDS, st.data())
def test_one_changed_byte_of_the_records_is_read_or_refused_as_the_slow_reader_does(records: list[Given], data: st.DataObject) -> None:
    batch = bytearray(made_of(0, records))
    position = data.draw(st.integers(RECORDS_AT, len(batch) - 1))
    batch[position] = data.draw(st.integers(0, 255))
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    outcomes = []
    for read in (fast_records, slow_records):
        try:
            outcomes.append(read(bytes(batch)))
        except CorruptBatch:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]
