"""Kafka 4's Java share consumer (KIP-932) on a box whose coordinator and acceptor are killed, and on three boxes that die and stop."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.protocol import config_apis
from appliance.protocol.apis import ApiKey
from lab import client_packages
from lab.raw_client import RawClient
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, environment, eventually, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]

SECONDS = 120
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": 3,
    "offsets.topic.num.partitions": 1,
    "group.share.auto.offset.reset": "earliest",
    "group.share.heartbeat.interval.ms": 500,
    "group.share.delivery.count.limit": 3,
}


class Member:
    """A JVM with one share consumer, and what it has printed."""

    def __init__(self, bootstrap: str, mode: str, *more: str) -> None:
        java = shutil.which("java")
        assert java is not None
        command = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", client_packages.class_path_4(), "ShareClient"]
        self.process = subprocess.Popen(
            [*command, bootstrap, "workers", "jobs", mode, *(more or ("500",))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: list[list[str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append(line.split(" ", 4) if line.startswith("got") else line.split())

    def got(self, value: str) -> list[int]:
        """The delivery counts with which a value came."""
        return [int(line[3]) for line in self.lines if line[0] == "got" and line[4].strip() == value]

    def done(self) -> set[int]:
        """Offsets that the box has confirmed."""
        return {int(line[2]) for line in self.lines if line[0] == "done"}

    def done_places(self) -> list[tuple[int, int]]:
        """As `done`, with partitions, and each as often as it was confirmed."""
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == "done"]

    def received_places(self) -> list[tuple[int, int]]:
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == "got"]

    def failed(self) -> bool:
        """Whether an acknowledgement was refused: on a machine so busy that a lock ended, or a process was replaced. Then records come again."""
        return any(line[0] == "failed" for line in self.lines)

    def received(self) -> list[int]:
        return [int(line[2]) for line in self.lines if line[0] == "got"]

    def end(self) -> int:
        self._close_input()
        return self._ended()

    def _close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self._close_input()
        self._ended()

    def _ended(self) -> int:
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code


@pytest.fixture
def members() -> Iterator[list[Member]]:
    started: list[Member] = []
    yield started
    for member in started:
        if member.process.poll() is None:
            member.kill()


class Jobs:
    """The producer of the topic; its offsets count from 0."""

    def __init__(self, bootstrap: str, partitions: int = 1, replicas: int = 1) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("jobs", partitions, replicas, config={"segment.bytes": "1048576"})])["jobs"].result(SECONDS)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self.count = 0

    def send(self, *values: str) -> range:
        """Return the offsets of the values."""
        for value in values:
            self._producer.produce("jobs", value)
        assert self._producer.flush(SECONDS) == 0
        self.count += len(values)
        return range(self.count - len(values), self.count)

    def send_everywhere(self, count: int) -> set[tuple[int, int]]:
        """Return the places of records in all partitions."""
        sent: set[tuple[int, int]] = set()

        def on_delivery(error: Any, message: Any) -> None:
            assert error is None, error
            sent.add((message.partition(), message.offset()))

        for number in range(count):
            self._producer.produce("jobs", str(number), key=str(number), on_delivery=on_delivery)
        assert self._producer.flush(SECONDS) == 0
        return sent


def _json(box: RunningBox, *arguments: str) -> Any:
    command = [sys.executable, "-P", "-m", "appliance.command.main", "group", *arguments, "--bootstrap", box.bootstrap, "--json"]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_what_was_acknowledged_never_comes_again_and_everything_else_does(start: Callable[..., RunningBox], members: list[Member]) -> None:
    if reason := client_packages.missing_java4():
        pytest.skip(reason)
    box = start(settings=SETTINGS)
    jobs = Jobs(box.bootstrap)

    def await_done(offsets: range, what: str) -> None:
        eventually(lambda: set(offsets) <= set().union(*(member.done() for member in members)), f"{what} is acknowledged", SECONDS)

    # a release comes again until it was delivered as often as the limit says; a rejected record does not; the first segment is sealed
    jobs.send("accepted".ljust(600_000))
    jobs.send("accepted, too".ljust(600_000))
    jobs.send("twice", "reject", "release")
    first = Member(box.bootstrap, "explicit", "500", "waits")
    members.append(first)
    await_done(range(4), "the first records")
    eventually(lambda: first.lines.count(["released", "0", "4"]) == 3, "three deliveries of a released record", SECONDS)
    if not first.failed():
        assert (first.got("release"), first.got("accepted"), first.got("twice"), first.got("reject")) == ([1, 2, 3], [1], [1, 2], [1])
    # nothing is in flight: what the next incarnation delivers is what was never acknowledged
    box.await_restart("coordinator", box.kill("coordinator"))
    await_done(jobs.send("after the coordinator"), "a record after the death of the coordinator")
    box.await_restart("acceptor@0", box.kill("acceptor@0"))
    await_done(jobs.send("after the acceptor"), "a record after the death of the acceptor")
    assert set(first.received()) == set(range(7))
    if not first.failed():
        assert sorted(first.received()) == [0, 1, 2, 2, 3, 4, 4, 4, 5, 6]
    # a member and the coordinator die with a record in hand: another member gets it
    (stopped,) = jobs.send("stop")
    eventually(lambda: first.got("stop"), "the record comes", SECONDS)
    first.kill()
    box.await_restart("coordinator", box.kill("coordinator"))
    second = Member(box.bootstrap, "explicit", "1")
    members.append(second)
    await_done(range(stopped, stopped + 1), "the record of the dead member")
    assert set(second.received()) == {stopped}
    # two members of both kinds share the one partition: each record comes to one of them, once
    third = Member(box.bootstrap, "implicit", "1")
    members.append(third)
    begin = jobs.count

    def both_have_some() -> bool:
        await_done(jobs.send(*map(str, range(8))), "what both share")
        return bool(third.received()) and len(second.received()) > 1

    eventually(both_have_some, "both members get records", SECONDS)
    # what `millrace group` shows of them
    described = _json(box, "describe", "workers")
    assert (described["state"], described["group_type"], len(described["members"])) == ("Stable", "share", 2)
    (row,) = described["partitions"]
    assert (row["committed_offset"], row["end_offset"], row["lag"]) == (jobs.count, jobs.count, 0) and ", " in row["member"]
    assert [second.end(), third.end()] == [0, 0]
    assert [(group["group_id"], group["state"], group["group_type"]) for group in _json(box, "list")] == [("workers", "Empty", "share")]
    received = [*second.received(), *third.received()]
    assert set(received) == {stopped, *range(begin, jobs.count)}
    if not second.failed() and not third.failed():
        assert len(received) == len(set(received))
    # librdkafka acknowledges while it closes: it leaves the group, and sends its last acknowledgements by another connection
    delivered: Counter[int] = Counter()
    for number in range(10):
        jobs.send(f"closed {number}")
        delivered.update(_take_one(box))
    assert delivered == Counter(range(jobs.count - 10, jobs.count))


def _take_one(box: RunningBox) -> list[int]:
    """Receive what there is, acknowledge it and close; return the offsets."""
    options = {"bootstrap.servers": box.bootstrap, "group.id": "workers", "share.acknowledgement.mode": "explicit", "log_level": 0}
    consumer = ShareConsumer(options)
    consumer.subscribe(["jobs"])
    try:
        messages = eventually(lambda: list(consumer.poll(0.5) or []), "librdkafka receives a record", SECONDS)
        for message in messages:
            consumer.acknowledge(message)
        return [message.offset() for message in messages]
    finally:
        consumer.close()


def test_a_group_with_read_committed_gets_no_record_of_an_aborted_transaction(start: Callable[..., RunningBox]) -> None:
    box = start(settings={**SETTINGS, "group.share.auto.offset.reset": "latest", "transaction.state.log.num.partitions": 1})
    Jobs(box.bootstrap)
    own = {"share.isolation.level": "read_committed", "share.auto.offset.reset": "earliest"}
    resource = config_apis.ResourceToAlter(config_apis.ResourceType.GROUP, "workers", tuple(config_apis.ConfigToAlter(name, 0, own[name]) for name in own))
    client = RawClient(box.kafka)
    request = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(0, config_apis.IncrementalAlterConfigsRequest((resource,)))
    client.send(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, request)
    _, answer = client.receive()
    client.close()
    (altered,) = config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE.decode(answer, 0, len(answer), 0).responses
    assert altered.error_code == 0, altered.error_message
    producer = Producer({"bootstrap.servers": box.bootstrap, "transactional.id": "jobs"})
    producer.init_transactions(SECONDS)
    for value, end in (("first", producer.commit_transaction), ("aborted", producer.abort_transaction), ("second", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("jobs", value)
        producer.flush(SECONDS)
        end(SECONDS)
    producer.begin_transaction()
    producer.produce("jobs", "open")
    producer.flush(SECONDS)
    consumer = ShareConsumer({"bootstrap.servers": box.bootstrap, "group.id": "workers", "share.acknowledgement.mode": "explicit"})
    consumer.subscribe(["jobs"])
    received: list[bytes | None] = []

    def has(*values: bytes) -> bool:
        for message in consumer.poll(0.5) or []:
            received.append(message.value())
            consumer.acknowledge(message)
        return received == list(values)

    eventually(lambda: has(b"first", b"second"), "what is committed comes", SECONDS)
    producer.commit_transaction(SECONDS)
    eventually(lambda: has(b"first", b"second", b"open"), "what is committed later comes then", SECONDS)
    consumer.close()


BOXES = {
    "acceptor.arena.bytes": 16 << 20,
    "socket.request.max.bytes": 8 << 20,
    "disk.budget.bytes": 8 << 20,
    "ingest.arena.bytes": 8 << 20,
    "group.share.session.timeout.ms": 6_000,
    "group.share.record.lock.duration.ms": 5_000,
    "group.share.delivery.count.limit": 100,
}


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Callable[[int], RunningBox]]:
    """Starts the box with a broker id, once more if it has ended."""
    zookeeper = RealZooKeeper(tmp_path / "zookeeper")
    running: dict[int, RunningBox] = {}

    def starter(broker_id: int) -> RunningBox:
        settings = {**SETTINGS, **BOXES}
        box = start_box(tmp_path / f"b{broker_id}", disks=1, broker_id=broker_id, zookeeper=zookeeper.connect, settings=settings)
        running[broker_id] = box
        return box

    yield starter
    for box in running.values():
        box.stop()
    zookeeper.stop()


@pytest.mark.deep
def test_three_boxes_deliver_every_record_and_none_after_its_acknowledgement_while_they_die(boxes: Callable[[int], RunningBox], members: list[Member]) -> None:
    if reason := client_packages.missing_java4():
        pytest.skip(reason)
    running = {broker_id: boxes(broker_id) for broker_id in (1, 2, 3)}
    bootstrap = ",".join(box.bootstrap for box in running.values())
    jobs = Jobs(bootstrap, partitions=3, replicas=3)
    members += [Member(bootstrap, "explicit", "20"), Member(bootstrap, "implicit", "20")]

    def done() -> Counter[tuple[int, int]]:
        return Counter(place for member in members for place in member.done_places())

    def unheard() -> set[tuple[int, int]]:
        """What a member had in hand when an acknowledgement was not answered: it may be done."""
        return {place for member in members if member.failed() for place in member.received_places()}

    def send_and_take(what: str) -> None:
        sent = jobs.send_everywhere(30)
        eventually(lambda: sent <= {*done(), *unheard()} and sent & set(done()), f"records {what}", SECONDS)

    send_and_take("while all boxes live")
    for broker_id, box in list(running.items()):  # each of them leads something, and coordinates something
        box.await_restart("coordinator", box.kill("coordinator"))
        send_and_take(f"after the death of the coordinator of box {broker_id}")
    running[1].kill_supervisor()
    send_and_take("after the death of a box")
    running[1] = boxes(1)
    running[2].stop()
    send_and_take("after another box has stopped")
    assert max(done().values()) == 1, "a confirmed acknowledgement ends the deliveries of a record"
    described = _json(running[3], "describe", "workers")
    assert described["group_type"] == "share"
    eventually(lambda: sum(row["lag"] for row in _json(running[3], "describe", "workers")["partitions"]) == 0, "nothing is left", SECONDS)
