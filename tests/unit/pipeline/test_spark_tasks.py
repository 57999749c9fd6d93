"""What a load says when Spark gives up one of its tasks."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.pipeline.load_task import collected, last_words
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import LoadProblem

STACK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times: Lost task 0.0 in stage 0.0 (TID 0) \
(localhost executor driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()

OSError: [Errno 28] No space left on device

\tat org.apache.spark.api.python.BasePythonRunner
"""


def test_it_is_the_exception_of_the_task_and_not_the_stack_of_the_jvm() -> None:
    assert last_words(STACK) == "OSError: [Errno 28] No space left on device"


def test_without_a_traceback_it_is_how_the_text_begins() -> None:
    assert last_words("  the executor was lost: OutOfMemory\n" + "x" * 1000).startswith("the executor was lost: OutOfMemory")


class FailingContext:
    """Spark's context as far as it is asked, whose first call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def parallelize(self, *_: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Spark's Java process ended or does not answer .*Connection refused.*; run again"),
        (EOFError(), "Spark's Java process ended or does not answer"),
        (OSError(28, "No space left on device"), "Spark gave up a task: .*No space left on device"),
    ],
)
def test_a_jvm_that_ended_has_a_readable_error(error: Exception, words: str) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(LoadProblem, match=words):
        collected(FailingContext(error), str, [OffsetRange("t", 0, 0, 5)])
