"""Records of `__consumer_offsets` against the bytes of Kafka 3.9.1's own classes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from appliance.base.model import TopicId
from appliance.cluster.state_log import StateRecord
from appliance.protocol.topic_partitions import TopicIdPartitions
from services.coordinator.groups import group_records
from services.coordinator.groups.group_records import (
    FORMATS,
    GROUP_METADATA,
    OFFSET_COMMIT,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitValue,
    OffsetKey,
    PartitionRacks,
    SubscribedTopic,
    read_key,
)
from services.coordinator.state.state_format import StateFormat, UnreadableRecord
from tests.support.golden_state_records import RECORDS, later_version

TOPIC_ID = TopicId(bytes(range(1, 17)))
COMMITTED_MS, EXPIRES_MS = 1_700_000_000_000, 1_700_000_600_000
COMMITTED = OffsetCommitValue(70, 5, "noteä", COMMITTED_MS)
MEMBER = GroupMetadataMember("member", "instance", "client", "/192.0.2.7", 300_000, 45_000, b"\1\2\3", b"\4\5")
GROUP = GroupMetadataValue("consumer", 9, "range", "member", COMMITTED_MS, (MEMBER, MEMBER))
CONSUMER = ConsumerGroupMemberMetadataValue("instance", None, "client", "/192.0.2.7", ("syslog", "audit"), "sys.*", 300_000, "uniform")
CLASSIC = CONSUMER._replace(classic_member_metadata=ClassicMemberMetadata(45_000, (ClassicProtocol("range", b"\1\2\3"),)))
TOPICS = ConsumerGroupPartitionMetadataValue((SubscribedTopic(TOPIC_ID, "syslog", 2, (PartitionRacks(1, ("r1", "r2")),)),))
CURRENT = ConsumerGroupCurrentMemberAssignmentValue(11, 10, 1, (TopicIdPartitions(TOPIC_ID, (0,)),), (TopicIdPartitions(TOPIC_ID, (1, 2)),))

KEYS: list[tuple[str, int, Any]] = [
    ("OffsetCommitKey", 1, OffsetKey("group", "syslog", 3)),
    ("GroupMetadataKey", 2, GroupMetadataKey("group")),
    ("ConsumerGroupMetadataKey", 3, ConsumerGroupMetadataKey("group")),
    ("ConsumerGroupPartitionMetadataKey", 4, ConsumerGroupPartitionMetadataKey("group")),
    ("ConsumerGroupMemberMetadataKey", 5, ConsumerGroupMemberMetadataKey("group", "member")),
    ("ConsumerGroupTargetAssignmentMetadataKey", 6, ConsumerGroupTargetAssignmentMetadataKey("group")),
    ("ConsumerGroupTargetAssignmentMemberKey", 7, ConsumerGroupTargetAssignmentMemberKey("group", "member")),
    ("ConsumerGroupCurrentMemberAssignmentKey", 8, ConsumerGroupCurrentMemberAssignmentKey("group", "member")),
]
WRITTEN: list[tuple[str, int, StateFormat[Any, Any], Any]] = [
    ("OffsetCommitValue", 3, OFFSET_COMMIT, COMMITTED),
    ("OffsetCommitValue", 1, OFFSET_COMMIT, COMMITTED._replace(leader_epoch=-1, expire_timestamp_ms=EXPIRES_MS)),
    ("GroupMetadataValue", 3, GROUP_METADATA, GROUP),
    ("EmptyGroupMetadataValue", 3, GROUP_METADATA, GroupMetadataValue("consumer", 10, current_state_timestamp_ms=COMMITTED_MS)),
    ("ConsumerGroupMetadataValue", 0, group_records.CONSUMER_GROUP_METADATA, ConsumerGroupMetadataValue(11)),
    ("ConsumerGroupPartitionMetadataValue", 0, group_records.CONSUMER_GROUP_PARTITION_METADATA, TOPICS),
    ("ConsumerGroupMemberMetadataValue", 0, group_records.CONSUMER_GROUP_MEMBER_METADATA, CONSUMER),
    ("ClassicMemberMetadataValue", 0, group_records.CONSUMER_GROUP_MEMBER_METADATA, CLASSIC),
    (
        "ConsumerGroupTargetAssignmentMetadataValue",
        0,
        group_records.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        ConsumerGroupTargetAssignmentMetadataValue(11),
    ),
    (
        "ConsumerGroupTargetAssignmentMemberValue",
        0,
        group_records.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
        ConsumerGroupTargetAssignmentMemberValue((TopicIdPartitions(TOPIC_ID, (0, 300)),)),
    ),
    ("ConsumerGroupCurrentMemberAssignmentValue", 0, group_records.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, CURRENT),
]
BEFORE_INSTANCES = MEMBER._replace(group_instance_id=None)
READ: list[tuple[str, int, StateFormat[Any, Any], Any]] = [
    ("OffsetCommitValue", 0, OFFSET_COMMIT, COMMITTED._replace(leader_epoch=-1)),
    ("OffsetCommitValue", 2, OFFSET_COMMIT, COMMITTED._replace(leader_epoch=-1)),
    ("OffsetCommitValue", 4, OFFSET_COMMIT, COMMITTED),
    (
        "GroupMetadataValue",
        0,
        GROUP_METADATA,
        GROUP._replace(current_state_timestamp_ms=-1, members=(BEFORE_INSTANCES._replace(rebalance_timeout_ms=-1),) * 2),
    ),
    ("GroupMetadataValue", 1, GROUP_METADATA, GROUP._replace(current_state_timestamp_ms=-1, members=(BEFORE_INSTANCES,) * 2)),
    ("GroupMetadataValue", 2, GROUP_METADATA, GROUP._replace(members=(BEFORE_INSTANCES,) * 2)),
    ("GroupMetadataValue", 4, GROUP_METADATA, GROUP),
]


@pytest.mark.parametrize(("name", "version", "key"), KEYS)
def test_a_key_is_kafkas(name: str, version: int, key: Any) -> None:
    kind = FORMATS[version - 1]
    assert kind.encode_key(key) == RECORDS[name, version]
    found = read_key(RECORDS[name, version])
    assert (type(found), found) == (type(key), key)
    assert kind.record(key, None) == StateRecord(RECORDS[name, version], None)


def test_keys_of_offsets_have_two_versions() -> None:
    assert read_key(RECORDS["OffsetCommitKey", 0]) == OffsetKey("group", "syslog", 3)


@pytest.mark.parametrize(("name", "version", "kind", "value"), WRITTEN)
def test_a_value_is_written_as_kafka_writes_it(name: str, version: int, kind: StateFormat[Any, Any], value: Any) -> None:
    assert kind.encode_value(value) == RECORDS[name, version]


@pytest.mark.parametrize(("name", "version", "kind", "value"), WRITTEN + READ)
def test_a_value_is_read_in_every_version(name: str, version: int, kind: StateFormat[Any, Any], value: Any) -> None:
    assert kind.decode_value(RECORDS[name, version]) == value


@pytest.mark.parametrize(("name", "version", "kind", "value"), WRITTEN + READ)
def test_a_value_that_is_cut_short_or_newer_is_unreadable(name: str, version: int, kind: StateFormat[Any, Any], value: Any) -> None:
    data = RECORDS[name, version]
    for end in range(len(data)):
        with pytest.raises(UnreadableRecord):
            kind.decode_value(data[:end])
    for wrong in (-1, 5):
        with pytest.raises(UnreadableRecord, match="of version"):
            kind.decode_value(later_version(data, wrong))


@pytest.mark.parametrize(("name", "version", "kind", "value"), WRITTEN + READ)
def test_every_changed_byte_gives_a_value_or_an_unreadable_record(name: str, version: int, kind: StateFormat[Any, Any], value: Any) -> None:
    data = RECORDS[name, version]
    for position in range(len(data)):
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            with suppress(UnreadableRecord):
                kind.decode_value(data[:position] + bytes([byte]) + data[position + 1 :])


@pytest.mark.parametrize(("name", "version", "key"), KEYS)
def test_a_key_that_is_cut_short_is_unreadable(name: str, version: int, key: Any) -> None:
    for end in range(len(RECORDS[name, version])):
        with pytest.raises(UnreadableRecord):
            read_key(RECORDS[name, version][:end])


def test_unknown_record_kinds_are_distinguished_from_malformed_records() -> None:
    for version in (-1, 9, 16):
        assert read_key(later_version(RECORDS["GroupMetadataKey", 2], version)) is None
