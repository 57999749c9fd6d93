"""What becomes of batches that were offered, whoever leads: stored, appended and not yet committed, to be offered again, refused for good.

Owned by the outlet; implements `local_leaders.Answers`. Weak: a batch that is refused for good is lost for the senders that nobody answers; the others are
told, and may send it again for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.senders.accounting import RESENT_COUNTER, LossReason
from appliance.shm.counters import Counters
from services.ingest.producer.partition_queue import PartitionQueue
from services.ingest.producer.partition_queues import PartitionQueues
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.acknowledger import Acknowledger

RETRY_NS = 50_000_000

RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
_SEQUENCE_LOST = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID})


class ReplayRecorder(Protocol):
    """What replay memory is told, of batches with parts (`replays`)."""

    def before_offer(self, batch: ProducerBatch) -> None: ...

    def stored(self, batch: ProducerBatch) -> None: ...

    def refused(self, batch: ProducerBatch) -> None: ...


class BatchAnswers:
    """`on_ended(batch)`: its memory, and its place in the spool, are free."""

    def __init__(
        self,
        lanes: PartitionQueues,
        topic_ids: Mapping[str, bytes],
        acknowledger: Acknowledger,
        replays: ReplayRecorder,
        on_ended: Callable[[ProducerBatch], None],
        clock: Clock,
        counters: Counters,
        log: Logger,
    ) -> None:
        self._lanes = lanes
        self._topic_ids = topic_ids
        self._acknowledger = acknowledger
        self._replays = replays
        self._on_ended = on_ended
        self._clock = clock
        self._log = log
        self._resent = counters.counter(RESENT_COUNTER)
        self._latency = counters.histogram("ingest.batch_us")
        self._epochs = counters.counter("ingest.producer_epochs_raised")
        self._refusals_logged: set[int] = set()

    def on_offering(self, batch: ProducerBatch, is_new: bool) -> None:
        if batch.was_offered:
            self._resent.add(batch.record_count)
        batch.topic_id = self._topic_ids.get(batch.topic, b"")
        if (is_new or batch.is_copy) and batch.parts:
            self._replays.before_offer(batch)
        batch.is_copy = False

    def on_appended(self, batch: ProducerBatch) -> None:
        self._lanes.of(batch).is_open = True
        batch.is_appended = True
        self._acknowledger.on_appended(batch)

    def on_stored(self, batch: ProducerBatch) -> None:
        lane = self._lanes.end(batch)
        lane.is_open = not lane.is_recoiling
        self._on_ended(batch)
        self._latency.record(self._clock.monotonic_ns() - batch.closed_ns)
        self._acknowledger.on_stored(batch)
        if batch.parts:
            self._replays.stored(batch)

    def on_unknown(self, batch: ProducerBatch) -> None:
        self._lanes.come_back(batch, 0)

    def on_refused(self, batch: ProducerBatch, code: int) -> None:
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self.on_stored(batch)
        elif code in RETRIABLE:
            self._lanes.come_back(batch, self._clock.monotonic_ns() + RETRY_NS)
        elif code in _SEQUENCE_LOST and batch.base_sequence >= 0:
            self._on_sequence_lost(batch)
        else:
            self._refuse(batch, code)

    def _on_sequence_lost(self, batch: ProducerBatch) -> None:
        """Behind something that came back it was to be expected. Of the first one that the log does not know it has to be asked (`doubtful_lanes`)."""
        lane = self._lanes.of(batch)
        if lane.is_first_unknown(batch):
            lane.is_doubtful = True
        self._lanes.come_back(batch, 0)

    def on_found(self, batch: ProducerBatch) -> None:
        """One that waited, and that its leader has."""
        lane = self._lanes.of(batch)
        lane.waiting.remove(batch)
        lane.under_way.append(batch)
        self._lanes.under_way += 1
        self.on_stored(batch)

    def on_sequences_lost(self, lane: PartitionQueue) -> None:
        """The leader lacks what it acknowledged: what follows begins a new epoch."""
        self._epochs.add()
        self._lanes.waiting[lane] = None

    def _refuse(self, batch: ProducerBatch, code: int) -> None:
        """For good. What is behind it lacks its sequence: the producer goes on in a new epoch."""
        lane = self._lanes.end(batch)
        lane.is_recoiling, lane.is_open, lane.wants_epoch = True, False, lane.producer_id >= 0
        self._on_ended(batch)
        lost = self._acknowledger.on_lost(batch, LossReason.REFUSED)
        if batch.parts:
            self._replays.refused(batch)
        if code not in self._refusals_logged:
            self._refusals_logged.add(code)
            name = ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)
            words = f"{batch.topic}-{batch.partition} refused a batch of {batch.record_count} records for good: {name}; {lost} are lost, and counted as refused"
            self._log.error(words, topic=batch.topic, partition=batch.partition, disk=lane.place, reason="refused")
