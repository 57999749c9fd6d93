"""What a micro-batch costs beside its records: a stream of few records, batch after batch as fast as Spark goes.

Three queries in one session, each over a trickle: to nowhere (the source and Spark's own accounting), by `millrace stream` with a job that changes nothing, and
with its minutes of a log (a state store besides). The first batches, which compile and start workers, are not measured.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from confluent_kafka import Producer

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.observation import Observer
from loadtest.topics import make_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "trickle"
WARM_UP_BATCHES = 12
SECONDS_MAX = 120


@dataclass(frozen=True)
class SparkMicroBatches(Benchmark):
    name: ClassVar[str] = "spark_micro_batches"
    title: ClassVar[str] = "A micro-batch of Spark local[2] with a few records of 2 partitions: milliseconds from trigger to commit, median."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("micro-batch", "ms", at_most=250.0),
        Figure("micro-batch into Parquet", "ms"),
        Figure("micro-batch of minutes of a log", "ms"),
    )
    short: ClassVar[dict[str, Any]] = {"batches": 15}

    batches: int = 60
    records_a_second: int = 200
    partitions: int = 2
    cores: int = 2

    @property
    def written_bytes(self) -> int:
        return 50_000_000

    def missing(self) -> str | None:
        from lab.spark_session import why_no_spark

        return why_no_spark() or None

    def run(self, box: RunningBox, say: Say) -> Run:
        from appliance.pipeline.data_source import MillraceDataSource
        from appliance.pipeline.spark_session import SessionOptions, start_spark
        from appliance.pipeline.stream_job import StreamJob, built_in_job

        make_topic(box, TOPIC, self.partitions)
        scratch = Path(tempfile.mkdtemp(prefix="stream-", dir=box.directory))
        try:
            with start_spark(SessionOptions(self.name, f"local[{self.cores}]", log=scratch / "spark.log")) as spark, self._trickle(box):
                spark.session.dataSource.register(MillraceDataSource)
                observer = Observer(box.pids())
                say(f"{self.batches} micro-batches of each kind")
                nowhere = self._nowhere(spark.session, box, scratch / "nowhere")
                observation = observer.finish({})
                plain = self._harness(spark.session, box, scratch / "plain", StreamJob("plain", "plain", _unchanged))
                minutes = self._harness(spark.session, box, scratch / "minutes", built_in_job("2 minutes", 5))
        finally:
            shutil.rmtree(scratch)
        names = [figure.name for figure in self.figures]
        return Run(dict(zip(names, (nowhere, plain, minutes), strict=True)), observation, [])

    def _nowhere(self, session: SparkSession, box: RunningBox, place: Path) -> float:
        frame = session.readStream.format("millrace").options(**_source(box)).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(place)).start()
        try:
            milliseconds: dict[int, int] = {}
            deadline = time.monotonic() + SECONDS_MAX
            while len(milliseconds) < WARM_UP_BATCHES + self.batches:
                if time.monotonic() > deadline or not query.isActive:
                    raise BenchmarkFailed(f"only {len(milliseconds)} micro-batches: {query.exception()}")
                milliseconds |= {int(each["batchId"]): int(each["durationMs"]["triggerExecution"]) for each in query.recentProgress if each["numInputRows"] > 0}
                time.sleep(0.1)
        finally:
            query.stop()
        return statistics.median([milliseconds[number] for number in sorted(milliseconds)][WARM_UP_BATCHES:])

    def _harness(self, session: SparkSession, box: RunningBox, place: Path, job: Any) -> float:
        from appliance.pipeline.stream_directory import StreamDirectory
        from appliance.pipeline.stream_runner import BatchReport, StreamOptions, StreamRun

        milliseconds: list[int] = []
        directory = StreamDirectory(str(place), "life")
        directory.open({"job": job.name})

        def on_report(report: BatchReport) -> None:
            if report.records:
                milliseconds.append(report.milliseconds)
            if len(milliseconds) >= WARM_UP_BATCHES + self.batches:
                run.stop()

        run = StreamRun(StreamOptions((TOPIC,), every="0 seconds", source=_source(box)), job, directory, on_report, lambda text: None)
        try:
            run.run_on(session)
        finally:
            directory.close()
        return statistics.median(milliseconds[WARM_UP_BATCHES:])

    @contextmanager
    def _trickle(self, box: RunningBox) -> Iterator[None]:
        stopping = threading.Event()
        producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 0})

        def produce() -> None:
            value = json.dumps({"host": "web1", "app": "nginx", "severity": 6, "message": "served in 12 ms"}).encode()
            number = 0
            while not stopping.wait(1 / self.records_a_second):
                number += 1
                producer.produce(TOPIC, value, partition=number % self.partitions)
                producer.poll(0)

        thread = threading.Thread(target=produce, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()
            producer.flush(10)


def _unchanged(records: DataFrame) -> DataFrame:
    return records


def _source(box: RunningBox) -> dict[str, str]:
    return {"kafka.bootstrap.servers": box.bootstrap, "subscribe": TOPIC, "startingOffsets": "latest"}
