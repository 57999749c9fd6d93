"""Fetched bytes of real Kafka and of kafka-python, and what a mirror makes of them: kafka-python reads it, and builds the same."""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.base.errors import ProtocolViolation
from appliance.base.model import LeaderEpoch, Offset, ProducerId
from appliance.client.messages import AbortedProducer
from appliance.records.batch import (
    ATTRIBUTES_AT,
    BATCH_HEADER,
    DELETE_HORIZON_FLAG,
    RECORDS_AT,
    batch_problem,
    read_batch_header,
    stamp_batch,
    stamp_log_append_time,
    stamp_producer,
)
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch
from appliance.records.crc32c import crc32c
from appliance.records.record import iterate_records
from appliance.records.retained_batch import gap_batch, open_records, rebuild_batch, slice_records
from appliance.storage.transaction_index import read_transaction_index
from services.mirror.batch_copy import RUNS_MAX, SAMPLES_MAX, SMALL_BYTES, CopiedBatch, OffsetRuns, copy_fetched
from tests.golden.test_kafka_log import GOLDEN
from tests.support.stored_records import stored_batches_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder

LIMIT = 1 << 20
PRODUCER = (ProducerId(4_000_000_000), 7)


def segments_of(topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((GOLDEN / "disk" / f"{topic}-0").glob("*.log")))


def aborted_in(topic: str) -> list[AbortedProducer]:
    directory = GOLDEN / "disk" / f"{topic}-0"
    entries = [each for path in directory.glob("*.log") for each in read_transaction_index(str(directory), Offset(int(path.stem)))]
    return [AbortedProducer(each.producer_id, each.first_offset) for each in entries]


def foreign_records(batches: bytes, is_wanted: Any = lambda batch, record: True) -> list[tuple[Any, ...]]:
    """Key, value, headers, timestamp as kafka-python reads them; no control records."""
    found, records = [], MemoryRecords(batches)
    while (batch := records.next_batch()) is not None:
        if not batch.is_control_batch:
            found += [(each.key, each.value, list(each.headers), each.timestamp) for each in batch if is_wanted(batch, each)]
    return found


def stamped(batches: list[CopiedBatch]) -> bytes:
    """As they are produced; each passes the checks of a broker."""
    sequence, sent = 0, b""
    for each in batches:
        stamp_producer(each.encoded, *PRODUCER, sequence, True)
        assert batch_problem(each.encoded, 0, len(each.encoded), LIMIT) is None
        sequence += each.records_count
        sent += each.encoded
    return sent


@pytest.mark.parametrize("topic", ["mixed", "idempotent", "stamped", "compacted"])
def test_what_kafka_stored_arrives_with_its_keys_values_headers_and_times(topic: str) -> None:
    stored = segments_of(topic)
    copied = copy_fetched(stored, Offset(0), [])
    assert foreign_records(stamped(copied.batches)) == foreign_records(stored) != []
    assert copied.next_offset == list(stored_batches_of(GOLDEN / "disk" / f"{topic}-0"))[-1][0].last_offset + 1
    assert any(each.is_rebuilt for each in copied.batches) is (topic != "mixed")


