"""The state machine of one transactional id: its producer, the state of its transaction, and the change that is being appended.

A `Transaction` is the content of a record of `__transaction_state` and immutable. Changes
(`next_epoch`, `add_partitions`, `prepare` …) are functions from one to the next; `TransactionalId` has
the one in the log and the one being appended. Two protocols: in the first, a producer keeps its epoch
from one transaction to the next; in the second (KIP-890, client version 2) every end raises it, so that
a late batch of an ended transaction has an old epoch and is refused. Sources: KIP-98, KIP-360, KIP-447,
KIP-890, Kafka's `TransactionMetadata`. Owned by the transaction coordinator. Weak spot: partitions are
kept by name; a topic that is deleted and created again during a transaction gets a needless marker.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_PRODUCER_ID, ProducerId, TopicPartition

NO_PRODUCER_EPOCH: Final = -1
LARGEST_EPOCH: Final = 32_767
EXHAUSTED_EPOCH: Final = LARGEST_EPOCH - 1
"""A producer with this epoch gets a new id: the last epoch is kept for fencing it."""
SECOND_PROTOCOL: Final = 2
"""The client transaction version from which every end of a transaction raises the epoch."""


class TransactionState(IntEnum):
    """As Kafka numbers them in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


STATE_NAMES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
RESTING: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""No transaction is open or ending."""
ENDING: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""Decided: the markers have to be written."""


