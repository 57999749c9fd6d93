"""Real Kafka brokers as contenders: 3.9 with ZooKeeper, 4.x with its own controller (KRaft), set as their releases' scripts and files set them.

Heap: kafka-server-start.sh says -Xms1G -Xmx1G, so Kafka's default is 1 GB; `QUARTER_HEAP` is the other one, what a JVM takes without an option (a quarter of
the machine's memory at most). Settings are those of the release's config/server.properties. Weak spots: ZooKeeper is the appliance's, with less memory than
zookeeper-server-start.sh gives; logs go to standard error from warnings up, where Kafka's own writes more, to files. Both are in Kafka's favour.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import NamedTuple

from appliance.client.address import Address as BrokerAddress
from appliance.client.cluster import ClusterClient
from appliance.client.errors import ClientFailed
from appliance.runtime.spawning import die_with_parent
from lab import client_packages, real_kafka
from lab.real_zookeeper import RealZooKeeper, free_port
from lab.running_box import eventually
from loadtest.beside_kafka.contenders import DELETE_DELAY_MS, Contender

CLUSTER_ID = base64.urlsafe_b64encode(b"beside_millrace!").decode().rstrip("=")
START_SECONDS = 120.0
STOP_SECONDS = 60.0

JVM = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true", "-Dcom.sun.management.jmxremote=true", "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-XX:-UsePerfData",  # no file in /tmp that a killed JVM would leave behind
)  # fmt: skip
"""As kafka-run-class.sh calls it."""

SHIPPED = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
"""config/server.properties of 3.9 and of 4.x, where they are one."""
HOUSEKEEPING = {"log.segment.delete.delay.ms": str(DELETE_DELAY_MS), "log.initial.task.delay.ms": "100"}
"""Not shipped: what was removed goes at once, for all contenders."""


class Heap(NamedTuple):
    """Options of the JVM, and words for them."""

    options: tuple[str, ...]
    words: str


SHIPPED_HEAP = Heap(("-Xms1G", "-Xmx1G"), "heap 1 GB, Kafka's own default")
QUARTER_HEAP = Heap((), "heap left to the JVM, at most a quarter of the memory")


class Release(NamedTuple):
    version: str
    has_zookeeper: bool

    @property
    def class_path(self) -> str:
        return real_kafka.class_path() if self.has_zookeeper else os.pathsep.join(map(str, client_packages.kafka4_jars()))


KAFKA_3 = Release("3.9.1", True)
KAFKA_4 = Release("4.3.1", False)


class KafkaContender(Contender):
    """One broker; with it the ZooKeeper that it needs, unless it gets the address of one, or the controller in the same process."""

    def __init__(self, name: str, directory: Path, release: Release, heap: Heap, broker_id: int = 1, zookeeper: str | None = None) -> None:
        super().__init__(name, directory)
        self._release, self._heap = release, heap
        self._broker_id, self._connect = broker_id, zookeeper
        self._zookeeper: RealZooKeeper | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._controller_port = free_port()
        self._properties, self._messages = directory / "server.properties", directory / "messages"
        self.failed_starts = 0
        """Of the last start."""

    @property
    def settings(self) -> str:
        where = "ZooKeeper beside it" if self._release.has_zookeeper else "KRaft, controller and broker in one process"
        return f"Apache Kafka {self._release.version}, {where}; {self._heap.words}; settings and JVM options as shipped"

    @property
    def is_alive(self) -> bool:
        return self._process is not None or self._zookeeper is not None

    def start(self) -> None:
        """As long as it takes: a broker that ends because ZooKeeper still has its former session is started again at once, as systemd would."""
        if self._release.has_zookeeper and self._connect is None:
            if self._zookeeper is None:
                self._zookeeper = RealZooKeeper(self.directory / "zookeeper")
            elif self._zookeeper.process is None or self._zookeeper.process.poll() is not None:
                self._zookeeper.start()
        if not self._properties.exists():
            self._prepare()
        self.failed_starts = 0
        self._spawn()
        eventually(self._serves, f"{self.name} serves", START_SECONDS)

    def _prepare(self) -> None:
        settings = {**SHIPPED, **HOUSEKEEPING, "log.dirs": ",".join(map(str, self.disks)), **self._own_settings()}
        if self.tls is not None:
            settings |= {name: f"{settings[name]},{self.tls.listener}" for name in ("listeners", "advertised.listeners") if name in settings}
            settings |= {
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,TLS:SSL",
                "inter.broker.listener.name": "PLAINTEXT",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": self.tls.keystore,
            }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if not self._release.has_zookeeper:
            command = ["kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c", str(self._properties)]
            formatted = subprocess.run(self._java("-Xmx256M") + command, capture_output=True, text=True, check=False)
            assert formatted.returncode == 0, formatted.stderr

    def _own_settings(self) -> dict[str, str]:
        if connect := self._connect or (self._zookeeper and self._zookeeper.connect):
            return {
                "broker.id": str(self._broker_id),
                "listeners": f"PLAINTEXT://{self.bootstrap}",
                "zookeeper.connect": connect,
                "zookeeper.connection.timeout.ms": "18000",
                "group.initial.rebalance.delay.ms": "0",
                "num.recovery.threads.per.data.dir": "1",
            }
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }

    def _java(self, *options: str) -> list[str]:
        java = shutil.which("java")
        assert java is not None
        return [java, *options, *JVM, "-cp", self._release.class_path]

    def _spawn(self) -> None:
        log = f"-Xlog:gc*:file={self.directory}/gc.log:time,tags:filecount=10,filesize=100M"
        with open(self._messages, "ab") as file:
            self._process = subprocess.Popen(
                [*self._java(*self._heap.options, log), "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=partial(die_with_parent, os.getpid()) if threading.current_thread() is threading.main_thread() else None,
            )

    def _serves(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self.failed_starts += 1
            assert self._release.has_zookeeper, f"{self.name} ended\n{self.last_messages()}"
            self._spawn()
        try:
            with ClusterClient([BrokerAddress(*self.kafka)], retry_ms=0) as cluster:
                return bool(cluster.metadata([]).brokers)
        except ClientFailed:
            return False

    def stop(self) -> None:
        process, self._process = self._process, None
        assert process is not None, f"{self.name} does not run"
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name} did not stop\n{self.last_messages()}") from None
        if self._zookeeper is not None:
            self._zookeeper.stop()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def remove(self) -> None:
        super().remove()
        self._zookeeper = None

    def pids(self) -> dict[str, int]:
        assert self._process is not None, f"{self.name} does not run"
        found = {"kafka": self._process.pid}
        if self._zookeeper is not None and self._zookeeper.process is not None:
            found["zookeeper"] = self._zookeeper.process.pid
        return found

    def last_messages(self, lines: int = 15) -> str:
        return "\n".join(self._messages.read_text(errors="replace").splitlines()[-lines:]) if self._messages.exists() else ""
