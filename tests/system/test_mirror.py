"""Mirrors between two real boxes, killed and disturbed; what arrived is read with librdkafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType
from confluent_kafka.admin import AlterConfigOpType as Operation

from appliance.base.clock import SystemClock
from appliance.client.connection import ClientConnection
from lab.committed_reads import read_committed
from lab.running_box import RunningBox, environment, eventually
from services.mirror.mirror import Mirror
from services.mirror.mirror_file import read_mirror_file

pytestmark = [pytest.mark.system, pytest.mark.slow]

COMMAND = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()", "mirror"]
SETTINGS = {"group.initial.rebalance.delay.ms": 0}


class Boxes(NamedTuple):
    a: RunningBox
    b: RunningBox


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[Boxes]:
    directory = tmp_path_factory.mktemp("mirror")
    started = [start_shared(directory / name, disks=1, settings=SETTINGS) for name in ("a", "b")]
    yield Boxes(*started)
    for box in started:
        box.stop()
        assert box.leftovers() == []


class RunningMirror:
    """`millrace mirror run` with a file of its own."""

    def __init__(self, directory: Path, name: str, target: str, sources: dict[str, str], **keys: object) -> None:
        """`sources`: bootstrap by name; `keys`: of each source."""
        self.file = directory / f"{name}.toml"
        self.process: subprocess.Popen[bytes] | None = None
        self.messages = directory / f"{name}.messages"
        lines = ["round-ms = 20", "status-seconds = 1", "topics-seconds = 1", "groups-seconds = 1", "[target]", f'bootstrap.servers = "{target}"']
        for source, bootstrap in sources.items():
            lines += ["[[source]]", f'name = "{source}"', f'bootstrap.servers = "{bootstrap}"']
            lines += [f"{key.replace('_', '-')} = {json.dumps(value)}" for key, value in keys.items()]
        self.file.write_text("\n".join(lines))

    def start(self) -> None:
        with open(self.messages, "ab") as file:
            command = [sys.executable, "-P", "-m", "services.mirror", "run", str(self.file)]  # what the command becomes
            self.process = subprocess.Popen(command, env=environment(), stderr=file, cwd=self.file.parent)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        return process.wait(30)

    def status(self) -> dict[str, Any]:
        """What this process wrote last; nothing before it has."""
        try:
            document: dict[str, Any] = json.loads(Path(f"{self.file}.status.json").read_text())
        except FileNotFoundError:
            return {}
        return document if self.process is not None and document["pid"] == self.process.pid else {}

    def source(self, number: int = 0) -> dict[str, Any]:
        return self.status().get("sources", [{}])[number] if self.status() else {}

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        return [each for each in self.source().get("partitions", ()) if each["topic"] == topic]

    def has_copied(self, topic: str, end: int) -> bool:
        """Return whether it says that all partitions of a topic are copied, up to offsets that make `end` together."""
        found = self.partitions(topic)
        return bool(found) and sum(each["position"] for each in found) >= end and all(each["lag"] == 0 for each in found)


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Callable[..., RunningMirror]]:
    made: list[RunningMirror] = []

    def make(name: str, target: str, sources: dict[str, str], **keys: object) -> RunningMirror:
        made.append(RunningMirror(tmp_path, name, target, sources, **keys))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.end(signal.SIGKILL)


@cache
def admin(box: RunningBox) -> AdminClient:
    """Kept: a client that is dropped does not answer what it was asked."""
    return AdminClient({"bootstrap.servers": str(box.kafka), "log_level": 0})


def create(box: RunningBox, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    for future in admin(box).create_topics([NewTopic(topic, partitions, config=settings)]).values():
        future.result(30)


def produce(box: RunningBox, topic: str, values: list[bytes], partition: int = 0, **options: object) -> None:
    producer = Producer({"bootstrap.servers": str(box.kafka), "log_level": 0, **options})
    for number, value in enumerate(values):
        producer.produce(topic, value, b"key %d" % (number % 7), partition, timestamp=1_700_000_000_000 + number)
        producer.poll(0)
    assert producer.flush(30) == 0


def produce_in_transactions(box: RunningBox, topic: str, values: list[bytes], partitions: int, chunk: int) -> None:
    """Every third transaction is aborted."""
    producer = Producer({"bootstrap.servers": str(box.kafka), "log_level": 0, "transactional.id": f"writer of {topic}"})
    producer.init_transactions(30)
    for number, first in enumerate(range(0, len(values), chunk)):
        producer.begin_transaction()
        for value in values[first : first + chunk]:
            producer.produce(topic, value, None, number % partitions)
        assert producer.flush(30) == 0  # so that the records are in the log when it is aborted
        producer.abort_transaction(30) if number % 3 == 2 else producer.commit_transaction(30)


def end_of(box: RunningBox, topic: str, partitions: int) -> int:
    asked = {Place(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    return sum(future.result(30).offset for future in admin(box).list_offsets(asked).values())


def test_every_record_is_there_once_though_mirror_and_boxes_are_killed_again_and_again(boxes: Boxes, mirror: Callable[..., RunningMirror]) -> None:
    create(boxes.a, "kills", 3, retention_ms="777000")
    running = mirror("kills", str(boxes.b.kafka), {"a": str(boxes.a.kafka)}, topics=["kills"])
    for turn, codec in enumerate(["gzip", "zstd"]):
        for partition in range(3):
            produce(boxes.a, "kills", [b"%s %d" % (codec.encode(), number) for number in range(300)], partition, **{"compression.type": codec})
        produce_in_transactions(boxes.a, "kills", [b"in transaction %d %d" % (turn, number) for number in range(90)], 3, 15)
        box = boxes.a if turn else boxes.b
        died = box.pids()["acceptor@0"]
        os.kill(died, signal.SIGKILL)
        box.await_restart("acceptor@0", died)
        eventually(lambda: any(each["records"] for each in running.partitions("kills")), f"records are copied in turn {turn}")
        running.end(signal.SIGKILL)
        running.start()
    end = end_of(boxes.a, "kills", 3)
    eventually(lambda: running.has_copied("kills", end), "all is copied", 60)
    assert read_committed(str(boxes.b.kafka), "a.kills") == read_committed(str(boxes.a.kafka), "kills")
    (found,) = admin(boxes.b).describe_configs([ConfigResource(ResourceType.TOPIC, "a.kills")]).values()
    assert found.result(30)["retention.ms"].value == "777000"

    def shown() -> str:
        """On a busy machine the mirror may not have written its status for three seconds, which is a problem to be shown."""
        done = subprocess.run([*COMMAND, "status", str(running.file)], env=environment(), capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    checked = subprocess.run([*COMMAND, "check", str(running.file)], env=environment(), capture_output=True, text=True, check=False)
    assert checked.returncode == 0 and "; topics: 1 there, 0 to create" in checked.stdout and "; topics selected: 1 of " in checked.stdout, checked.stdout
    text = eventually(shown, "the status is without a problem")
    assert "kills-2" in text and "copying" in text
    figures = Path(f"{running.file}.status.prom").read_text()
    assert 'millrace_mirror_lag_records{mirror="kills",source="a",topic="kills",partition="0"} 0\n' in figures
    assert running.end() == 0


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[Place(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> int | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        (found,) = consumer.committed([Place(topic, 0)], timeout=10)
        return found.offset if found.offset >= 0 else None
    finally:
        consumer.close()


class Killed(BaseException):
    """Nothing of the mirror handles it: the next thing that happens is a new mirror."""


class SendsUntilDeath:
    """Counts the requests to one broker and kills the mirror at one of them, before it is sent or behind it."""

    def __init__(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = self.last = 0
        send = ClientConnection.send

        def counted(connection: ClientConnection, *arguments: Any, **options: Any) -> int:
            self.sent += str(connection.address) == address
            is_last = self.sent >= self.last
            correlation_id = send(connection, *arguments, **options) if not is_last or self.last % 2 else 0
            if is_last:
                connection.close()  # as the kernel does for a killed process
                raise Killed
            return correlation_id

        monkeypatch.setattr(ClientConnection, "send", counted)


def test_a_mirror_that_is_killed_at_each_of_its_requests_copies_each_record_once(boxes: Boxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's broker gets the request, and the mirror never its answer; or it gets none."""
    create(boxes.a, "steps", 2)
    file = tmp_path / "steps.toml"
    file.write_text(
        f'round-ms = 0\n[target]\nbootstrap.servers = "{boxes.b.kafka}"\n[[source]]\nname = "a"\nbootstrap.servers = "{boxes.a.kafka}"\ntopics = ["steps"]'
    )
    options = read_mirror_file(str(file))
    deaths = SendsUntilDeath(str(boxes.b.kafka), monkeypatch)
    is_killed = True
    while is_killed:
        deaths.last += 1
        deaths.sent = 0
        produce(boxes.a, "steps", [b"%d %d" % (deaths.last, number) for number in range(3)], deaths.last % 2)
        mirror = Mirror(options, SystemClock(), lambda text: None, time.sleep)
        try:
            while mirror.rounds == 0 or any(each.lag for each in mirror.sources[0].partitions.values()):
                mirror.step()
            is_killed = False
        except Killed:
            pass
        finally:
            mirror.close()
    assert deaths.last > 12
    copied = read_committed(str(boxes.b.kafka), "a.steps")
    assert copied == read_committed(str(boxes.a.kafka), "steps")


