"""Batches with records taken out, and batches that a compacted topic refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.errors import ErrorCode
from appliance.records.batch import DELETE_HORIZON_FLAG, read_batch_header, stamp_log_append_time
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.keys import keyless_problem
from appliance.records.record import iterate_records
from appliance.records.retained_batch import delete_horizon_of, empty_batch, open_records, rebuild_batch, slice_records

LIMIT = 1 << 20
RECORDS = st.lists(st.tuples(st.integers(-(2**40), 2**40), st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=200)), min_size=1, max_size=8)


@given(RECORDS, st.sampled_from(list(Codec)), st.booleans(), st.none() | st.integers(0, 2**42), st.data())
def test_what_stays_is_what_it_was(
    records: list[tuple[int, bytes | None, bytes | None]], codec: Codec, log_append_time: bool, horizon: int | None, data: st.DataObject
) -> None:
    builder = BatchBuilder(codec)
    for timestamp, key, value in records:
        builder.append(timestamp, key, value, [("name", key)])
    batch = bytearray(builder.build())
    if log_append_time:
        stamp_log_append_time(batch, 0, len(batch), 77)
    header, original = read_batch_header(batch), list(iterate_records(batch, LIMIT))
    body = open_records(header, batch, LIMIT)
    slices = slice_records(body, header.records_count)
    assert [(one.key, one.has_value) for one in slices] == [(record.key, record.value is not None) for record in original]
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(records))), min_size=1)))
    rebuilt = rebuild_batch(header, body, [slices[number] for number in chosen], horizon)
    assert list(iterate_records(rebuilt, LIMIT)) == [original[number] for number in chosen]
    changed = read_batch_header(rebuilt)
    assert (changed.last_offset, changed.codec, changed.records_count) == (header.last_offset, codec, len(chosen))
    assert delete_horizon_of(changed) == horizon
    assert changed.max_timestamp == (77 if log_append_time else max(original[number].timestamp for number in chosen))


def test_an_empty_batch_keeps_offsets_sequence_and_time() -> None:
    builder = BatchBuilder(Codec.ZSTD)
    builder.append(5, b"k", b"v")
    builder.append(9, b"k", b"v")
    header = read_batch_header(builder.build())._replace(producer_id=3, producer_epoch=1, base_sequence=7, attributes=Codec.ZSTD | DELETE_HORIZON_FLAG)
    empty = empty_batch(header)
    assert list(iterate_records(empty, LIMIT)) == [] and len(empty) == 61
    kept = read_batch_header(empty)
    assert (kept.last_offset_delta, kept.producer_id, kept.producer_epoch, kept.base_sequence, kept.max_timestamp) == (1, 3, 1, 7, 9)
    assert (kept.attributes, kept.base_timestamp) == (0, -1)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_compacted_topic_takes_records_with_keys_only(codec: Codec) -> None:
    builder = BatchBuilder(codec)
    builder.append(0, b"", b"an empty key is one")
    builder.append(0, b"k", None)
    assert keyless_problem(builder.build()) is None
    builder.append(0, b"k", b"v")
    builder.append(0, None, b"v")
    builder.append(0, b"k", b"v")
    builder.append(0, None, b"v")
    problem = keyless_problem(builder.build())
    assert problem is not None and problem.code == ErrorCode.INVALID_RECORD and "record 1 " in problem.reason
    assert problem.records == (1, 3)


def test_a_bomb_for_a_compacted_topic_is_refused_before_it_is_opened_whole() -> None:
    builder = BatchBuilder(Codec.ZSTD)
    builder.append(0, b"k", bytes(64 << 20))
    problem = keyless_problem(builder.build())
    assert problem is not None and problem.code == ErrorCode.INVALID_RECORD and "limit" in problem.reason and problem.records == ()
