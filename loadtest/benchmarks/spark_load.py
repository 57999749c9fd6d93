"""`millrace load` into Parquet: how fast a Spark job of one box brings stored records into files, and what it costs the processes that serve clients meanwhile.

Spark runs in this process with `local[CORES]`. Its start and its workers' imports are not measured: a small load comes first.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.generators.compiler import missing_for_librdkafka
from loadtest.librdkafka import LibrdkafkaClient, fill_topic
from loadtest.observation import Observer
from loadtest.syslog_batches import RECORDS_A_BATCH, fill_with_syslog
from loadtest.topics import count_records, make_topic

if TYPE_CHECKING:
    from appliance.pipeline.load_run import LoadOrder

TOPIC, LINES, WARM_UP_TOPIC = "bench", "lines", "warm-up"
WARM_UP_RECORDS = 20_000
LINES_START_MS = 1_763_787_600_000
LINE_BYTES = 300
"""For the warm memory only."""
MB = 1e6


class Loaded(NamedTuple):
    """One load."""

    seconds: float
    record_bytes: int
    parquet_bytes: int


@dataclass(frozen=True)
class SparkLoad(Benchmark):
    name: ClassVar[str] = "spark_load"
    title: ClassVar[str] = "millrace load of 4 partitions into Parquet (zstd), Spark local[2], segments read in place; every file synced and published."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("record bytes", "MB/s", at_least=100),
        Figure("records", "/s"),
        Figure("lines, raw", "MB/s"),
        Figure("lines, decoded", "MB/s"),
        Figure("lines as Parquet", "% of their size"),
        Figure("acceptor CPU", "% of a core"),
        Figure("session", "s"),
    )
    short: ClassVar[dict[str, Any]] = {"records": 1_000_000, "lines": 400_000}

    records: int = 5_000_000
    lines: int = 2_000_000
    value_bytes: int = 200
    partitions: int = 4
    cores: int = 2
    path: str = "auto"

    @property
    def written_bytes(self) -> int:
        return 2 * (self.records * self.value_bytes + self.lines * LINE_BYTES)

    def missing(self) -> str | None:
        from lab.spark_session import why_no_spark

        return missing_for_librdkafka() or why_no_spark() or None

    def run(self, box: RunningBox, say: Say) -> Run:
        from appliance.pipeline.spark_session import SessionOptions, start_spark

        client = LibrdkafkaClient(box.directory)
        for topic, records in ((WARM_UP_TOPIC, WARM_UP_RECORDS), (TOPIC, self.records)):
            make_topic(box, topic, self.partitions)
            fill_topic(client, box, topic, self.partitions, records, self.value_bytes)
        if (stored := count_records(box, TOPIC)) != self.records:
            raise BenchmarkFailed(f"{self.records:,} records were acknowledged, the logs hold {stored:,}")
        make_topic(box, LINES, self.partitions)
        fill_with_syslog(box, LINES, self.partitions, self.lines // RECORDS_A_BATCH * RECORDS_A_BATCH, LINES_START_MS)
        scratch = Path(tempfile.mkdtemp(prefix="load-", dir=box.directory))
        started = time.monotonic()
        try:
            with start_spark(SessionOptions("spark_load", f"local[{self.cores}]", log=scratch / "spark.log")) as spark:
                session_seconds = time.monotonic() - started
                context = spark.session.sparkContext
                self._load(box, scratch / "warm-up", WARM_UP_TOPIC, "raw", context)
                say(f"Spark loads {self.records:,} records")
                observer = Observer(box.pids())
                plain = self._load(box, scratch / "table", TOPIC, "raw", context)
                observation = observer.finish({})
                say(f"Spark loads {self.lines:,} lines of syslog, as they are and as columns")
                raw = self._load(box, scratch / "raw", LINES, "raw", context)
                decoded = self._load(box, scratch / "decoded", LINES, "syslog", context)
        finally:
            shutil.rmtree(scratch)
        figures = {
            "record bytes": self.records * self.value_bytes / MB / plain.seconds,
            "records": self.records / plain.seconds,
            "lines, raw": raw.record_bytes / MB / raw.seconds,
            "lines, decoded": decoded.record_bytes / MB / decoded.seconds,
            "lines as Parquet": 100 * decoded.parquet_bytes / decoded.record_bytes,
            "acceptor CPU": 100 * observation.role("acceptor") / observation.seconds,
            "session": session_seconds,
        }
        note = f"bytes are those of keys and values (the first figure: values); lines have {raw.record_bytes / self.lines:.0f} B and no structured data"
        return Run(figures, observation, [note])

    def _load(self, box: RunningBox, directory: Path, topic: str, decode: str, context: Any) -> Loaded:
        """From asking the box to the last file in sight. Raises BenchmarkFailed if a record is missing or too many."""
        from appliance.base.clock import SystemClock
        from appliance.pipeline.load_run import load_directory
        from appliance.pipeline.load_task import SparkTasks

        sizes: list[int] = []
        order = self._order(box, directory, topic, decode)
        started = time.monotonic()
        load_directory(order, "bench", SystemClock(), lambda: nullcontext(SparkTasks(context)), lambda done: sizes.append(done.record_bytes))
        seconds = time.monotonic() - started
        rows, parquet_bytes = _rows_and_bytes(directory)
        if rows != (stored := count_records(box, topic)):
            raise BenchmarkFailed(f"the logs hold {stored:,} records of {topic}, the table {rows:,} rows")
        shutil.rmtree(directory)
        return Loaded(seconds, sum(sizes), parquet_bytes)

    def _order(self, box: RunningBox, directory: Path, topic: str, decode: str) -> LoadOrder:
        from appliance.client.address import Address
        from appliance.pipeline.cluster_access import ClusterAccess, ReadPath
        from appliance.pipeline.load_run import LoadOrder
        from appliance.pipeline.load_survey import LoadRequest
        from appliance.pipeline.loader import LoadRules

        access = ClusterAccess((Address(*box.kafka),), read_committed=True, path=ReadPath(self.path), data_directory=str(box.disks[0]))
        return LoadOrder([topic], str(directory), access, LoadRequest(decode), LoadRules())


def _rows_and_bytes(directory: Path) -> tuple[int, int]:
    import pyarrow.parquet as pq

    files = list(directory.rglob("topic=*/**/*.parquet"))
    return sum(pq.read_metadata(file).num_rows for file in files), sum(file.stat().st_size for file in files)
