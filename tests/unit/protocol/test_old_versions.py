"""Versions that kio does not know, byte by byte from Kafka's schemas."""

from __future__ import annotations

import struct

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_TOPIC_ID
from appliance.protocol.metadata import MetadataRequestTopic, decode_metadata
from appliance.protocol.offset_apis import (
    EpochPartition,
    EpochPartitionResult,
    EpochTopicResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsTopicResult,
    decode_list_offsets,
    decode_offset_for_leader_epoch,
    encode_list_offsets_response,
    encode_offset_for_leader_epoch_response,
)
from appliance.protocol.produce import ProducePartition, ProduceResult, decode_produce, encode_produce_response
from appliance.protocol.topic_apis import (
    CreatableTopic,
    CreatedTopic,
    CreateTopicsRequest,
    DeletedTopic,
    ReplicaAssignment,
    TopicConfig,
    TopicToDelete,
    decode_create_topics,
    decode_delete_topics,
    encode_create_topics_body,
    encode_delete_topics_body,
)


def test_produce_0_to_2_have_no_transactional_id() -> None:
    body = struct.pack(">hii", -1, 30_000, 1) + b"\0\6syslog" + struct.pack(">iii", 1, 3, 5) + b"12345"
    for version in range(3):
        request = decode_produce(body, 0, len(body), version)
        assert (request.acks, request.timeout_ms, request.transactional_id) == (-1, 30_000, None)
        assert request.partitions == [ProducePartition("syslog", 3, len(body) - 5, 5)]


def test_the_produce_response_grows_from_version_to_version() -> None:
    results = [ProduceResult("a", 3, 0, 7, 8, 9)]
    topic = struct.pack(">i", 1) + b"\0\1a" + struct.pack(">i", 1)
    bodies = {
        0: topic + struct.pack(">ihq", 3, 0, 7),
        1: topic + struct.pack(">ihq", 3, 0, 7) + struct.pack(">i", 4),
        2: topic + struct.pack(">ihqq", 3, 0, 7, 8) + struct.pack(">i", 4),
        5: topic + struct.pack(">ihqqq", 3, 0, 7, 8, 9) + struct.pack(">i", 4),
    }
    for version, body in bodies.items():
        assert encode_produce_response(version, 5, results, throttle_time_ms=4) == struct.pack(">ii", 4 + len(body), 5) + body


def test_a_failed_disk_is_a_lost_leader_to_produce_3() -> None:
    results = [ProduceResult("a", 3, ErrorCode.KAFKA_STORAGE_ERROR)]
    for version, code in ((0, 6), (3, 6), (4, 56)):
        assert struct.pack(">ih", 3, code) in encode_produce_response(version, 5, results)


def test_metadata_0_asks_for_all_topics_with_an_empty_list_and_metadata_1_with_null() -> None:
    empty, null = struct.pack(">i", 0), struct.pack(">i", -1)
    assert decode_metadata(empty, 0, 4, 0).topics is None
    assert decode_metadata(empty, 0, 4, 1).topics == ()
    assert decode_metadata(null, 0, 4, 1).topics is None
    assert decode_metadata(b"\0\0\0\1\0\1a", 0, 7, 0).topics == (MetadataRequestTopic(NO_TOPIC_ID, "a"),)
    assert decode_metadata(empty, 0, 4, 3).allow_auto_topic_creation


def test_create_topics_0_and_1() -> None:
    topic = b"\0\1a" + struct.pack(">ihi", -1, -1, 1) + struct.pack(">iii", 0, 1, 9) + struct.pack(">i", 1) + b"\0\1k\xff\xff"
    body = struct.pack(">i", 1) + topic + struct.pack(">i", 1000)
    expected = (CreatableTopic("a", -1, -1, (ReplicaAssignment(0, (9,)),), (TopicConfig("k", None),)),)
    assert decode_create_topics(body, 0, len(body), 0) == CreateTopicsRequest(expected, 1000, False)
    assert decode_create_topics(body + b"\1", 0, len(body) + 1, 1) == CreateTopicsRequest(expected, 1000, True)

    results = (CreatedTopic("a", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="it is"),)
    assert encode_create_topics_body(0, results) == struct.pack(">i", 1) + b"\0\1a\0\x24"
    assert encode_create_topics_body(1, results) == struct.pack(">i", 1) + b"\0\1a\0\x24\0\5it is"


def test_delete_topics_names_topics_alike_in_every_version() -> None:
    body = struct.pack(">i", 2) + b"\0\1a\0\1b" + struct.pack(">i", 1000)
    for version in range(4):
        request = decode_delete_topics(body, 0, len(body), version)
        assert (request.topics, request.timeout_ms) == ((TopicToDelete("a"), TopicToDelete("b")), 1000)
    assert encode_delete_topics_body(0, (DeletedTopic("a", error_code=3),)) == struct.pack(">i", 1) + b"\0\1a\0\3"


def test_list_offsets_0_asks_for_a_number_of_offsets_and_gets_a_list() -> None:
    body = struct.pack(">ii", -1, 1) + b"\0\1a" + struct.pack(">iiqi", 1, 3, -1, 7)
    request = decode_list_offsets(body, 0, len(body), 0)
    assert (request.replica_id, request.topics[0].topic) == (-1, "a")
    assert request.topics[0].partitions == (ListOffsetsPartition(3, timestamp=-1, max_num_offsets=7),)

    topics = (ListOffsetsTopicResult("a", (ListOffsetsPartitionResult(3, old_style_offsets=(9, 0)),)),)
    answer = struct.pack(">i", 1) + b"\0\1a" + struct.pack(">iihiqq", 1, 3, 0, 2, 9, 0)
    assert encode_list_offsets_response(0, 5, topics) == struct.pack(">ii", 4 + len(answer), 5) + answer


def test_offset_for_leader_epoch_0_and_1() -> None:
    body = struct.pack(">i", 1) + b"\0\1a" + struct.pack(">iii", 1, 3, 8)
    for version in (0, 1):
        request = decode_offset_for_leader_epoch(body, 0, len(body), version)
        assert (request.replica_id, request.topics[0].topic) == (-2, "a")
        assert request.topics[0].partitions == (EpochPartition(3, -1, 8),)

    topics = (EpochTopicResult("a", (EpochPartitionResult(0, 3, 8, 99),)),)
    head = struct.pack(">i", 1) + b"\0\1a" + struct.pack(">ihi", 1, 0, 3)
    for version, end in ((0, struct.pack(">q", 99)), (1, struct.pack(">iq", 8, 99))):
        assert encode_offset_for_leader_epoch_response(version, 5, topics) == struct.pack(">ii", 4 + len(head + end), 5) + head + end
