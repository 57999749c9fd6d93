"""Topics that are created, written to, deleted and created anew under the same name, while everything in the background is as busy as settings allow: no
log-writer restarts, no disk goes offline, nothing is logged as an error, and the new topic has its own records."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.records.builder import BatchBuilder
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually
from tests.conftest import DEEP

pytestmark = [pytest.mark.system, pytest.mark.slow]

SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.flush.policy": "interval",
    "log.flush.interval.ms": 100,
    "log.retention.check.interval.ms": 100,
    "log.cleaner.backoff.ms": 100,
    "log.segment.delete.delay.ms": 100,
    "log.scrub.interval.ms": 1000,
    "log.scrub.bytes.per.second": 64 << 20,
}
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01"}
BOTH = {"cleanup.policy": "compact,delete", "internal.segment.bytes": "16384", "retention.ms": "200", "min.cleanable.dirty.ratio": "0.01", "flush.ms": "100"}
SHORT = {"internal.segment.bytes": "16384", "retention.bytes": "20000", "retention.ms": "300", "flush.messages": "1"}
PARTITIONS = 6
ROUNDS = 14 if DEEP else 6
"""More than four: every length of a round, and a round after the longest."""
LIVES = ("log-writer@d0", "log-writer@d1", "log-reader@d0", "log-reader@d1", "acceptor@0", "controller", "coordinator")


@pytest.fixture
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    running = start_shared(tmp_path_factory.mktemp("churn") / "box", disks=2, settings=SETTINGS)
    yield running
    running.stop()
    assert running.leftovers() == []


def _batch(number: int) -> bytes:
    builder = BatchBuilder()
    for key in range(4):
        builder.append(time.time_ns() // 1_000_000, b"key %d" % key, b"%d " % number + os.urandom(1500))
    return builder.build()


class Churn:
    """One topic, over all its incarnations."""

    def __init__(self, box: RunningBox, topic: str, config: dict[str, str]) -> None:
        self.topic, self.config = topic, config
        self.admin = AdminClient({"bootstrap.servers": box.bootstrap})
        self.client = RawClient(box.kafka)
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.last_batches = 0

    def _run(self) -> None:
        try:
            for number in range(ROUNDS):
                if number:
                    self.admin.delete_topics([self.topic])[self.topic].result(60)
                self._create()
                # what is deleted has had no, one, or several rounds of everything
                self.last_batches = (3, 8, 20, 40)[number % 4]
                for count in range(self.last_batches):
                    for partition in range(PARTITIONS):
                        assert self.client.produce(self.topic, partition, _batch(count)).error_code == 0
        except BaseException as failure:
            self.failure = failure

    def _create(self) -> None:
        def is_made() -> bool:
            try:
                self.admin.create_topics([NewTopic(self.topic, PARTITIONS, 1, config=self.config)])[self.topic].result(60)
            except KafkaException:
                return False  # the former one is still being deleted
            return True

        eventually(is_made, f"{self.topic} is created anew")
        eventually(lambda: self.client.is_served(self.topic, PARTITIONS), f"{self.topic} is served")


def test_topics_that_come_and_go_under_one_name_restart_no_log_writer(box: RunningBox) -> None:
    lives = {name: box.pid(name) for name in LIVES}
    churns = [Churn(box, f"churn-{number}", config) for number, config in enumerate((COMPACTED, BOTH, SHORT))]
    for churn in churns:
        churn.thread.start()
    for churn in churns:
        churn.thread.join()
    assert {name: box.pid(name) for name in LIVES} == lives, box.messages[-4000:]
    assert [churn.failure for churn in churns] == [None] * len(churns)
    for disk in ("d0", "d1"):
        values = box.counters(f"log-writer@{disk}").values
        assert values["log_writer.storage_failures"] == 0 and values["flush.rounds"] > 10 and values["cleaner.runs"] > 0, "it was busy"
        assert values["retention.delete_records"] == 0 and sum(value for name, value in values.items() if name.startswith("retention.segments")) > 0
    for churn in churns:
        for partition in range(PARTITIONS):
            assert churn.client.list_offset(churn.topic, partition, -1) == 4 * churn.last_batches, "it has its own records"
        churn.client.close()
    assert re.findall(r"^(?:ERROR|CRITICAL|ALERT|EMERGENCY) .*$", box.messages, re.MULTILINE) == []
    topics = {churn.topic for churn in churns}
    eventually(
        lambda: not [name for disk in box.disks for name in os.listdir(disk) if name.rpartition("-")[0] not in topics and name.startswith("churn")],
        "what was deleted is removed",
        30,
    )
