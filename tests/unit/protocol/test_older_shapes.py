"""One shape for callers in every version of the APIs of groups and transactions; versions that kio does not know, byte by byte."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.invariants import InvariantViolation
from appliance.protocol import group_apis, group_offset_apis, transaction_apis
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import PartitionResult, TopicPartitions, TopicResult, same_result


def both_ways(message: Message[Any], version: int, body: Any, encoded: bytes) -> None:
    assert message.encode(version, body) == encoded
    assert message.decode(encoded, 0, len(encoded), version) == body


def test_offset_commit_0_names_a_group_only_and_1_a_time_for_each_partition() -> None:
    def topics(partition: bytes) -> bytes:
        return struct.pack(">i", 1) + b"\0\1a" + struct.pack(">i", 1) + partition + b"\0\4note"

    partition = group_offset_apis.OffsetCommitPartition(3, 70, metadata="note")
    request = group_offset_apis.OffsetCommitRequest("g", topics=(group_offset_apis.OffsetCommitTopic("a", (partition,)),))
    both_ways(group_offset_apis.OFFSET_COMMIT_REQUEST, 0, request, b"\0\1g" + topics(struct.pack(">iq", 3, 70)))

    timed = (group_offset_apis.OffsetCommitTopic("a", (partition._replace(commit_timestamp_ms=1_700_000_000_000),)),)
    request = group_offset_apis.OffsetCommitRequest("g", 5, "m", topics=timed)
    both_ways(
        group_offset_apis.OFFSET_COMMIT_REQUEST, 1, request, b"\0\1g" + struct.pack(">i", 5) + b"\0\1m" + topics(struct.pack(">iqq", 3, 70, 1_700_000_000_000))
    )

    response = group_offset_apis.OffsetCommitResponse(topics=(TopicResult("a", (PartitionResult(3, 12),)),))
    for version in (0, 1):
        both_ways(group_offset_apis.OFFSET_COMMIT_RESPONSE, version, response, struct.pack(">i", 1) + b"\0\1a" + struct.pack(">iih", 1, 3, 12))


def test_offset_fetch_0_is_of_one_group() -> None:
    request = group_offset_apis.OffsetFetchRequest((group_offset_apis.OffsetFetchGroup("g", topics=(TopicPartitions("a", (3, 4)),)),))
    both_ways(group_offset_apis.OFFSET_FETCH_REQUEST, 0, request, b"\0\1g" + struct.pack(">i", 1) + b"\0\1a" + struct.pack(">iii", 2, 3, 4))

    result = group_offset_apis.OffsetFetchTopicResult("a", (group_offset_apis.OffsetFetchPartitionResult(3, 70, metadata="note"),))
    response = group_offset_apis.OffsetFetchResponse(groups=(group_offset_apis.OffsetFetchGroupResult("", (result,)),))
    both_ways(group_offset_apis.OFFSET_FETCH_RESPONSE, 0, response, struct.pack(">i", 1) + b"\0\1a" + struct.pack(">iiq", 1, 3, 70) + b"\0\4note\0\0")


def test_all_offsets_of_a_group_are_asked_for_alike_in_every_version_that_can() -> None:
    request = group_offset_apis.OffsetFetchRequest((group_offset_apis.OffsetFetchGroup("g"),))
    for version in range(2, 10):
        encoded = group_offset_apis.OFFSET_FETCH_REQUEST.encode(version, request)
        assert group_offset_apis.OFFSET_FETCH_REQUEST.decode(encoded, 0, len(encoded), version) == request
    with pytest.raises(InvariantViolation):
        group_offset_apis.OFFSET_FETCH_REQUEST.encode(1, request)


def test_before_version_2_a_failed_group_has_its_error_in_its_partitions() -> None:
    group = group_offset_apis.OffsetFetchGroup("g", topics=(TopicPartitions("a", (3, 4)),))
    refused = int(ErrorCode.NOT_COORDINATOR)
    for version in range(10):
        result = group_offset_apis.failed_group(version, group, refused)
        encoded = group_offset_apis.OFFSET_FETCH_RESPONSE.encode(version, group_offset_apis.OffsetFetchResponse(groups=(result,)))
        decoded = group_offset_apis.OFFSET_FETCH_RESPONSE.decode(encoded, 0, len(encoded), version).groups[0]
        in_partitions = [part.error_code for topic in decoded.topics for part in topic.partitions]
        assert (decoded.error_code, in_partitions) == ((refused, []) if version >= 2 else (0, [refused, refused]))


def test_several_groups_do_not_fit_an_older_version() -> None:
    group = group_offset_apis.OffsetFetchGroup("g", topics=())
    with pytest.raises(InvariantViolation):
        group_offset_apis.OFFSET_FETCH_REQUEST.encode(7, group_offset_apis.OffsetFetchRequest((group, group)))


def test_join_group_0_has_one_timeout_for_both() -> None:
    head = b"\0\1g" + struct.pack(">i", 6_000)
    rest = b"\0\0\0\10consumer" + struct.pack(">i", 1) + b"\0\5range" + struct.pack(">i", 3) + b"abc"
    protocols = (group_apis.JoinGroupProtocol("range", b"abc"),)
    request = group_apis.JoinGroupRequest("g", 6_000, 6_000, "", None, "consumer", protocols)
    both_ways(group_apis.JOIN_GROUP_REQUEST, 0, request, head + rest)
    both_ways(group_apis.JOIN_GROUP_REQUEST, 1, request._replace(rebalance_timeout_ms=9_000), head + struct.pack(">i", 9_000) + rest)


def test_no_protocol_is_an_empty_name_before_join_group_7() -> None:
    refused = group_apis.JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id="m")
    assert refused.protocol_name is None
    for version in range(10):
        encoded = group_apis.JOIN_GROUP_RESPONSE.encode(version, refused)
        assert group_apis.JOIN_GROUP_RESPONSE.decode(encoded, 0, len(encoded), version).protocol_name == ("" if version < 7 else None)


def test_one_member_leaves_alike_in_every_version() -> None:
    request = group_apis.LeaveGroupRequest("g", (group_apis.LeavingMember("m"),))
    for version in range(6):
        encoded = group_apis.LEAVE_GROUP_REQUEST.encode(version, request)
        assert group_apis.LEAVE_GROUP_REQUEST.decode(encoded, 0, len(encoded), version) == request


def test_why_a_member_could_not_leave_stands_at_the_top_before_leave_group_3() -> None:
    unknown = group_apis.LeaveGroupResponse(members=(group_apis.LeftMember("m", None, ErrorCode.UNKNOWN_MEMBER_ID),))
    assert group_apis.LEAVE_GROUP_RESPONSE.encode(0, unknown) == struct.pack(">h", 25)
    assert group_apis.LEAVE_GROUP_RESPONSE.encode(2, unknown) == struct.pack(">ih", 0, 25)
    assert group_apis.LEAVE_GROUP_RESPONSE.encode(2, unknown._replace(error_code=16)) == struct.pack(">ih", 0, 16)
    assert group_apis.LEAVE_GROUP_RESPONSE.encode(3, unknown) == struct.pack(">ihi", 0, 0, 1) + b"\0\1m\xff\xff\0\x19"


def test_one_transaction_is_extended_alike_in_every_version() -> None:
    topics = (TopicPartitions("a", (3, 4)),)
    request = transaction_apis.AddPartitionsToTxnRequest((transaction_apis.TransactionToExtend("t", 7, 1, False, topics),))
    for version in range(6):
        encoded = transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST.encode(version, request)
        assert transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST.decode(encoded, 0, len(encoded), version) == request
    with pytest.raises(InvariantViolation):
        verified = request.transactions[0]._replace(verify_only=True)
        transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST.encode(3, transaction_apis.AddPartitionsToTxnRequest((verified,)))


def test_a_refused_transaction_has_its_error_in_every_partition() -> None:
    topics = same_result((TopicPartitions("a", (3, 4)), TopicPartitions("b", (5,))), ErrorCode.PRODUCER_FENCED)
    response = transaction_apis.AddPartitionsToTxnResponse(transactions=(transaction_apis.ExtendedTransaction("", topics),))
    a = b"\0\1a" + struct.pack(">iihih", 2, 3, 90, 4, 90)
    b = b"\0\1b" + struct.pack(">iih", 1, 5, 90)
    both_ways(transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, 0, response, struct.pack(">ii", 0, 2) + a + b)


def test_write_txn_markers_0_is_not_flexible() -> None:
    marker = transaction_apis.TxnMarker(7, 1, True, (TopicPartitions("a", (3,)),), 9)
    encoded = struct.pack(">iqhb", 1, 7, 1, 1) + struct.pack(">i", 1) + b"\0\1a" + struct.pack(">ii", 1, 3) + struct.pack(">i", 9)
    both_ways(transaction_apis.WRITE_TXN_MARKERS_REQUEST, 0, transaction_apis.WriteTxnMarkersRequest((marker,)), encoded)

    result = transaction_apis.TxnMarkerResult(7, (TopicResult("a", (PartitionResult(3, 0),)),))
    encoded = struct.pack(">iq", 1, 7) + struct.pack(">i", 1) + b"\0\1a" + struct.pack(">iih", 1, 3, 0)
    both_ways(transaction_apis.WRITE_TXN_MARKERS_RESPONSE, 0, transaction_apis.WriteTxnMarkersResponse((result,)), encoded)
