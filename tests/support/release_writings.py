"""What clients write to the box of a release that is stored (`tests/golden/capture_release.py`).

`write_at_rest` writes one of everything and returns what keeps groups and transactions open; the
caller closes it after the box has stopped. `Load` writes in threads until the box is gone and
records what was acknowledged. Weak spot: `Load` is slowed only by waiting for acknowledgements, so
a fast machine stores more.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from lab import client_packages
from lab.foreign_clients import JsonClient
from lab.kafka_writings import BOX_CONFIGS, write_topics
from lab.raw_coordination import RawCoordination
from lab.running_box import Address, RunningBox, eventually
from tests.support.release_contents import SECONDS

COMPACTED: Final = {**BOX_CONFIGS["compacted"], "delete_retention_ms": str(2**62)}
"""Its tombstones stay, whenever the archive is opened."""
ZOOKEEPER_OFFSETS: Final = {"oldest": ["spread", "mixed"]}
OPEN_VALUES: Final = (b"open", b"copied up to 9")
"""Of the records in transactions that stay open."""
INGEST_TABLE: Final = """# Senders of the stored release.
listen lines  syslog tcp :6514 topic=lines key=app max-message-bytes=2048
listen gelf   gelf   udp :12201
listen relays relp   tcp 127.0.0.1:2514 acks=1
listen beats  lumberjack tcp :5044 idle-seconds=30

options http        max-frame-bytes=1048576
options syslog-udp  topic=devices

route listener=lines severity<=err                 -> errors,all
route facility=auth,authpriv app=sshd*             -> security key=app
route label.job=nginx field.http.status=500,"5 0 2" -> web
route listener=gelf field.drop=yes                 -> gone key=field.user key-required=yes
default -> rest
dead-letter -> dead
"""
STORED_LINES: Final = {
    "lines": 60,
    "errors": 6,
    "all": 6,
    "security": 4,
    "web": 1,
    "gone": 1,
    "rest": 2,
    "dead": 1,
    "devices": 3,
    "named": 2,
}
"""How many records `_write_senders` makes, by topic."""


class OpenClients:
    """Live group members and producers with an open transaction."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self.producers: list[Producer] = []

    def close(self) -> None:
        for producer in self.producers:
            producer.purge()
        for consumer in self.consumers:
            consumer.close()
        self.producers.clear()


def write_at_rest(box: RunningBox, client: JsonClient) -> OpenClients:
    """One of everything. `client` is that of `kafka_writings.open_reader`."""
    opened = OpenClients()
    write_topics(client, box.bootstrap, {**BOX_CONFIGS, "compacted": COMPACTED})
    _write_spread(box.bootstrap)
    client.create("named")
    client.create("trimmed", internal_segment_bytes="1000")
    _write_trimmed(box.bootstrap, client)
    _write_second_protocol(box.bootstrap)
    _write_groups(box, opened)
    _write_senders(box)
    eventually(lambda: is_compacted(box), "the compacted topic is cleaned up to its active segment")
    return opened


def is_compacted(box: RunningBox) -> bool:
    """True if the cleaner has nothing left to do, so that a later start finds the same records."""
    (directory,) = [found for disk in box.disks for found in disk.glob("compacted-0")]
    active = max(int(segment.stem) for segment in directory.glob("*.log"))
    checkpoint = directory.parent / "cleaner-offset-checkpoint"
    return checkpoint.exists() and f"compacted 0 {active}" in checkpoint.read_text().splitlines()


def _write_spread(bootstrap: str) -> None:
    """Partitions over both disks, added later; altered configs; a config of the broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("spread", 3, 1, config={"internal.segment.bytes": "4000", "retention.ms": "9000000000000"})])["spread"].result(SECONDS)
    _produce_spread(bootstrap, "before", 3)
    admin.create_partitions([NewPartitions("spread", 6)])["spread"].result(SECONDS)
    topic = ConfigResource(
        ResourceType.TOPIC,
        "spread",
        incremental_configs=[
            ConfigEntry("max.message.bytes", "200000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("min.insync.replicas", "1", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("min.cleanable.dirty.ratio", "1.0", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    rate = ConfigEntry(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "50000000",
        incremental_operation=AlterConfigOpType.SET,
    )
    broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[rate])
    for resource in (topic, broker):
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    _produce_spread(bootstrap, "after", 6)


def _produce_spread(bootstrap: str, word: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "compression.codec": "zstd"})
    for number in range(60):
        producer.produce("spread", f"{word} {number}".encode(), b"key %d" % number, number % partitions)
    assert producer.flush(SECONDS) == 0


def _write_trimmed(bootstrap: str, client: JsonClient) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(60):
        producer.produce("trimmed", b"record %d " % number * 5, None, 0)
        assert producer.flush(SECONDS) == 0
    assert client.delete_records("trimmed", 25) == 25


def _write_second_protocol(bootstrap: str) -> None:
    """Transactions of Kafka 4's Java producer (KIP-890), with offsets of a group in them."""
    assert client_packages.missing_java4() is None, client_packages.missing_java4()
    java = shutil.which("java")
    assert java is not None
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("verified", 2)])["verified"].result(SECONDS)
    command = [
        java,
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        client_packages.class_path_4(),
        "TransactionClient",
    ]
    subprocess.run([*command, bootstrap, "verified", "6"], check=True, capture_output=True, timeout=60)


