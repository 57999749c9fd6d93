"""Records of `__transaction_state` against the bytes of Kafka 3.9.1's own classes."""

from __future__ import annotations

import pytest

from appliance.base.model import TopicPartition
from services.coordinator.state.state_format import UnreadableRecord
from services.coordinator.transactions.transaction import Transaction, TransactionState
from services.coordinator.transactions.transaction_records import decode_transaction, decode_transaction_key, encode_transaction, encode_transaction_key
from tests.support.golden_state_records import RECORDS, later_version

PARTITIONS = frozenset({TopicPartition("syslog", 3), TopicPartition("audit", 0), TopicPartition("syslog", 0)})
ONGOING = Transaction(4_000, 7, 60_000, TransactionState.ONGOING, PARTITIONS, 1_700_000_000_000, 1_700_000_000_500)
EMPTY = ONGOING._replace(state=TransactionState.EMPTY, partitions=frozenset(), start_ms=-1)
STATES = [(ONGOING, "TransactionLogValue"), (EMPTY, "EmptyTransactionLogValue")]
TAGS = b"\3" + b"\0\x08" + bytes(6) + b"\x0f\xa0" + b"\1\x08" + bytes(6) + b"\x0f\xa1" + b"\2\2\0\2"
"""The three tagged fields of version 1, which Kafka 3.9.1 skips and Kafka 4 has: int64, int64 and int16 under the tags 0, 1 and 2."""


def test_a_key_is_kafkas() -> None:
    assert encode_transaction_key("transactional") == RECORDS["TransactionLogKey", 0]
    assert decode_transaction_key(RECORDS["TransactionLogKey", 0]) == "transactional"
    assert decode_transaction_key(later_version(RECORDS["TransactionLogKey", 0], 1)) is None
    for end in range(len(RECORDS["TransactionLogKey", 0])):
        with pytest.raises(UnreadableRecord):
            decode_transaction_key(RECORDS["TransactionLogKey", 0][:end])


@pytest.mark.parametrize(("transaction", "name"), STATES)
def test_a_value_is_written_as_kafka_writes_it_and_read_in_both_versions(transaction: Transaction, name: str) -> None:
    assert encode_transaction(transaction) == RECORDS[name, 0]
    for version in (0, 1):
        assert decode_transaction(RECORDS[name, version]) == transaction


@pytest.mark.parametrize(("transaction", "name"), STATES)
def test_what_the_second_protocol_remembers_stands_in_tags(transaction: Transaction, name: str) -> None:
    remembering = transaction._replace(previous_producer_id=4_000, next_producer_id=4_001, client_version=2)
    assert encode_transaction(remembering) == RECORDS[name, 1][:-1] + TAGS
    assert decode_transaction(RECORDS[name, 1][:-1] + TAGS) == remembering


@pytest.mark.parametrize("state", set(TransactionState) - {TransactionState.EMPTY})
def test_partitions_are_null_for_an_empty_id_only(state: TransactionState) -> None:
    complete = ONGOING._replace(state=state, partitions=frozenset())
    at = RECORDS["EmptyTransactionLogValue", 0].index(b"\xff\xff\xff\xff")
    assert encode_transaction(complete)[at : at + 4] == bytes(4)
    assert decode_transaction(encode_transaction(complete)) == complete


def test_state_of_this_incarnation_only_is_not_in_the_log() -> None:
    assert encode_transaction(ONGOING._replace(last_producer_epoch=6)) == RECORDS["TransactionLogValue", 0]


@pytest.mark.parametrize("version", [0, 1])
def test_a_value_that_cannot_be_is_refused(version: int) -> None:
    data = RECORDS["TransactionLogValue", version]
    for end in range(len(data)):
        with pytest.raises(UnreadableRecord):
            decode_transaction(data[:end])
    for wrong in (-1, 2):
        with pytest.raises(UnreadableRecord, match="of version"):
            decode_transaction(later_version(data, wrong))
    state_at = 2 + 8 + 2 + 4
    assert data[state_at] == TransactionState.ONGOING
    with pytest.raises(ValueError):
        decode_transaction(data[:state_at] + b"\x08" + data[state_at + 1 :])
