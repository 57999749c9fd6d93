"""The decoder by columns: batches that other clients wrote, headers, and what it says of damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from appliance.pipeline.opened_batches import BatchOpener, CorruptRecords
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.record_columns import HEADERS_AT_ONCE_MAX, ColumnDecoder, WantedColumns, look_for_starts, walk
from appliance.pipeline.record_schema import ALL_COLUMNS, COLUMNS, HEADERS_TYPE, RecordBatches, record_schema
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import FrameSplitter, parse_request_header
from appliance.records.compression import Codec
from tests.unit.pipeline.made_batches import fast_records, made, made_of, slow_records, stamped, stored
from tests.unit.protocol.sample_requests import DECODERS

GOLDEN = Path(__file__).parents[2] / "golden"
CLIENTS = ("librdkafka", "kafka-python", "aiokafka", "kafka-clients", "kafkajs")
PRODUCES = sorted(path for client in CLIENTS for path in (GOLDEN / client).glob("*Produce*.hex"))


def test_batches_of_every_client_and_codec_are_among_the_golden_frames() -> None:
    for client in CLIENTS:
        codecs = {codec for codec in Codec for path in PRODUCES if path.parent.name == client and codec.name.lower() in path.stem}
        assert codecs == set(Codec), client


@pytest.mark.parametrize("path", PRODUCES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_batch_of_a_client_is_read_as_the_slow_reader_reads_it(path: Path) -> None:
    (request,) = FrameSplitter(1 << 20).feed(bytes.fromhex(path.read_text()))
    header = parse_request_header(request, 0, len(request))
    body = DECODERS[ApiKey(header.api_key)](memoryview(request), header.body_position, len(request), header.api_version)
    (part,) = body.partitions
    if request[part.records_position + 16] != 2:
        pytest.skip("a message set, which an acceptor converts before it is stored")
    batch = stamped(bytes(request[part.records_position : part.records_position + part.records_size]), 1000)
    found = fast_records(batch)
    assert found == slow_records(batch)
    assert [record.offset for record in found] == list(range(1000, 1000 + len(found))) and found


def test_headers_of_any_number_and_name_are_read_as_the_slow_reader_reads_them() -> None:
    counts = (0, 3, 1, 0, 2, HEADERS_AT_ONCE_MAX, 0)
    records = [
        (number, None, b"v" * number, tuple((f"h{each}", None if each % 3 == 2 else b"x" * each) for each in range(count)))
        for number, count in enumerate(counts)
    ]
    regular = made_of(0, records)
    many = made_of(7, [(1, None, b"v", tuple((f"h{each}", b"") for each in range(HEADERS_AT_ONCE_MAX + 1))), (2, None, b"v", ())])
    not_utf_8 = made_of(9, [(1, None, b"v", bytes([2, 2, 0xFF, 1])), (2, None, b"v", (("ok", b"1"),))])
    for log in (regular, many, not_utf_8, regular + many + not_utf_8):
        assert fast_records(log) == slow_records(log)
    assert [len(record.headers) for record in fast_records(regular)] == list(counts)
    longer = bytes([4, 2, 0x61, 2, 0x62, 2, 0x61, 60, 0x62])
    for damaged in (longer, bytes([2, 1, 1]), bytes([2, 2, 0x61, 1, 0])):  # beyond its record; without a name; with something behind
        with pytest.raises(CorruptRecords):
            fast_records(made_of(0, [(1, None, b"v" * 100, damaged), (2, None, b"w" * 100, ())]))


def test_unrequested_columns_are_not_decoded() -> None:
    batch = made(0, [b"a", b"b"])
    (columns,) = ColumnDecoder(WantedColumns(keys=False, values=True, headers=False)).decode(memoryview(batch), stored(batch), 0, 10)
    assert (columns.keys, columns.headers) == (None, None)
    assert columns.values.to_pylist() == [b"a", b"b"]


def test_neighbours_without_compression_become_one_piece_and_others_pieces_of_their_own() -> None:
    log = made(0, [b"a"]) + made(1, [b"b"]) + made(2, [b"c"], Codec.LZ4) + made(3, [b"d"], Codec.LZ4) + made(4, [b"e"])
    assert [len(columns.offsets) for columns in ColumnDecoder().decode(memoryview(log), stored(log), 0, 10)] == [2, 2, 1]


def test_beginnings_are_found_at_once_where_that_is_proof_and_walked_to_elsewhere() -> None:
    lines = made(0, [b"line %d " % number * (number % 40 + 9) for number in range(500)])
    short, binary, huge = made(500, [b"ok"] * 20), made(520, [bytes(100)] * 20), made(540, [b"x" * 9000] * 3)
    with_headers = made_of(543, [(7, b"", b"y" * 100, (("h", None),)), (7, None, None, ())])
    for log, at_once in ((lines, True), (lines + made(500, [b"z" * 70] * 50), True), (short, False), (binary, False), (huge, False), (with_headers, False)):
        (opened,) = BatchOpener().open(memoryview(log), stored(log))
        data = np.frombuffer(log, np.uint8, opened.ends[-1] - opened.positions[0], opened.positions[0])
        found = look_for_starts(opened, data)
        assert (found is not None) is at_once
        assert found is None or found.tolist() == walk(opened)
        assert fast_records(log) == slow_records(log)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_does_not_hold_together_is_named_by_its_offset(codec: Codec) -> None:
    good, other = made(10, [b"good"] * 3, codec), bytearray(made(13, [b"bad"] * 3, codec))
    other[57:61] = (4).to_bytes(4, "big")
    log = good + stamped(bytes(other), 13) + made(16, [b"good"], codec)
    with pytest.raises(CorruptRecords) as refused:
        ColumnDecoder().decode(memoryview(log), stored(log), 0, 100)
    assert refused.value.base_offset == 13


def test_the_error_names_an_unknown_codec() -> None:
    with pytest.raises(CorruptRecords, match="codec 7 is unknown"):
        fast_records(stamped(made(0, [b"x"]), 0, attributes=7))


def test_a_record_batch_has_the_columns_that_were_asked_for_in_that_order() -> None:
    log = made_of(5, [(1234, b"k", b"v", (("h", b"1"), ("h", None))), (1235, None, None, ())])
    maker = RecordBatches("syslog", 3, ("value", "offset", "headers", "topic", "partition", "key", "timestampType", "timestamp"))
    (columns,) = ColumnDecoder(maker.wanted).decode(memoryview(log), stored(log), 0, 10)
    batch = maker.make(columns)
    assert batch.schema == record_schema(batch.schema.names)
    assert batch.to_pydict() == {
        "value": [b"v", None],
        "offset": [5, 6],
        "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
        "topic": ["syslog"] * 2,
        "partition": [3] * 2,
        "key": [b"k", None],
        "timestampType": [0, 0],
        "timestamp": pa.array([1_234_000, 1_235_000], pa.timestamp("us", "UTC")).to_pylist(),
    }


def test_a_time_that_is_too_large_for_spark_is_held_to_the_largest() -> None:
    log = made_of(0, [(2**63 - 1, None, b"late", ()), (-1, None, b"none", ())])
    maker = RecordBatches("t", 0, ("timestamp",))
    (columns,) = ColumnDecoder().decode(memoryview(log), stored(log), 0, 10)
    assert maker.make(columns).column(0).cast(pa.int64()).to_pylist() == [(2**63 - 1) // 1000 * 1000, -1000]


def test_a_column_that_there_is_not_is_named() -> None:
    with pytest.raises(SourceProblem, match="no column 'body'"):
        record_schema(["value", "body"])


def test_the_schema_is_sparks_own_translation_of_the_connectors() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    types = (BinaryType(), BinaryType(), StringType(), IntegerType(), LongType(), TimestampType(), IntegerType(), headers)
    struct = StructType([StructField(name, kind) for name, kind in zip(ALL_COLUMNS, types, strict=True)])
    assert to_arrow_schema(struct, timezone="UTC").equals(record_schema(ALL_COLUMNS))
    assert record_schema(COLUMNS).names == list(ALL_COLUMNS[:-1]) and HEADERS_TYPE == record_schema(["headers"]).field(0).type
