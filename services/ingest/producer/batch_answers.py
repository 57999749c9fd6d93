"""Handle the result of each offered batch: stored, appended, offer again, or refused for good.

Owned by `BatchSender`; implements `local_leaders.Answers` for leaders on this box and on others.

Weak: a batch that is refused for good is lost if its sender expects no acknowledgement. Other
senders receive a negative acknowledgement and may repeat the batch without end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.runtime.agent import ServiceContext
from appliance.senders.accounting import RESENT_COUNTER, LossReason
from services.ingest.producer.partition_queues import PartitionQueue, PartitionQueues
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
    """What the replay memory receives about batches whose records have addresses
    (`replay.replays`)."""

    def before_offer(self, batch: ProducerBatch) -> None: ...

    def stored(self, batch: ProducerBatch) -> None: ...

    def refused(self, batch: ProducerBatch) -> None: ...


class BatchAnswers:
    """`on_ended(batch)` frees the batch's memory and its place in the spool."""

    def __init__(
        self,
        queues: PartitionQueues,
        topic_ids: Mapping[str, bytes],
        acknowledger: Acknowledger,
        replays: ReplayRecorder,
        on_ended: Callable[[ProducerBatch], None],
        context: ServiceContext,
    ) -> None:
        counters = context.counters
        self._queues = queues
        self._topic_ids = topic_ids
        self._acknowledger = acknowledger
        self._replays = replays
        self._on_ended = on_ended
        self._clock = context.clock
        self._log = context.log
        self._resent = counters.counter(RESENT_COUNTER)
        self._latency = counters.histogram("ingest.batch_us")
        self._epochs = counters.counter("ingest.producer_epochs_raised")
        self._refusals_logged: set[int] = set()

    def on_offering(self, batch: ProducerBatch, is_new: bool) -> None:
        if batch.was_offered:
            self._resent.add(batch.record_count)
        batch.topic_id = self._topic_ids.get(batch.topic, b"")
        if (is_new or batch.is_replacement) and batch.parts:
            self._replays.before_offer(batch)
        batch.is_replacement = False

    def on_appended(self, batch: ProducerBatch) -> None:
        self._queues.of(batch).may_pipeline = True
        batch.is_appended = True
        self._acknowledger.on_appended(batch)

    def on_stored(self, batch: ProducerBatch) -> None:
        queue = self._queues.end(batch)
        queue.may_pipeline = not queue.is_draining
        self._on_ended(batch)
        self._latency.record(self._clock.monotonic_ns() - batch.closed_ns)
        self._acknowledger.on_stored(batch)
        if batch.parts:
            self._replays.stored(batch)

    def on_unknown(self, batch: ProducerBatch) -> None:
        self._acknowledger.on_returned(batch)
        self._queues.requeue(batch, 0)

    def on_refused(self, batch: ProducerBatch, code: int) -> None:
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self.on_stored(batch)
        elif code in RETRIABLE:
            self._queues.requeue(batch, self._clock.monotonic_ns() + RETRY_NS)
        elif code in _SEQUENCE_LOST and batch.base_sequence >= 0:
            self._on_sequence_lost(batch)
        else:
            self._refuse(batch, code)

    def _on_sequence_lost(self, batch: ProducerBatch) -> None:
        """Handle OUT_OF_ORDER_SEQUENCE_NUMBER and its like.

        After a batch was returned, the later ones of its queue fail this way as expected: offering
        them again in order is enough. If it is the first batch that the log does not know, the log
        may still have it (see `unresolved_sequences`): the queue asks the leader before it offers
        anything.
        """
        queue = self._queues.of(batch)
        if queue.is_first_unknown(batch):
            queue.is_unresolved = True
        self._queues.requeue(batch, 0)

    def on_found(self, batch: ProducerBatch) -> None:
        """A waiting batch is in the leader's log."""
        queue = self._queues.of(batch)
        queue.waiting.remove(batch)
        queue.in_flight.append(batch)
        self._queues.in_flight += 1
        self.on_stored(batch)

    def on_sequences_lost(self, queue: PartitionQueue) -> None:
        """The leader lacks batches that it had acknowledged: the queue continues in its next
        producer epoch."""
        self._epochs.add()
        self._queues.waiting[queue] = None

    def _refuse(self, batch: ProducerBatch, code: int) -> None:
        """Give the batch up. The log expects its sequence next, so the producer continues in a new
        epoch."""
        queue = self._queues.end(batch)
        queue.is_draining, queue.may_pipeline, queue.needs_epoch_bump = True, False, queue.producer_id >= 0
        self._on_ended(batch)
        lost = self._acknowledger.on_lost(batch, LossReason.REFUSED)
        if batch.parts:
            self._replays.refused(batch)
        if code not in self._refusals_logged:
            self._refusals_logged.add(code)
            name = ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)
            where = f"{batch.topic}-{batch.partition}"
            message = f"could not store a batch of {batch.record_count} records in {where}: {name}"
            message += f"; {lost} records are lost and counted as refused"
            self._log.error(message, topic=batch.topic, partition=batch.partition, disk=queue.location, reason="refused")
