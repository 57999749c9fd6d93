"""One Spark session for all tests of a process, started by the first that asks; its output is in a file, its files below the tests' own directory.

A session costs about 10 s and half a gigabyte, so no other code may start one in this process; a test that kills Spark runs it in a process of its own
(`millrace load`, `millrace stream`). Weak spot: what a test sets on the session stays; it sets it back.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from appliance.base.errors import ConfigurationProblems
from appliance.pipeline.spark_session import RunningSpark, SessionOptions, spark_java_home, start_spark

CORES = 2
_running: RunningSpark | None = None


def why_no_spark() -> str:
    """Why Spark cannot run here, or an empty text."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401

        spark_java_home()
    except (ImportError, ConfigurationProblems) as error:
        return f"no Spark: {error}"
    return ""


def the_spark() -> RunningSpark:
    """The session of this process; it ends with `end_spark`, which conftest.py calls at the end of the tests."""
    global _running
    if _running is None:
        log = Path(tempfile.mkdtemp(prefix="millrace-tests-spark-")) / "spark.log"
        _running = start_spark(SessionOptions("millrace-tests", f"local[{CORES}]", log=log))
    return _running


def end_spark() -> None:
    global _running
    if _running is not None:
        running, _running = _running, None
        running.close()
        if running.log is not None:
            shutil.rmtree(running.log.parent, ignore_errors=True)
