"""Batches built here and read by other people's libraries, and the other way round, in every codec."""

from __future__ import annotations

import io
import warnings
from datetime import UTC, datetime
from typing import Any

import pytest
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_new_batch

from appliance.records.batch import batch_problem
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.record import Record, iterate_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib.resources, in kafka-python's own modules
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

LIMIT = 10_000_000
RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value", (("source", b"10.0.0.1"), ("nothing", None), ("ünïcode", b""))),
    Record(1, 1_699_999_990_000, None, b"older than the first"),
    Record(2, 1_700_000_000_001, b"", None),
    Record(3, 1_800_000_000_000, b"k" * 200, b"v" * 100_000),
]
NEEDED = {Codec.SNAPPY: "snappy", Codec.LZ4: "lz4.frame", Codec.ZSTD: "zstandard"}


def ours(codec: Codec) -> bytes:
    builder = BatchBuilder(codec)
    for record in RECORDS:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build()


def needs(codec: Codec) -> None:
    if codec in NEEDED:
        pytest.importorskip(NEEDED[codec])


@pytest.mark.parametrize("codec", list(Codec))
def test_kafka_python_reads_our_batches(codec: Codec) -> None:
    needs(codec)
    raw = ours(codec)
    assert MemoryRecords(raw).next_batch().validate_crc()
    batch = MemoryRecords(raw).next_batch()
    theirs = [Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in batch]
    assert theirs == RECORDS
    assert batch.compression_type == codec


@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_kafka_pythons_batches(codec: Codec) -> None:
    needs(codec)
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=LIMIT)
    for record in RECORDS:
        builder.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=list(record.headers))
    builder.close()
    raw = bytes(builder.buffer())
    assert batch_problem(raw, 0, len(raw), LIMIT) is None
    assert list(iterate_records(raw, LIMIT)) == RECORDS


def test_kio_reads_our_batches() -> None:
    batch: Any = read_batch(ours(Codec.NONE), 0)[0]
    assert [(each.offset, each.key, each.value) for each in batch.records] == [(each.offset, each.key, each.value) for each in RECORDS]


def test_we_read_kios_batches() -> None:
    sent: Any = [
        KioRecord(
            attributes=0,
            timestamp=datetime.fromtimestamp(record.timestamp / 1000, UTC),
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=tuple(RecordHeader(key=name.encode(), value=value) for name, value in record.headers),
        )
        for record in RECORDS
    ]
    buffer = io.BytesIO()
    new: Any = NewRecordBatch(producer_id=-1, producer_epoch=-1, base_sequence=-1, attributes=0, records=tuple(sent))
    write_new_batch(buffer, new)
    raw = buffer.getvalue()
    assert batch_problem(raw, 0, len(raw), LIMIT) is None
    assert [each[2:] for each in iterate_records(raw, LIMIT)] == [each[2:] for each in RECORDS]
