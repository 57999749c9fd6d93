"""Partitions move between the disks of a box that is written and read: asked for by a real client and by `millrace disk drain`, with every process killed.

The seed of the deaths is printed; `MILLRACE_SEED` repeats a run, `MILLRACE_DEEP` makes it long. How long a partition had no leader is printed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.cluster.metadata_image import MetadataImage, read_image
from lab.load import AckedProducer, StreamReader
from lab.running_box import RunningBox, environment, eventually, processes_of
from tests.conftest import DEEP

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Python's own, raised while kafka-python reads its schemas
    from kafka.admin import KafkaAdminClient

pytestmark = [pytest.mark.system, pytest.mark.slow]

PARTITIONS = 3
MIB = 1 << 20
BULK_BYTES = 8 * MIB
"""In each partition of the topic `bulk`, of which each disk has at least one: a copy takes a while."""
THROTTLE = 8 * MIB
"""So is the box; a disk has few other partitions, because each costs the start of a mover."""
PAUSE_SECONDS_MAX = 1.0
SETTINGS = {
    "replica.alter.log.dirs.io.max.bytes.per.second": THROTTLE,
    "log.segment.bytes": 4 * MIB,
    "offsets.topic.num.partitions": 1,
    "ingest.syslog.partitions": 1,
}


def command(box: RunningBox, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    code = "from appliance.command.main import main; main()"
    all_arguments = [sys.executable, "-P", "-c", code, *arguments, "--data", str(box.disks[0])]
    return subprocess.Popen(all_arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def run(box: RunningBox, *arguments: str, seconds: float = 60.0) -> str:
    process = command(box, *arguments)
    output, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, output + errors + box.messages[-3000:]
    return output


def image(box: RunningBox) -> MetadataImage:
    found = read_image(box.layout.image_file)
    assert found is not None
    return found


def on_disk(box: RunningBox, disk: str) -> set[str]:
    """What the image places on a disk."""
    return {f"{topic.name}-{number}" for topic in image(box).topics.values() for number, partition in enumerate(topic.partitions) if partition.disk == disk}


def directories(box: RunningBox, disk: str) -> set[str]:
    """The partitions' directories that lie there, those that are being removed left out."""
    path = next(Path(known.path) for known in box.box.disks if known.name == disk)
    return {entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.endswith("-delete")}


def moves(box: RunningBox) -> int:
    return sum(partition.moving_to is not None for topic in image(box).topics.values() for partition in topic.partitions)


