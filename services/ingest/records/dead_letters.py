"""Records that can never be stored where they belong: counted, told to their sender, and kept as dead letters if the table names a topic for them.

Owned by the intake. A dead letter is the record's own value, cut to what its topic takes, with headers that say why, and where it should have gone. Who sends
such is slowed down like others. Weak: it is a copy in the books; one whose own topic is too small, or cannot be made, is counted and gone.
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
"""Of a batch and the headers of a dead letter."""
CUT_BYTES = 1 << 20
"""While the topic is not there, and its limit not known."""


class DeadLetters:
    """`topic` is "" where the table names none. `on_slowed(topic, partition)`: that takes no more."""

    def __init__(self, topic: str, topics: IngestTopics, ledger: IngestLedger, clock: Clock, on_slowed: Callable[[str, int], None]) -> None:
        self._topic = topic
        self._topics = topics
        self._ledger = ledger
        self._clock = clock
        self._on_slowed = on_slowed

    def reject(self, group: AckGroup, number: int, reason: LossReason, topic: str, event: ProducerRecord) -> None:
        """A record of the unit that `topic` cannot have."""
        self._ledger.on_counted(group, reason, 1)
        if group.on_completed is not None:
            group.rejected.append((number, str(reason)))
        if self._topic:
            self._bury(group, reason, topic, event)

    def _bury(self, group: AckGroup, reason: LossReason, topic: str, event: ProducerRecord) -> None:
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
        if collector.append(letter, self._clock.monotonic_ms(), group, can_wait, None, 0, True) is Acceptance.TAKEN_BEYOND and can_wait:
            self._on_slowed(self._topic, collector.slowed_by)