def test_control_batches_and_aborted_records_of_kafka_stay_behind() -> None:
    stored, aborted = segments_of("transactions"), aborted_in("transactions")
    markers = [header for header, _ in stored_batches_of(GOLDEN / "disk/transactions-0") if header.is_control]

    def is_committed(batch: Any, record: Any) -> bool:
        """The transaction of a record ends with the next marker of its producer."""
        if not batch.is_transactional:
            return True
        end = next((marker.base_offset for marker in markers if marker.producer_id == batch.producer_id and marker.base_offset > record.offset), None)
        return not any(each.producer_id == batch.producer_id and each.first_offset <= record.offset < (end or 0) for each in ends[end])

    ends: dict[int | None, list[AbortedProducer]] = {None: []}
    for marker in markers:
        before = max((other.base_offset for other in markers if other.producer_id == marker.producer_id and other.base_offset < marker.base_offset), default=-1)
        ends[marker.base_offset] = [each for each in aborted if each.producer_id == marker.producer_id and before < each.first_offset < marker.base_offset]
    expected = foreign_records(stored, is_committed)
    copied = copy_fetched(stored, Offset(0), aborted)
    assert foreign_records(stamped(copied.batches)) == expected
    assert copied.aborted_records == len(foreign_records(stored)) - len(expected) > 0


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4], ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_stamped_as_kafka_python_writes_it_in_a_transaction(codec: int) -> None:
    def built(is_transactional: bool, producer_id: int, epoch: int, sequence: int) -> bytearray:
        builder = DefaultRecordBatchBuilder(2, codec, is_transactional, producer_id, epoch, sequence, 1 << 20)
        for number in range(40):
            builder.append(number, 1_700_000_000_000 + 7 * number, b"key", b"value " * 30, [("source", b"1"), ("empty", None)])
        return bytearray(builder.build())

    stored = built(False, 12, 3, 99)
    stamp_batch(stored, 0, Offset(5000), LeaderEpoch(8))
    (copied,) = copy_fetched(bytes(stored), Offset(4000), []).batches
    stamp_producer(copied.encoded, *PRODUCER, 1234, True)
    sent = built(True, *PRODUCER, 1234)
    stamp_batch(sent, 0, Offset(0), LeaderEpoch(-1))
    assert copied.encoded == sent
    assert (copied.source_offset, copied.records_count, copied.is_dense, copied.is_rebuilt) == (5000, 40, True, False)


def stored_batch(*values: bytes, base_offset: int = 0, codec: Codec = Codec.NONE, producer_id: int = -1) -> bytearray:
    builder = BatchBuilder(codec)
    for number, value in enumerate(values):
        builder.append(1000 + number, b"k", value)
    encoded = bytearray(builder.build())
    if producer_id >= 0:
        stamp_producer(encoded, ProducerId(producer_id), 0, 0, True)
    stamp_batch(encoded, 0, Offset(base_offset), LeaderEpoch(3))
    return encoded


def values_in(batches: list[CopiedBatch]) -> list[bytes | None]:
    return [each[1] for each in foreign_records(stamped(batches))]


def marker(producer_id: int, offset: int, is_commit: bool) -> bytes:
    batch = build_end_transaction_batch(producer_id, 0, EndTransactionMarker(is_commit, 1), 5)
    stamp_batch(batch, 0, Offset(offset), LeaderEpoch(3))
    return bytes(batch)


def test_a_producer_that_aborted_is_read_again_from_its_next_transaction_on() -> None:
    parts = [stored_batch(b"a", producer_id=5), marker(5, 1, False), stored_batch(b"b", base_offset=2, producer_id=5), marker(5, 3, True)]
    copied = copy_fetched(b"".join(parts), Offset(0), [AbortedProducer(5, 0)])
    assert values_in(copied.batches) == [b"b"] and copied == (copied.batches, 4, 1)


def test_a_position_inside_a_batch_leaves_its_first_records_out() -> None:
    copied = copy_fetched(bytes(stored_batch(b"a", b"b", b"c", base_offset=10, codec=Codec.ZSTD)), Offset(11), [])
    assert values_in(copied.batches) == [b"b", b"c"]
    assert copied.batches[0][0::2] == (11, 2, True) and read_batch_header(copied.batches[0].encoded).codec is Codec.ZSTD


def test_a_batch_that_is_cut_off_is_fetched_again_and_one_without_records_is_passed_over() -> None:
    whole, cut = bytes(gap_batch(7)), bytes(stored_batch(b"a", base_offset=7))
    assert copy_fetched(whole + cut[:-1], Offset(0), []) == ([], 7, 0)


