"""A real Kafka 3.9 broker in ZooKeeper mode, and its DumpLogSegments, for tests that hold our files against it.

On loopback and a free port, 256 MB of heap, one log directory. `stop` is Kafka's controlled shutdown, which leaves the directory clean. Owned by the
test that made it. Weak spot: jars that both need (Scala, ZooKeeper's client, netty) are PySpark's, a little newer than those Kafka names.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import pytest

from appliance.runtime.spawning import die_with_parent
from lab import client_packages
from lab.real_zookeeper import free_port
from lab.running_box import eventually

PYSPARK_JARS = ("scala-library-", "zookeeper-3", "zookeeper-jute-", *(f"netty-{part}-4" for part in ("handler", "buffer", "common", "transport", "resolver")))
PYSPARK_JARS += ("netty-codec-base-",)
START_SECONDS = 90.0
STOP_SECONDS = 90.0
TOOL_SECONDS = 90.0
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.max.timeout.ms": "3600000",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": "2000000",
    "log.cleaner.backoff.ms": "50",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "true",
    "delete.topic.enable": "true",
}


def skip_without_kafka() -> None:
    if reason := client_packages.missing_kafka():
        pytest.skip(reason)


def class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    directory = f"{os.path.dirname(spec.origin)}/jars"
    borrowed = [sorted(glob.glob(f"{directory}/{name}*.jar"))[-1] for name in PYSPARK_JARS]
    return os.pathsep.join([*map(str, client_packages.kafka_jars()), *borrowed])


def java() -> str:
    java = shutil.which("java")
    assert java is not None
    return java


class RealKafka:
    """One broker over `log_directory`. `start` and `stop` as often as wanted."""

    def __init__(self, directory: Path, log_directory: Path, zookeeper: str, broker_id: int = 1, settings: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log_directory = log_directory
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._properties = directory / "server.properties"
        self._messages = directory / "messages"
        settings = {
            **SETTINGS,
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "zookeeper.connect": zookeeper,
            "log.dirs": str(log_directory),
            **(settings or {}),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def messages(self) -> str:
        """What the broker has said, warnings and worse."""
        return self._messages.read_text(errors="replace")

    def start(self) -> None:
        """Until it takes requests."""
        with open(self._messages, "ab") as file:
            self.process = subprocess.Popen(
                [java(), *JVM, "-cp", class_path(), "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=partial(die_with_parent, os.getpid()) if threading.current_thread() is threading.main_thread() else None,
            )
        eventually(self._serves, "Kafka serves", START_SECONDS)

    def _serves(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self.process is not None and self.process.poll() is None, self.messages
        try:
            return bool(AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def stop(self) -> None:
        """Cleanly; fails if it was not."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"Kafka did not stop\n{self.messages}") from None
        assert (self.log_directory / ".kafka_cleanshutdown").exists(), self.messages


def dump_log_segments(files: Iterable[Path], *options: str) -> str:
    """What Kafka's DumpLogSegments says of files, standard error included; one JVM for all of them."""
    command = [java(), *JVM, "-cp", class_path(), "kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)), *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TOOL_SECONDS, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout


def kafka_acls(bootstrap: str, *options: str) -> str:
    """What Kafka's `kafka-acls.sh` prints."""
    return _tool("kafka.admin.AclCommand", bootstrap, *options)


def kafka_configs(bootstrap: str, *options: str) -> str:
    """What Kafka's `kafka-configs.sh` prints."""
    return _tool("kafka.admin.ConfigCommand", bootstrap, *options)


def _tool(main_class: str, bootstrap: str, *options: str) -> str:
    command = [java(), *JVM, "-cp", class_path(), main_class, "--bootstrap-server", bootstrap, *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TOOL_SECONDS, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout
