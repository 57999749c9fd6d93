"""Clients that load an installed box while its units are restarted: librdkafka and kafka-python produce with acks=all, librdkafka reads, a sender sends
syslog, and a caller only connects.

All of them are made and run inside the box's network. `check` holds what was acknowledged against what was read.
"""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab.installed_box import HTTP, KAFKA, SYSLOG
from lab.load import AckedProducer, StreamReader, SyslogTcpSender
from lab.raw_client import RawClient
from lab.running_box import eventually
from lab.systemd_box import SystemdBox

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib.resources, in kafka-python's own modules
    from kafka import KafkaProducer

PARTITIONS = 4


class KafkaPythonProducer:
    """Numbered records to every partition in turn by kafka-python; remembers those that were acknowledged."""

    def __init__(self, topic: str) -> None:
        self.acknowledged: list[tuple[int, int, int]] = []
        """partition, offset, number"""
        self.failures: list[BaseException] = []
        self._topic = topic
        options: dict[str, Any] = {"retry_backoff_ms": 20, "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 100, "delivery_timeout_ms": 60_000}
        self._producer = KafkaProducer(bootstrap_servers=str(KAFKA), acks="all", enable_idempotence=False, retries=1_000_000, linger_ms=5, **options)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(0.01):
            for number in range(number, number + 4):  # noqa: B020  it goes on where it stood
                future = self._producer.send(self._topic, str(number).encode(), partition=number % PARTITIONS)
                future.add_callback(lambda data, number=number: self.acknowledged.append((data.partition, data.offset, number)))
                future.add_errback(self.failures.append)
            number += 1

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        self._producer.flush(60)
        self._producer.close()


class Caller:
    """Connects to every port again and again, whatever happens to the listener there."""

    def __init__(self) -> None:
        self.calls = 0
        self.refused: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            for address in (KAFKA, SYSLOG, HTTP):
                try:
                    socket.create_connection(address, timeout=30).close()
                    self.calls += 1
                except OSError as error:
                    self.refused.append(f"{address}: {error}")

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)


class Load:
    """What runs, and its counts."""

    def __init__(self, name: str) -> None:
        first, second = f"{name}-librdkafka", f"{name}-kafka-python"
        client = RawClient(KAFKA)
        for topic in (first, second):
            client.create_topic(topic, PARTITIONS)
        eventually(lambda: client.is_served(first, PARTITIONS) and client.is_served(second, PARTITIONS), "the new topics are served")
        client.close()
        self.producer = AckedProducer(str(KAFKA), first, PARTITIONS, records_a_second=2000)
        self.reader = StreamReader(str(KAFKA), first, PARTITIONS)
        self.second = KafkaPythonProducer(second)
        self.second_reader = StreamReader(str(KAFKA), second, PARTITIONS)
        self.syslog = SyslogTcpSender(*SYSLOG, lines_a_second=500)
        self.caller = Caller()
        for part in (self.producer, self.reader, self.second_reader, self.syslog):
            part.start()
        self.await_news("before anything is done")

    def await_news(self, when: str, seconds: float = 30.0) -> None:
        """Until both producers have had something acknowledged on every partition after this moment, and the reader has read of it."""
        now = time.monotonic()
        acknowledged, read = len(self.second.acknowledged), sum(map(len, self.reader.offsets.values()))
        eventually(lambda: len(self.producer.acknowledged) == PARTITIONS and self.producer.has_news_since(now), f"librdkafka produces: {when}", seconds)
        eventually(lambda: len({row[0] for row in self.second.acknowledged[acknowledged:]}) == PARTITIONS, f"kafka-python produces: {when}", seconds)
        eventually(lambda: sum(map(len, self.reader.offsets.values())) > read, f"librdkafka reads: {when}", seconds)

    def stop(self) -> None:
        for part in (self.producer, self.second, self.syslog, self.caller):
            part.stop()

    def check(self) -> None:
        """Every acknowledged record is there once it is read; no offset is missing or twice; nothing failed for good, and no port was ever closed."""
        second: dict[int, set[int]] = {}
        for partition, _, number in self.second.acknowledged:
            second.setdefault(partition, set()).add(number)
        for acknowledged, reader in ((self.producer.acknowledged, self.reader), (second, self.second_reader)):
            eventually(lambda a=acknowledged, r=reader: all(a[partition] <= r.numbers[partition] for partition in range(PARTITIONS)), "everything is read")
            reader.stop()
            reader.check_every_offset_once()
        assert self.producer.failures == [] and self.second.failures == []
        assert self.caller.calls and self.caller.refused == []

    def lost(self) -> int:
        """How many acknowledged records were not read."""
        lost = sum(len(numbers - self.reader.numbers[partition]) for partition, numbers in self.producer.acknowledged.items())
        return lost + sum(number not in self.second_reader.numbers[partition] for partition, _, number in self.second.acknowledged)


@contextmanager
def load_on(box: SystemdBox, name: str) -> Iterator[Load]:
    """On topics called after `name`, until the block ends; then it is checked."""
    with box.inside():
        load = Load(name)
    try:
        yield load
    finally:
        load.stop()
    load.check()