def test_changes_of_the_source_are_said_and_concern_one_topic_only(boxes: Boxes, mirror: Callable[..., RunningMirror]) -> None:
    for topic in ("steady", "anew", "short"):
        create(boxes.a, topic)
        produce(boxes.a, topic, [b"first %d" % number for number in range(50)])
    keys = {"topics": ["steady", "anew", "short"], "prefix": "changes."}
    running = mirror("changes", str(boxes.b.kafka), {"a": str(boxes.a.kafka)}, **keys)
    eventually(lambda: all(running.has_copied(topic, 50) for topic in ("steady", "anew", "short")), "the first records are copied")
    running.end(signal.SIGKILL)
    produce(boxes.a, "short", [b"lost %d" % number for number in range(10)])
    for future in admin(boxes.a).delete_records([Place("short", 0, 60)]).values():
        future.result(30)
    for future in admin(boxes.a).delete_topics(["anew"]).values():
        future.result(30)
    create(boxes.a, "anew", 2)
    for topic in ("steady", "anew", "short"):
        produce(boxes.a, topic, [b"second %d" % number for number in range(60)])
    running.start()
    ends = {"steady": 110, "anew": 60, "short": 120}
    eventually(lambda: all(running.has_copied(topic, end) for topic, end in ends.items()), "the second records are copied")
    first, second = [b"first %d" % number for number in range(50)], [b"second %d" % number for number in range(60)]
    for topic in ends:
        got = read_committed(str(boxes.b.kafka), f"changes.{topic}")
        assert [value for _, value in got[0]] == first + second and set(got) == ({0, 1} if topic == "anew" else {0})
    told = {topic: running.partitions(topic)[0] for topic in ends}
    assert {topic: (each["source_changes"], each["skipped_offsets"]) for topic, each in told.items()} == {"steady": (0, 0), "anew": (1, 0), "short": (1, 10)}
    messages = running.messages.read_text()
    assert "anew-0 of source a: the source topic was deleted and created anew; going on at offset 0" in messages
    assert "short-0 of source a: 10 offsets from 50 on are deleted in the source; going on at offset 60" in messages
    for future in admin(boxes.a).delete_topics(["short"]).values():
        future.result(30)
    eventually(lambda: running.partitions("short")[0]["state"] == "gone", "the status says that the topic is deleted")
    produce(boxes.a, "steady", [b"third"])
    eventually(lambda: running.has_copied("steady", 111), "the other topics go on")