class Transaction(NamedTuple):
    """Times are wall time in ms. `last_producer_epoch` is not in the log: a new coordinator does not know it."""

    producer_id: ProducerId
    producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 60_000
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    update_ms: int = -1
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_id: ProducerId = NO_PRODUCER_ID
    client_version: int = 0

    @property
    def is_commit(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def is_exhausted(self) -> bool:
        return is_exhausted(self.producer_epoch)

    def is_overdue(self, now_ms: int) -> bool:
        return self.state is TransactionState.ONGOING and self.start_ms + self.timeout_ms < now_ms

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        return self.state in RESTING and now_ms - self.update_ms >= expiration_ms


def is_exhausted(producer_epoch: int) -> bool:
    return producer_epoch >= EXHAUSTED_EPOCH


# --- InitProducerId ---------------------------------------------------------------------------------------------------


def knows_itself(transaction: Transaction, producer_id: ProducerId, producer_epoch: int) -> bool:
    """Check producer id and epoch that an InitProducerId brings (KIP-360). True if the transactional id has no epoch yet, if the producer is the
    current one, or if the former one repeats the request that replaced its exhausted id, and no other producer came since."""
    if transaction.producer_epoch == NO_PRODUCER_EPOCH or producer_id == transaction.producer_id:
        return True
    return producer_id == transaction.previous_producer_id and is_exhausted(producer_epoch) and producer_epoch == transaction.last_producer_epoch


def next_epoch(transaction: Transaction, timeout_ms: int, expected_epoch: int | None, client_version: int, now_ms: int) -> Transaction:
    """Give the producer the next epoch; a repeated request (its response was lost) gets the same one. Raises `RequestRefused` if it is fenced."""
    current = transaction.producer_epoch
    if current == NO_PRODUCER_EPOCH:
        epoch, last = 0, NO_PRODUCER_EPOCH
    elif expected_epoch is None:
        epoch, last = current + 1, NO_PRODUCER_EPOCH
    elif expected_epoch == current:
        epoch, last = current + 1, current
    elif expected_epoch == transaction.last_producer_epoch:
        epoch, last = current, expected_epoch
    else:
        raise RequestRefused(ErrorCode.PRODUCER_FENCED, f"epoch {expected_epoch} of producer {transaction.producer_id} was followed by {current}")
    return _empty(transaction, timeout_ms, client_version, now_ms)._replace(producer_epoch=epoch, last_producer_epoch=last)


def next_producer(transaction: Transaction, producer_id: ProducerId, timeout_ms: int, remembers: bool, client_version: int, now_ms: int) -> Transaction:
    """Change to a new producer id, because the epochs of the last one are exhausted."""
    return _empty(transaction, timeout_ms, client_version, now_ms)._replace(
        producer_id=producer_id,
        producer_epoch=0,
        last_producer_epoch=transaction.producer_epoch if remembers else NO_PRODUCER_EPOCH,
        previous_producer_id=transaction.producer_id,
    )


def _empty(transaction: Transaction, timeout_ms: int, client_version: int, now_ms: int) -> Transaction:
    return transaction._replace(
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=-1,
        update_ms=now_ms,
        next_producer_id=NO_PRODUCER_ID,
        client_version=client_version,
    )


# --- partitions, commit and abort -------------------------------------------------------------------------------------


def add_partitions(transaction: Transaction, partitions: frozenset[TopicPartition], client_version: int, now_ms: int) -> Transaction:
    """Add partitions to the transaction; the first ones open it."""
    is_ongoing = transaction.state is TransactionState.ONGOING
    return transaction._replace(
        state=TransactionState.ONGOING,
        partitions=transaction.partitions | partitions,
        start_ms=transaction.start_ms if is_ongoing else now_ms,
        update_ms=now_ms,
        client_version=client_version,
    )


def fence(transaction: Transaction) -> Transaction:
    """Raise the epoch, so that the producer is fenced; not appended itself, the abort that follows is."""
    return transaction._replace(producer_epoch=min(transaction.producer_epoch + 1, LARGEST_EPOCH), last_producer_epoch=NO_PRODUCER_EPOCH)


def prepare(transaction: Transaction, commit: bool, raises_epoch: bool, next_producer_id: ProducerId, now_ms: int) -> Transaction:
    """Decide to commit or abort. With `raises_epoch` (second protocol) the decision and its markers have the next epoch already; `client_version` in
    the record shows that to a coordinator that loads it."""
    decided = transaction._replace(
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        start_ms=transaction.start_ms if transaction.start_ms >= 0 else now_ms,
        update_ms=now_ms,
        next_producer_id=next_producer_id,
        client_version=0,
    )
    if not raises_epoch:
        return decided
    return decided._replace(producer_epoch=transaction.producer_epoch + 1, last_producer_epoch=transaction.producer_epoch, client_version=SECOND_PROTOCOL)


def complete(transaction: Transaction, now_ms: int) -> Transaction:
    """Complete: all markers are written. If the epochs of the producer id are exhausted, the reserved next producer id replaces it."""
    done = transaction._replace(
        state=TransactionState.COMPLETE_COMMIT if transaction.is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
        next_producer_id=NO_PRODUCER_ID,
    )
    if transaction.next_producer_id == NO_PRODUCER_ID:
        return done
    return done._replace(producer_id=transaction.next_producer_id, producer_epoch=0, previous_producer_id=transaction.producer_id)


class TransactionalId:
    """One transactional id. While `pending` is being appended, no other change may start."""

    __slots__ = ("current", "is_fenced", "name", "pending")

    def __init__(self, name: str, current: Transaction) -> None:
        self.name = name
        self.current = current
        self.pending: Transaction | None = None
        self.is_fenced = False
        """True if the epoch was raised to fence the producer and the abort is not in the log yet: it must not be raised again."""


# ---- what transactions need of the process


class Marker(NamedTuple):
    """The end of a transaction in one partition. `coordinator_epoch` is the leader epoch of the state topic's partition. `raises_epoch`: the producer epoch is
    larger than that of the transaction's batches (KIP-890), and the next transaction's batches will have it."""

    topic_partition: TopicPartition
    producer_id: ProducerId
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    raises_epoch: bool = False


class MarkerWriter(Protocol):
    """Writes markers, wherever the partition is led."""

    def write(self, marker: Marker, on_written: Callable[[ErrorCode], None]) -> None:
        """`on_written` once, never from within `write`: NONE when every in-sync replica has the marker."""


class ProducerIds(Protocol):
    """The one allocator of producer ids."""

    def next(self) -> ProducerId | None:
        """Return an id that no producer had before; None: none is leased yet, retry soon."""


class TransactionSettings(NamedTuple):
    """Under Kafka's names and with its defaults; ms and counts."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    max_transactional_ids: int = 50_000
    append_timeout_ms: int = 5_000
    """What a write of state may take."""
