"""`df.write` and `writeStream` into topics of a running box, read back by librdkafka."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from appliance.base.settings import load_box
from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.command import user
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.topic_offsets import TopicOffsets
from appliance.records.keys import partition_of_key
from lab.certificates import Authority
from lab.committed_reads import read_committed
from lab.running_box import RunningBox, start_box
from lab.spark_session import the_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]

HEADERS = "array<struct<key:string,value:binary>>"


@pytest.fixture(scope="module", autouse=True)
def _millrace_is_known(spark: SparkSession) -> None:
    from appliance.pipeline.data_source import MillraceDataSource

    spark.dataSource.register(MillraceDataSource)


def _topic(box: RunningBox, name: str, partitions: int = 3) -> str:
    with ClusterClient([Address(*box.kafka)]) as cluster:
        create_topic(cluster, name, partitions=partitions)
    return name


def _write(frame: DataFrame, box: RunningBox, **options: str) -> None:
    frame.write.format("millrace").mode("append").option("kafka.bootstrap.servers", box.bootstrap).options(**options).save()


def _values(box: RunningBox, topic: str) -> list[str]:
    return sorted((value or b"").decode() for records in read_committed(box.bootstrap, topic).values() for _, value in records)


def test_each_column_means_what_it_means_to_sparks_kafka_connector(spark: SparkSession, shared_box: RunningBox) -> None:
    first, second = _topic(shared_box, "columns"), _topic(shared_box, "columns-too")
    rows: list[tuple[Any, ...]] = [
        (b"k1", b"by key", None, first, None),
        (b"k1", b"by column", None, first, 2),
        (None, None, [("a", b"1"), ("b", None)], first, 0),
        (None, b"elsewhere", [], second, 1),
    ]
    frame = spark.createDataFrame(rows, f"key binary, value binary, headers {HEADERS}, topic string, partition int").coalesce(1)
    _write(frame.withColumn("offset", frame.partition), shared_box)
    expected: dict[int, list[Any]] = {0: [(None, None)], 1: [], 2: [(b"k1", b"by column")]}
    by_key = partition_of_key(b"k1", 3)
    expected[by_key] = [(b"k1", b"by key"), *expected[by_key]]
    assert read_committed(shared_box.bootstrap, first) == expected
    assert read_committed(shared_box.bootstrap, second) == {0: [], 1: [(None, b"elsewhere")], 2: []}
    consumer = Consumer({"bootstrap.servers": shared_box.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(first, 0, 0)])
    message = consumer.poll(10)
    assert message is not None and message.headers() == [("a", b"1"), ("b", None)]
    consumer.close()


def test_strings_go_as_utf8_and_many_rows_without_a_key_over_all_partitions(spark: SparkSession, shared_box: RunningBox) -> None:
    topic = _topic(shared_box, "many")
    frame = spark.range(20_000).selectExpr("concat('zahl ', id, ' größer') as value")
    _write(frame, shared_box, **{"topic": topic, "kafka.batch.size": "16384", "kafka.compression.type": "lz4"})
    found = read_committed(shared_box.bootstrap, topic)
    assert sorted(value for records in found.values() for _, value in records if value) == sorted(f"zahl {number} größer".encode() for number in range(20_000))
    assert min(map(len, found.values())) > 3_000


@pytest.mark.parametrize(
    ("select", "options", "words"),
    [
        (["id"], {"topic": "t"}, "Required attribute 'value' not found"),
        (["'x' as value", "9 as partition"], {"topic": "few"}, "a row has partition 9; topic 'few' has partitions 0 to 0"),
        (["'x' as value", f"from_json('[{{\"value\":\"eA==\"}}]', '{HEADERS}') as headers"], {"topic": "few"}, "a header without a key"),
    ],
)
def test_what_cannot_be_written_is_said(spark: SparkSession, shared_box: RunningBox, select: list[str], options: dict[str, str], words: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        _write(spark.range(1).selectExpr(*select), shared_box, **options)
    assert words in str(raised.value)


def test_a_cluster_that_is_not_there_is_said_on_the_driver(spark: SparkSession, shared_box: RunningBox) -> None:
    from pyspark.errors import PySparkException

    with socket.create_server(("127.0.0.1", 0)) as nobody, pytest.raises(PySparkException) as raised:
        port = nobody.getsockname()[1]
        nobody.close()
        frame = spark.range(1).selectExpr("'x' as value")
        _write(frame, shared_box, **{"topic": "t", "kafka.bootstrap.servers": f"127.0.0.1:{port}"})
    assert f"127.0.0.1:{port}" in str(raised.value)


def test_topics_are_not_overwritten(spark: SparkSession, shared_box: RunningBox) -> None:
    from pyspark.errors import PySparkException

    frame = spark.range(1).selectExpr("'x' as value")
    with pytest.raises(PySparkException, match="mode 'overwrite' is not possible on topics"):
        frame.write.format("millrace").mode("overwrite").option("kafka.bootstrap.servers", shared_box.bootstrap).option("topic", "t").save()


def _run_query(frame: DataFrame, box: RunningBox, topic: str, checkpoint: Path, **options: str) -> None:
    """All that is there, micro-batch by micro-batch, to the end."""
    query = (
        frame.writeStream.format("millrace")
        .option("kafka.bootstrap.servers", box.bootstrap)
        .options(topic=topic, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def _stream(spark: SparkSession, box: RunningBox, topic: str, records: int) -> DataFrame:
    reader = spark.readStream.format("millrace").option("kafka.bootstrap.servers", box.bootstrap)
    return reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(records)).load()


def _forget_last_commit(checkpoint: Path) -> int:
    """As if Spark had been killed behind the sink's commit and before its own; the batch that it will replay."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


