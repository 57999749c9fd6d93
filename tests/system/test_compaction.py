"""A compacted topic as users have it: librdkafka writes the same keys again and again, the log shrinks, and nothing that is newest is lost."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lab.running_box import RunningBox, eventually, processes_of

pytestmark = [pytest.mark.system, pytest.mark.slow]

KEYS = 100
SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.segment.delete.delay.ms": 0,
}
CONFIG = {"cleanup.policy": "compact", "internal.segment.bytes": "262144", "min.cleanable.dirty.ratio": "0.1"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    running = start_shared(tmp_path_factory.mktemp("compaction"), disks=1, settings=SETTINGS)
    try:
        yield running
    finally:
        running.stop()


def create(box: RunningBox, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config={**CONFIG, **config})])[topic].result(60)


class Updates:
    """Writes values under a hundred keys, and remembers what was acknowledged last under each."""

    def __init__(self, box: RunningBox, topic: str) -> None:
        self.topic = topic
        self.latest: dict[bytes, bytes] = {}
        self.offsets: dict[bytes, int] = {}
        self.failed: list[KafkaError] = []
        options = {"acks": "all", "linger.ms": 5, "batch.size": 16384, "max.in.flight.requests.per.connection": 1}
        self._producer = Producer({"bootstrap.servers": box.bootstrap, **options})

    def write(self, number: int) -> None:
        key = b"key %d" % (number % KEYS)
        value = b"%d " % number + b"v" * 100
        while True:
            try:
                self._producer.produce(self.topic, value, key, on_delivery=self._on_delivery)
            except BufferError:
                self._producer.poll(0.1)
                continue
            break
        self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        key, value = message.key(), message.value()
        if error is not None:
            self.failed.append(error)
        elif message.offset() > self.offsets.get(key, -1):
            self.latest[key], self.offsets[key] = value, message.offset()

    def flush(self) -> None:
        assert self._producer.flush(60) == 0 and not self.failed


def read_all(box: RunningBox, topic: str) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True})
    partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
    consumer.assign([partition])
    messages: list[Message] = []
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 1.0):
                if message.error() is None:
                    messages.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return messages
                else:
                    raise AssertionError(message.error())
    finally:
        consumer.close()
    raise AssertionError("the end did not come")


def log_bytes(box: RunningBox, topic: str) -> int:
    size_bytes = 0
    for path in (box.disks[0] / f"{topic}-0").glob("*.log"):
        with suppress(FileNotFoundError):  # it was replaced meanwhile
            size_bytes += os.path.getsize(path)
    return size_bytes


def settled(box: RunningBox) -> bool:
    """Nothing is under way, and several looks have found nothing to do."""
    before = box.counters("log-writer@d0")
    time.sleep(0.5)
    after = box.counters("log-writer@d0")
    return not after.values["cleaner.running"] and before.values["cleaner.runs"] == after.values["cleaner.runs"]


def verify(box: RunningBox, updates: Updates) -> list[Message]:
    messages = read_all(box, updates.topic)
    offsets = [message.offset() for message in messages]
    assert offsets == sorted(set(offsets))
    seen = {message.key(): message for message in messages}
    assert {key: message.value() for key, message in seen.items()} == updates.latest
    assert {key: message.offset() for key, message in seen.items()} == updates.offsets
    return messages


def test_a_hundred_keys_that_are_written_a_hundred_thousand_times_leave_a_small_log(box: RunningBox) -> None:
    create(box, "updates")
    updates = Updates(box, "updates")
    for number in range(100_000):
        updates.write(number)
    updates.flush()
    eventually(lambda: log_bytes(box, "updates") < 1_500_000 and settled(box), "the log is compacted")
    messages = verify(box, updates)
    assert len(messages) < 10_000
    counters = box.counters("log-writer@d0")
    assert counters.values["cleaner.dropped_records"] > 90_000 and counters.values["cleaner.failures"] == 0
    assert not list((box.disks[0] / "updates-0").glob("*.swap"))
    checkpoint = (box.disks[0] / "cleaner-offset-checkpoint").read_text()
    assert "updates 0 " in checkpoint


def test_a_consumer_follows_while_segments_are_replaced_under_it(box: RunningBox) -> None:
    create(box, "followed")
    updates = Updates(box, "followed")
    for number in range(10_000):
        updates.write(number)
    updates.flush()
    swaps = box.counters("log-writer@d0").values["cleaner.swapped_segments"]
    for start in range(10_000, 14_000, 2000):
        for number in range(start, start + 2000):
            updates.write(number)
        updates.flush()
        verify(box, updates)
    eventually(lambda: box.counters("log-writer@d0").values["cleaner.swapped_segments"] > swaps, "segments are replaced")


def test_killing_the_log_writer_or_its_run_in_the_middle_loses_nothing(box: RunningBox) -> None:
    create(box, "killed")
    updates, numbers = Updates(box, "killed"), itertools.count()
    name = "log-writer@d0"

    def look(found: Callable[[RunningBox], Any]) -> Any:
        """More is written before each look: on a busy machine all runs may be over before the first."""
        for number in itertools.islice(numbers, 500):
            updates.write(number)
        return found(box)

    for victim in ("log-cleaner", "log-writer"):
        for number in itertools.islice(numbers, 8000):
            updates.write(number)
        if victim == "log-cleaner":
            eventually(lambda: look(_kill_cleaner_of), "a run is killed")
        else:
            pid = eventually(lambda: look(_cleaner_of), "a run is under way")
            old = box.kill(name)
            box.await_restart(name, old)
            eventually(lambda: not Path(f"/proc/{pid}").exists(), "the run dies with its log-writer")  # noqa: B023
        updates.flush()
        verify(box, updates)
    eventually(lambda: log_bytes(box, "killed") < 1_500_000 and settled(box), "the log is compacted")
    verify(box, updates)


def _kill_cleaner_of(box: RunningBox) -> bool:
    """False if there was none, or if it ended by itself before the signal."""
    pid = _cleaner_of(box)
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _cleaner_of(box: RunningBox) -> int | None:
    return next((pid for pid, name in processes_of(box.layout).items() if name.startswith("log-cleaner")), None)


def test_a_record_without_a_key_is_refused_and_affects_no_other(box: RunningBox) -> None:
    create(box, "keyed")
    errors: list[KafkaError | None] = []
    for codec in ("none", "zstd"):
        producer = Producer({"bootstrap.servers": box.bootstrap, "acks": "all", "compression.type": codec})
        producer.produce("keyed", b"value", None, on_delivery=lambda error, _: errors.append(error))
        producer.flush(10)
        producer.produce("keyed", b"value", b"key", on_delivery=lambda error, _: errors.append(error))
        producer.flush(10)
    assert [error and error.code() for error in errors] == [KafkaError.INVALID_RECORD, None] * 2
    # In one batch, records without a key are distinguished from their neighbours (by librdkafka, if
    # there are several).
    together: dict[bytes, int | None] = {}
    producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 500})
    for value, key in ((b"first", b"key"), (b"second", None), (b"third", b"key"), (b"fourth", None)):
        producer.produce("keyed", value, key, on_delivery=lambda error, message: together.update({message.value(): error and error.code()}))
    # Not flush(): it would send what has come so far at once, and that may be less than all four.
    eventually(lambda: producer.poll(0.1) is not None and len(together) == 4, "all four are answered")
    beside, refused = KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.INVALID_RECORD
    assert together == {b"first": beside, b"second": refused, b"third": beside, b"fourth": refused}
    assert [message.key() for message in read_all(box, "keyed")] == [b"key", b"key"]
