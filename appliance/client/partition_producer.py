"""The batches of one partition on their way to its leader: in order, numbered, retried. Pure: time is an argument.

At most one batch is in flight, so a retry never changes the order. With a producer id every batch
carries a sequence (KIP-98): the broker drops a batch that it already has, so a retry after a lost
response does not duplicate records. Owned by a `BatchProducer`. Weak spot: one batch per round trip;
batches should be large.
"""

from __future__ import annotations

from collections import deque

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.invariants import check
from appliance.base.model import TopicPartition
from appliance.client.errors import is_retriable
from appliance.cluster.state_log import ProducerIdentity
from appliance.records.batch import read_batch_header, stamp_producer

FIRST_PAUSE_MS = 20
LONGEST_PAUSE_MS = 1_000
_SEQUENCE_MASK = 0x7FFFFFFF


class PendingBatch:
    """An encoded batch that no broker has acknowledged yet; `first_sent_ms` is -1 before its first attempt."""

    __slots__ = ("encoded", "first_sent_ms", "records_count")

    def __init__(self, encoded: bytearray, records_count: int) -> None:
        self.encoded = encoded
        self.records_count = records_count
        self.first_sent_ms = -1


class PartitionProducer:
    """`append` queues batches; `begin` gives the oldest one to the transport, which reports `on_acknowledged` or `on_failure`."""

    __slots__ = ("_next_sequence", "_pause_ms", "batches", "in_flight", "partition", "retry_at_ms")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[PendingBatch] = deque()
        self.in_flight = False
        """True while the broker has not answered for the oldest batch."""
        self.retry_at_ms = 0
        self._pause_ms = FIRST_PAUSE_MS
        self._next_sequence = 0

    def append(self, encoded: bytes, identity: ProducerIdentity | None, is_transactional: bool) -> int:
        """Queue one batch and return its size; with an identity, stamp it with the next sequence."""
        batch = PendingBatch(bytearray(encoded), read_batch_header(encoded).records_count)
        if identity is not None:
            stamp_producer(batch.encoded, *identity, self._next_sequence, is_transactional)
            self._next_sequence = (self._next_sequence + batch.records_count) & _SEQUENCE_MASK
        self.batches.append(batch)
        return len(encoded)

    def is_ready(self, now_ms: int) -> bool:
        return not self.in_flight and bool(self.batches) and now_ms >= self.retry_at_ms

    def begin(self, now_ms: int) -> PendingBatch:
        """Return the oldest batch, which is in flight from now on."""
        check(not self.in_flight, f"{self.partition}: a second batch was sent before the first one was answered")
        self.in_flight = True
        batch = self.batches[0]
        if batch.first_sent_ms < 0:
            batch.first_sent_ms = now_ms
        return batch

    def on_acknowledged(self) -> PendingBatch:
        self.in_flight = False
        self._pause_ms = FIRST_PAUSE_MS
        return self.batches.popleft()

    def on_failure(self, error: Exception, now_ms: int, delivery_timeout_ms: int) -> bool:
        """Schedule a retry with the same sequences; return True for the first one in a row.

        Raises `error` if a retry cannot help, or if the first attempt is `delivery_timeout_ms` ago."""
        is_damaged = isinstance(error, RequestRefused) and error.code == ErrorCode.CORRUPT_MESSAGE
        if not is_retriable(error) or is_damaged or now_ms - self.batches[0].first_sent_ms > delivery_timeout_ms:
            raise error
        is_first = self._pause_ms == FIRST_PAUSE_MS
        self.in_flight = False
        self.retry_at_ms = now_ms + self._pause_ms
        self._pause_ms = min(self._pause_ms * 2, LONGEST_PAUSE_MS)
        return is_first