def test_damage_and_old_formats_are_refused() -> None:
    damaged = stored_batch(b"a")
    damaged[-1] ^= 1
    with pytest.raises(ProtocolViolation, match="offset 0 is damaged"):
        copy_fetched(bytes(damaged), Offset(0), [])
    with pytest.raises(ProtocolViolation, match="format 1"):
        copy_fetched(bytes(16) + b"\1" + bytes(80), Offset(0), [])


NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.integers(-2, 3), st.sampled_from([0, 8, 0x10, 0x20, 0x40, 4, 7])), min_size=1, max_size=3))
def test_a_source_that_lies_is_refused_or_copied_and_never_ends_the_mirror(batches: list[tuple[int, int, int, int, int]]) -> None:
    fetched = b""
    for base_offset, base_timestamp, max_timestamp, count, attributes in batches:
        content = stored_batch(b"a", b"b")
        header = read_batch_header(content)._replace(base_timestamp=base_timestamp, max_timestamp=max_timestamp, records_count=count, attributes=attributes)
        header = header._replace(base_offset=Offset(base_offset), last_offset_delta=abs(count))
        front = BATCH_HEADER.pack(*header)
        crc = crc32c(bytes(content[RECORDS_AT:]), crc32c(front[ATTRIBUTES_AT:]))
        fetched += BATCH_HEADER.pack(*header._replace(crc=crc)) + content[RECORDS_AT:]
    try:
        copied = copy_fetched(fetched, Offset(0), [])
    except ProtocolViolation:
        return
    assert 0 <= copied.next_offset < 2**63


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=6), st.sampled_from(list(Codec)), st.booleans(), st.booleans(), st.data())
def test_thinned_and_stamped_batches_keep_what_readers_see(times: list[int], codec: Codec, is_stamped: bool, has_horizon: bool, data: st.DataObject) -> None:
    builder = BatchBuilder(codec)
    for time in times:
        builder.append(time, b"k", b"v%d" % time, [("name", None)])
    batch = bytearray(builder.build())
    if is_stamped:
        stamp_log_append_time(batch, 0, len(batch), 2**41)
    header = read_batch_header(batch)
    body = open_records(header, batch, LIMIT)
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(times))), min_size=1)))
    slices = slice_records(body, header.records_count)
    stored = bytearray(rebuild_batch(header, body, [slices[number] for number in chosen], 77 if has_horizon else None))
    assert bool(read_batch_header(stored).attributes & DELETE_HORIZON_FLAG) is has_horizon
    stamp_batch(stored, 0, Offset(500), LeaderEpoch(3))
    seen = [record[1:] for record in iterate_records(stored, LIMIT)]
    (copied,) = copy_fetched(bytes(stored), Offset(0), []).batches
    stamped([copied])
    found = list(iterate_records(copied.encoded, LIMIT))
    assert [record[1:] for record in found] == seen and [record.offset for record in found] == list(range(len(chosen)))
    assert copied.is_dense is (chosen[-1] - chosen[0] + 1 == len(chosen)) and copied.source_offset == 500 + chosen[0]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2**40), st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]), st.booleans()), max_size=12))
def test_small_neighbours_are_joined_and_their_records_stay_as_they_are(parts: list[tuple[int, int, Codec, bool]]) -> None:
    stored, offset = b"", 100
    for count, time, codec, is_large in parts:
        builder = BatchBuilder(codec)
        for number in range(count):
            builder.append(time - number, b"k%d" % number, bytes(range(256)) * (40 if is_large else 1), [("name", None)])
        batch = bytearray(builder.build())
        stamp_batch(batch, 0, Offset(offset), LeaderEpoch(3))
        stored, offset = stored + batch, offset + count
    copied = copy_fetched(stored, Offset(0), [])
    assert foreign_records(stamped(copied.batches)) == foreign_records(stored)
    assert [each.source_offset for each in copied.batches] == starts_of(copied.batches) and copied.next_offset == (offset if parts else 0)
    assert all(each.is_dense for each in copied.batches)
    headers = [read_batch_header(each.encoded) for each in copied.batches]
    assert [each.max_timestamp for each in headers] == [max(record.timestamp for record in iterate_records(each.encoded, LIMIT)) for each in copied.batches]
    assert len(copied.batches) <= len(parts)


