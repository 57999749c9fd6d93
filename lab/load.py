"""Clients under load that keep their own ledgers: what was acknowledged, what was read, what was sent.

All three are real clients (librdkafka, a TCP socket as a syslog sender has it) in threads of the test. After the load the ledgers are compared with
what the box holds.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import defaultdict

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

# librdkafka 2.16 throws all it knows of brokers away when the last connection breaks ("re-bootstrap") and may then take a second to look up leaders
# again, whatever the broker does; without that, what is measured is the box.
QUICK_RECONNECT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 1,
    "metadata.recovery.strategy": "none",
}


class AckedProducer:
    """Produces numbered records to every partition in turn, acks=all; remembers each number whose delivery was reported. `options` are librdkafka's."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, records_a_second: int = 4000, **options: str | int | bool) -> None:
        self.acknowledged: dict[int, set[int]] = defaultdict(set)
        self.acknowledged_at: dict[int, list[float]] = defaultdict(list)
        self.failures: list[str] = []
        self.produced = 0
        self._topic = topic
        self._partitions = partitions
        self._rate = records_a_second
        usual = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2, "message.timeout.ms": 60_000, "enable.idempotence": False}
        self._producer = Producer({**usual, **QUICK_RECONNECT, **options})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop producing and wait until every record was acknowledged or given up."""
        self._stop.set()
        self._thread.join(timeout=90)
        assert not self._thread.is_alive(), "the producer does not end"

    def _run(self) -> None:
        burst = max(1, self._rate // 100)
        while not self._stop.is_set():
            for _ in range(burst):
                number = self.produced
                try:
                    self._producer.produce(self._topic, str(number).encode(), partition=number % self._partitions, on_delivery=self._on_delivery)
                except BufferError:  # the box takes less than we would give: wait for it
                    self._producer.poll(0.1)
                    break
                self.produced += 1
            self._producer.poll(0)
            self._stop.wait(0.01)
        self._producer.flush(80)

    def _on_delivery(self, error: object, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        partition, value = message.partition(), message.value()
        assert partition is not None and value is not None
        self.acknowledged[partition].add(int(value))
        self.acknowledged_at[partition].append(time.monotonic())

    def has_news_since(self, moment: float) -> bool:
        """Whether every partition has acknowledged something after `moment`."""
        return all(times[-1] > moment for times in list(self.acknowledged_at.values()))

    def longest_silence(self, since: float, until: float) -> float:
        """The longest time between two acknowledgements of any partition, in seconds, in that window."""
        longest = 0.0
        for times in list(self.acknowledged_at.values()):
            inside = [since, *[at for at in list(times) if since < at < until], until]
            longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(inside)))
        return longest


class StreamReader:
    """Reads every partition from its beginning, without a group; remembers offsets and numbers in the order in which they came."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self.numbers: dict[int, set[int]] = defaultdict(set)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "books",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                **QUICK_RECONNECT,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the consumer does not end"
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, 0.05):
                error = message.error()
                if error is not None:
                    self.errors.append(str(error))
                    continue
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None and offset is not None and value is not None
                self.offsets[partition].append(offset)
                self.numbers[partition].add(int(value))

    def check_every_offset_once(self) -> None:
        """No offset twice, no gap, in order."""
        for partition, offsets in self.offsets.items():
            for expected, offset in enumerate(offsets):
                assert offset == expected, f"partition {partition}: offset {offset} came where {expected} was due"


class SyslogTcpSender:
    """Sends numbered RFC 5424 lines over TCP, as a relay does: it reconnects and goes on with the next line, it cannot know what was lost."""

    def __init__(self, host: str, port: int, lines_a_second: int = 2000) -> None:
        self.sent = 0
        self._address = (host, port)
        self._burst = max(1, lines_a_second // 100)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the syslog sender does not end"

    def _run(self) -> None:
        sock: socket.socket | None = None
        while not self._stop.is_set():
            try:
                if sock is None:
                    sock = socket.create_connection(self._address, timeout=5)
                lines = b"".join(b"<13>1 2026-01-01T00:00:00Z host app - - - line %d\n" % (self.sent + index) for index in range(self._burst))
                sock.sendall(lines)
                self.sent += self._burst
            except OSError:
                if sock is not None:
                    sock.close()
                sock = None
            self._stop.wait(0.01)
        if sock is not None:
            sock.close()
