"""The job that test_spark_cluster.py submits: a topic is read as a batch, with a check of which processes read it, copied as a stream,
and loaded into a table. Prints one line of JSON."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext

from pyspark.sql import SparkSession

from pyspark_millrace import DefaultSource


def who_reads(rows: Iterable[object]) -> Iterator[tuple[int, str, str, bool]]:
    from appliance.pipeline.cluster_access import __file__ as source
    from appliance.runtime.running_boxes import find_box

    yield sum(1 for _ in rows), os.environ.get("SPARK_EXECUTOR_DIRS", ""), source, find_box(None) is None


def load(spark: SparkSession, bootstrap: str, topic: str, table: str) -> None:
    from appliance.base.clock import SystemClock
    from appliance.client.address import parse_addresses
    from appliance.pipeline.cluster_access import ClusterAccess
    from appliance.pipeline.load_run import LoadOrder, load_directory
    from appliance.pipeline.load_survey import LoadRequest
    from appliance.pipeline.load_task import SparkTasks
    from appliance.pipeline.loader import LoadRules

    order = LoadOrder([topic], table, ClusterAccess(tuple(parse_addresses(bootstrap)), read_committed=True), LoadRequest("raw"), LoadRules())
    load_directory(order, "cluster", SystemClock(), lambda: nullcontext(SparkTasks(spark.sparkContext)), lambda done: None)


def main(bootstrap: str, source: str, target: str, checkpoint: str, table: str) -> None:
    spark = SparkSession.builder.appName("copy").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DefaultSource)
    records = spark.read.format("millrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source).load()
    readers = records.select("value").rdd.mapPartitions(who_reads).collect()
    stream = spark.readStream.format("millrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source).option("startingOffsets", "earliest")
    query = stream.load().select("key", "value").writeStream.format("millrace").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    load(spark, bootstrap, source, table)
    print(json.dumps({
        "rows": sum(count for count, _, _, _ in readers),
        "executors": len({work for _, work, _, _ in readers}),
        "sources": sorted({path for _, _, path, _ in readers}),
        "no box here": all(blind for _, _, _, blind in readers),
    }))  # fmt: skip
    spark.stop()


main(*sys.argv[1:])
