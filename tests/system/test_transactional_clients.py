"""Clients of their own kind in transactions and groups: aiokafka's transactional producer beside group consumers of aiokafka, kafkajs and kcat."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lab.foreign_clients import open_client
from lab.running_box import RunningBox

pytestmark = [pytest.mark.system, pytest.mark.slow]
SECONDS = 30


def test_offsets_join_a_transaction_on_a_box_that_has_seen_no_group(start: Callable[..., RunningBox]) -> None:
    """AddOffsetsToTxn is the first that the box hears of any group: `__consumer_offsets` is made for it."""
    box = start(settings={"group.initial.rebalance.delay.ms": 0})  # each group here has one member
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic("copied", 1)])["copied"].result(SECONDS)

    async def transact() -> tuple[int | None, list[bytes | None]]:
        producer = AIOKafkaProducer(bootstrap_servers=box.bootstrap, transactional_id="copier")
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_offsets_to_transaction({TopicPartition("copied", 0): 7}, "copiers")
                await producer.send_and_wait("copied", b"kept")
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_offsets_to_transaction({TopicPartition("copied", 0): 9}, "copiers")
                    await producer.send_and_wait("copied", b"thrown away")
                    raise ZeroDivisionError
            async with producer.transaction():
                await producer.send_and_wait("copied", b"the end")
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(
            "copied",
            bootstrap_servers=box.bootstrap,
            group_id="readers",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        copiers = AIOKafkaConsumer(bootstrap_servers=box.bootstrap, group_id="copiers")
        await consumer.start()
        await copiers.start()
        try:
            found = [(await consumer.getone()).value for _ in range(2)]
            return await copiers.committed(TopicPartition("copied", 0)), found
        finally:
            await consumer.stop()
            await copiers.stop()

    offset, found = asyncio.run(asyncio.wait_for(transact(), SECONDS))
    assert (offset, found) == (7, [b"kept", b"the end"])
    readers = open_client("kafkajs", box.bootstrap)
    try:
        assert [record.value for record in readers.fetch("copied", 2)] == found
    finally:
        readers.close()
    # The same by kcat as the only member of a group: what it committed is where the next one begins.
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not there")
    command = ["kcat", "-b", box.bootstrap, "-X", "auto.offset.reset=earliest", "-X", "isolation.level=read_committed", "-q", "-e", "-G", "kcats", "copied"]
    for expected in (["kept", "the end"], []):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        assert ended.stdout.splitlines() == expected
