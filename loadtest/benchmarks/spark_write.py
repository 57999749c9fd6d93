"""Spark into topics: a batch job's records by the second, and what a streaming query's micro-batch costs from its rows to its transaction's end.

Spark runs in this process with `local[CORES]`. Its start and its workers' imports are not measured: a small write comes first.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, STREAM_TOPIC, WARM_UP_TOPIC = "bench", "streamed", "warm-up"
WARM_UP_RECORDS = 20_000
MB = 1e6


@dataclass(frozen=True)
class SparkWrite(Benchmark):
    name: ClassVar[str] = "spark_write"
    title: ClassVar[str] = "Rows of 200 B into 4 partitions by df.write, Spark local[2]; then micro-batches of 100 rows by writeStream, each a transaction."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("records", "/s"),
        Figure("record bytes", "MB/s"),
        Figure("acceptor CPU", "% of a core"),
        Figure("micro-batch", "ms"),
        Figure("of it: rows to transaction", "ms"),
    )
    short: ClassVar[dict[str, Any]] = {"records": 200_000, "micro_batches": 10}

    records: int = 2_000_000
    value_bytes: int = 200
    partitions: int = 4
    cores: int = 2
    micro_batches: int = 40
    codec: str = "none"

    @property
    def written_bytes(self) -> int:
        return self.records * self.value_bytes

    def missing(self) -> str | None:
        from lab.spark_session import why_no_spark

        return why_no_spark() or None

    def run(self, box: RunningBox, say: Say) -> Run:
        from appliance.pipeline.data_source import MillraceDataSource
        from appliance.pipeline.spark_session import SessionOptions, start_spark

        for topic in (TOPIC, STREAM_TOPIC, WARM_UP_TOPIC):
            make_topic(box, topic, self.partitions)
        scratch = Path(tempfile.mkdtemp(prefix="write-", dir=box.directory))
        try:
            with start_spark(SessionOptions("spark_write", f"local[{self.cores}]", log=scratch / "spark.log")) as spark:
                spark.session.dataSource.register(MillraceDataSource)
                self._write(box, spark.session, WARM_UP_TOPIC, WARM_UP_RECORDS)
                say(f"Spark writes {self.records:,} records")
                observer = Observer(box.pids())
                seconds = self._write(box, spark.session, TOPIC, self.records)
                observation = observer.finish({})
                say(f"then {self.micro_batches} micro-batches")
                durations = self._stream(box, spark.session, scratch)
        finally:
            shutil.rmtree(scratch)
        if (stored := count_records(box, TOPIC)) != self.records:
            raise BenchmarkFailed(f"Spark wrote {self.records:,} records, the logs hold {stored:,}")
        figures = {
            "records": self.records / seconds,
            "record bytes": self.records * self.value_bytes / MB / seconds,
            "acceptor CPU": 100 * observation.role("acceptor") / observation.seconds,
            "micro-batch": statistics.median(each["triggerExecution"] for each in durations),
            "of it: rows to transaction": statistics.median(each["addBatch"] for each in durations),
        }
        return Run(figures, observation, ["record bytes are those of the values; micro-batches are medians, as Spark reports them"])

    def _write(self, box: RunningBox, session: SparkSession, topic: str, records: int) -> float:
        frame = session.range(records, numPartitions=self.cores).selectExpr(f"lpad(cast(id as string), {self.value_bytes}, 'x') as value")
        started = time.monotonic()
        options = {"kafka.bootstrap.servers": box.bootstrap, "topic": topic, "kafka.compression.type": self.codec}
        frame.write.format("millrace").mode("append").options(**options).save()
        return time.monotonic() - started

    def _stream(self, box: RunningBox, session: SparkSession, scratch: Path) -> list[dict[str, int]]:
        """Durations of each micro-batch but the first ones, which import."""
        frame: DataFrame = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", self.cores).load()
        options = {"kafka.bootstrap.servers": box.bootstrap, "topic": STREAM_TOPIC, "checkpointLocation": str(scratch / "checkpoint")}
        query = frame.selectExpr("cast(value as string) as value").writeStream.format("millrace").options(**options).trigger(processingTime="0 seconds").start()
        try:
            while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < self.micro_batches + 2):
                time.sleep(0.1)
            if not query.isActive:
                raise BenchmarkFailed(f"the query ended: {query.exception()}")
            return [dict(progress["durationMs"]) for progress in query.recentProgress if progress["numInputRows"] and progress["batchId"] > 2]
        finally:
            query.stop()