def test_a_replayed_micro_batch_adds_nothing_whatever_its_rows_are(spark: SparkSession, shared_box: RunningBox, tmp_path: Path) -> None:
    source, target = _topic(shared_box, "replay-source", 2), _topic(shared_box, "replay-target", 2)
    _write(spark.range(300).selectExpr("cast(id as string) as value"), shared_box, topic=source)
    stream = _stream(spark, shared_box, source, 100)
    _run_query(stream.selectExpr("concat('first ', cast(value as string)) as value", "key"), shared_box, target, tmp_path)
    once = _values(shared_box, target)
    assert once == sorted(f"first {number}" for number in range(300))
    assert _forget_last_commit(tmp_path) == 2
    _write(spark.range(300, 350).selectExpr("cast(id as string) as value"), shared_box, topic=source)
    replayed = (
        stream.repartition(5).selectExpr("explode(array('again ', 'and again ')) as word", "value").selectExpr("concat(word, cast(value as string)) as value")
    )
    _run_query(replayed, shared_box, target, tmp_path)
    assert Counter(value.rpartition(" ")[0] for value in _values(shared_box, target)) == {"first": 300, "again": 50, "and again": 50}


def test_a_micro_batch_too_large_for_messages_goes_by_way_of_the_spool(spark: SparkSession, shared_box: RunningBox, tmp_path: Path) -> None:
    source, target = _topic(shared_box, "spool-source", 2), _topic(shared_box, "spool-target", 2)
    _write(spark.range(20_000).selectExpr("concat(id, repeat(' x', 150)) as value"), shared_box, topic=source)
    _run_query(_stream(spark, shared_box, source, 20_000).select("value"), shared_box, target, tmp_path)
    assert [int(value.split()[0]) for value in _values(shared_box, target)] == sorted(range(20_000), key=lambda number: f"{number} x")
    spooled = read_committed(shared_box.bootstrap, "millrace-spark-spool")
    assert sum(map(len, spooled.values())) > 10_000
    with TopicOffsets(ClusterAccess((Address(*shared_box.kafka),))) as topics:
        found = topics.topics_like(".*")
    assert target in found and "millrace-spark-spool" not in found, "a reader of everything would read it twice"


def test_a_numbered_batch_write_counts_once(spark: SparkSession, shared_box: RunningBox) -> None:
    target = _topic(shared_box, "numbered", 2)
    for number, words in ((0, "first"), (1, "second"), (1, "second again"), (0, "first again"), (2, "third")):
        frame = spark.range(10).selectExpr(f"'{words}' as value")
        _write(frame, shared_box, topic=target, txnAppId="job's output", txnVersion=str(number))
    assert Counter(_values(shared_box, target)) == {"first": 10, "second": 10, "third": 10}


