"""Run a streaming job until it is stopped: Spark's query, the directory and topic of its rows, and restarts of its JVM.

A micro-batch is first committed to the directory (stream_directory.py), then written to the topic from the files of that
commit. So both have the same rows. After a crash between the two, the replay writes the topic only; the topic has the
table's id and the batch's number. Weak spots: the topic is behind the files for the length of one write; the message of a
failed query is found by patterns in Spark's text, which has stack traces of two languages.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from appliance.pipeline.problems import JobFailed, StreamProblem
from appliance.pipeline.spark_session import SessionOptions, SparkFailed, start_spark
from appliance.pipeline.stream_directory import BOOKS, BatchCommit, StagedPart, StreamDirectory
from appliance.pipeline.stream_job import StreamJob
from appliance.pipeline.table_parts import read_columns, stage_frame, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


_OURS = re.compile(
    r"^(?:\w+\.)*(?:SourceProblem|OffsetsLost|CorruptBatchFound|StreamProblem|ConcurrentStream|RequestRefused|ClientFailed): (.+)$", re.MULTILINE
)
_PYTHON = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Failed|Problem): .+)$", re.MULTILINE)
CHARACTERS_MAX = 600


def failure_text(error: BaseException) -> str:
    """Return the message of a failed query, one line or a few."""
    text = str(error)
    for pattern in (_OURS, _PYTHON):
        if found := pattern.findall(text):
            return str(found[-1]).strip()[:CHARACTERS_MAX]
    return text.strip().split("\n\nJVM stacktrace", 1)[0].split("\n\tat ", 1)[0][:CHARACTERS_MAX]


POLL_SECONDS = 1
LAST_BATCH_SECONDS = 60.0
"""How long a stop waits for the current micro-batch. After that it is cut off, and the next incarnation repeats it."""
DEATHS_MAX = 3
"""JVMs that may die in a row without a finished micro-batch."""


class StreamOptions(NamedTuple):
    """`source` are options of the reader, `sink` those of the topic's writer; `settings` are Spark's."""

    topics: tuple[str, ...]
    to_topic: str | None = None
    every: str = "10 seconds"
    once: bool = False
    master: str = "local[*]"
    memory: str = "1g"
    source: Mapping[str, str] = {}
    sink: Mapping[str, str] = {}
    settings: Mapping[str, str] = {}


class BatchReport(NamedTuple):
    """A finished micro-batch."""

    number: int
    records: int
    rows: int
    milliseconds: int
    late_groups: int
    """rows, for example (minute, host), that came after their end and are not counted"""


class SparkDied(Exception):
    """The JVM has ended without another failure."""


class StreamRun:
    """A run in an open directory. `run` returns after `stop`, or with `once` at the end of the existing records."""

    def __init__(
        self, options: StreamOptions, job: StreamJob, directory: StreamDirectory, on_report: Callable[[BatchReport], None], say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._job = job
        self._directory = directory
        self._on_report = on_report
        self._say = say
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self.signals: Mapping[int, Callable[[int, object], None]] = {}
        """Set after Spark has started, because Spark installs its own handler of SIGINT."""
        self._rows: dict[int, int] = {}
        self._seen = -1
        self.batches = 0

    def stop(self) -> None:
        """For signal handlers, too: the current micro-batch ends first."""
        self._stopping.set()

    def run(self) -> None:
        """Raises JobFailed, SparkFailed, StreamProblem."""
        deaths, batches = 0, -1
        while not self._stopping.is_set():
            try:
                return self._live()
            except SparkDied as error:
                deaths = deaths + 1 if self.batches == batches else 1
                batches = self.batches
                if deaths > DEATHS_MAX:
                    raise SparkFailed(f"{error}; that was the {deaths}th in a row without a micro-batch done") from error
                self._say(f"{error}; starting another")
                self._directory.reopen()

    def _live(self) -> None:
        options = self._options
        log = Path(self._directory.path) / BOOKS / "spark.log"
        held = () if self._directory.lock_fd is None else (self._directory.lock_fd,)
        session_options = SessionOptions(f"millrace-{self._job.name}", options.master, options.memory, log, held, options.settings)
        with start_spark(session_options) as spark:
            for number, handler in self.signals.items():
                signal.signal(number, handler)
            try:
                self.run_on(spark.session)
            except Exception as error:
                if spark.has_ended():
                    raise SparkDied(f"Spark's JVM has ended ({spark.exit_words()})") from error
                if isinstance(error, StreamProblem):
                    raise
                raise JobFailed(f"job {self._job.name}: {failure_text(error)} (see {log})") from error

    def run_on(self, session: SparkSession) -> None:
        """Run in an existing session; errors are Spark's."""
        if self._job.module_file:
            session.sparkContext.addPyFile(self._job.module_file)
        query = self._start(session)
        try:
            self._follow(query)
        finally:
            query.stop()

    def _start(self, session: SparkSession) -> StreamingQuery:
        options = self._options
        reader = session.readStream.format("millrace").option("subscribe", ",".join(options.topics)).options(**options.source)
        if self._job.source_schema is not None:
            reader = reader.schema(self._job.source_schema).option("includeHeaders", str("headers" in self._job.source_schema).lower())
        frame = self._job.transform(reader.load())
        if not getattr(frame, "isStreaming", False):
            raise StreamProblem(f"job {self._job.name} returned {type(frame).__name__}, not the DataFrame of a stream made out of the one that it was given")
        writer = frame.writeStream.queryName(self._job.name).outputMode("append").option("checkpointLocation", self._directory.checkpoint)
        writer = writer.trigger(availableNow=True) if options.once else writer.trigger(processingTime=options.every)
        return writer.foreachBatch(self._on_batch).start()

    def _follow(self, query: StreamingQuery) -> None:
        while not query.awaitTermination(POLL_SECONDS):
            self._report(query)
            if self._stopping.is_set():
                self._idle.wait(LAST_BATCH_SECONDS)
                break
        self._report(query)

    def _report(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            number = int(progress["batchId"])
            if "addBatch" not in progress["durationMs"]:
                continue  # nothing came; the number is that of the batch to be
            rows = self._rows.pop(number, None)
            if number <= self._seen or rows is None:
                continue
            self._seen = number
            self.batches += 1
            late = sum(int(operator["numRowsDroppedByWatermark"]) for operator in progress["stateOperators"])
            self._on_report(BatchReport(number, int(progress["numInputRows"]), rows, int(progress["durationMs"]["triggerExecution"]), late))

    # --- a micro-batch

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        self._idle.clear()
        try:
            self._do_batch(frame, number)
        finally:
            self._idle.set()

    def _do_batch(self, frame: DataFrame, number: int) -> None:
        if self._directory.is_in(number):
            # It must run all the same: the query fails where the plan of a micro-batch with state was never run.
            frame.write.format("noop").mode("append").save()
            commit = self._directory.commit_of(number)
        else:
            commit = self._add(frame, number)
        if commit is not None and self._options.to_topic:
            for table in {part.path.split("/", 1)[0]: None for part in commit.parts}:
                self._send(frame.sparkSession, commit, table, self._options.to_topic, frame.schema if table == self._job.table else None)
        self._rows[number] = 0 if commit is None else sum(part.rows for part in commit.parts)

    def _add(self, frame: DataFrame, number: int) -> BatchCommit | None:
        directory, job = self._directory, self._job
        staging = directory.begin(number)
        parts = stage_frame(frame, staging, job.table, number)
        if not parts:
            directory.drop(number)
            return None
        state: Mapping[str, Any] = {} if directory.last is None else directory.last.state
        if job.following is not None:
            rows = read_columns([f"{staging}/{part.staged}" for part in parts], list(job.following.columns))
            more, state = job.following.follow(state, rows)
            parts += write_rows(staging, job.following.table, number, more, job.following.schema)
        return directory.publish(number, parts, state)

    def _send(self, session: SparkSession, commit: BatchCommit, table: str, topic: str, schema: StructType | None) -> None:
        """`schema` is that of the rows, None for a second table."""
        from pyspark.sql import functions as f

        paths = [f"{self._directory.path}/{part.path}" for part in commit.parts if _table_of(part) == table]
        reader = session.read.option("basePath", f"{self._directory.path}/{table}")  # which makes `date` a column again
        rows = (reader if schema is None else reader.schema(schema)).parquet(*paths)
        if "value" not in rows.columns:
            value = f.to_json(f.struct(f.lit(table).alias("table"), *rows.columns)).alias("value")
            rows = rows.select(value) if "host" not in rows.columns else rows.select(f.col("host").alias("key"), value)
        writer = rows.write.format("millrace").options(**self._options.sink).option("topic", topic)
        writer.option("txnAppId", f"{self._directory.id}-{table}").option("txnVersion", str(commit.number)).mode("append").save()


def _table_of(part: StagedPart) -> str:
    return part.path.split("/", 1)[0]
