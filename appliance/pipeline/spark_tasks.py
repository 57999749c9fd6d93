"""Runs the tasks of a load on Spark, one Spark task each, and tells how far they are. Owned by the driver.

Rows never pass the JVM: a task reads, decodes and writes in its Python worker, and returns the names of its files. Weak spot: progress comes task by task.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from appliance.pipeline.load_problem import LoadProblem
from appliance.pipeline.load_task import LoadJob, TaskResult, run_task
from appliance.pipeline.offset_range import OffsetRange
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused

POLL_SECONDS = 0.2


class Progress(NamedTuple):
    """Of one commit: offsets that are done, and bytes of records in them."""

    offsets: int
    record_bytes: int


class SparkTasks:
    """A `TaskRunner`. `on_progress` is called from a thread of its own, a few times a second."""

    def __init__(self, context: Any, on_progress: Callable[[Progress], None] | None = None) -> None:
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
    def _tell(ended: threading.Event, offsets: Any, record_bytes: Any, on_progress: Callable[[Progress], None]) -> None:
        while not ended.wait(POLL_SECONDS):
            on_progress(Progress(offsets.value, record_bytes.value))


def collected(context: Any, run: Callable[[OffsetRange], Any], ranges: Iterable[OffsetRange]) -> list[Any]:
    """What `run` returned for each range. Raises LoadProblem with what the first that was given up said last."""
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
    """The exception at the end of the first Python traceback in what Spark says; without one, how the text begins."""
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