def test_complete_output_is_appended_batch_by_batch(spark: SparkSession, shared_box: RunningBox, tmp_path: Path) -> None:
    source, target = _topic(shared_box, "complete-source", 1), _topic(shared_box, "complete-target", 1)
    _write(spark.range(4).selectExpr("'x' as value"), shared_box, topic=source)
    counts = _stream(spark, shared_box, source, 2).groupBy("value").count().selectExpr("cast(count as string) as value")
    query = (
        counts.writeStream.format("millrace")
        .outputMode("complete")
        .option("kafka.bootstrap.servers", shared_box.bootstrap)
        .options(topic=target, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert _values(shared_box, target) == ["2", "4"]


# -- TLS and SASL

PASSWORD = "in-no-plan-and-no-log"


@pytest.fixture(scope="module")
def closed_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBox, dict[str, str]]]:
    """A box with a listener that wants TLS and a login, and the options for it."""
    directory = tmp_path_factory.mktemp("closed")
    authority = Authority(directory)
    made = authority.sign("localhost", "IP:127.0.0.1")
    keystore = made.write_keystore(directory / "box.pem")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        "ssl.keystore.location": str(keystore),
    }
    box = start_box(directory / "box", disks=1, settings=settings)
    (directory / "password").write_text(PASSWORD)
    user.add("alice", password_file=str(directory / "password"), bootstrap=box.bootstrap)
    port = next(each.port for each in load_box(box.layout).kafka_listeners if each.name == "SECURE")
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{PASSWORD}";'
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{port}",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.certificate),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": login,
    }
    yield box, options
    box.stop()
    assert box.leftovers() == []


def _shown_by_spark(spark: SparkSession) -> str:
    """What Spark's user interface shows of all queries, and what Spark has logged."""
    store: Any = spark._jsparkSession.sharedState().statusStore()  # noqa: SLF001  there is no other way to the plans that the user interface shows
    executions = store.executionsList()
    shown = [f"{executions.apply(index).description()} {executions.apply(index).details()} {executions.apply(index).physicalPlanDescription()}"
             for index in range(executions.size())]  # fmt: skip
    log = the_spark().log
    return "\n".join([*shown, *([log.read_text(errors="replace")] if log is not None else [])])


def test_tables_and_streams_use_tls_and_a_login_and_spark_shows_no_password(
    spark: SparkSession, closed_box: tuple[RunningBox, dict[str, str]], tmp_path: Path
) -> None:
    box, options = closed_box
    for name in ("closed", "copied"):
        _topic(box, name)
    spark.range(500).selectExpr("string(id) AS value").write.format("millrace").options(**options, topic="closed").mode("append").save()
    frame = spark.read.format("millrace").options(**options, subscribe="closed", **{"millrace.read.path": "fetch"}).load()
    source = spark.readStream.format("millrace").options(**options, subscribe="closed", startingOffsets="earliest", **{"millrace.read.path": "fetch"}).load()
    query = (
        source.select("value").writeStream.format("millrace").options(**options, topic="copied", checkpointLocation=str(tmp_path)).trigger(availableNow=True)
    )
    running = query.start()
    running.processAllAvailable()
    running.awaitTermination(60)
    assert running.exception() is None
    assert sorted(map(int, _values(box, "copied"))) == list(range(500))
    plans: Any = frame._jdf.queryExecution()  # noqa: SLF001
    shown = [plans.toString(), str(running.recentProgress), _shown_by_spark(spark)]
    shown += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    wrong = {**options, "kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace(PASSWORD, f"not-{PASSWORD}")}
    with pytest.raises(Exception, match="refused user 'alice'") as refused:
        spark.read.format("millrace").options(**wrong, subscribe="closed").load().collect()
    shown.append(str(refused.value))
    assert [index for index, text in enumerate([*shown, _shown_by_spark(spark)]) if PASSWORD in text] == []
