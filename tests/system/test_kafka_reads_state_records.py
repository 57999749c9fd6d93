"""Kafka 3.9's DumpLogSegments understands every record that a coordinator of ours keeps in its state topics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from appliance.base.model import TopicPartition
from appliance.cluster.state_log import StateRecord
from appliance.records.builder import BatchBuilder
from lab.real_kafka import dump_log_segments, skip_without_kafka
from services.coordinator.groups import group_records
from services.coordinator.groups.group_records import (
    GROUP_METADATA,
    OFFSET_COMMIT,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitValue,
    OffsetKey,
)
from services.coordinator.transactions.transaction import Transaction, TransactionState
from services.coordinator.transactions.transaction_records import encode_transaction, encode_transaction_key

pytestmark = [pytest.mark.system, pytest.mark.slow]

NOW_MS = 1_700_000_000_000


def dumped(directory: Path, records: list[StateRecord], decoder: str) -> list[tuple[str, str]]:
    """What Kafka reads as key and value of each record of a segment that holds `records`."""
    skip_without_kafka()
    directory.mkdir()
    builder = BatchBuilder()
    for record in records:
        builder.append(NOW_MS, record.key, record.value)
    segment = directory / "00000000000000000000.log"
    segment.write_bytes(bytes(builder.build()))
    return re.findall(r" key: (.*) payload: (.*)", dump_log_segments([segment], decoder))


def test_kafka_reads_offsets_and_groups(tmp_path: Path) -> None:
    member = GroupMetadataMember("m-1", None, "client", "/192.0.2.7", 300_000, 45_000, b"\1\2\3", b"\4\5")
    consumer = group_records.ConsumerGroupMemberMetadataValue(
        client_id="client", subscribed_topic_names=("a",), classic_member_metadata=group_records.ClassicMemberMetadata(45_000)
    )
    records = [
        OFFSET_COMMIT.record(OffsetKey("g", "a", 3), OffsetCommitValue(70, 5, "note", NOW_MS)),
        OFFSET_COMMIT.record(OffsetKey("g", "a", 3), OffsetCommitValue(70, -1, "", NOW_MS, NOW_MS + 1)),
        GROUP_METADATA.record(GroupMetadataKey("g"), GroupMetadataValue("consumer", 9, "range", "m-1", NOW_MS, (member,))),
        group_records.CONSUMER_GROUP_MEMBER_METADATA.record(group_records.ConsumerGroupMemberMetadataKey("g", "m-1"), consumer),
        OFFSET_COMMIT.record(OffsetKey("g", "a", 3), None),
    ]
    found = dumped(tmp_path / "__consumer_offsets-0", records, "--offsets-decoder")

    assert [json.loads(key) for key, _ in found] == [
        *[{"type": "1", "data": {"group": "g", "topic": "a", "partition": 3}}] * 2,
        {"type": "2", "data": {"group": "g"}},
        {"type": "5", "data": {"groupId": "g", "memberId": "m-1"}},
        {"type": "1", "data": {"group": "g", "topic": "a", "partition": 3}},
    ]
    assert found[-1][1] == "<DELETE>"
    offset, expiring, group, newer = (json.loads(value) for _, value in found[:-1])
    assert offset == {"version": "3", "data": {"offset": 70, "leaderEpoch": 5, "metadata": "note", "commitTimestamp": NOW_MS}}
    assert expiring == {"version": "1", "data": {"offset": 70, "metadata": "", "commitTimestamp": NOW_MS, "expireTimestamp": NOW_MS + 1}}
    assert (group["data"]["generation"], group["data"]["leader"], group["data"]["currentStateTimestamp"]) == (9, "m-1", NOW_MS)
    assert [(each["rebalanceTimeout"], each["subscription"], each["assignment"]) for each in group["data"]["members"]] == [(300_000, "AQID", "BAU=")]
    assert newer["data"]["classicMemberMetadata"] == {"sessionTimeoutMs": 45_000, "supportedProtocols": []}


def test_kafka_reads_transactions(tmp_path: Path) -> None:
    partitions = frozenset({TopicPartition("a", 3)})
    ongoing = Transaction(4_000, 7, 60_000, TransactionState.ONGOING, partitions, NOW_MS, NOW_MS + 500)
    second = ongoing._replace(state=TransactionState.COMPLETE_COMMIT, partitions=frozenset(), previous_producer_id=3_999, client_version=2)
    empty = second._replace(state=TransactionState.EMPTY, start_ms=-1)
    key = encode_transaction_key("t")
    records = [*(StateRecord(key, encode_transaction(transaction)) for transaction in (ongoing, second, empty)), StateRecord(key, None)]
    found = dumped(tmp_path / "__transaction_state-0", records, "--transaction-log-decoder")

    rest = f"txnLastUpdateTimestamp={NOW_MS + 500},txnTimeoutMs=60000"
    assert [value for _, value in found] == [
        f"producerId:4000,producerEpoch:7,state=Ongoing,partitions=[a-3],{rest}",
        f"producerId:4000,producerEpoch:7,state=CompleteCommit,partitions=[],{rest}",
        f"producerId:4000,producerEpoch:7,state=Empty,partitions=[],{rest}",
        "<DELETE>",
    ]
    assert {key for key, _ in found} == {"transaction_metadata::transactionalId=t"}
