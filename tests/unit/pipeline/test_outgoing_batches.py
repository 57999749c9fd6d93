from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client.fetch import read_fetched
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.outgoing_batches import OutgoingBatches, TopicBatch
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.sink_options import SinkOptions
from appliance.records.compression import Codec
from appliance.records.record import Record
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker

pa = pytest.importorskip("pyarrow")

NOW_MS = 1_700_000_000_123
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TYPES = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS, "topic": pa.string(), "partition": pa.int32()}


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker(partitions=3)
    yield made
    made.close()


def encode(broker: FakeKafkaBroker, columns: dict[str, list[Any]], task: int = 0, types: dict[str, Any] = TYPES, **options: Any) -> list[TopicBatch]:
    chosen = SinkOptions(ClusterAccess(()), topic=None if "topic" in columns else TOPIC, columns=tuple(columns))._replace(**options)
    outgoing = OutgoingBatches(broker.cluster(), chosen, task, lambda: NOW_MS)
    rows = pa.record_batch([pa.array(values, types[name]) for name, values in columns.items()], names=list(columns))
    batches = [*outgoing.encode(rows), *outgoing.rest()]
    assert outgoing.records_count == sum(batch.records_count for batch in batches) == rows.num_rows
    return batches


def records_in(batches: list[TopicBatch]) -> list[tuple[int, Record]]:
    return [(batch.partition, record) for batch in batches for record in read_fetched(batch.encoded, 0).records]


def test_rows_become_records_with_key_value_headers_and_the_time_of_now(broker: FakeKafkaBroker) -> None:
    columns = {"key": [b"k", None], "value": [b"v", None], "headers": [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None], "partition": [2, 2]}
    (first_partition, first), (_, second) = records_in(encode(broker, columns))
    assert (first_partition, first) == (2, Record(0, NOW_MS, b"k", b"v", (("a", b"1"), ("b", None))))
    assert second == Record(1, NOW_MS, None, None, ())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_is_encoded_as_utf8(broker: FakeKafkaBroker, kind: Any) -> None:
    found = records_in(encode(broker, {"value": ["größer", None]}, types={"value": kind}))
    assert [record.value for _, record in found] == ["größer".encode(), None]


def test_rows_without_a_key_fill_one_partition_after_the_other_and_tasks_begin_apart(broker: FakeKafkaBroker) -> None:
    for task in range(3):
        batches = encode(broker, {"value": [b"%03d" % number + bytes(97) for number in range(60)]}, task=task, batch_bytes=1_500)
        assert [batch.partition for batch in batches[:4]] == [task, (task + 1) % 3, (task + 2) % 3, task]
        assert sorted((record.value or b"")[:3] for _, record in records_in(batches)) == [b"%03d" % number for number in range(60)]
        assert max(len(batch.encoded) for batch in batches) <= 1_500


def test_a_row_larger_than_a_batch_travels_alone(broker: FakeKafkaBroker) -> None:
    batches = encode(broker, {"value": [b"small", bytes(5_000), b"small too"], "partition": [1, 1, 1]}, batch_bytes=1_000)
    assert [batch.records_count for batch in batches] == [1, 1, 1]


def test_order_within_a_partition_is_that_of_the_rows(broker: FakeKafkaBroker) -> None:
    values = [b"%d" % number for number in range(2_000)]
    found = records_in(encode(broker, {"key": [value[-2:] for value in values], "value": values}, batch_bytes=700, codec=Codec.LZ4))
    for partition in range(3):
        numbers = [int(record.value or b"") for number, record in found if number == partition]
        assert numbers == sorted(numbers) and numbers


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": [b"v"], "topic": [None]}, "null topic present in the data"),
        ({"value": [b"v"], "partition": [3]}, "a row has partition 3; topic 'numbers' has partitions 0 to 2"),
        ({"value": [b"v"], "partition": [-1]}, "a row has partition -1"),
        ({"value": [b"v"], "headers": [[{"key": None, "value": b"x"}]]}, "a header without a key"),
    ],
)
def test_a_row_that_cannot_go_anywhere_is_an_error(broker: FakeKafkaBroker, columns: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(SourceProblem, match=words):
        encode(broker, columns)


def test_a_topic_that_is_not_there_may_be_created(broker: FakeKafkaBroker) -> None:
    encode(broker, {"value": [b"v"]})
    asked = [request for name, request in broker.requests if name == "metadata" and request.topics]
    assert asked and all(request.allow_auto_topic_creation for request in asked)


def test_no_batch_is_larger_than_its_topic_takes(broker: FakeKafkaBroker) -> None:
    broker.settings["max.message.bytes"] = "1500"
    batches = encode(broker, {"value": [bytes(400)] * 9, "partition": [0] * 9})
    assert max(len(batch.encoded) for batch in batches) <= 1500 and len(batches) == 3
