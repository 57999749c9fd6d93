"""Requests over which the controller died: every API that is handed to it has an answer that clients can read."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.request_frames import pack_kafka_request
from appliance.protocol import cluster_apis, config_apis, log_dir_apis, reassignment_apis, topic_apis
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.forwarded_apis import error_answer
from services.acceptor.handlers.forwarded import LOST_MESSAGE


def lost_answer(payload: bytes) -> bytes | None:
    return error_answer(payload, ErrorCode.UNKNOWN_SERVER_ERROR, LOST_MESSAGE)


MESSAGES = {
    ApiKey.CREATE_TOPICS: (
        topic_apis.CREATE_TOPICS_REQUEST,
        topic_apis.CREATE_TOPICS_RESPONSE,
        topic_apis.CreateTopicsRequest((topic_apis.CreatableTopic("t", 3, 1),)),
        "topics",
    ),
    ApiKey.DELETE_TOPICS: (
        topic_apis.DELETE_TOPICS_REQUEST,
        topic_apis.DELETE_TOPICS_RESPONSE,
        topic_apis.DeleteTopicsRequest((topic_apis.TopicToDelete("t"),), ("t",)),
        "topics",
    ),
    ApiKey.CREATE_PARTITIONS: (
        topic_apis.CREATE_PARTITIONS_REQUEST,
        topic_apis.CREATE_PARTITIONS_RESPONSE,
        topic_apis.CreatePartitionsRequest((topic_apis.TopicToGrow("t", 4),)),
        "results",
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        config_apis.DESCRIBE_CONFIGS_REQUEST,
        config_apis.DESCRIBE_CONFIGS_RESPONSE,
        config_apis.DescribeConfigsRequest((config_apis.ResourceToDescribe(2, "t"),)),
        "results",
    ),
    ApiKey.ALTER_CONFIGS: (
        config_apis.ALTER_CONFIGS_REQUEST,
        config_apis.ALTER_CONFIGS_RESPONSE,
        config_apis.AlterConfigsRequest((config_apis.ResourceToReplace(2, "t", ()),)),
        "responses",
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST,
        config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE,
        config_apis.IncrementalAlterConfigsRequest((config_apis.ResourceToAlter(2, "t", ()),)),
        "responses",
    ),
}


@pytest.mark.parametrize("api_key", MESSAGES)
def test_each_part_of_a_lost_request_has_an_unknown_server_error(api_key: ApiKey) -> None:
    request_message, response_message, request, field = MESSAGES[api_key]
    for version in range(SERVED_APIS[api_key].version_min, SERVED_APIS[api_key].version_max + 1):
        answer = lost_answer(pack_kafka_request(api_key, version, "client", "host", request_message.encode(version, request)))
        assert answer is not None
        (part,) = getattr(response_message.decode(answer, 0, len(answer), version), field)
        assert part.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, version


def test_orders_to_move_partitions_are_answered_partition_by_partition() -> None:
    asked = log_dir_apis.AlterReplicaLogDirsRequest((log_dir_apis.LogDirToFill("/srv/d0", (log_dir_apis.LogDirTopicToMove("t", (0, 1)),)),))
    for version in range(3):
        packed = pack_kafka_request(
            ApiKey.ALTER_REPLICA_LOG_DIRS, version, "client", "host", log_dir_apis.ALTER_REPLICA_LOG_DIRS_REQUEST.encode(version, asked)
        )
        answer = lost_answer(packed)
        assert answer is not None
        (topic,) = log_dir_apis.ALTER_REPLICA_LOG_DIRS_RESPONSE.decode(answer, 0, len(answer), version).results
        assert topic == ("t", ((0, ErrorCode.UNKNOWN_SERVER_ERROR), (1, ErrorCode.UNKNOWN_SERVER_ERROR)))


def test_orders_to_the_cluster_are_answered_for_all_of_it() -> None:
    altering = reassignment_apis.AlterPartitionReassignmentsRequest(
        topics=(reassignment_apis.TopicToReassign("t", (reassignment_apis.PartitionToReassign(0, (1,)),)),)
    )
    listing = reassignment_apis.ListPartitionReassignmentsRequest()
    for api_key, request_message, response_message, asked in (
        (
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST,
            reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_RESPONSE,
            altering,
        ),
        (
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            reassignment_apis.LIST_PARTITION_REASSIGNMENTS_REQUEST,
            reassignment_apis.LIST_PARTITION_REASSIGNMENTS_RESPONSE,
            listing,
        ),
        (ApiKey.UNREGISTER_BROKER, cluster_apis.UNREGISTER_BROKER_REQUEST, cluster_apis.UNREGISTER_BROKER_RESPONSE, cluster_apis.UnregisterBrokerRequest(4)),
    ):
        answer = lost_answer(pack_kafka_request(api_key, 0, "client", "host", request_message.encode(0, asked)))
        assert answer is not None and response_message.decode(answer, 0, len(answer), 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    electing = reassignment_apis.ElectLeadersRequest(0, (reassignment_apis.TopicToElectFor("t", (0, 3)),))
    for version in range(3):
        answer = lost_answer(
            pack_kafka_request(ApiKey.ELECT_LEADERS, version, "client", "host", reassignment_apis.ELECT_LEADERS_REQUEST.encode(version, electing))
        )
        assert answer is not None
        (topic,) = reassignment_apis.ELECT_LEADERS_RESPONSE.decode(answer, 0, len(answer), version).results
        assert [(one.partition_id, one.error_code) for one in topic.partitions] == [(0, -1), (3, -1)]


def test_what_cannot_be_read_has_no_answer() -> None:
    assert lost_answer(pack_kafka_request(ApiKey.CREATE_TOPICS, 7, "client", "host", b"\xff")) is None
    assert lost_answer(pack_kafka_request(ApiKey.FIND_COORDINATOR, 4, "client", "host", b"")) is None
