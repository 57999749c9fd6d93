"""Message sets against kafka-python's and aiokafka's own builders and readers, and against bytes that lie."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.errors import RequestRefused
from appliance.records.batch import batch_problem, read_batch_header, stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.conversion import convert_down, convert_up
from appliance.records.legacy import build_message_set, read_message_set
from appliance.records.record import iterate_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib.resources, in kafka-python's own modules
    from kafka.record.legacy_records import LegacyRecordBatch as KafkaPythonSet
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonBuilder

aiokafka_records = pytest.importorskip("aiokafka.record.legacy_records")
KAFKA_PYTHON, AIOKAFKA = "kafka-python", "aiokafka"
READERS: dict[str, Callable[[bytes, int], Any]] = {KAFKA_PYTHON: KafkaPythonSet, AIOKAFKA: aiokafka_records.LegacyRecordBatch}
BUILDERS: dict[str, Callable[[int, int, int], Any]] = {KAFKA_PYTHON: KafkaPythonBuilder, AIOKAFKA: aiokafka_records.LegacyRecordBatchBuilder}

LIMIT = 1_000_000
TIMES = st.integers(0, 2**52)
FIELDS = st.none() | st.binary(max_size=300)
RECORDS = st.lists(st.tuples(TIMES, FIELDS, FIELDS), min_size=1, max_size=20)
FORMATS = st.sampled_from([(magic, codec) for magic in (0, 1) for codec in Codec if codec < Codec.ZSTD and (magic or codec != Codec.LZ4)])
"""Neither client does the lz4 of magic 0; librdkafka does (`tests/golden`, `tests/system/test_old_clients.py`)."""

Fields = tuple[int, bytes | None, bytes | None]


def read_by(client: str, message_set: bytes, magic: int) -> list[tuple[int, int | None, bytes | None, bytes | None]]:
    found, position = [], 0
    while position < len(message_set):
        (size,) = struct.unpack_from(">i", message_set, position + 8)
        entry = READERS[client](message_set[position : position + 12 + size], magic)
        assert entry.validate_crc()
        found += [(record.offset, record.timestamp if magic else -1, record.key, record.value) for record in entry]
        position += 12 + size
    return found


@pytest.mark.parametrize("client", READERS)
@given(records=RECORDS, kind=FORMATS, data=st.data())
def test_a_client_reads_what_stored_batches_become(client: str, records: list[Fields], kind: tuple[int, Codec], data: st.DataObject) -> None:
    magic, codec = kind
    base_offset = data.draw(st.integers(1, 2**40))
    fetch_offset = base_offset + data.draw(st.integers(0, len(records) - 1))
    builder = BatchBuilder(codec)
    for record in records:
        builder.append(*record, (("name", b"value"),))
    batch = bytearray(builder.build())
    stamp_batch(batch, 0, base_offset, 1)

    sets = convert_down(batch, magic, fetch_offset, LIMIT)

    expected = [(base_offset + i, timestamp if magic else -1, key, value) for i, (timestamp, key, value) in enumerate(records)]
    assert read_by(client, sets, magic) == expected[fetch_offset - base_offset :]


@pytest.mark.parametrize("client", BUILDERS)
@given(records=RECORDS, kind=FORMATS)
def test_what_a_client_sends_becomes_one_batch_with_the_same_records(client: str, records: list[Fields], kind: tuple[int, Codec]) -> None:
    magic, codec = kind
    builder = BUILDERS[client](magic, int(codec), LIMIT)
    for offset, (timestamp, key, value) in enumerate(records):
        builder.append(offset, timestamp, key, value)
    sent = bytes(builder.build())

    batch = convert_up(sent, 0, len(sent), LIMIT, False)

    assert batch_problem(batch, 0, len(batch), LIMIT) is None
    assert read_batch_header(batch).codec is codec
    assert [each[1:] for each in iterate_records(batch, LIMIT)] == [(timestamp if magic else -1, key, value, ()) for timestamp, key, value in records]


@given(RECORDS, st.sampled_from([0, 1]), st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]), st.booleans())
def test_our_own_sets_come_back(records: list[Fields], magic: int, codec: Codec, uses_log_append_time: bool) -> None:
    if uses_log_append_time:
        records = [(records[0][0], key, value) for _, key, value in records]
    numbered = [(7 + offset, *record) for offset, record in enumerate(records)]
    built = build_message_set(magic, codec, uses_log_append_time, numbered)
    found_codec, messages, says_append_time = read_message_set(built, 0, len(built), LIMIT)
    assert (found_codec, says_append_time) == (codec, uses_log_append_time and magic == 1)
    assert [(m.offset, m.timestamp, m.key, m.value) for m in messages] == [(o, t if magic else -1, k, v) for o, t, k, v in numbered]


@given(st.binary(max_size=400), st.integers(0, 20), st.integers(0, 20))
def test_any_bytes_become_a_batch_or_a_refusal(noise: bytes, before: int, behind: int) -> None:
    buffer = b"\x55" * before + noise + b"\xaa" * behind
    try:
        batch = convert_up(buffer, before, before + len(noise), LIMIT, False)
    except RequestRefused:
        return
    assert not batch or batch_problem(batch, 0, len(batch), LIMIT) is None


@given(RECORDS, st.sampled_from([0, 1]), st.data())
def test_a_damaged_byte_never_becomes_another_record(records: list[Fields], magic: int, data: st.DataObject) -> None:
    """A set without its last messages is what Kafka makes of a size that lies towards the end; anything else is refused."""
    built = bytearray(build_message_set(magic, Codec.NONE, False, [(offset, *record) for offset, record in enumerate(records)]))
    sent = [(timestamp if magic else -1, key, value) for timestamp, key, value in records]
    at = data.draw(st.integers(0, len(built) - 1))
    built[at] ^= data.draw(st.integers(1, 255))
    try:
        _, messages, _ = read_message_set(bytes(built), 0, len(built), LIMIT)
    except RequestRefused:
        return
    assert [(message.timestamp, message.key, message.value) for message in messages] == sent[: len(messages)]
