"""Sent = received + refused + dropped, received = stored + duplicate + counted, stored + copies = what a real consumer reads: to the line, by listener.

A `Reconciliation` counts from when it was made, so tests may share a box. It reads the figures of `millrace ingest status`, and the topics with librdkafka.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from appliance.base.settings import load_box
from appliance.senders.ingest_figures import ListenerFigures, gather
from lab.running_box import RunningBox, eventually

SETTLE_SECONDS = 60.0
NEVER_SILENT_MS = 1 << 40


class Balance(NamedTuple):
    """One listener's figures, or the difference of two readings of them."""

    received: int = 0
    stored: int = 0
    duplicate: int = 0
    counted: int = 0
    refused: int = 0
    dropped: int = 0
    acknowledged: int = 0
    copies: int = 0

    @property
    def in_flight(self) -> int:
        return self.received - self.stored - self.duplicate - self.counted

    @property
    def accounted(self) -> int:
        """Everything that a sender may have sent."""
        return self.received + self.refused + self.dropped

    def since(self, before: Balance) -> Balance:
        return Balance(*(now - then for now, then in zip(self, before, strict=True)))


def balance_of(figures: ListenerFigures) -> Balance:
    ledger = figures.ledger
    refused = sum(figures.refused.values())
    return Balance(ledger.received, ledger.stored, ledger.duplicate, ledger.counted, refused, figures.kernel_drops, figures.acknowledged, figures.copies)


def balances_of(box: RunningBox) -> dict[str, Balance]:
    """What each listener of a box has counted, over all its ingests."""
    figures = gather(box.layout, load_box(box.layout), NEVER_SILENT_MS, 0)
    return {listener.name: balance_of(listener) for listener in figures.listeners}


class Reconciliation:
    """What came since it was made: by listener, and in some topics."""

    def __init__(self, box: RunningBox, *topics: str) -> None:
        self.box = box
        self._before = balances_of(box)
        self._consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "reconcile", "enable.auto.commit": False, "fetch.wait.max.ms": 50})
        self._starts = {topic: self._ends(topic) for topic in topics}

    def balance(self, listener: str) -> Balance:
        return self.balances()[listener]

    def balances(self) -> dict[str, Balance]:
        """Of all listeners, at one moment."""
        return {name: balance.since(self._before.get(name, Balance())) for name, balance in balances_of(self.box).items()}

    def hold(self, listener: str, sent: int, seconds: float = SETTLE_SECONDS, copies: int = 0) -> Balance:
        """Wait until everything that was sent is accounted for, and `copies` of it are stored in further topics, which may be later; fail unless it is so to
        the line."""

        def is_settled() -> bool:
            balance = self.balance(listener)
            return balance.accounted >= sent and not balance.in_flight and balance.copies >= copies

        try:
            eventually(is_settled, f"{sent} of listener {listener} are settled", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.balance(listener)}") from None
        balance = self.balance(listener)
        assert balance.accounted == sent, f"{sent} were sent to {listener}, {balance.accounted} are accounted for: {balance}"
        assert balance.received == balance.stored + balance.duplicate + balance.counted, f"{listener}: {balance}"
        return balance

    def hold_topics(self) -> dict[str, list[Any]]:
        """Fail unless the topics hold what all listeners stored there, copies included. The records by topic, as JSON where they are. For a reconciliation that
        knows every topic that anything writes to."""
        found = {topic: self.records(topic) for topic in self._starts}
        written = sum(balance.stored + balance.copies for balance in (self.balance(listener) for listener in balances_of(self.box)))
        in_topics = sum(map(len, found.values()))
        counts = {topic: len(records) for topic, records in found.items()}
        assert in_topics == written, f"{written} were stored or copied, {in_topics} are in the topics: {counts}"
        return found

    def records(self, topic: str) -> list[Any]:
        """The values of a topic that came since, read to its end; JSON as documents."""
        return self._read([topic])[topic]

    def all_records(self) -> dict[str, list[Any]]:
        """The same of every topic that it knows, read in one go."""
        return self._read(list(self._starts))

    def _read(self, topics: Sequence[str]) -> dict[str, list[Any]]:
        ends = {topic: self._ends(topic) for topic in topics}
        places = [TopicPartition(topic, partition, self._starts[topic].get(partition, 0)) for topic in topics for partition in ends[topic]]
        wanted = {topic: sum(end - self._starts[topic].get(partition, 0) for partition, end in ends[topic].items()) for topic in topics}
        self._consumer.assign(places)
        values: dict[str, list[Any]] = {topic: [] for topic in topics}
        deadline = time.monotonic() + SETTLE_SECONDS
        while any(len(values[topic]) < wanted[topic] for topic in topics) and time.monotonic() < deadline:
            for message in self._consumer.consume(1000, 0.2):
                value, topic = message.value(), message.topic()
                assert message.error() is None and value is not None and topic is not None, message.error()
                if message.offset() < ends[topic][message.partition()]:  # type: ignore[index,operator]
                    values[topic].append(_document(value))
        for topic in topics:
            assert len(values[topic]) == wanted[topic], f"topic {topic} has {wanted[topic]} new records, {len(values[topic])} were read"
        return values

    def _ends(self, topic: str) -> dict[int, int]:
        """By partition; none where there is no such topic."""
        known = self._consumer.list_topics(timeout=10).topics
        partitions = known[topic].partitions if topic in known and known[topic].error is None else {}
        return {partition: self._end(TopicPartition(topic, partition)) for partition in partitions}

    def _end(self, partition: TopicPartition) -> int:
        """Asked again for a while, as clients do: its log-writer may just be back."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                return int(self._consumer.get_watermark_offsets(partition, 10)[1])
            except KafkaException:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        self._consumer.close()


def _document(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