def test_what_the_target_refuses_is_retried_until_it_takes_it_and_a_bad_address_stops_no_other_source(
    boxes: Boxes, mirror: Callable[..., RunningMirror]
) -> None:
    for topic in ("large", "small", "joined"):
        create(boxes.a, topic)
    for topic in ("large", "joined"):
        create(boxes.b, f"refused.{topic}", 1, max_message_bytes="1000")
    produce(boxes.a, "joined", [b"z" * 300] * 6, **{"batch.num.messages": 1})  # which the mirror would join to one
    produce(boxes.a, "large", [b"x" * 5000])
    produce(boxes.a, "small", [b"y"])
    addresses = {"a": str(boxes.a.kafka), "nowhere": "127.0.0.1:1"}
    running = mirror("refused", str(boxes.b.kafka), addresses, topics=["large", "small", "joined"], prefix="refused.")
    eventually(lambda: running.has_copied("small", 1) and running.partitions("large")[0]["refusals"] >= 2, "one topic is refused, the other copied")
    eventually(lambda: running.has_copied("joined", 6), "batches that are too large together are copied apart")
    large = running.partitions("large")[0]
    assert (large["state"], large["records"], large["lag"]) == ("retrying", 0, 1) and "MESSAGE_TOO_LARGE" in large["problem"]
    assert "no broker at 127.0.0.1:1" in running.source(1)["problem"]
    raised = ConfigResource(
        ResourceType.TOPIC, "refused.large", incremental_configs=[ConfigEntry("max.message.bytes", "20000", incremental_operation=Operation.SET)]
    )
    for future in admin(boxes.b).incremental_alter_configs([raised]).values():
        future.result(30)
    eventually(lambda: running.has_copied("large", 1), "the refused record is copied")
    assert read_committed(str(boxes.b.kafka), "refused.large")[0] == [(b"key 0", b"x" * 5000)]


