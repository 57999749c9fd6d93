"""How long producers wait while systemd restarts a log-writer, an acceptor, and the whole box with 500 partitions; and that nothing acknowledged is lost.

A box of its own, installed by install.sh on two loop devices in a machine of its own (`lab/systemd_box.py`). One client has a request for every
partition on its way all the time and connects again at once, so that what is measured is the box; librdkafka beside it says what its users see.
Weak spot: clients and box share two cores, and everything that starts wants them at once.
"""

from __future__ import annotations

import datetime
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from appliance.records.builder import BatchBuilder
from lab import kio_adapter
from lab.installed_box import DISKS, KAFKA, InstalledBox, copy_sources, make_wheelhouse, why_not_installed
from lab.load import AckedProducer, StreamReader
from lab.protocol_messages import kio_element
from lab.raw_client import PRODUCE, PRODUCE_VERSION, RawClient
from lab.running_box import RunningBox, eventually
from lab.systemd_box import SystemdBox, why_not
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.observation import Observer

TOPIC, SECOND = "restarts", "restarts-librdkafka"
SECOND_PARTITIONS = 4
UNITS = {"log-writer": "millrace-log-writer@d0.service", "acceptor": "millrace-acceptor@0.service", "whole box": "millrace.target"}
RETRIABLE = frozenset({0, 3, 5, 6, 7, 56})
"""Unknown topic (the image is not read yet), no leader, not the leader, timed out, storage error: what clients try again."""
DISK_MIB = 4096
SETTLED_SECONDS = 1.0
PATIENCE_SECONDS = 60.0


class EveryPartition:
    """Produces a record to each partition with every request, acks=all, one request after the other; keeps what was acknowledged and how long each was not."""

    def __init__(self, partitions: int) -> None:
        self.acknowledged: list[set[int]] = [set() for _ in range(partitions)]
        self.strange: set[int] = set()
        self._last = [time.monotonic()] * partitions
        self._longest = [0.0] * partitions
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client: RawClient | None = None
        number = 0
        while not self._is_over.is_set():
            number += 1
            try:
                client = client or RawClient(KAFKA)
                self._note(number, self._produce(client, number))
            except (OSError, AssertionError):  # the acceptor is gone
                if client is not None:
                    client.close()
                client = None
                self._is_over.wait(0.001)
        if client is not None:
            client.close()

    def _produce(self, client: RawClient, number: int) -> dict[int, int]:
        """Error code by partition."""
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, b"%d" % number)
        batch = builder.build()
        request_class = kio_adapter.request_class(PRODUCE, PRODUCE_VERSION)
        topic_class = kio_element(request_class, "topic_data")
        partition_class = kio_element(topic_class, "partition_data")
        rows = tuple(partition_class(index=partition, records=batch) for partition in range(len(self.acknowledged)))
        request = request_class(
            transactional_id=None, acks=-1, timeout=datetime.timedelta(seconds=20), topic_data=(topic_class(name=TOPIC, partition_data=rows),)
        )
        client.send(PRODUCE, PRODUCE_VERSION, kio_adapter.encode(request))
        answer = kio_adapter.decode_response(PRODUCE, PRODUCE_VERSION, client.receive()[1])
        return {row.index: int(row.error_code) for row in answer.responses[0].partition_responses}

    def _note(self, number: int, codes: dict[int, int]) -> None:
        now = time.monotonic()
        self.strange |= set(codes.values()) - RETRIABLE
        with self._lock:
            for partition, code in codes.items():
                if code == 0:
                    self.acknowledged[partition].add(number)
                    self._longest[partition] = max(self._longest[partition], now - self._last[partition])
                    self._last[partition] = now

    def begin(self) -> None:
        """Forget how long it took so far."""
        with self._lock:
            self._longest = [0.0] * len(self._longest)

    def has_news_of_all(self, since: float) -> bool:
        with self._lock:
            return min(self._last) > since

    @property
    def longest(self) -> float:
        """The longest time between two acknowledgements of one partition, since `begin`."""
        with self._lock:
            return max(self._longest)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_SECONDS)


