"""One Spark session, started and ended in one place: for `millrace load`, `millrace stream`, the tests and the benchmarks.

On one box Spark runs inside this process's own JVM (`local[*]`); `master` names a cluster instead. What Spark and its Python workers say goes to `log`, or
to this process's stderr where that is None. Times are UTC. Without Spark's page and without Hive, which nobody here needs and which cost seconds.

Weak spot: a session costs about 10 s and half a gigabyte, and a process can have one at a time. `launch_gateway` is a developer's door of PySpark (pinned):
it is the only one that lets the JVM's output be put somewhere.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.base.errors import ConfigurationProblems, MillraceError
from appliance.pipeline.spark_java import spark_java_home
from appliance.pipeline.spark_scratch import SparkScratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOSE_SECONDS = 20.0
DEATH_SECONDS = 0.3
LOG_TAIL_BYTES = 2000
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
CLUSTER_SHUFFLE_PARTITIONS = 16
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


class SparkFailed(MillraceError):
    """Spark did not start; the text has the end of what it said."""


@dataclass(frozen=True)
class SessionOptions:
    """`name` is what a cluster shows; `memory` is the driver's heap as Spark writes it (`1g`); `settings` are Spark's own, and win."""

    name: str = "millrace"
    master: str = "local[*]"
    memory: str = "1g"
    log: Path | None = None
    held_fds: tuple[int, ...] = ()
    """descriptors that the JVM holds, too: a lock among them is free only when both are dead"""
    settings: Mapping[str, str] = field(default_factory=dict)


class RunningSpark:
    """A session and its JVM. `with start_spark(options) as spark: spark.session.read…`"""

    def __init__(self, session: SparkSession, gateway: Any, scratch: SparkScratch, log: Path | None) -> None:
        self.session = session
        self.log = log
        self.gateway = gateway
        self._scratch = scratch

    def has_ended(self) -> bool:
        """Whether the JVM is dead. Waits a moment for one that is dying: its sockets close before it is gone."""
        with suppress(subprocess.TimeoutExpired):
            self.gateway.proc.wait(DEATH_SECONDS)
        return self.gateway.proc.returncode is not None

    def exit_words(self) -> str:
        code = int(self.gateway.proc.returncode)
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def __enter__(self) -> RunningSpark:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The JVM ends, if need be by force; its scratch files go."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        process = self.gateway.proc
        with warnings.catch_warnings(), suppress(Exception):  # a JVM that was killed cannot be told to stop
            warnings.simplefilter("ignore")
            self.session.stop()
        with suppress(Exception):
            self.gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(CLOSE_SECONDS)
        except Exception:
            process.kill()
            process.wait()
        self._scratch.remove()


def start_spark(options: SessionOptions = SessionOptions()) -> RunningSpark:
    """Start a JVM with one session. `ConfigurationProblems` without PySpark or a Java, `SparkFailed` when it does not come up."""
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationProblems(
            [f"the pipeline is not installed here ({error}): pip install 'millrace[pipeline]', or sudo ./install.sh --pipeline"]
        ) from None
    os.environ["JAVA_HOME"] = spark_java_home()
    scratch = SparkScratch()
    settings = _settings(options, scratch.path)
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    if python := settings.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python  # the setting itself is read by Spark's own scripts only
    output = open(options.log, "ab") if options.log else None
    try:
        said = output or sys.stderr.fileno()
        gateway = launch_gateway(conf, {"stdout": said, "stderr": said, "pass_fds": (*options.held_fds, scratch.lock)})
        context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, OSError) as error:
        scratch.remove()
        raise SparkFailed(f"Spark did not start: {error}{_end_of(options.log)}") from error
    finally:
        if output:
            output.close()
    context.setLogLevel("ERROR")
    # Both would print a traceback when the JVM dies, which whoever waits for a job hears of anyway.
    _quieten_py4j()
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return RunningSpark(SparkSession(context), gateway, scratch, options.log)


def _quieten_py4j() -> None:
    """It logs by the root logger, which prints; what jobs log is printed still. Where somebody has set up logging it is theirs."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.addFilter(lambda record: "/py4j/" not in record.pathname)
        root.addHandler(handler)


def _settings(options: SessionOptions, scratch: Path) -> dict[str, str]:
    settings = {
        "spark.master": options.master,
        "spark.app.name": options.name,
        "spark.driver.memory": options.memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        JAVA_OPTIONS: f"-XX:-UsePerfData -Dderby.system.home={scratch} -Djava.io.tmpdir={scratch}",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.stopTimeout": "30s",
        # Spark's usual one runs `readlink` and `chmod` as processes for each file of a checkpoint: 90 of a micro-batch's 260 ms. This one renames likewise.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        # Of Spark's 200 each costs 5 ms of every shuffle, a file of every hour, and a state store of every streaming job.
        SHUFFLE_PARTITIONS: str(CLUSTER_SHUFFLE_PARTITIONS),
    }
    if options.master.startswith("local"):
        cores = os.cpu_count() or 1
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.pyspark.python": sys.executable,  # workers import what this process does
            SHUFFLE_PARTITIONS: str(cores),
        }
    merged = settings | dict(options.settings)
    if more := options.settings.get(JAVA_OPTIONS):
        merged[JAVA_OPTIONS] = f"{settings[JAVA_OPTIONS]} {more}"
    return merged


def _end_of(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    return f"; {log} ends with:\n{log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors='replace').rstrip()}"
