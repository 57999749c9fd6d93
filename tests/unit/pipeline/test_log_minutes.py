"""Minutes of a log: what is counted, where a record counts whose clock is off, and that nothing is left out. On a batch of records; a stream's is the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from appliance.pipeline.log_minutes import SOURCE_SCHEMA, log_minutes, template_of

pytestmark = pytest.mark.slow

NOON = datetime(2024, 11, 22, 12, 0, 0, tzinfo=UTC)


def record(host: str = "web1", seconds: float = 0, arrived: float | None = None, **fields: Any) -> tuple[Any, ...]:
    value = {"host": host, "app": "nginx", "severity": 6, "message": "served in 12 ms"} | fields
    at = NOON + timedelta(seconds=seconds)
    headers = None if arrived is None else [("arrival_ms", str(int((NOON.timestamp() + arrived) * 1000)).encode())]
    return json.dumps(value).encode(), at, headers


def minutes(spark: SparkSession, records: list[tuple[Any, ...]]) -> list[Row]:
    return log_minutes(spark.createDataFrame(records, SOURCE_SCHEMA)).orderBy("minute", "host").collect()


def test_a_minute_of_a_host_is_counted_by_severity_program_and_message(spark: SparkSession) -> None:
    sent = [record(seconds=second, message=f"served in {second} ms") for second in range(6)]
    sent += [record(seconds=7, severity=3, app="sshd", message="disk d7 is full"), record(seconds=8, severity=2, app="sshd", message="disk d8 is full")]
    sent += [record(seconds=61), record("web2", seconds=1, severity=4)]
    first, other, second = minutes(spark, sent)
    assert (first.host, first.records, first.errors, first.error_rate) == ("web1", 8, 2, 0.25)
    assert (first.info, first.err, first.crit, first.warning, first.no_severity, first.clock_off) == (6, 1, 1, 0, 0, 0)
    assert [tuple(app) for app in first.apps] == [("nginx", 6), ("sshd", 2)]
    assert [tuple(message) for message in first.messages] == [("served in * ms", 6), ("disk * is full", 2)]
    assert (other.host, other.warning) == ("web2", 1)
    assert second.minute - first.minute == timedelta(minutes=1)
    assert str(first.date) == "2024-11-22"


def test_a_record_of_a_sender_whose_clock_is_off_counts_when_it_arrived(spark: SparkSession) -> None:
    sent = [record(seconds=0, arrived=1), record(seconds=-3600, arrived=2), record(seconds=86_000, arrived=3)]
    (only,) = minutes(spark, sent)
    assert (only.records, only.clock_off) == (3, 2)


def test_an_arrival_that_is_none_leaves_the_records_own_time(spark: SparkSession) -> None:
    value = record()[0]
    arrivals = (b"abc", b"", b"-1", b"1" * 15, b"9" * 30, b"\xff", b"1e3", None)
    sent: list[tuple[Any, ...]] = [(value, NOON, [("arrival_ms", arrival)]) for arrival in arrivals]
    sent += [(value, NOON, []), (value, NOON, [("other", b"1")]), (value, NOON, [(None, b"1")])]
    (only,) = minutes(spark, sent)
    assert (only.minute.timestamp(), only.records, only.clock_off) == (NOON.timestamp(), len(sent), 0)


def test_a_time_that_is_still_to_come_counts_at_the_time_of_the_batch(spark: SparkSession) -> None:
    before_ms = int(datetime.now(UTC).timestamp() * 1000) // 60_000 * 60_000
    far_ms = (253_000_000_000_000, 9_223_372_036_854_775)  # in the years 9987 and 294247
    millis = [(record()[0], far, headers) for far in far_ms for headers in (None, [("arrival_ms", b"99999999999999")])]
    millis += [(record()[0], -1, None)]
    frame = spark.createDataFrame(millis, SOURCE_SCHEMA.replace("timestamp timestamp", "timestamp bigint"))
    counted = log_minutes(frame.withColumn("timestamp", f.expr("timestamp_millis(timestamp)"))).orderBy("minute")
    first, *now = counted.withColumn("minute_ms", f.unix_millis("minute")).drop("minute").collect()
    assert (first.minute_ms, first.clock_off) == (0, 0)
    assert sum(row.clock_off for row in now) == 4
    assert all(before_ms <= row.minute_ms <= datetime.now(UTC).timestamp() * 1000 for row in now)


def test_in_a_stream_a_future_time_makes_no_record_late_and_a_replay_uses_the_time_of_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    far = record()[0], datetime(9999, 6, 1, tzinfo=UTC), None
    batches = ([far], [(record("web2")[0], now, None)])
    seen: list[tuple[str, float]] = []

    def take(frame: DataFrame, number: int) -> None:
        rows = frame.select("host", f.unix_millis("minute").alias("ms")).collect()
        seen.extend((row.host, row.ms) for row in rows)

    for batch in batches:
        spark.createDataFrame(batch, SOURCE_SCHEMA).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        records = spark.readStream.schema(SOURCE_SCHEMA).parquet(str(tmp_path / "in"))
        writer = log_minutes(records).writeStream.outputMode("update").foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination(60)
        assert query.exception() is None
        assert sum(int(operator["numRowsDroppedByWatermark"]) for progress in query.recentProgress for operator in progress["stateOperators"]) == 0
    noted = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[1])
    assert seen[0] == ("web1", noted["batchTimestampMs"] // 60_000 * 60_000)
    assert "web2" in [host for host, _ in seen]


def test_what_is_no_syslog_record_counts_too(spark: SparkSession) -> None:
    sent = [(b"not JSON", NOON, None), (None, NOON, None), (b'{"message": null}', NOON, None), (b"\xff\xfe", NOON, None)]
    (only,) = minutes(spark, sent)
    assert (only.host, only.records, only.no_severity) == ("-", 4, 4)
    assert sum(message["count"] for message in only.messages) == 4


def test_a_template_is_the_message_without_words_that_have_digits(spark: SparkSession) -> None:
    messages = ["disk d3 has 12 bad blocks", "port=22 from 10.0.0.1:4711 (id:7f3a)", "nothing to replace"]
    frame = spark.createDataFrame([(text,) for text in messages], "message string").select(template_of(f.col("message")).alias("template"))
    assert [row.template for row in frame.collect()] == ["disk * has * bad blocks", "port=* from *:* (id:*)", "nothing to replace"]
