"""What a load says when Spark gives up one of its tasks."""

from __future__ import annotations

from appliance.pipeline.spark_tasks import last_words

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
