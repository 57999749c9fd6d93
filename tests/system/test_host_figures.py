"""The machine's figures in a real box: the topic as the console makes it, and what a consumer finds in it."""

from __future__ import annotations

import asyncio
import json
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from appliance.base.clock import SystemClock
from appliance.base.logging import Logger
from appliance.client.address import Address
from appliance.client.admin import topic_settings
from appliance.client.cluster import ClusterClient
from appliance.runtime.agent import ServiceContext
from appliance.shm.counters import Counters
from lab.running_box import RunningBox, eventually
from lab.scratch_layout import scratch_layout
from services.console.console_host import HostFigures
from services.console.host_topic import TOPIC_CONFIGS

pytestmark = pytest.mark.system

TOPIC = "host-figures"
INTERVALS = 3


def publish(box: RunningBox) -> dict[str, int]:
    """What the console's task does, without its pauses; its counters."""

    async def run(figures: HostFigures) -> None:
        figures.look()
        for _ in range(INTERVALS):
            figures.look()
            await figures.send()
        figures.hang_up()

    with scratch_layout() as scratch:
        counters = Counters.create_or_adopt(scratch, "console", 1)
        settings = {**box.box.settings, "host.figures.topic": TOPIC}
        context = SimpleNamespace(layout=box.layout, box=box.box._replace(settings=settings), clock=SystemClock(), counters=counters, log=Logger("console"))
        asyncio.run(run(HostFigures(cast(ServiceContext, context))))
        values = {name: counters.counter(f"host_figures.{name}").value for name in ("records", "failures", "dropped")}
        counters.close()
    return values


def consume(box: RunningBox, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "figures", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        messages: list[Any] = []
        eventually(lambda: messages.extend(consumer.consume(count - len(messages), 0.5)) or len(messages) == count, "all records are read")
        assert not any(message.error() for message in messages)
        return messages
    finally:
        consumer.close()


def test_a_consumer_finds_the_figures_of_every_interval(shared_box: RunningBox) -> None:
    eventually(lambda: shared_box.counters("log-writer@d0").values.get("disk.total_bytes"), "the log-writers have looked at their disks")
    eventually(lambda: shared_box.counters("log-writer@d1").values.get("disk.total_bytes"), "the log-writers have looked at their disks")
    counted = publish(shared_box)
    assert counted["failures"] == counted["dropped"] == 0 < counted["records"]
    messages = consume(shared_box, counted["records"])
    figures = [json.loads(message.value()) for message in messages]
    assert {message.key() for message in messages} == {os.uname().nodename.encode()}
    assert [record["device"] for record in figures if record["kind"] == "log_directory"] == ["d0", "d1"] * INTERVALS
    assert all(0 < record["free_bytes"] < record["size_bytes"] for record in figures if record["kind"] == "log_directory")
    assert {"cpu", "memory", "log_directory", "network"} <= {record["kind"] for record in figures}
    assert len({record["time"] for record in figures}) == INTERVALS
    with ClusterClient([Address(shared_box.kafka.host, shared_box.kafka.port)]) as cluster:
        known = topic_settings(cluster, TOPIC)
    assert known.own == TOPIC_CONFIGS
