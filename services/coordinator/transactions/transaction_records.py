"""The records of `__transaction_state`, as Kafka 3.9 and 4.0 write them: one for each transactional id.

Every broker reads version 0 of the value. Version 1 has tags for the second protocol (KIP-890), and is written only if a tag
has a value. Partitions are null exactly while a transactional id is Empty. Owns nothing; records as data. Weak spot:
`last_producer_epoch` of `Transaction` is not in the log; it is known within one incarnation of the coordinator.
"""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Final, NamedTuple

from appliance.base.model import NO_PRODUCER_ID, ProducerId, TopicPartition
from appliance.protocol.schema import INT8, INT16, INT32, INT64, STRING, ArrayOf, Field
from appliance.protocol.topic_partitions import TopicPartitions
from services.coordinator.state.state_format import StateFormat, version_of
from services.coordinator.transactions.transaction import Transaction, TransactionState

_KEY_VERSION: Final = 0
_TAGGED_VERSION: Final = 1


class TransactionKey(NamedTuple):
    """A transactional id."""

    transactional_id: Annotated[str, Field(STRING)]


class TransactionValue(NamedTuple):
    """Times are wall time in ms, the start −1 where no transaction has begun."""

    producer_id: Annotated[ProducerId, Field(INT64)]
    previous_producer_id: Annotated[ProducerId, Field(INT64, since=1, tag=0)] = NO_PRODUCER_ID
    next_producer_id: Annotated[ProducerId, Field(INT64, since=1, tag=1)] = NO_PRODUCER_ID
    client_version: Annotated[int, Field(INT16, since=1, tag=2)] = 0
    producer_epoch: Annotated[int, Field(INT16)] = -1
    timeout_ms: Annotated[int, Field(INT32)] = 0
    status: Annotated[int, Field(INT8)] = 0
    topics: Annotated[tuple[TopicPartitions, ...] | None, Field(ArrayOf(TopicPartitions), nullable_since=0)] = None
    update_ms: Annotated[int, Field(INT64)] = -1
    start_ms: Annotated[int, Field(INT64)] = -1


def _version_of(value: TransactionValue) -> int:
    has_tags = value.previous_producer_id != NO_PRODUCER_ID or value.next_producer_id != NO_PRODUCER_ID or value.client_version != 0
    return _TAGGED_VERSION if has_tags else 0


TRANSACTION: Final = StateFormat(
    "transaction", _KEY_VERSION, TransactionKey, TransactionValue, value_version_max=_TAGGED_VERSION, flexible_since=_TAGGED_VERSION, version_of=_version_of
)


def encode_transaction_key(transactional_id: str) -> bytes:
    return TRANSACTION.encode_key(TransactionKey(transactional_id))


def decode_transaction_key(key: bytes) -> str | None:
    """None for kinds of records that we do not know; `UnreadableRecord` if it is malformed."""
    return TRANSACTION.decode_key(key).transactional_id if version_of(key) == _KEY_VERSION else None


def encode_transaction(transaction: Transaction) -> bytes:
    return TRANSACTION.encode_value(
        TransactionValue(
            transaction.producer_id,
            transaction.previous_producer_id,
            transaction.next_producer_id,
            transaction.client_version,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.state,
            None if transaction.state is TransactionState.EMPTY else _by_topic(transaction.partitions),
            transaction.update_ms,
            transaction.start_ms,
        )
    )


def decode_transaction(value: bytes) -> Transaction:
    """Decode a value. Raises `UnreadableRecord` or another `ValueError` if it is malformed, of a later version, or in an unknown state."""
    found = TRANSACTION.decode_value(value)
    return Transaction(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.timeout_ms,
        state=TransactionState(found.status),
        partitions=frozenset(TopicPartition(topic, partition) for topic, partitions in found.topics or () for partition in partitions),
        start_ms=found.start_ms,
        update_ms=found.update_ms,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        client_version=found.client_version,
    )


def _by_topic(partitions: frozenset[TopicPartition]) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic, tuple(partition for _, partition in group)) for topic, group in groupby(sorted(partitions), lambda found: found[0]))
