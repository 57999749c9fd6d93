"""One task of a load, on any machine: read a range, decode it, write files, report them. Readers see no change.

Spark may run a task twice, also at the same time. Each run writes files under names of its own, and the loader takes the
files of one run. A permanent failure (deleted records, a damaged batch, a missing directory) is reported as `problem` and not
retried. Other failures are raised, and Spark retries them. Rows never pass the JVM. Weak spot: progress is per task.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from appliance.base.errors import MillraceError
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_manifest import SkippedRange, StagedFile
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import CorruptRange, DataLoss, LoadProblem
from appliance.pipeline.table_kind import TopicFormat
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused

POLL_SECONDS = 0.2


class LoadProgress(NamedTuple):
    """Progress of one commit: loaded offsets, and bytes of their records."""

    offsets: int
    record_bytes: int


class SparkTasks:
    """A `TaskRunner`. `on_progress` is called from a thread of its own, a few times a second."""

    def __init__(self, context: Any, on_progress: Callable[[LoadProgress], None] | None = None) -> None:
        self._context = context
        self._on_progress = on_progress

    def __call__(self, job: LoadJob, ranges: Iterable[OffsetRange]) -> list[TaskResult]:
        tasks = list(ranges)
        if not tasks:
            return []
        offsets, record_bytes = self._context.accumulator(0), self._context.accumulator(0)
        run = partial(_run_on_worker, job, offsets, record_bytes)
        ended = threading.Event()
        if self._on_progress is not None:
            with suppress(ThreadRefused):  # then without progress
                BackgroundThread(self._tell, "progress", (ended, offsets, record_bytes, self._on_progress)).start()
        try:
            return collected(self._context, run, tasks)
        finally:
            ended.set()

    @staticmethod
    def _tell(ended: threading.Event, offsets: Any, record_bytes: Any, on_progress: Callable[[LoadProgress], None]) -> None:
        while not ended.wait(POLL_SECONDS):
            on_progress(LoadProgress(offsets.value, record_bytes.value))


def collected(context: Any, run: Callable[[OffsetRange], Any], ranges: Iterable[OffsetRange]) -> list[Any]:
    """Return the results of `run` for each range. Raises LoadProblem with the last error of the first task that Spark gave up."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    tasks = list(ranges)
    try:
        results: list[Any] = context.parallelize(tasks, len(tasks)).map(run).collect()
        return results
    except (ConnectionError, EOFError, Py4JNetworkError) as error:
        raise LoadProblem(f"Spark's Java process ended or does not answer ({last_words(str(error))}); run again, and the load goes on where it was") from error
    except (OSError, Py4JError, PySparkException) as error:
        raise LoadProblem(f"Spark gave up a task: {last_words(str(error))}") from error


def last_words(text: str) -> str:
    """Return the exception of the first Python traceback in Spark's text; without one, the start of the text."""
    found = re.search(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)", text)
    return found.group(1) if found else text.strip()[:300]


def _run_on_worker(job: LoadJob, offsets: Any, record_bytes: Any, wanted: OffsetRange) -> TaskResult:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    result = run_task(job, wanted, str(context.taskAttemptId()))
    offsets.add(wanted.size)
    record_bytes.add(result.record_bytes)
    return result


class LoadJob(NamedTuple):
    """The parameters that all tasks of a commit share; pickled into each."""

    access: ClusterAccess
    staging: str
    formats: Mapping[str, TopicFormat]
    by_arrival: bool


class TaskResult(NamedTuple):
    """The result of a task for `range`."""

    range: OffsetRange
    files: tuple[StagedFile, ...] = ()
    bad_files: tuple[StagedFile, ...] = ()
    skipped: tuple[SkippedRange, ...] = ()
    record_bytes: int = 0
    """bytes of keys and values that were read"""
    problem: str | None = None


class TaskRunner(Protocol):
    """Runs tasks and returns all results, in any order."""

    def __call__(self, job: LoadJob, ranges: Iterable[OffsetRange]) -> list[TaskResult]: ...


class Skips:
    """Ranges that the reader skipped. The loader decides whether that is accepted."""

    def __init__(self) -> None:
        self.found: list[SkippedRange] = []

    def lost(self, loss: DataLoss) -> None:
        self.found.append(SkippedRange(loss.topic, loss.partition, loss.start, loss.end, "lost"))

    def corrupt(self, found: CorruptRange) -> None:
        self.found.append(SkippedRange(found.topic, found.partition, found.offset, found.end, f"corrupt: {found.reason}"))


Read = Callable[[LoadJob, OffsetRange, Sequence[str], Skips], Iterable[Any]]
"""Yield batches of a range with the requested columns; ranges that cannot be read go to the skips."""


def read_records(job: LoadJob, wanted: OffsetRange, columns: Sequence[str], skips: Skips) -> Iterable[Any]:
    from appliance.pipeline.record_reader import read_range

    return read_range(job.access, wanted, columns, on_data_loss=skips.lost, on_corrupt=skips.corrupt)


def run_task(job: LoadJob, wanted: OffsetRange, attempt: str, read: Read = read_records) -> TaskResult:
    """`attempt` makes file names unique."""
    try:
        return _load(job, wanted, attempt, read)
    except MillraceError as error:
        return TaskResult(wanted, problem=str(error))
    except FileNotFoundError as error:
        if os.path.isdir(job.staging):
            raise
        words = "either another loader has taken over, or this machine does not see the directory: it must be shared by all machines that load into it"
        return TaskResult(wanted, problem=f"{error.filename} is not there on {socket.gethostname()}; {words}")


def _load(job: LoadJob, wanted: OffsetRange, attempt: str, read: Read) -> TaskResult:
    from appliance.pipeline.hour_files import FileNames, HourFiles
    from appliance.pipeline.load_directory import BAD_RECORDS
    from appliance.pipeline.record_decoder import BAD_SCHEMA, make_decoder

    decoder = make_decoder(job.formats[wanted.topic], by_arrival=job.by_arrival)
    name = f"part-{wanted.partition:05d}-{wanted.start:020d}-{wanted.end:020d}"
    base = f"topic={wanted.topic}"
    staged = f"{attempt}-{wanted.partition}-{wanted.start}"
    rows = HourFiles(FileNames(job.staging, staged, base, name), decoder.schema)
    bad_rows = HourFiles(FileNames(job.staging, f"bad-{staged}", f"{BAD_RECORDS}/{base}", name), BAD_SCHEMA)
    skips = Skips()
    record_bytes = 0
    for batch in read(job, wanted, decoder.source_columns, skips):
        record_bytes += batch.column("key").nbytes + batch.column("value").nbytes
        decoded = decoder.decode(batch)
        rows.add(decoded.rows, decoded.hours)
        if decoded.bad is not None and decoded.bad_hours is not None:
            bad_rows.add(decoded.bad, decoded.bad_hours)
    return TaskResult(wanted, rows.finish(), bad_rows.finish(), tuple(skips.found), record_bytes)