def test_two_mirrors_that_would_be_a_loop_copy_only_what_each_cluster_wrote_itself(boxes: Boxes, mirror: Callable[..., RunningMirror]) -> None:
    create(boxes.a, "loop")
    produce(boxes.a, "loop", [b"of a"])
    there = mirror("there", str(boxes.b.kafka), {"a": str(boxes.a.kafka)}, topics=["loop"], prefix="")
    eventually(lambda: there.has_copied("loop", 1), "a's record is copied")
    back = mirror("back", str(boxes.a.kafka), {"b": str(boxes.b.kafka)}, topics=["loop", "of-b"], prefix="")
    create(boxes.b, "of-b")
    produce(boxes.b, "of-b", [b"of b"])
    eventually(lambda: back.has_copied("of-b", 1), "b's own topic is copied")
    (left_out,) = back.source()["left_out"]
    assert left_out["topic"] == "loop" and "millrace-mirror.there.a" in left_out["reason"]
    admin(boxes.a).create_partitions([NewPartitions("loop", 2)])["loop"].result(30)
    produce(boxes.a, "loop", [b"of a, too"], 1)
    eventually(lambda: there.has_copied("loop", 2), "partitions that are added are copied")
    expected = {0: [(b"key 0", b"of a")], 1: [(b"key 0", b"of a, too")]}
    assert read_committed(str(boxes.a.kafka), "loop") == read_committed(str(boxes.b.kafka), "loop") == expected


def test_two_sources_are_merged_into_one_topic(boxes: Boxes, mirror: Callable[..., RunningMirror]) -> None:
    """Both sources are one cluster here; the offsets of each are its own."""
    create(boxes.a, "merged")
    a, b = str(boxes.a.kafka), str(boxes.b.kafka)
    running = mirror("merged", b, {"one": a, "two": a}, topics=["merged"], prefix="")
    produce(boxes.a, "merged", [b"%d" % number for number in range(10)])

    def positions() -> list[int]:
        return [each["position"] for source in running.status().get("sources", ()) for each in source["partitions"]]

    eventually(lambda: positions() == [10, 10], "both are copied")
    expected = read_committed(a, "merged")[0]
    found = read_committed(b, "merged")[0]
    assert sorted(found) == sorted(expected * 2)


def test_offsets_of_groups_are_translated_unless_the_group_reads_from_the_target(boxes: Boxes, mirror: Callable[..., RunningMirror]) -> None:
    create(boxes.a, "grouped")
    create(boxes.b, "copies.grouped")
    produce(boxes.b, "copies.grouped", [b"of another source"] * 5)
    produce(boxes.a, "grouped", [b"%d" % number for number in range(30)])
    a, b = str(boxes.a.kafka), str(boxes.b.kafka)
    for group in ("busy", "readers"):
        commit(a, group, "grouped", 12)
    busy = Consumer({"bootstrap.servers": b, "group.id": "busy", "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0})
    busy.subscribe(["copies.grouped"])
    eventually(lambda: busy.poll(0.5) is not None, "the other group reads from the target")
    running = mirror("grouped", b, {"a": a}, topics=["grouped"], prefix="copies.", groups=["busy", "readers"])
    eventually(lambda: committed(b, "readers", "copies.grouped") is not None, "an offset is translated")
    first = committed(b, "readers", "copies.grouped")
    assert "grouped-0 of source a: the target has records but no position of this mirror" in running.messages.read_text()
    assert first == 5 + 12 and committed(b, "busy", "copies.grouped") is None
    busy.close()
    eventually(lambda: committed(b, "busy", "copies.grouped") == first, "the other group's offset is translated when it has left")
