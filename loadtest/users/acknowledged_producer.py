"""librdkafka's producer with a thread that polls it: a batch is sent by a greenlet, which waits until every record of it has an answer.

Owned by one user; its counts go to the process's ledger. Weak spot: one batch at a time, as a user who waits for an answer would do; more users make
more on its way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import gevent
from confluent_kafka import KafkaError, Message, Producer

from loadtest.users.ledger import Acknowledgements, ProcessLedger
from loadtest.users.native_thread import NativeThread, Signal

POLL_SECONDS = 0.2
FULL_QUEUE_SECONDS = 0.005
MAYBE_STORED = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
    }
)
"""Errors after which a record may be in the log all the same."""


class BatchOutcome(NamedTuple):
    """`seconds`: from the first record's hand-over to the last one's answer, taken when it came."""

    acknowledged: int
    failed: int
    last_error: str
    seconds: float


class AcknowledgedProducer:
    """One librdkafka producer. What its thread counts, no other thread writes."""

    def __init__(self, configuration: dict[str, Any], topic: str, ledger: ProcessLedger) -> None:
        self._producer = Producer(configuration)
        self._topic = topic
        self._ledger = ledger
        self._counts = ledger.add_producer()
        self._partitions: dict[int, Acknowledgements] = {}
        self._handed_over = 0
        self._awaited: float = math.inf
        """the greenlet wants to know when so many answers are there"""
        self._acknowledged = 0
        self._failed = 0
        self._last_error = ""
        self._last_answer_at = 0.0
        self._answered = Signal()
        self._is_closing = False
        self._thread = NativeThread()
        self._pump = self._thread.start(self._poll_until_closing)

    @property
    def is_quiet(self) -> bool:
        return self._acknowledged + self._failed == self._handed_over

    def send(self, values: Sequence[bytes]) -> BatchOutcome:
        """Returns when each record was acknowledged, refused or given up; librdkafka's `delivery.timeout.ms` bounds that."""
        acknowledged, failed = self._acknowledged, self._failed
        self._last_error = ""
        started = time.perf_counter()
        for value in values:
            self._hand_over(value)
        self._awaited = self._handed_over
        while not self.is_quiet:
            self._answered.wait(POLL_SECONDS)
        self._awaited = math.inf
        return BatchOutcome(self._acknowledged - acknowledged, self._failed - failed, self._last_error, self._last_answer_at - started)

    def _hand_over(self, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, on_delivery=self._on_delivery)
                break
            except BufferError:
                gevent.sleep(FULL_QUEUE_SECONDS)
        self._handed_over += 1
        self._ledger.attempted += 1

    def _poll_until_closing(self) -> None:
        """The thread's main loop."""
        while not self._is_closing:
            self._producer.poll(POLL_SECONDS)
        self._producer.flush(POLL_SECONDS)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """In the native thread."""
        self._last_answer_at = time.perf_counter()
        if error is None:
            self._acknowledgements_of(message.partition() or 0).add(-1 if (offset := message.offset()) is None else offset)
            self._acknowledged += 1
        else:
            self._last_error = error.name()
            if error.code() in MAYBE_STORED:
                self._counts.unknown += 1
            else:
                self._counts.refused += 1
            self._failed += 1
        if self._acknowledged + self._failed >= self._awaited:
            self._answered.set()

    def _acknowledgements_of(self, partition: int) -> Acknowledgements:
        known = self._partitions.get(partition)
        if known is None:
            known = self._partitions[partition] = self._counts.acknowledged[f"{self._topic}/{partition}"] = Acknowledgements()
        return known

    def close(self) -> None:
        self._is_closing = True
        self._pump.get()
        self._thread.close()
        self._answered.close()