def _write_groups(box: RunningBox, opened: OpenClients) -> None:
    """Of both protocols: one group whose member left, one whose member stays.

    Also offsets without members, offsets in ZooKeeper, and offsets in a transaction that stays open.
    """
    for protocol in ("classic", "consumer"):
        for name in (f"{protocol}-left", f"{protocol}-live"):
            consumer = _member(box.bootstrap, name, protocol)
            consumer.subscribe(["spread"])
            message = consumer.poll(SECONDS)
            assert message is not None and message.error() is None
            offsets = [TopicPartition("spread", partition, 3 + partition, f"metadata of {name}") for partition in range(4)]
            consumer.commit(offsets=offsets, asynchronous=False)
            if name.endswith("left"):
                consumer.close()
            else:
                opened.consumers.append(consumer)
    raw = RawCoordination(box.kafka)
    with closing(raw):
        assert raw.commit("without-members", "mixed", 17) == 0
        for group_id, topics in ZOOKEEPER_OFFSETS.items():
            for number, topic in enumerate(topics):
                _commit_in_zookeeper(raw, group_id, topic, 40 + number)
    producer = Producer(
        {
            "bootstrap.servers": box.bootstrap,
            "transactional.id": "copier",
            "transaction.timeout.ms": 2**31 - 1,
        }
    )
    producer.init_transactions(SECONDS)
    reader = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "copied"})
    with closing(reader):
        for offset, ends in ((5, True), (9, False)):
            producer.begin_transaction()
            producer.produce("spread", b"copied up to %d" % offset, b"copy", 5)
            producer.send_offsets_to_transaction([TopicPartition("mixed", 0, offset)], reader.consumer_group_metadata(), SECONDS)
            assert producer.flush(SECONDS) == 0
            if ends:
                producer.commit_transaction(SECONDS)
    opened.producers.append(producer)


def _commit_in_zookeeper(raw: RawCoordination, group_id: str, topic: str, offset: int) -> None:
    eventually(lambda: raw.commit_in_zookeeper(group_id, topic, offset) == 0, "a commit")


