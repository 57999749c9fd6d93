"""`format("millrace")` in a real Spark on a real box: batches and streams, by both paths; what is wrong is said on the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from appliance.base.model import Offset, TopicPartition
from appliance.client.address import parse_addresses
from appliance.client.admin import create_topic, delete_records
from appliance.client.cluster import ClusterClient
from lab.running_box import RunningBox

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]

TOPIC, PARTITIONS, RECORDS = "lines", 3, 3000


@pytest.fixture(scope="module")
def box(shared_box: RunningBox) -> Iterator[RunningBox]:
    """With a topic of three partitions: value n in partition n % 3."""
    with ClusterClient(parse_addresses(shared_box.bootstrap)) as cluster:
        create_topic(cluster, TOPIC, partitions=PARTITIONS)
    write(shared_box, TOPIC, range(RECORDS))
    yield shared_box


def write(box: RunningBox, topic: str, numbers: range, partitions: int = PARTITIONS) -> None:
    producer = Producer({"bootstrap.servers": box.bootstrap, "compression.type": "lz4", "linger.ms": 5})
    for number in numbers:
        producer.produce(topic, value=b"%d" % number, key=b"k%d" % number, partition=number % partitions, timestamp=1_700_000_000_000 + number)
    assert producer.flush(60) == 0


def reader(entry: Any, box: RunningBox, **options: str) -> Any:
    """`spark.read` or `spark.readStream` with what every query needs; a dot of an option's name is written `__`."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    if not {"subscribe", "subscribePattern", "assign"} & named.keys():
        named["subscribe"] = TOPIC
    return entry.format("millrace").options(**{"kafka.bootstrap.servers": box.bootstrap, **named})


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in frame.select("value").collect())


def fetches(box: RunningBox) -> int:
    return sum(value for name, value in box.counters("acceptor@0").values.items() if name.startswith("fetch.requests"))


@pytest.mark.parametrize("path", ["segments", "fetch"])
def test_a_batch_has_every_record_once_whichever_way_it_is_split(spark: SparkSession, box: RunningBox, path: str) -> None:
    before = fetches(box)
    frame = reader(spark.read, box, millrace__read__path=path, includeHeaders="true", minPartitions="5").load()
    assert frame.rdd.getNumPartitions() >= 5
    rows = frame.collect()
    assert (fetches(box) > before) is (path == "fetch"), "no broker is asked for records that lie here"
    assert sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in rows) == sorted(
        (number % PARTITIONS, number // PARTITIONS, b"k%d" % number, b"%d" % number) for number in range(RECORDS)
    )
    assert {row["topic"] for row in rows} == {TOPIC} and {row["headers"] for row in rows} == {None}
    assert all(row["timestamp"].timestamp() == 1_700_000_000 + int(row["value"]) / 1000 for row in rows)


def test_part_of_a_topic_is_read_by_partition_offset_and_time(spark: SparkSession, box: RunningBox) -> None:
    given = {"assign": '{"lines":[0,2]}', "startingOffsets": '{"lines":{"0":10,"2":-2}}', "endingOffsets": '{"lines":{"0":12,"2":1}}'}
    assert numbers(reader(spark.read, box, **given).load()) == [2, 30, 33]
    found = reader(spark.read, box, startingTimestamp=str(1_700_000_002_990), endingTimestamp=str(1_700_000_002_996)).schema("value binary").load()
    assert numbers(found) == list(range(2990, 2996))
    assert reader(spark.read, box, subscribePattern="no-such-.*").load().count() == 0


def test_retention_that_was_faster_is_an_error_on_the_driver_or_borne(spark: SparkSession, box: RunningBox) -> None:
    with ClusterClient(parse_addresses(box.bootstrap)) as cluster:
        create_topic(cluster, "trimmed", partitions=1)
        write(box, "trimmed", range(100), 1)
        assert delete_records(cluster, {TopicPartition("trimmed", 0): Offset(60)}) == {}
    given = {"subscribe": "trimmed", "startingOffsets": '{"trimmed":{"0":50}}'}
    assert "offsets 50 to 59 of trimmed-0 cannot be read any more: the log begins at offset 60" in refusal(reader(spark.read, box, **given))
    assert numbers(reader(spark.read, box, **given, failOnDataLoss="false").load()) == list(range(60, 100))


def refusal(query: Any) -> str:
    """What Spark says on the driver before any task runs."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as refused:
        query.load().count()
    return str(refused.value)


def test_what_is_wrong_is_said_on_the_driver(spark: SparkSession, box: RunningBox) -> None:
    assert "there is no topic 'nowhere' in the cluster at" in refusal(reader(spark.read, box, subscribe="nowhere"))
    assert "only one of the options" in refusal(reader(spark.read, box, subscribe=TOPIC, assign='{"lines":[0]}'))
    assert "'endingOffsets' asks for offset 5000 of lines-0, beyond the end" in refusal(
        reader(spark.read, box, endingOffsets='{"lines":{"0":5000,"1":-1,"2":-1}}')
    )
    assert "no partition 7; it has 3" in refusal(reader(spark.read, box, assign='{"lines":[7]}'))
    assert "no column 'body'" in refusal(reader(spark.read, box).schema("body binary"))
    assert "could not be asked: no broker at" in refusal(reader(spark.read, box, kafka__bootstrap__servers="127.0.0.1:1"))


def test_a_stream_takes_every_record_once_over_restarts(spark: SparkSession, box: RunningBox, tmp_path: Path) -> None:
    with ClusterClient(parse_addresses(box.bootstrap)) as cluster:
        create_topic(cluster, "streamed", partitions=2)
        write(box, "streamed", range(1000), 2)
        options = {"subscribe": "streamed", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "600"}
        assert _stream(spark, box, tmp_path, options) == [600, 400]
        assert _stream(spark, box, tmp_path, options) == []
        write(box, "streamed", range(1000, 1500), 2)
        assert _stream(spark, box, tmp_path, {**options, "millrace__read__path": "fetch"}) == [500]
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(1500))
    offsets = json.loads(sorted((tmp_path / "checkpoint/offsets").glob("[0-9]*"), key=lambda file: int(file.name))[-1].read_text().splitlines()[-1])
    assert offsets == {"streamed": {"0": 750, "1": 750}}, "the checkpoint is written as the Kafka connector writes it"


def _stream(spark: SparkSession, box: RunningBox, directory: Path, options: dict[str, str]) -> list[int]:
    """Rows of each micro-batch of a query that takes what is there now."""
    frame = reader(spark.readStream, box, **options).load().select("value")
    paths = {"path": str(directory / "out"), "checkpointLocation": str(directory / "checkpoint")}
    query = frame.writeStream.format("parquet").options(**paths).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