class Load:
    """A bulky topic that is at rest, and one that is written and read all the time."""

    def __init__(self, box: RunningBox) -> None:
        self.box = box
        admin = AdminClient({"bootstrap.servers": box.bootstrap})
        for created in admin.create_topics([NewTopic("bulk", len(box.disks), 1), NewTopic("busy", PARTITIONS, 1)]).values():
            created.result(60)
        filler = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 20, "acks": "all"})
        for number in range(BULK_BYTES // 16384):
            for partition in range(len(box.disks)):
                filler.produce("bulk", str(number).encode().ljust(16384), partition=partition)
            filler.poll(0)
        assert filler.flush(60) == 0
        self.producer = AckedProducer(box.bootstrap, "busy", PARTITIONS, **{"max.in.flight.requests.per.connection": 1})
        self.reader = StreamReader(box.bootstrap, "busy", PARTITIONS)
        self.producer.start()
        self.reader.start()
        eventually(lambda: len(self.producer.acknowledged) == PARTITIONS and self.reader.numbers, "load runs")

    def end_and_check(self) -> None:
        """Nothing lost, no gap, no error; what lies on the disks now is read once more from its beginning."""
        self.producer.stop()
        assert self.producer.failures == []
        again = StreamReader(self.box.bootstrap, "busy", PARTITIONS)
        again.start()
        bulk = StreamReader(self.box.bootstrap, "bulk", len(self.box.disks))
        bulk.start()
        for reader in (self.reader, again):
            eventually(lambda reader=reader: self._is_read_by(reader), "everything is read")  # type: ignore[misc]
        eventually(lambda: all(len(bulk.offsets[partition]) == BULK_BYTES // 16384 for partition in range(len(self.box.disks))), "bulk is read")
        for reader in (self.reader, again, bulk):
            reader.stop()
            assert reader.errors == []
            reader.check_every_offset_once()
        assert all(bulk.numbers[partition] == set(range(BULK_BYTES // 16384)) for partition in range(len(self.box.disks)))
        assert {partition: len(offsets) for partition, offsets in again.offsets.items()} == {
            partition: len(offsets) for partition, offsets in self.reader.offsets.items()
        }

    def _is_read_by(self, reader: StreamReader) -> bool:
        return all(self.producer.acknowledged[partition] <= reader.numbers[partition] for partition in range(PARTITIONS))

    def check_once(self) -> None:
        """Without deaths no record may be written twice."""
        for partition, numbers in self.producer.acknowledged.items():
            assert len(self.reader.offsets[partition]) == len(numbers), f"partition {partition} has records twice\n{self.box.messages[-6000:]}"


@pytest.mark.alone
def test_partitions_move_while_they_are_written_and_read(start: Callable[..., RunningBox]) -> None:
    box = start(disks=3, settings=SETTINGS)
    load = Load(box)

    # By Kafka's own API, to another directory.
    admin = KafkaAdminClient(bootstrap_servers=box.bootstrap)
    source = next(disk for disk in ("d0", "d1", "d2") if "bulk-0" in on_disk(box, disk))
    target = next(disk for disk in ("d2", "d1") if disk != source)
    path = next(known.path for known in box.box.disks if known.name == target)
    began = time.monotonic()
    moved = admin.alter_replica_log_dirs({("bulk", 0, 1): path, ("nowhere", 0, 1): path, ("bulk", 1, 1): "/no/such/directory"})
    assert sorted((key.topic, key.partition, error.__name__) for key, error in moved.items()) == [
        ("bulk", 0, "NoError"),
        ("bulk", 1, "LogDirNotFoundError"),
        ("nowhere", 0, "UnknownTopicOrPartitionError"),
    ]
    eventually(lambda: _future(admin, path), "DescribeLogDirs shows the copy", 10)
    eventually(lambda: "bulk-0" in on_disk(box, target) and not moves(box), "bulk-0 has moved")
    seconds = time.monotonic() - began
    print(f"{BULK_BYTES / MIB:.0f} MiB moved in {seconds:.2f} s, throttled to {THROTTLE / MIB:.0f} MiB/s")
    assert seconds > BULK_BYTES / THROTTLE / 2
    assert "bulk-0" in directories(box, target)
    assert _future(admin, path) is None
    admin.close()

    # A whole disk. First what would be done, which changes nothing.
    held = on_disk(box, "d0")
    generation = image(box).generation
    planned = run(box, "disk", "drain", "d0", "--dry-run")
    assert f"{len(held)} partitions" in planned
    assert image(box).generation == generation and moves(box) == 0

    # The command is interrupted, the moves are not.
    began = time.monotonic()
    drain = command(box, "disk", "drain", "d0", "--throttle", "6MiB/s")
    eventually(lambda: moves(box), "the moves are ordered")
    drain.send_signal(signal.SIGINT)
    _, errors = drain.communicate(timeout=20)
    assert drain.returncode == 1 and "millrace disk drain d0 --cancel" in errors
    assert "draining" in run(box, "disk", "list")
    creator = AdminClient({"bootstrap.servers": box.bootstrap})
    creator.create_topics([NewTopic("new", 4, 1)])["new"].result(60)
    assert not on_disk(box, "d0") & {f"new-{partition}" for partition in range(4)}
    assert "is empty" in run(box, "disk", "drain", "d0")
    ended = time.monotonic()
    assert on_disk(box, "d0") == set() and moves(box) == 0
    assert not [name for disk in ("d0", "d1", "d2") for name in directories(box, disk) if name.endswith("-future")]
    assert not directories(box, "d0") & held
    pauses = box.counters("controller").histograms["controller.hand_over_us"]
    silence = load.producer.longest_silence(began, ended)
    worst = pauses.percentile_us(100) or 0
    print(f"{len(held)} partitions drained in {ended - began:.2f} s; longest silence of a partition {silence:.3f} s, longest hand-over {worst / 1000:.0f} ms")
    assert silence < PAUSE_SECONDS_MAX
    assert "removed disk d0" in run(box, "disk", "remove", "d0")
    load.end_and_check()
    load.check_once()


def _future(admin: KafkaAdminClient, path: str) -> dict[str, Any] | None:
    """How a partition that is being moved to `path` is described."""
    (broker,) = admin.describe_log_dirs()
    directory = next(each for each in broker["log_dirs"] if each["log_dir"] == path)
    futures = [partition for topic in directory["topics"] for partition in topic["partitions"] if partition["is_future_key"]]
    return futures[0] if futures else None


def test_a_drain_ends_with_nothing_lost_whichever_process_is_killed(start: Callable[..., RunningBox]) -> None:
    seed = int(os.environ.get("MILLRACE_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    print(f"seed {seed}")
    box = start(disks=2, settings=SETTINGS | {"replica.alter.log.dirs.io.max.bytes.per.second": 2 * THROTTLE})
    load = Load(box)
    source, target = "d0", "d1"
    for kind in ["source", "target", "mover", "controller"] * (20 if DEEP else 1):
        victim = {"source": f"log-writer@{source}", "target": f"log-writer@{target}", "mover": f"log-mover@{target}", "controller": "controller"}[kind]
        began = time.monotonic()
        run(box, "disk", "drain", source, "--no-wait")
        time.sleep(chance.uniform(0.0, 1.5))
        left = moves(box)
        kill(box, victim)
        eventually(lambda source=source: not on_disk(box, source) and not moves(box), f"{source} is empty after the death of {victim}", 60)  # type: ignore[misc]
        silence = load.producer.longest_silence(began, time.monotonic())
        print(f"{victim} killed with {left} moves left: drained in {time.monotonic() - began:.2f} s, longest silence {silence:.2f} s")
        run(box, "disk", "drain", source, "--cancel")
        source, target = target, source
    load.end_and_check()


def kill(box: RunningBox, victim: str) -> None:
    """kill -9; a mover is there only while it copies."""
    if not victim.startswith("log-mover"):
        box.kill(victim)
        return
    for pid, name in processes_of(box.layout).items():
        if name == victim:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
