"""Kafka Streams 4.3 with group.protocol=streams (KIP-1071), exactly once: every change of every count comes once, in order, whatever dies."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from lab import client_packages
from lab.real_kafka import skip_without_kafka
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, environment, eventually, start_box
from loadtest.beside_kafka.kafka_contender import KAFKA_4, Heap, KafkaContender

pytestmark = [pytest.mark.system, pytest.mark.slow]

SECONDS = 180
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.streams.heartbeat.interval.ms": 300,
    "group.streams.initial.rebalance.delay.ms": 300,
}
REPARTITION = "app-by-value-repartition"


class Application:
    """A JVM with an instance of the application, and the states that it has printed."""

    def __init__(self, bootstrap: str, directory: Path, replicas: int = -1) -> None:
        java = shutil.which("java")
        assert java is not None
        directory.mkdir(exist_ok=True)
        command = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", client_packages.class_path_streams(), "CountingStreams"]
        self.process = subprocess.Popen(
            [*command, bootstrap, "app", str(directory), "in", "counts", "streams", "2", str(replicas)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append(line.strip())

    def end(self, kills: bool = False) -> int:
        if kills:
            self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code


class Counts:
    """Producer of the input, and reader of what is committed of the output."""

    def __init__(self, bootstrap: str, replicas: int = 1) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        wanted = [NewTopic("in", 3, replicas), NewTopic("counts", 2, replicas)]
        for future in self._admin.create_topics(wanted).values():
            future.result(SECONDS)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.subscribe(["counts"])
        self.sent: Counter[str] = Counter()
        self.found: defaultdict[str, list[int]] = defaultdict(list)
        self._chance = random.Random(1)

    def send(self, count: int) -> None:
        for number in range(count):
            value = f"value-{self._chance.randrange(20)}"
            self.sent[value] += 1
            self._producer.produce("in", value, key=str(number))
        assert self._producer.flush(SECONDS) == 0

    def send_and_await(self, count: int, what: str) -> None:
        self.send(count)

        def is_counted() -> bool:
            while (message := self._consumer.poll(0.2)) is not None:
                if message.error() is None:
                    self.found[message.key().decode()].append(int(message.value()))
            return sum(map(len, self.found.values())) >= self.sent.total()

        eventually(is_counted, f"values are counted {what}", SECONDS)

    def check(self) -> None:
        """Each value was counted once, and no change of a count was left out or comes twice."""
        assert self.found == {value: list(range(1, count + 1)) for value, count in self.sent.items()}

    def set_for_group(self, **configs: str) -> None:
        entries = [ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
        (future,) = self._admin.incremental_alter_configs([ConfigResource(ResourceType.GROUP, "app", incremental_configs=entries)]).values()
        future.result(SECONDS)

    def partitions(self, topic: str) -> int:
        return len(self._admin.list_topics(topic, SECONDS).topics[topic].partitions)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def applications() -> Iterator[list[Application]]:
    if reason := client_packages.missing_streams():
        pytest.skip(reason)
    started: list[Application] = []
    yield started
    for application in started:
        if application.process.poll() is None:
            application.end(kills=True)


def _described(box: RunningBox) -> Any:
    command = [sys.executable, "-P", "-m", "appliance.command.main", "group", "describe", "app", "--bootstrap", box.bootstrap, "--json"]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_an_application_counts_each_value_once_while_the_coordinator_dies(
    start: Callable[..., RunningBox], applications: list[Application], tmp_path: Path
) -> None:
    box = start(settings=SETTINGS)
    counts = Counts(box.bootstrap)
    applications.append(Application(box.bootstrap, tmp_path / "state"))
    counts.send_and_await(100, "at first")
    assert (counts.partitions(REPARTITION), counts.partitions("app-counts-changelog")) == (3, 3)
    box.await_restart("coordinator", box.kill("coordinator"))
    counts.send_and_await(100, "after the death of the coordinator")
    wanted = {(topic, number) for topic in ("in", REPARTITION) for number in range(3)}

    def is_stable() -> bool:
        """A thread that failed on a busy machine is a member until its session ends."""
        described = _described(box)
        read = {(row["topic"], row["partition"]) for row in described["partitions"] if row["member"] is not None and row["committed_offset"] is not None}
        return (described["state"], described["group_type"], len(described["members"]), read) == ("Stable", "streams", 2, wanted)

    eventually(is_stable, "two members have all tasks", SECONDS)
    assert applications[0].end() == 0
    counts.close()
    counts.check()
    eventually(lambda: _described(box)["state"] == "Empty", "the members have left", SECONDS)


KILLED = ("coordinator", "acceptor@0", "controller", "log-writer@d1", "coordinator")


@pytest.mark.deep
def test_two_instances_with_standbys_count_each_value_once_while_everything_dies(
    start: Callable[..., RunningBox], applications: list[Application], tmp_path: Path
) -> None:
    box = start(settings=SETTINGS)
    counts = Counts(box.bootstrap)
    counts.set_for_group(streams_num_standby_replicas="1")
    applications += [Application(box.bootstrap, tmp_path / f"state{number}") for number in range(2)]
    counts.send_and_await(200, "at first")
    for name in KILLED:
        box.await_restart(name, box.kill(name))
        counts.send_and_await(200, f"after the death of {name}")
    applications[0].end(kills=True)
    counts.send_and_await(200, "after the death of an instance")
    applications.append(Application(box.bootstrap, tmp_path / "state2"))
    counts.send_and_await(200, "with another instance")
    assert [application.end() for application in applications[1:]] == [0, 0]
    counts.close()
    counts.check()


BOXES = {
    "acceptor.arena.bytes": 16 << 20,
    "socket.request.max.bytes": 8 << 20,
    "disk.budget.bytes": 8 << 20,
    "ingest.arena.bytes": 8 << 20,
}


@pytest.mark.deep
def test_the_group_moves_with_its_coordinator_when_boxes_die(applications: list[Application], tmp_path: Path) -> None:
    zookeeper = RealZooKeeper(tmp_path / "zookeeper")
    running: dict[int, RunningBox] = {}

    def begin(broker_id: int) -> None:
        directory = tmp_path / f"b{broker_id}"
        running[broker_id] = start_box(directory, disks=1, broker_id=broker_id, zookeeper=zookeeper.connect, settings={**SETTINGS, **BOXES})

    try:
        for broker_id in (1, 2, 3):
            begin(broker_id)
        bootstrap = ",".join(box.bootstrap for box in running.values())
        counts = Counts(bootstrap, replicas=3)
        applications += [Application(bootstrap, tmp_path / f"state{number}", replicas=3) for number in range(2)]
        counts.send_and_await(100, "at first")
        for broker_id in (1, 2, 3):
            running[broker_id].kill_supervisor()
            counts.send_and_await(100, f"after the death of box {broker_id}")
            begin(broker_id)
            counts.send_and_await(100, f"with box {broker_id} again")
        assert [application.end() for application in applications] == [0, 0]
        counts.close()
        counts.check()
    finally:
        for box in running.values():
            box.stop()
        zookeeper.stop()


@pytest.mark.deep
def test_the_same_application_counts_the_same_at_a_real_kafka(applications: list[Application], tmp_path: Path) -> None:
    skip_without_kafka()
    client_packages.install_kafka4()
    kafka = KafkaContender("kafka", tmp_path / "kafka", KAFKA_4, Heap(("-Xmx400m",), "small"))
    kafka.start()
    try:
        bootstrap = str(kafka.kafka)
        counts = Counts(bootstrap)
        applications += [Application(bootstrap, tmp_path / f"state{number}") for number in range(2)]
        counts.send_and_await(200, "at first")
        assert (counts.partitions(REPARTITION), counts.partitions("app-counts-changelog")) == (3, 3)
        applications[0].end(kills=True)
        counts.send_and_await(200, "after the death of an instance")
        assert applications[1].end() == 0
        counts.close()
        counts.check()
    finally:
        kafka.stop()
        kafka.remove()