def _member(bootstrap: str, group_id: str, protocol: str) -> Consumer:
    options = {"group.protocol": "consumer"} if protocol == "consumer" else {"session.timeout.ms": 6000}
    common = {
        "bootstrap.servers": bootstrap,
        "group.id": group_id,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    return Consumer({**common, **options})


def _write_senders(box: RunningBox) -> None:
    with socket.create_connection(box.sender("lines")) as sender:
        sender.sendall(b"".join(b"<14>1 2026-01-02T03:04:05Z host%d app%d - - - line %d\n" % (number % 7, number % 3, number) for number in range(60)))
        sender.sendall(b"".join(b"<11>1 - host%d app - - - error %d\n" % (number % 7, number) for number in range(6)))
        sender.sendall(b"".join(b'<38>1 - gate sshd 77 - [login@1 user="ann"] from %d\n' % number for number in range(4)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for fields in ({"_drop": "yes", "_user": "ann"}, {"_drop": "yes"}, {"_drop": "no"}):
            sender.sendto(
                json.dumps({"version": "1.1", "host": "h", "short_message": "m", **fields}).encode(),
                box.sender("gelf"),
            )
        for number in range(3):
            sender.sendto(b"<30>Jan  2 03:04:05 switch%d port: %d is up" % (number, number), box.syslog)
    body = b'{"message":"a","host":"web-1"}\n{"message":"b","host":"web-2"}\n'
    for _ in range(2):  # the second is recognised as a replay
        until_taken(box.ingest, "/ingest/named", body, "the first")
    push = {"streams": [{"stream": {"job": "nginx"}, "values": [["1767323045000000000", "GET /", {"http.status": "500"}]]}]}
    until_taken(box.ingest, "/loki/api/v1/push", json.dumps(push).encode(), "the push")
    one = {"streams": [{"stream": {"job": "other"}, "values": [["1767323045000000000", "GET /"]]}]}
    until_taken(box.ingest, "/loki/api/v1/push", json.dumps(one).encode(), "one more")
    eventually(
        lambda: stored_counts(box.bootstrap, STORED_LINES) == STORED_LINES,
        f"the senders' records are stored: {STORED_LINES}",
    )


def until_taken(address: Address, path: str, body: bytes, key: str) -> None:
    """Send the request until it is answered with success, as senders do while a topic is created."""
    eventually(lambda: post(address, path, body, key) in (200, 204), f"{path} is answered", SECONDS)


def post(address: Address, path: str, body: bytes, key: str) -> int:
    """Send a body under an Idempotency-Key; the status of the answer."""
    kind = "application/json" if body.startswith(b'{"streams"') else "application/x-ndjson"
    request = urllib.request.Request(f"http://{address}{path}", body, {"Idempotency-Key": key, "Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def stored_counts(bootstrap: str, topics: Any) -> dict[str, int]:
    """Records of each topic by its offsets; 0 where there is no topic yet."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "counter", "log_level": 0})
    with closing(consumer):
        known = consumer.list_topics(timeout=SECONDS).topics
        counts = dict.fromkeys(topics, 0)
        for topic in counts:
            for partition in known[topic].partitions if topic in known else ():
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)
                counts[topic] += high - low
        return counts


class Load:
    """Writers in threads. `acknowledged` is filled while they write and is final after `join`."""

    LEAST: Final = {
        "load": 200,
        "transactions-under-load": 40,
        "named": 20,
        "group": 40,
        "zookeeper": 20,
        "topics": 5,
    }
    """So many acknowledgements of each kind precede the kill."""

    def __init__(self, box: RunningBox) -> None:
        self._box = box
        self._is_over = threading.Event()
        self.acknowledged: dict[str, list[Any]] = {kind: [] for kind in self.LEAST}
        admin = AdminClient({"bootstrap.servers": box.bootstrap})
        topics = [
            NewTopic("load", 4, 1, config={"internal.segment.bytes": "8000"}),
            NewTopic("transactions-under-load", 2, 1),
        ]
        for created in admin.create_topics(topics).values():
            created.result(SECONDS)
        work = (
            self._produce,
            self._transact,
            self._post,
            self._commit,
            self._commit_in_zookeeper,
            self._create,
        )
        self._threads = [threading.Thread(target=self._until_over, args=(each,)) for each in work]
        for thread in self._threads:
            thread.start()

    @property
    def is_enough(self) -> bool:
        return all(len(self.acknowledged[kind]) >= least for kind, least in self.LEAST.items())

    def join(self) -> None:
        """After the kill."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)
            assert not thread.is_alive()

    def _until_over(self, work: Callable[[], Iterator[None]]) -> None:
        with suppress(OSError, AssertionError, KafkaException):  # the box is gone
            for _ in work():
                if self._is_over.is_set():
                    break

    def _produce(self) -> Iterator[None]:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged["load"].append([message.partition(), message.offset(), message.value().decode()])

        producer = Producer(
            {
                "bootstrap.servers": self._box.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        number = 0
        while True:
            for number in range(number, number + 8):  # noqa: B020  goes on where it was
                producer.produce("load", b"value %d" % number, b"key", number % 4, on_delivery=on_delivery)
            number += 1
            while len(producer) and not self._is_over.is_set():
                producer.poll(0.05)
            yield

    def _transact(self) -> Iterator[None]:
        options = {"transactional.id": "under-load", "transaction.timeout.ms": 2**31 - 1, "log_level": 0}
        producer = Producer({"bootstrap.servers": self._box.bootstrap, **options})
        producer.init_transactions(SECONDS)
        number = 0
        while True:
            producer.begin_transaction()
            values = [f"transaction {number} record {each}" for each in range(4)]
            for each, value in enumerate(values):
                producer.produce("transactions-under-load", value.encode(), b"key", each % 2)
            if number % 4 == 3:
                producer.abort_transaction(2)
            else:
                producer.commit_transaction(2)
                self.acknowledged["transactions-under-load"] += values
            number += 1
            yield

    def _post(self) -> Iterator[None]:
        number = 0
        while True:
            if (
                post(
                    self._box.ingest,
                    "/ingest/named",
                    b'{"message":"under load %d","host":"web-%d"}\n' % (number, number % 5),
                    f"load {number}",
                )
                == 200
            ):
                self.acknowledged["named"].append(f"under load {number}")
            number += 1
            yield

    def _commit(self) -> Iterator[None]:
        return self._offsets("group", lambda raw, offset: raw.commit("group-under-load", "load", offset))

    def _commit_in_zookeeper(self) -> Iterator[None]:
        return self._offsets("zookeeper", lambda raw, offset: raw.commit_in_zookeeper("oldest-under-load", "load", offset))

    def _offsets(self, kind: str, commit: Callable[[RawCoordination, int], int]) -> Iterator[None]:
        raw = RawCoordination(self._box.kafka)
        with closing(raw):
            offset = 1
            while True:
                if commit(raw, offset) == 0:
                    self.acknowledged[kind].append(offset)
                    offset += 1
                yield

    def _create(self) -> Iterator[None]:
        admin = AdminClient({"bootstrap.servers": self._box.bootstrap, "log_level": 0})
        for number in range(20):
            admin.create_topics([NewTopic(f"late-{number}", 1, 1, config={"retention.bytes": str(10**9 + number)})])[f"late-{number}"].result(5)
            self.acknowledged["topics"].append(f"late-{number}")
            yield