def test_batches_are_joined_with_neighbours_of_their_codec_and_up_to_a_size() -> None:
    def joined(*sizes_and_codecs: tuple[int, Codec]) -> list[int]:
        stored = b"".join(stored_batch(b"x" * size, base_offset=number, codec=codec) for number, (size, codec) in enumerate(sizes_and_codecs))
        return [each.records_count for each in copy_fetched(stored, Offset(0), []).batches]

    small, large, packed = (10, Codec.NONE), (SMALL_BYTES, Codec.NONE), (10, Codec.ZSTD)
    assert joined(small, small, small, large, small, packed, packed, large, large) == [3, 1, 1, 2, 1, 1]
    assert joined(*[(2000, Codec.NONE)] * 40) == [32, 8]


def starts_of(batches: list[CopiedBatch]) -> list[int]:
    """Offsets that follow from the records in front."""
    counts = [each.records_count for each in batches]
    return [100 + sum(counts[:number]) for number in range(len(counts))]


def test_batches_stay_as_they_are_for_a_target_that_takes_no_larger_ones() -> None:
    stored = b"".join(stored_batch(b"x" * 300, base_offset=number) for number in range(10))
    assert [each.records_count for each in copy_fetched(stored, Offset(0), []).batches] == [10]
    apart = copy_fetched(stored, Offset(0), [], joins=False)
    assert ([each.records_count for each in apart.batches], apart.next_offset) == ([1] * 10, 10)


def test_joined_batches_with_a_gap_between_them_are_not_dense() -> None:
    (copied,) = copy_fetched(bytes(stored_batch(b"a") + stored_batch(b"b", base_offset=5)), Offset(0), []).batches
    assert values_in([copied]) == [b"a", b"b"] and (copied.source_offset, copied.records_count, copied.is_dense) == (0, 2, False)


# ---- offsets


def test_offsets_of_a_run_are_translated_exactly_and_others_to_the_run_before() -> None:
    runs = OffsetRuns()
    assert runs.translate(0) is None
    runs.add(100, 7, 10)
    runs.add(110, 17, 5)
    runs.add(120, 23, 5)
    assert list(runs) == [(100, 7, 15), (120, 23, 5)]
    assert [runs.translate(committed) for committed in (99, 100, 114, 115, 119, 120, 124, 125, 900)] == [None, 7, 21, 22, 22, 23, 27, 28, 28]


@settings(max_examples=5)
@given(st.randoms(use_true_random=False), st.integers(0, 2000))
def test_no_record_is_missed_however_many_runs_were_dropped(chance: Random, committed: int) -> None:
    steps = [(chance.randrange(4), chance.randrange(3), chance.randrange(1, 5)) for _ in range(chance.choice([RUNS_MAX, 2 * RUNS_MAX]))]
    runs, source, target = OffsetRuns([(0, 0, 0)]), 0, 0
    there: list[tuple[int, int]] = []
    for source_gap, target_gap, count in steps:
        source, target = source + source_gap, target + target_gap
        runs.add(source, target, count)
        there += [(source + number, target + number) for number in range(count)]
        source, target = source + count, target + count
    assert len(list(runs)) <= RUNS_MAX and len(runs.sample()) <= SAMPLES_MAX
    for known in (runs, OffsetRuns(runs.sample())):
        translated = known.translate(committed)
        assert translated is not None and all(in_target >= translated for in_source, in_target in there if in_source >= committed)


def test_offsets_that_go_back_are_of_another_topic() -> None:
    for source_offset, target_offset in ((5, 90), (90, 5)):
        runs = OffsetRuns([(10, 10, 10)])
        runs.add(source_offset, target_offset, 1)
        assert list(runs) == [(source_offset, target_offset, 1)]
