"""kill -9 of any process, under load from an acks=all producer, a consumer and a syslog sender: nothing acknowledged is lost.

The seed is printed; `MILLRACE_SEED` repeats a run, `MILLRACE_DEEP` makes it long. How long each death was felt is printed, and held to the bounds
that users are promised.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.senders.accounting import Ledger, read_ledger
from lab.load import AckedProducer, StreamReader, SyslogTcpSender
from lab.running_box import RunningBox, eventually
from tests.conftest import DEEP

PARTITIONS = 4
pytestmark = pytest.mark.own_zookeeper

SILENCE_SECONDS = {
    "log-writer": 2.0,
    "log-reader": 2.0,
    "acceptor": 2.0,
    "ingest": 2.0,
    "console": 2.0,
    "controller": 5.0,
    "zookeeper": 5.0,
    "coordinator": 2.0,
    "replica-fetcher": 2.0,
}
"""The longest time without an acknowledgement, by kind of victim; for controller and ZooKeeper, produce and fetch go on meanwhile."""
UNFELT_SECONDS = 1.0
UNFELT = ("controller", "coordinator", "zookeeper", "console", "ingest", "replica-fetcher")


def _create_topic(box: RunningBox, name: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)


def _ledger(box: RunningBox) -> Ledger:
    return read_ledger(box.counters("ingest@0").values)


class _Load:
    """The three clients and their counts."""

    def __init__(self, box: RunningBox, topic: str) -> None:
        _create_topic(box, topic)
        self.producer = AckedProducer(box.bootstrap, topic, PARTITIONS)
        self.reader = StreamReader(box.bootstrap, topic, PARTITIONS)
        self.sender = SyslogTcpSender(*box.syslog)
        for client in (self.producer, self.reader, self.sender):
            client.start()
        eventually(lambda: self.producer.acknowledged and self.reader.numbers, "load runs")

    def end_and_check(self, box: RunningBox) -> None:
        self.sender.stop()
        self.producer.stop()
        assert self.producer.failures == []
        acknowledged = self.producer.acknowledged
        eventually(lambda: all(acknowledged[partition] <= self.reader.numbers[partition] for partition in range(PARTITIONS)), "everything is read")
        self.reader.stop()
        assert self.reader.errors == []
        self.reader.check_every_offset_once()
        for partition in range(PARTITIONS):
            assert acknowledged[partition] - self.reader.numbers[partition] == set(), f"acknowledged records of partition {partition} are lost"
        eventually(lambda: _ledger(box).in_flight == 0, f"received = stored + counted: {_ledger(box)}")
        print(f"acknowledged {sum(map(len, acknowledged.values()))}, syslog sent {self.sender.sent}, ledger {_ledger(box)}")


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.alone
def test_no_acknowledged_record_is_lost_when_any_process_is_killed(box: RunningBox) -> None:
    seed = int(os.environ.get("MILLRACE_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    print(f"seed {seed}")
    load = _Load(box, "deaths")
    names = [name for name in box.pids() if name != "supervisor"]
    victims = names * (20 if DEEP else 1)
    chance.shuffle(victims)
    for victim in victims:
        time.sleep(chance.uniform(0.0, 0.8))
        killed_at = time.monotonic()
        old_pid = box.kill(victim)
        box.await_restart(victim, old_pid, 15)
        served_at = time.monotonic()
        eventually(partial(load.producer.has_news_since, served_at), f"acknowledgements after the death of {victim}", 15)
        silence = load.producer.longest_silence(killed_at, time.monotonic())
        kind = victim.partition("@")[0]
        print(f"{victim}: served again after {served_at - killed_at:.2f} s, longest silence {silence:.2f} s")
        assert served_at - killed_at < SILENCE_SECONDS[kind], f"{victim} was away for {served_at - killed_at:.2f} s"
        assert silence < (UNFELT_SECONDS if kind in UNFELT else SILENCE_SECONDS[kind])
    load.end_and_check(box)


@pytest.mark.system
@pytest.mark.slow
def test_a_log_writer_that_is_killed_in_quick_succession_keeps_every_acknowledged_record(box: RunningBox) -> None:
    """Deaths during recovery, during the handshake, before the first heartbeat: no pause between them."""
    seed = int(os.environ.get("MILLRACE_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    print(f"seed {seed}")
    load = _Load(box, "quick-deaths")
    for _ in range(60 if DEEP else 8):
        pids = box.pids()
        victim = chance.choice([name for name in pids if name.startswith(("log-writer", "acceptor"))])
        box.kill(victim)
        time.sleep(chance.uniform(0.02, 0.4))
    load.end_and_check(box)


@pytest.mark.system
@pytest.mark.slow
def test_every_acknowledged_record_survives_the_death_of_the_whole_box(start: Callable[..., RunningBox]) -> None:
    first = start()
    _create_topic(first, "survivors")
    producer = AckedProducer(first.bootstrap, "survivors", PARTITIONS)
    producer.start()
    eventually(lambda: len(producer.acknowledged) == PARTITIONS, "load runs")
    time.sleep(1.0)
    first.kill_supervisor()
    second = start(kafka_port=first.kafka.port)
    producer.stop()
    reader = StreamReader(second.bootstrap, "survivors", PARTITIONS)
    reader.start()
    eventually(lambda: all(producer.acknowledged[partition] <= reader.numbers[partition] for partition in range(PARTITIONS)), "everything is read")
    reader.stop()
    reader.check_every_offset_once()
    assert producer.failures == []
