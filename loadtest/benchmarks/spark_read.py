"""Spark reads topics: rows a second from segments in place, and over Kafka's protocol; beside them a text file with the same lines in the same session.

Values are log lines; those of one figure are binary, nothing but zeros, which is the worst for the decoder (`pipeline/record_columns.py`).
Every query counts rows; Spark asks Python's sources for all their columns even then, and a text file for none. Spark runs in this process with
`local[CORES]`; its start and the first query of each kind, which import and compile, are not measured. The median of `repeats` queries counts.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.generators.compiler import missing_for_librdkafka
from loadtest.librdkafka import LibrdkafkaClient, fill_topic
from loadtest.observation import Observation, Observer
from loadtest.topics import count_records, make_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAIN, COMPRESSED, BINARY, WARM_UP = "plain", "compressed", "binary", "warm-up"
WARM_UP_RECORDS = 20_000
LINES_A_WRITE = 10_000


@dataclass(frozen=True)
class SparkRead(Benchmark):
    short: ClassVar[dict[str, Any]] = {"records": 500_000, "repeats": 1}
    path: ClassVar[str]

    records: int = 8_000_000
    value_bytes: int = 200
    partitions: int = 4
    cores: int = 2
    repeats: int = 3
    codec: str = "lz4"

    @property
    def written_bytes(self) -> int:
        return 4 * self.records * self.value_bytes

    def missing(self) -> str | None:
        from lab.spark_session import why_no_spark

        return missing_for_librdkafka() or why_no_spark() or None

    def run(self, box: RunningBox, say: Say) -> Run:
        from appliance.pipeline.data_source import MillraceDataSource
        from appliance.pipeline.spark_session import SessionOptions, start_spark

        client = LibrdkafkaClient(box.directory)
        topics = {WARM_UP: (WARM_UP_RECORDS, self.codec), PLAIN: (self.records, "none"), COMPRESSED: (self.records, self.codec), BINARY: (self.records, "none")}
        for topic, (records, codec) in topics.items():
            make_topic(box, topic, self.partitions)
            fill_topic(client, box, topic, self.partitions, records, self.value_bytes, codec, text=topic != BINARY)
            if (stored := count_records(box, topic)) != records:
                raise BenchmarkFailed(f"{records:,} records were acknowledged, the logs of {topic} hold {stored:,}")
        scratch = Path(tempfile.mkdtemp(prefix="read-", dir=box.directory))
        try:
            file = self._write_lines(scratch / "lines.txt")
            with start_spark(SessionOptions(self.name, f"local[{self.cores}]", log=scratch / "spark.log")) as spark:
                spark.session.dataSource.register(MillraceDataSource)
                self._rate(lambda: self._topic(spark.session, box, WARM_UP), WARM_UP_RECORDS, 1)
                self._rate(lambda: spark.session.read.text(str(file)).limit(WARM_UP_RECORDS), WARM_UP_RECORDS, 1)
                say(f"Spark reads {self.records:,} records, {self.repeats} times each")
                observer = Observer(box.pids())
                plain = self._rate(lambda: self._topic(spark.session, box, PLAIN), self.records, self.repeats)
                observation = observer.finish({})
                compressed = self._rate(lambda: self._topic(spark.session, box, COMPRESSED), self.records, self.repeats)
                binary = self._rate(lambda: self._topic(spark.session, box, BINARY), self.records, self.repeats)
                values = self._rate(lambda: self._topic(spark.session, box, PLAIN, "value binary"), self.records, self.repeats)
                text = self._rate(lambda: spark.session.read.text(str(file)), self.records, self.repeats)
        finally:
            shutil.rmtree(scratch)
        return Run(self._figures(plain, compressed, binary, values, text, observation), observation, ["acceptor CPU is that of the uncompressed reads"])

    def _figures(self, plain: float, compressed: float, binary: float, values: float, text: float, observation: Observation) -> dict[str, float]:
        return {
            "rows": plain,
            "rows, lz4": compressed,
            "rows, binary values": binary,
            "rows, values only": values,
            "rows of the text file": text,
            "acceptor CPU": 100 * observation.role("acceptor") / observation.seconds,
        }

    def _topic(self, session: SparkSession, box: RunningBox, topic: str, schema: str | None = None) -> DataFrame:
        options = {"kafka.bootstrap.servers": box.bootstrap, "subscribe": topic, "millrace.read.path": self.path}
        reader = session.read.format("millrace").options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    def _rate(self, frame: Callable[[], DataFrame], rows: int, repeats: int) -> float:
        """Rows a second: the median of some counts. A query before them, which is not timed, must have seen every byte; it also warms Java up."""
        (found,) = frame().selectExpr("count(*)", "sum(length(value))").collect()
        if tuple(found) != (rows, rows * self.value_bytes):
            raise BenchmarkFailed(f"{rows:,} rows of {self.value_bytes} bytes were expected, Spark saw {found[0]:,} with {found[1]:,}")
        seconds = []
        for _ in range(repeats):
            started = time.monotonic()
            counted = frame().count()
            seconds.append(time.monotonic() - started)
            if counted != rows:
                raise BenchmarkFailed(f"{rows:,} rows were expected, Spark saw {counted:,}")
        return rows / statistics.median(seconds)

    def _write_lines(self, file: Path) -> Path:
        tail = bytes(32 + number * 7919 % 95 for number in range(self.value_bytes - 10))
        with open(file, "wb") as lines:
            for first in range(0, self.records, LINES_A_WRITE):
                lines.write(b"".join(b"%010d%b\n" % (number, tail) for number in range(first, min(first + LINES_A_WRITE, self.records))))
        return file


def _read_figures(least: float, acceptor: float | None) -> tuple[Figure, ...]:
    return (
        Figure("rows", "/s", at_least=least),
        Figure("rows, lz4", "/s", at_least=least),
        Figure("rows, binary values", "/s"),
        Figure("rows, values only", "/s"),
        Figure("rows of the text file", "/s"),
        Figure("acceptor CPU", "% of a core", at_most=acceptor),
    )


@dataclass(frozen=True)
class SparkReadSegments(SparkRead):
    name: ClassVar[str] = "spark_read_segments"
    title: ClassVar[str] = "spark.read of 200 B records of 4 partitions, Spark local[2], segments read in place; a text file with the same lines beside."
    figures: ClassVar[tuple[Figure, ...]] = _read_figures(2_000_000, 2.0)
    path: ClassVar[str] = "segments"


@dataclass(frozen=True)
class SparkReadFetch(SparkRead):
    name: ClassVar[str] = "spark_read_fetch"
    title: ClassVar[str] = "spark.read of 200 B records of 4 partitions, Spark local[2], fetched over Kafka's protocol; a text file with the same lines beside."
    figures: ClassVar[tuple[Figure, ...]] = _read_figures(1_000_000, None)
    path: ClassVar[str] = "fetch"
