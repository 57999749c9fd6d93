"""Reject records that can never be stored in their topic: count them, and store a dead letter if
the table names a topic.

Owned by the router. A dead letter is the record's value, cut to the limit of its topic, with
headers for the reason and the topic that refused it. Senders of rejected records are slowed down
like others.

Weak: a dead letter counts as a copy. One whose own topic is too small or cannot be created is
counted and lost.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.records.builder import encode_headers
from appliance.senders.accounting import LossReason
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.batcher import Acceptance, Batcher
from services.ingest.records.event import ProducerRecord
from services.ingest.records.ingest_ledger import IngestLedger
from services.ingest.records.ingest_topics import IngestTopics

OVERHEAD_BYTES = 1024
"""Overhead of a batch and of the headers of a dead letter."""
CUT_BYTES = 1 << 20
"""The limit while the topic does not exist."""


class DeadLetters:
    """`topic` is "" without a dead letter topic. `on_blocked(topic, partition)`: that partition is
    blocked."""

    def __init__(self, topic: str, topics: IngestTopics, ledger: IngestLedger, clock: Clock, on_blocked: Callable[[str, int], None]) -> None:
        self._topic = topic
        self._topics = topics
        self._ledger = ledger
        self._clock = clock
        self._on_blocked = on_blocked

    def reject(self, group: AckGroup, number: int, reason: LossReason, topic: str, event: ProducerRecord) -> None:
        """Count a record of the group that `topic` can never hold, and add it to the negative part
        of the answer."""
        self._ledger.on_counted(group, reason, 1)
        if group.on_completed is not None:
            group.rejected.append((number, str(reason)))
        if self._topic:
            self._store(group, reason, topic, event)

    def _store(self, group: AckGroup, reason: LossReason, topic: str, event: ProducerRecord) -> None:
        collector = self._topics.of(self._topic).collector
        limit, can_wait = CUT_BYTES, False
        if isinstance(collector, Batcher):
            limit, can_wait = collector.max_batch_bytes, not group.listener.is_datagram
        limit -= OVERHEAD_BYTES + len(event.key or b"")
        headers = [("source", group.source.address), ("transport", group.source.transport), ("listener", group.listener.name.encode())]
        headers += [("dead_letter_reason", str(reason).encode()), ("dead_letter_topic", topic.encode())]
        if len(event.value) > limit:
            headers.append(("truncated", b"true"))
        letter = ProducerRecord(event.timestamp_ms, event.key, event.value[: max(0, limit)], encode_headers(headers))
        if collector.append(letter, self._clock.monotonic_ms(), group, can_wait, None, 0, True) is Acceptance.TAKEN_BUT_BLOCKED and can_wait:
            self._on_blocked(self._topic, collector.blocked_partition)
