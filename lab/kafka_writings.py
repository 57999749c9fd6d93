"""What tests have a real Kafka write, so that its log directory holds one of everything: the same for the golden files and for the system test.

Topics of one partition: `mixed` (every codec, headers, nulls, several segments), `stamped` (LogAppendTime), `idempotent`, `transactions` (committed and
aborted ones that overlap, and one that stays open), `compacted`. It has no owner. Weak spot: offsets of overlapping transactions depend on which is quicker;
what is there is read back from Kafka.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab import client_packages
from lab.foreign_clients import CODECS, Client, JsonClient, Read, Sent
from lab.running_box import eventually

CONFIGS = {
    "mixed": {"segment_bytes": "3000", "index_interval_bytes": "200"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "idempotent": {"segment_bytes": "3000"},
    "transactions": {"segment_bytes": "1500", "index_interval_bytes": "100"},
    "compacted": {"cleanup_policy": "compact", "segment_bytes": "2000", "min_cleanable_dirty_ratio": "0.01", "delete_retention_ms": "100000000"},
}
"""What real Kafka 3.9 is asked for. Kafka 4 and a box take such small segments by an internal config only."""
BOX_CONFIGS = {
    topic: {"internal_segment_bytes" if name == "segment_bytes" else name: value for name, value in config.items()} for topic, config in CONFIGS.items()
}
PLAIN = [
    Sent(
        b"line %d " % number * 5,
        b"key %d" % number if number % 3 else None,
        (("source", b"1"), ("empty", None)) if number % 2 else (),
        1_700_000_000_000 + 7 * number,
    )
    for number in range(30)
]
MIXED = [*PLAIN, Sent(None, b"a key without a value", (), 1_700_000_000_900)]


def open_reader(bootstrap: str) -> JsonClient:
    """Apache's client, quick to go from one topic to the next."""
    java = shutil.which("java")
    assert java is not None
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfetch.max.wait.ms=20"]
    return JsonClient("kafka-clients", [java, *options, "-cp", client_packages.class_path(), "TestClient", bootstrap])


def write_everything(client: Client, bootstrap: str, log_directory: Path) -> None:
    """With `open_reader`'s client, which can write headers without a value; the producers with ids are librdkafka's."""
    write_topics(client, bootstrap, CONFIGS)
    checkpoint = log_directory / "cleaner-offset-checkpoint"
    eventually(lambda: b"compacted 0" in checkpoint.read_bytes(), "Kafka compacts")


def write_topics(client: Client, bootstrap: str, configs: Mapping[str, Mapping[str, str]]) -> None:
    """The same, without waiting for compaction."""
    for topic, config in configs.items():
        client.create(topic, **config)
    for codec in CODECS:
        client.produce("mixed", MIXED, codec)
    client.produce("stamped", MIXED, "gzip")
    _write_idempotent(bootstrap)
    _write_transactions(bootstrap)
    for number in range(20):
        value = b"version %d" % number
        client.produce("compacted", [Sent(None if key == 5 else value, b"key %d" % key, (), 1_700_000_000_000 + 10 * number + key) for key in range(20)])


def _producer(bootstrap: str, **options: Any) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": bootstrap, "log_level": 0, **options})


def _write_idempotent(bootstrap: str) -> None:
    producer = _producer(bootstrap, **{"enable.idempotence": True, "linger.ms": 0})
    for number in range(50):
        producer.produce("idempotent", b"value %d " % number * 10, b"key", 0)
        assert producer.flush(20) == 0


def _write_transactions(bootstrap: str) -> None:
    """Two producers whose transactions overlap: four rounds of commits and aborts; a third begins one and leaves it open."""
    producers = [_producer(bootstrap, **{"transactional.id": f"writer-{number}", "transaction.timeout.ms": 3_000_000}) for number in range(3)]
    for producer in producers:
        producer.init_transactions(20)
    one, two, three = producers
    for first_commits, second_commits in ((False, False), (True, False), (False, True), (True, False)):
        one.begin_transaction()
        two.begin_transaction()
        for number in range(4):
            for producer in (one, two):
                producer.produce("transactions", b"record %d" % number, b"key", 0)
                assert producer.flush(20) == 0
        for producer, commits in ((two, second_commits), (one, first_commits)):
            (producer.commit_transaction if commits else producer.abort_transaction)(20)
    three.begin_transaction()
    three.produce("transactions", b"open", b"key", 0)
    assert three.flush(20) == 0
    one.begin_transaction()
    one.produce("transactions", b"behind the open one", b"key", 0)
    one.commit_transaction(20)


def read_everything(client: Client) -> dict[str, list[Read]]:
    """Every record of those topics, in order, aborted ones too."""
    return {topic: read_to_end(client, topic) for topic in CONFIGS}


def read_to_end(client: Client, topic: str) -> list[Read]:
    """All records of a partition; how many there are does not follow from its end, because markers and compaction take offsets."""
    end = client.offset(topic, "latest")
    assert end is not None
    found: list[Read] = []
    deadline = time.monotonic() + 60
    last_data_offset = _last_data_offset(client, topic, end)
    while not found or found[-1].offset < last_data_offset:
        assert time.monotonic() < deadline, f"{topic}: {len(found)} records up to {last_data_offset}"
        found += client.fetch(topic, 1, found[-1].offset + 1 if found else 0)
    return found


def _last_data_offset(client: Client, topic: str, end: int) -> int:
    """`transactions` ends with a commit marker, the others with a record."""
    return end - 2 if topic == "transactions" else end - 1
