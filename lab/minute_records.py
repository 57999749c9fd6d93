"""Log records with times of their own, a whole number for each minute and host, as a Kafka producer sends them; and what must come of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.running_box import RunningBox

NOON_MS = 1_732_276_800_000
"""2024-11-22 12:00 UTC: behind every clock that tests run by"""
HOSTS = ("web1", "web2", "db1")
PARTITIONS = 2


def make_topic(box: RunningBox, name: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})  # without it what it was asked is given up
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(20)


class MinuteRecords:
    """What was sent, by minute (counted from noon) and host."""

    def __init__(self, box: RunningBox, topic: str) -> None:
        self.sent: Counter[tuple[int, str]] = Counter()
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 5, "acks": "all"})
        self._number = 0

    def send(self, first_minute: int, end_minute: int, each: int = 20, hosts: tuple[str, ...] = HOSTS) -> None:
        """`each` records of every host in every minute; every tenth is an error."""
        for minute in range(first_minute, end_minute):
            for index in range(each):
                for host in hosts:
                    self._number += 1
                    severity = 3 if index % 10 == 0 else 6
                    value = {"host": host, "app": f"app{index % 3}", "severity": severity, "message": f"request {self._number} took {index} ms"}
                    at_ms = NOON_MS + minute * 60_000 + index * 50_000 // each
                    self._producer.produce(self._topic, json.dumps(value).encode(), partition=self._number % PARTITIONS, timestamp=at_ms)
                    self.sent[minute, host] += 1
        assert self._producer.flush(30) == 0

    def of_closed(self, end_minute: int) -> dict[tuple[int, str], int]:
        return {key: count for key, count in self.sent.items() if key[0] < end_minute}


def rows_below(directory: Path) -> list[dict[str, object]]:
    """All rows of a table, as a reader that lists the directory finds them."""
    return ds.dataset(str(directory), format="parquet", partitioning="hive").to_table().to_pylist() if directory.exists() else []


def counted(rows: list[dict[str, object]]) -> dict[tuple[int, str], int]:
    """Records by minute and host; fails when a minute of a host has two rows."""
    found: dict[tuple[int, str], int] = {}
    for row in rows:
        minute = (int(row["minute"].timestamp() * 1000) - NOON_MS) // 60_000  # type: ignore[attr-defined]
        key = (minute, str(row["host"]))
        assert key not in found, f"{key} has two rows"
        found[key] = int(row["records"])  # type: ignore[call-overload]
    return found
