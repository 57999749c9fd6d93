"""Users that speak Kafka: one produces batches and waits for their acknowledgement, the other is a member of a group. Imports locust.

Each has a librdkafka client of its own, as a program of a user would. Weak spot: a client takes about four threads; some hundred users a process are
enough, then take more processes.
"""

from __future__ import annotations

import argparse
from typing import Any

from loadtest.users.acknowledged_producer import AcknowledgedProducer
from loadtest.users.box_user import BoxUser
from loadtest.users.crew import crew
from loadtest.users.group_member import GroupMember
from loadtest.users.sample_text import padded
from loadtest.users.targets import bootstrap_of

CONSUME_SECONDS = 0.25


class ProducerUser(BoxUser):
    """Sends `--batch-records` records and waits until each has its answer. The first batch is counted and not timed: it waits for librdkafka to connect
    and to get a producer id, which takes a second."""

    abstract = False
    kind = "produce"

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._client: AcknowledgedProducer | None = None
        self._sent = 0

    def rate(self) -> float:
        return float(crew.options.produce_rate)

    def act(self) -> None:
        options = crew.options
        is_timed = self._client is not None
        if self._client is None:
            self._client = AcknowledgedProducer(producer_configuration(options, self.name), options.topic, crew.ledger)
        values = [padded(f"{options.run_id} {self.name} {self._sent + number} ", options.record_bytes) for number in range(options.batch_records)]
        self._sent += len(values)
        outcome = self._client.send(values)
        failure = f"not acknowledged: {outcome.last_error}" if outcome.failed else ""
        self.report(options.topic, outcome.seconds * 1000 if is_timed else None, sum(map(len, values)), failure)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class ConsumerUser(BoxUser):
    """A member of one of `--groups` groups. A request is what one call brought; its time is the age of the oldest record in it."""

    abstract = False
    kind = "consume"

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._client: GroupMember | None = None
        groups = groups_of(crew.options)
        # Every process begins with another group, so that few consumers in many processes are in all of them.
        self._group_id = groups[(environment.runner.worker_index + crew.next_consumer()) % len(groups)]

    def may_act(self) -> bool:
        return crew.may_consume

    def act(self) -> None:
        self.is_sending = False  # it takes; others wait for its end by offsets
        if self._client is None:
            self._client = GroupMember(consumer_configuration(crew.options, self._group_id, self.name), crew.options.consumed_topics.split(","), crew.ledger)
        delivered = self._client.poll(crew.options.poll_records, CONSUME_SECONDS)
        if delivered is not None:
            self.report(self._group_id, delivered.oldest_age_ms, delivered.size_bytes, delivered.error)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def groups_of(options: argparse.Namespace) -> list[str]:
    return [f"{options.run_id}-g{number}" for number in range(options.groups)]


def producer_configuration(options: argparse.Namespace, name: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_of(options.host),
        "client.id": name,
        "acks": options.acks,
        # Retries must not make records of their own; with acks=0 or 1 no client can promise that.
        "enable.idempotence": options.acks == "all",
        "compression.type": options.compression,
        "linger.ms": options.linger_ms,
        "delivery.timeout.ms": options.answer_seconds * 1000,
        "log_level": 3,
    }


def consumer_configuration(options: argparse.Namespace, group: str, name: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_of(options.host),
        "client.id": name,
        "group.id": group,
        "group.protocol": options.group_protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "log_level": 3,
    }
