"""Requests over which the controller died: every API that is handed to it has an answer that clients can read."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.request_frames import pack_kafka_request
from appliance.protocol import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    unregister_broker,
)
from appliance.protocol.apis import SERVED_APIS, ApiKey
from services.acceptor.lost_requests import lost_answer

MESSAGES = {
    ApiKey.CREATE_TOPICS: (create_topics, create_topics.CreateTopicsRequest((create_topics.CreatableTopic("t", 3, 1),)), "topics"),
    ApiKey.DELETE_TOPICS: (delete_topics, delete_topics.DeleteTopicsRequest((delete_topics.TopicToDelete("t"),), ("t",)), "topics"),
    ApiKey.CREATE_PARTITIONS: (create_partitions, create_partitions.CreatePartitionsRequest((create_partitions.TopicToGrow("t", 4),)), "results"),
    ApiKey.DESCRIBE_CONFIGS: (describe_configs, describe_configs.DescribeConfigsRequest((describe_configs.ResourceToDescribe(2, "t"),)), "results"),
    ApiKey.ALTER_CONFIGS: (alter_configs, alter_configs.AlterConfigsRequest((alter_configs.ResourceToReplace(2, "t", ()),)), "responses"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        incremental_alter_configs,
        incremental_alter_configs.IncrementalAlterConfigsRequest((incremental_alter_configs.ResourceToAlter(2, "t", ()),)),
        "responses",
    ),
}


@pytest.mark.parametrize("api_key", MESSAGES)
def test_each_part_is_told_that_its_fate_is_unknown(api_key: ApiKey) -> None:
    module, request, field = MESSAGES[api_key]
    for version in range(SERVED_APIS[api_key].version_min, SERVED_APIS[api_key].version_max + 1):
        answer = lost_answer(pack_kafka_request(api_key, version, "client", "host", module.REQUEST.encode(version, request)))
        assert answer is not None
        (part,) = getattr(module.RESPONSE.decode(answer, 0, len(answer), version), field)
        assert part.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, version


def test_orders_to_move_partitions_are_answered_partition_by_partition() -> None:
    asked = alter_replica_log_dirs.AlterReplicaLogDirsRequest(
        (alter_replica_log_dirs.LogDirToFill("/srv/d0", (alter_replica_log_dirs.LogDirTopicToMove("t", (0, 1)),)),)
    )
    for version in range(3):
        packed = pack_kafka_request(ApiKey.ALTER_REPLICA_LOG_DIRS, version, "client", "host", alter_replica_log_dirs.REQUEST.encode(version, asked))
        answer = lost_answer(packed)
        assert answer is not None
        (topic,) = alter_replica_log_dirs.RESPONSE.decode(answer, 0, len(answer), version).results
        assert topic == ("t", ((0, ErrorCode.UNKNOWN_SERVER_ERROR), (1, ErrorCode.UNKNOWN_SERVER_ERROR)))


def test_orders_to_the_cluster_are_answered_for_all_of_it() -> None:
    altering = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
        topics=(alter_partition_reassignments.TopicToReassign("t", (alter_partition_reassignments.PartitionToReassign(0, (1,)),)),)
    )
    listing = list_partition_reassignments.ListPartitionReassignmentsRequest()
    for api_key, module, asked in (
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, alter_partition_reassignments, altering),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, list_partition_reassignments, listing),
        (ApiKey.UNREGISTER_BROKER, unregister_broker, unregister_broker.UnregisterBrokerRequest(4)),
    ):
        answer = lost_answer(pack_kafka_request(api_key, 0, "client", "host", module.REQUEST.encode(0, asked)))
        assert answer is not None and module.RESPONSE.decode(answer, 0, len(answer), 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    electing = elect_leaders.ElectLeadersRequest(0, (elect_leaders.TopicToElectFor("t", (0, 3)),))
    for version in range(3):
        answer = lost_answer(pack_kafka_request(ApiKey.ELECT_LEADERS, version, "client", "host", elect_leaders.REQUEST.encode(version, electing)))
        assert answer is not None
        (topic,) = elect_leaders.RESPONSE.decode(answer, 0, len(answer), version).results
        assert [(one.partition_id, one.error_code) for one in topic.partitions] == [(0, -1), (3, -1)]


def test_what_cannot_be_read_has_no_answer() -> None:
    assert lost_answer(pack_kafka_request(ApiKey.CREATE_TOPICS, 7, "client", "host", b"\xff")) is None
    assert lost_answer(pack_kafka_request(ApiKey.FIND_COORDINATOR, 4, "client", "host", b"")) is None