@dataclass(frozen=True)
class UnitRestarts(Benchmark):
    name: ClassVar[str] = "unit_restarts"
    title: ClassVar[str] = "systemctl restart of a log-writer, of the acceptor, and of the whole box with 500 partitions, while clients produce to all of them."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("pause, log-writer", "s", at_most=1),
        Figure("pause, acceptor", "s", at_most=0.5),
        Figure("pause, whole box", "s", at_most=5),
        Figure("pause without restarts", "s"),
        Figure("pause of librdkafka, log-writer", "s"),
        Figure("pause of librdkafka, acceptor", "s"),
        Figure("pause of librdkafka, whole box", "s"),
        Figure("acknowledged and lost", "", at_most=0),
        Figure("acknowledged", ""),
    )
    short: ClassVar[dict[str, Any]] = {"partitions": 20, "repeats": 1}
    runs_to_record: ClassVar[int] = 1

    partitions: int = 500
    repeats: int = 3
    """The longest pause of so many restarts counts."""

    def missing(self) -> str | None:
        return why_not() or why_not_installed() or None

    def run(self, box: RunningBox, say: Say) -> Run:
        with tempfile.TemporaryDirectory(prefix="unit-restarts-", dir=box.directory) as scratch:
            place = Path(scratch)
            make_wheelhouse(place / "wheelhouse")
            copy_sources(place / "sources" / "first")
            machine = SystemdBox.start(
                place / "machine", ["ext4"] * len(DISKS), DISK_MIB, [(place / "sources", "/sources"), (place / "wheelhouse", "/wheelhouse")]
            )
            try:
                installed = InstalledBox(machine, place / "sources" / "first")
                say("installing")
                installed.install("--offline", "/wheelhouse", "--disks", ",".join(DISKS), "--advertise", "127.0.0.1")
                return self._measure(installed, say)
            finally:
                machine.destroy()

    def _measure(self, installed: InstalledBox, say: Say) -> Run:
        with installed.box.inside():
            client = RawClient(KAFKA)
            client.create_topic(TOPIC, self.partitions)
            client.create_topic(SECOND, SECOND_PARTITIONS)
            eventually(
                lambda: client.is_served(TOPIC, self.partitions) and client.is_served(SECOND, SECOND_PARTITIONS), "the topics are served", PATIENCE_SECONDS
            )
            client.close()
            second = AckedProducer(str(KAFKA), SECOND, SECOND_PARTITIONS, records_a_second=1000)
            second.start()
            every = EveryPartition(self.partitions)
        observer = Observer({})  # every process of the box dies on the way
        figures: dict[str, float] = {}
        notes = [f"each pause is the longest of {self.repeats} restarts, of any partition"]
        try:
            _await_news(every, second)
            every.begin()
            time.sleep(SETTLED_SECONDS)
            figures["pause without restarts"] = every.longest
            for what, unit in UNITS.items():
                pauses, theirs = [], []
                for _ in range(self.repeats):
                    say(f"restarting {unit}")
                    every.begin()
                    started = time.monotonic()
                    installed.box.run(["systemctl", "restart", unit])
                    _await_news(every, second)
                    theirs.append(second.longest_silence(started, time.monotonic()))
                    pauses.append(every.longest)
                    installed.await_all_active(PATIENCE_SECONDS)
                    time.sleep(SETTLED_SECONDS)
                notes.append(f"{what}: {', '.join(f'{pause:.2f}' for pause in pauses)} s, one restart after the other")
                figures[f"pause, {what}"], figures[f"pause of librdkafka, {what}"] = max(pauses), max(theirs)
        finally:
            observation = observer.finish()
            every.stop()
            second.stop()
        if every.strange or second.failures:
            raise BenchmarkFailed(f"clients were refused for good: {every.strange or second.failures[:3]}")
        lost = self._count_lost(installed, TOPIC, every.acknowledged) + self._count_lost(
            installed, SECOND, [second.acknowledged[partition] for partition in range(SECOND_PARTITIONS)]
        )
        if lost:
            raise BenchmarkFailed(f"{lost} acknowledged records are not there")
        figures["acknowledged and lost"] = lost
        figures["acknowledged"] = sum(map(len, every.acknowledged)) + sum(map(len, second.acknowledged.values()))
        return Run(figures, observation, notes)

    def _count_lost(self, installed: InstalledBox, topic: str, acknowledged: list[set[int]]) -> int:
        with installed.box.inside():
            reader = StreamReader(str(KAFKA), topic, len(acknowledged))
            reader.start()

        def lost() -> int:
            return sum(len(numbers - reader.numbers[partition]) for partition, numbers in enumerate(acknowledged))

        deadline = time.monotonic() + PATIENCE_SECONDS
        while (left := lost()) and time.monotonic() < deadline:
            time.sleep(0.1)
        reader.stop()
        reader.check_every_offset_once()
        return left


def _await_news(every: EveryPartition, second: AckedProducer) -> None:
    """Until every partition has acknowledged something to either client after this moment."""
    now = time.monotonic()
    eventually(lambda: every.has_news_of_all(now), "every partition acknowledges", PATIENCE_SECONDS)
    eventually(lambda: len(second.acknowledged) == SECOND_PARTITIONS and second.has_news_since(now), "librdkafka is acknowledged", PATIENCE_SECONDS)
