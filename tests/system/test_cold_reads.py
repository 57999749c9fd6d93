"""Records that are not in the page cache: librdkafka reads them all, the acceptor reads no byte of them from a disk, and the page cache stays as it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lab.running_box import RunningBox, eventually
from tests.support.cold_segments import make_cold, resident_bytes

pytestmark = [pytest.mark.system, pytest.mark.slow]

MIB = 1 << 20
ACCEPTOR, READER = "acceptor@0", "log-reader@d0"
VALUE_BYTES = 10_000
OLD_CLIENT = {"api.version.request": False, "broker.version.fallback": "0.9.0.1"}
"""Its records have to be converted, for which they have to be in memory."""
LEFT_BY_LOOK_UPS = 32 << 10
"""A look-up leaves the pages in which it found its batch."""


def value(number: int) -> bytes:
    return (b"%012d" % number) * (VALUE_BYTES // 12)


def fill(box: RunningBox, topic: str, records: int) -> list[Path]:
    """Produce; returns the segments."""
    options = {"bootstrap.servers": box.bootstrap, "acks": 1, "linger.ms": 5, "batch.size": MIB, "message.max.bytes": 8 * MIB}
    producer = Producer(options)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value(number), partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(30) == 0
    return sorted(file for disk in box.disks for file in disk.glob(f"{topic}-0/*.log"))


class Reader:
    """A consumer from offset 0 on that checks each record."""

    def __init__(self, box: RunningBox, topic: str) -> None:
        self.topic = topic
        self.consumer = Consumer(
            {"bootstrap.servers": box.bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True, "fetch.queue.backoff.ms": 5,
             "fetch.error.backoff.ms": 50, "topic.metadata.refresh.interval.ms": 5_000}
        )  # fmt: skip
        self.consumer.assign([TopicPartition(topic, 0, 0)])
        self.next = 0

    def read(self, until: int) -> None:
        def reached() -> bool:
            for message in self.consumer.consume(200, 0.2):
                assert message.error() is None, message.error()
                assert (message.offset(), message.value()) == (self.next, value(self.next))
                self.next += 1
            return self.next >= until

        eventually(reached, f"{until} records of {self.topic}")

    def close(self) -> None:
        self.consumer.close()


def read_all(box: RunningBox, topic: str, records: int) -> None:
    reader = Reader(box, topic)
    reader.read(records)
    reader.close()


def disk_read_bytes(box: RunningBox, process: str) -> int:
    """What the kernel read from disks for this process."""
    for line in Path(f"/proc/{box.pid(process)}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise AssertionError(f"{process} has no read_bytes")


def count(box: RunningBox, process: str, counter: str) -> int:
    return box.counters(process).values.get(counter, 0)


@pytest.fixture(params=["cachestat", "mincore"], scope="module")
def cold_box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    settings = {"fetch.residency": request.param, "log.segment.bytes": 8 * MIB, "log.reader.arena.bytes": 8 * MIB, "log.scrub.bytes.per.second": 0}
    box = start_shared(tmp_path_factory.mktemp("cold") / "box", disks=1, settings=settings)
    yield box
    box.stop()
    assert box.leftovers() == []


def test_a_cold_backfill_reads_everything_and_leaves_the_page_cache_alone(cold_box: RunningBox) -> None:
    records = 2_000
    segments = fill(cold_box, "backfill", records)
    assert len(segments) == 3
    size_bytes = sum(segment.stat().st_size for segment in segments)
    make_cold(*segments)
    before = {process: disk_read_bytes(cold_box, process) for process in (ACCEPTOR, READER)}
    read_all(cold_box, "backfill", records)
    assert disk_read_bytes(cold_box, ACCEPTOR) == before[ACCEPTOR]
    assert disk_read_bytes(cold_box, READER) - before[READER] >= size_bytes
    assert all(resident_bytes(segment) <= LEFT_BY_LOOK_UPS for segment in segments)
    assert count(cold_box, ACCEPTOR, "fetch.cold_bytes") >= size_bytes - 2 * LEFT_BY_LOOK_UPS


def test_a_consumer_at_the_log_end_causes_no_disk_read_nor_does_any_after_a_restart(cold_box: RunningBox) -> None:
    segments = fill(cold_box, "tail", 500)
    fill(cold_box, "warm", 5)
    reads = count(cold_box, READER, "log_reader.reads")
    read_all(cold_box, "tail", 500)
    for process in (ACCEPTOR, READER):
        cold_box.await_restart(process, cold_box.kill(process))
    # The kernel may have dropped pages of their own code, which the first fetch after a restart reads again.
    read_all(cold_box, "warm", 5)
    before = {process: disk_read_bytes(cold_box, process) for process in (ACCEPTOR, READER)}
    read_all(cold_box, "tail", 500)
    assert {process: disk_read_bytes(cold_box, process) for process in (ACCEPTOR, READER)} == before
    assert count(cold_box, READER, "log_reader.reads") == reads
    assert sum(map(resident_bytes, segments)) >= sum(segment.stat().st_size for segment in segments)


def test_a_batch_that_is_larger_than_an_answer_comes_whole_though_it_is_cold(cold_box: RunningBox) -> None:
    admin = AdminClient({"bootstrap.servers": cold_box.bootstrap})
    admin.create_topics([NewTopic("giant", 1, 1, config={"max.message.bytes": str(8 * MIB)})])["giant"].result(30)
    producer = Producer({"bootstrap.servers": cold_box.bootstrap, "message.max.bytes": 8 * MIB})
    giant = os.urandom(5 * MIB)
    producer.produce("giant", giant, partition=0)
    assert producer.flush(30) == 0
    make_cold(*(file for disk in cold_box.disks for file in disk.glob("giant-0/*.log")))
    reader = Reader(cold_box, "giant")
    (message,) = eventually(lambda: reader.consumer.consume(1, 1.0), "the record comes")
    assert message.error() is None and message.value() == giant
    reader.close()
    assert count(cold_box, ACCEPTOR, "fetch.cold_rest_bytes") > 4 * MIB
    make_cold(*(file for disk in cold_box.disks for file in disk.glob("giant-0/*.log")))
    converted = count(cold_box, ACCEPTOR, "fetch.converted_bytes")
    old = Consumer({"bootstrap.servers": cold_box.bootstrap, "group.id": "old", "fetch.message.max.bytes": 8 * MIB, "check.crcs": True} | OLD_CLIENT)
    old.assign([TopicPartition("giant", 0, 0)])
    (message,) = eventually(lambda: old.consume(1, 1.0), "the record comes to a client of 2015")
    assert message.error() is None and message.value() == giant
    old.close()
    assert count(cold_box, ACCEPTOR, "fetch.converted_bytes") - converted >= len(giant)


@pytest.mark.parametrize("victim", [READER, ACCEPTOR])
def test_a_kill_in_the_middle_of_a_backfill_costs_time_and_no_record(cold_box: RunningBox, victim: str) -> None:
    records = 3_000
    topic = f"killed-{victim.partition('@')[0]}"
    segments = fill(cold_box, topic, records)
    make_cold(*segments)
    reader = Reader(cold_box, topic)
    reader.read(300)
    cold_box.await_restart(victim, cold_box.kill(victim, signal.SIGKILL))
    reader.read(records)
    reader.close()
