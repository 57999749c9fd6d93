"""librdkafka's consumer as a member of a group, on a thread of its own. What it has seen goes to the process's ledger, offset by offset.

Owned by one user. It commits what its user was given, once a second and when partitions are taken away, never more; so records may come twice over a
rebalance, and none may be left out. Weak spot: records that librdkafka had ready when a partition was taken come to the next member; they are not
counted here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from loadtest.users.ledger import ProcessLedger
from loadtest.users.native_thread import NativeThread

COMMIT_SECONDS = 1.0
TIMESTAMP_NONE = 0
READ_AGAIN = frozenset({KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.STALE_MEMBER_EPOCH})
"""Refusals of a commit over a rebalance: the member that gets the partitions reads these records again."""

Partition = tuple[str, int]


class Delivered(NamedTuple):
    """One call's records. `oldest_age_ms` compares the clocks of producer and consumer; it is None where there is no time in the record, and for records
    that are older than the member: they waited for the group to form, not for the box."""

    records: int
    size_bytes: int
    oldest_age_ms: float | None
    error: str


class GroupMember:
    """One librdkafka consumer."""

    def __init__(self, configuration: dict[str, Any], topics: Sequence[str], ledger: ProcessLedger) -> None:
        self._group: str = configuration["group.id"]
        self._ledger = ledger
        self._owned: set[Partition] = set()
        self._next_offsets: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._committed_at = time.monotonic()
        self._joined_ms: float | None = None
        self._is_closed = False
        self._thread = NativeThread()
        self._consumer: Consumer = self._thread.call(Consumer, configuration)
        self._thread.call(self._subscribe, list(topics))

    def _subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def poll(self, records_max: int, seconds: float) -> Delivered | None:
        """What has come, counted; None if nothing came in time. Commits when it is time to."""
        messages = self._thread.call(self._consume, records_max, seconds)
        delivered = self._count(messages)
        if time.monotonic() - self._committed_at > COMMIT_SECONDS:
            self._thread.call(self._commit_news)
        return delivered

    def _consume(self, records_max: int, seconds: float) -> list[Message]:
        """`consume` alone would wait for as many as it was asked for, or for the whole time."""
        first = self._consumer.poll(seconds)
        return [] if first is None else [first, *self._consumer.consume(records_max - 1, 0)]

    def _count(self, messages: list[Message]) -> Delivered | None:
        records = size_bytes = 0
        oldest_ms: float | None = None
        last_error = ""
        for message in messages:
            if error := message.error():
                last_error = error.name()
                continue
            topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
            ranges = self._ledger.ranges_of(self._group, f"{topic}/{partition}")
            if (topic, partition) not in self._next_offsets:
                ranges.begin_anew(offset)
            ranges.add(offset)
            self._next_offsets[topic, partition] = offset + 1
            records += 1
            size_bytes += len(message)
            kind, timestamp_ms = message.timestamp()
            if kind != TIMESTAMP_NONE and (oldest_ms is None or timestamp_ms < oldest_ms):
                oldest_ms = timestamp_ms
        if not records and not last_error:
            return None
        is_timed = oldest_ms is not None and self._joined_ms is not None and oldest_ms >= self._joined_ms
        return Delivered(records, size_bytes, max(0.0, time.time() * 1000 - (oldest_ms or 0)) if is_timed else None, last_error)

    # --- in the native thread

    def _commit_news(self) -> None:
        """Without waiting. Whether it arrived is seen at the end."""
        self._committed_at = time.monotonic()
        news = {partition: offset for partition, offset in self._owned_offsets().items() if self._committed.get(partition) != offset}
        if news:
            self._committed |= news
            self._consumer.commit(offsets=_as_offsets(news), asynchronous=True)

    def _commit_all(self) -> None:
        """And wait for it."""
        if not (offsets := self._owned_offsets()):
            return
        try:
            self._consumer.commit(offsets=_as_offsets(offsets), asynchronous=False)
        except KafkaException as failure:
            if failure.args[0].code() not in READ_AGAIN:
                raise

    def _owned_offsets(self) -> dict[Partition, int]:
        return {partition: offset for partition, offset in self._next_offsets.items() if partition in self._owned}

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)
        self._owned |= {(known.topic, known.partition) for known in partitions}
        if self._joined_ms is None and partitions:
            self._joined_ms = time.time() * 1000

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit_all()
        self._forget(partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for known in partitions:
            partition = (known.topic, known.partition)
            self._owned.discard(partition)
            self._next_offsets.pop(partition, None)
            self._committed.pop(partition, None)

    def close(self) -> None:
        """Commits and leaves the group. Once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._thread.call(self._commit_and_close)
        self._thread.close()

    def _commit_and_close(self) -> None:
        self._commit_all()
        self._consumer.close()


def _as_offsets(offsets: dict[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
