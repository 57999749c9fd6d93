"""End a transaction: append the decision to the state log, a marker to each partition, and the completion to the state log.

A decision is final: markers are written until every partition has one, by this coordinator or by the
next one that loads the decision. A deleted partition needs none. Owned by the transaction coordinator.
Weak spot: a partition that stays without a leader keeps its transaction from completing, and its
producer waiting, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_PRODUCER_ID, ProducerId, TopicPartition
from appliance.runtime.timers import Timers
from services.coordinator.transactions.transaction import (
    ENDING,
    SECOND_PROTOCOL,
    Marker,
    MarkerWriter,
    TransactionalId,
    complete,
    fence,
    prepare,
)
from services.coordinator.transactions.transactional_ids import OnDone, TransactionalIds

RETRY_MS = 100
_ENDS_THE_JOB = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""A newer coordinator or producer has taken over."""
_AS_GOOD_AS_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})


class _Job:
    """One decided transaction, with the partitions that have no marker yet."""

    __slots__ = ("is_over", "missing", "transactional")

    def __init__(self, transactional: TransactionalId) -> None:
        self.transactional = transactional
        self.missing = set(transactional.current.partitions)
        self.is_over = False


class TransactionEnds:
    """Decisions, markers, completions."""

    def __init__(
        self,
        ids: TransactionalIds,
        markers: MarkerWriter,
        timers: Timers,
        exists: Callable[[TopicPartition], bool],
        leader_epoch_of: Callable[[int], int],
        wall_ms: Callable[[], int],
    ) -> None:
        """`leader_epoch_of`: the leader epoch of a partition of the state topic."""
        self._ids = ids
        self._markers = markers
        self._timers = timers
        self._exists = exists
        self._leader_epoch_of = leader_epoch_of
        self._wall_ms = wall_ms
        self._jobs: dict[int, _Job] = {}
        self.now_ms = 0
        """The time of the timers, set in each turn."""

    @property
    def under_way(self) -> int:
        return len(self._jobs)

    def decide(self, transactional: TransactionalId, commit: bool, raises_epoch: bool, next_producer_id: ProducerId, on_decided: OnDone) -> None:
        """Commit or abort the open transaction. `on_decided` gets NONE when the decision is in the log; the markers follow."""

        def on_done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                transactional.is_fenced = False
                self.write_markers(transactional)
            on_decided(code)

        self._ids.step(transactional, prepare(transactional.current, commit, raises_epoch, next_producer_id, self._wall_ms()), on_done)

    def abort_fenced(self, transactional: TransactionalId, on_decided: OnDone) -> None:
        """Fence the producer with the next epoch and abort its transaction."""
        if not transactional.is_fenced:
            transactional.is_fenced = True
            transactional.current = fence(transactional.current)
        self.decide(transactional, False, False, NO_PRODUCER_ID, on_decided)

    # -- markers

    def write_markers(self, transactional: TransactionalId) -> None:
        """Write the markers of a decided transaction."""
        job = self._jobs[id(transactional)] = _Job(transactional)
        if job.missing:
            for topic_partition in list(job.missing):
                self._write(job, topic_partition)
        else:
            self._complete(job)

    def _write(self, job: _Job, topic_partition: TopicPartition) -> None:
        transaction = job.transactional.current
        if self._is_stale(job):
            return
        if not self._exists(topic_partition):
            self._on_written(job, topic_partition, ErrorCode.NONE)
            return
        epoch = self._leader_epoch_of(self._ids.partition_of(job.transactional.name))
        raises_epoch = transaction.client_version >= SECOND_PROTOCOL
        marker = Marker(topic_partition, transaction.producer_id, transaction.producer_epoch, transaction.is_commit, epoch, raises_epoch)
        self._markers.write(marker, lambda code: self._on_written(job, topic_partition, code))

    def _on_written(self, job: _Job, topic_partition: TopicPartition, code: ErrorCode) -> None:
        if self._is_stale(job):
            return
        if code in _ENDS_THE_JOB:
            self._end(job)
        elif code not in _AS_GOOD_AS_DONE:
            self._timers.schedule(self.now_ms + RETRY_MS, lambda _now_ms: self._write(job, topic_partition))
        else:
            job.missing.discard(topic_partition)
            if not job.missing:
                self._complete(job)

    def _complete(self, job: _Job) -> None:
        def on_done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE or self._is_stale(job):
                self._end(job)
            else:
                self._timers.schedule(self.now_ms + RETRY_MS, lambda _now_ms: self._complete(job))

        if not self._is_stale(job):
            self._ids.step(job.transactional, complete(job.transactional.current, self._wall_ms()), on_done)

    def _is_stale(self, job: _Job) -> bool:
        """True if this box lost the state partition since: the next coordinator loads the decision and writes the markers."""
        if not job.is_over and not self._ids.holds(job.transactional):
            self._end(job)
        return job.is_over or job.transactional.current.state not in ENDING

    def _end(self, job: _Job) -> None:
        job.is_over = True
        self._jobs.pop(id(job.transactional), None)
