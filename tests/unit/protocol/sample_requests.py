"""One well-formed request body of every API and version that has a codec, with more than one of everything that can be many."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_type_hints

from appliance.base.model import TopicId
from appliance.protocol import (
    acl_apis,
    cluster_apis,
    config_apis,
    consumer_group_apis,
    group_apis,
    group_offset_apis,
    log_dir_apis,
    metadata,
    offset_apis,
    quota_apis,
    reassignment_apis,
    sasl_apis,
    schema,
    share_apis,
    share_state_apis,
    streams_apis,
    token_apis,
    topic_apis,
    transaction_apis,
)
from appliance.protocol.api_versions import REQUEST as API_VERSIONS_REQUEST
from appliance.protocol.api_versions import ApiVersionsRequest, decode_api_versions
from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.fetch import decode_fetch
from appliance.protocol.produce import decode_produce
from appliance.protocol.wire import Buffer
from lab import kio_adapter
from lab.protocol_messages import kio_element, kio_message

Decoder = Callable[[Buffer, int, int, int], Any]

_FILLED: tuple[schema.Message[Any], ...] = (
    group_offset_apis.OFFSET_COMMIT_REQUEST,
    group_offset_apis.OFFSET_FETCH_REQUEST,
    group_apis.JOIN_GROUP_REQUEST,
    group_apis.HEARTBEAT_REQUEST,
    group_apis.LEAVE_GROUP_REQUEST,
    group_apis.SYNC_GROUP_REQUEST,
    group_apis.DESCRIBE_GROUPS_REQUEST,
    group_apis.LIST_GROUPS_REQUEST,
    transaction_apis.INIT_PRODUCER_ID_REQUEST,
    transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST,
    transaction_apis.ADD_OFFSETS_TO_TXN_REQUEST,
    transaction_apis.END_TXN_REQUEST,
    transaction_apis.WRITE_TXN_MARKERS_REQUEST,
    transaction_apis.TXN_OFFSET_COMMIT_REQUEST,
    group_apis.DELETE_GROUPS_REQUEST,
    group_offset_apis.OFFSET_DELETE_REQUEST,
    transaction_apis.DESCRIBE_PRODUCERS_REQUEST,
    transaction_apis.DESCRIBE_TRANSACTIONS_REQUEST,
    transaction_apis.LIST_TRANSACTIONS_REQUEST,
    consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_REQUEST,
    consumer_group_apis.CONSUMER_GROUP_DESCRIBE_REQUEST,
    streams_apis.STREAMS_GROUP_HEARTBEAT_REQUEST,
    streams_apis.STREAMS_GROUP_DESCRIBE_REQUEST,
    share_apis.SHARE_GROUP_HEARTBEAT_REQUEST,
    share_apis.SHARE_GROUP_DESCRIBE_REQUEST,
    share_apis.SHARE_FETCH_REQUEST,
    share_apis.SHARE_ACKNOWLEDGE_REQUEST,
    share_apis.DESCRIBE_SHARE_GROUP_OFFSETS_REQUEST,
    share_apis.ALTER_SHARE_GROUP_OFFSETS_REQUEST,
    share_apis.DELETE_SHARE_GROUP_OFFSETS_REQUEST,
    share_state_apis.INITIALIZE_SHARE_GROUP_STATE_REQUEST,
    share_state_apis.READ_SHARE_GROUP_STATE_REQUEST,
    share_state_apis.WRITE_SHARE_GROUP_STATE_REQUEST,
    share_state_apis.DELETE_SHARE_GROUP_STATE_REQUEST,
    share_state_apis.READ_SHARE_GROUP_STATE_SUMMARY_REQUEST,
    reassignment_apis.ELECT_LEADERS_REQUEST,
    reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST,
    reassignment_apis.LIST_PARTITION_REASSIGNMENTS_REQUEST,
    cluster_apis.UNREGISTER_BROKER_REQUEST,
    config_apis.LIST_CONFIG_RESOURCES_REQUEST,
    acl_apis.DESCRIBE_ACLS_REQUEST,
    acl_apis.CREATE_ACLS_REQUEST,
    acl_apis.DELETE_ACLS_REQUEST,
    sasl_apis.SASL_HANDSHAKE_REQUEST,
    sasl_apis.SASL_AUTHENTICATE_REQUEST,
    quota_apis.DESCRIBE_CLIENT_QUOTAS_REQUEST,
    quota_apis.ALTER_CLIENT_QUOTAS_REQUEST,
    sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST,
    sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST,
    token_apis.CREATE_DELEGATION_TOKEN_REQUEST,
    token_apis.RENEW_DELEGATION_TOKEN_REQUEST,
    token_apis.EXPIRE_DELEGATION_TOKEN_REQUEST,
    token_apis.DESCRIBE_DELEGATION_TOKEN_REQUEST,
)
"""Requests whose samples are made from their fields."""

DECODERS: dict[ApiKey, Decoder] = {
    ApiKey.PRODUCE: decode_produce,
    ApiKey.FETCH: decode_fetch,
    ApiKey.LIST_OFFSETS: offset_apis.decode_list_offsets,
    ApiKey.METADATA: metadata.decode_metadata,
    ApiKey.FIND_COORDINATOR: cluster_apis.decode_find_coordinator,
    ApiKey.API_VERSIONS: decode_api_versions,
    ApiKey.CREATE_TOPICS: topic_apis.decode_create_topics,
    ApiKey.DELETE_TOPICS: topic_apis.decode_delete_topics,
    ApiKey.DELETE_RECORDS: offset_apis.decode_delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_apis.decode_offset_for_leader_epoch,
    ApiKey.CREATE_PARTITIONS: topic_apis.CREATE_PARTITIONS_REQUEST.decode,
    ApiKey.DESCRIBE_CONFIGS: config_apis.DESCRIBE_CONFIGS_REQUEST.decode,
    ApiKey.ALTER_CONFIGS: config_apis.ALTER_CONFIGS_REQUEST.decode,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.decode,
    ApiKey.DESCRIBE_CLUSTER: cluster_apis.DESCRIBE_CLUSTER_REQUEST.decode,
    ApiKey.DESCRIBE_LOG_DIRS: log_dir_apis.DESCRIBE_LOG_DIRS_REQUEST.decode,
    ApiKey.ALTER_REPLICA_LOG_DIRS: log_dir_apis.ALTER_REPLICA_LOG_DIRS_REQUEST.decode,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topic_apis.DESCRIBE_TOPIC_PARTITIONS_REQUEST.decode,
    **{message.api.key: message.decode for message in _FILLED},
}

TOPIC_ID = TopicId(bytes(range(1, 17)))


class Sample(NamedTuple):
    """A body and how to read it."""

    api_key: ApiKey
    version: int
    body: bytes

    def decode(self, buffer: Buffer, position: int, limit: int) -> Any:
        return DECODERS[self.api_key](buffer, position, limit, self.version)

    def __str__(self) -> str:
        return f"{CODED_APIS[self.api_key].name}-v{self.version}"


def samples() -> Iterator[Sample]:
    for api in CODED_APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            yield Sample(api.key, version, _BODIES[api.key](version))


def filled(wire_type: Any, version: int) -> Any:
    """A value with two of everything that can be many; of a NamedTuple, its fields that `version` lacks stay as they are."""
    match wire_type:
        case schema.Fixed():
            return 1
        case schema.Bool():
            return True
        case schema.Uuid():
            return TOPIC_ID
        case schema.Text():
            return "one"
        case schema.Octets():
            return b"bytes"
        case schema.ArrayOf(element):
            return (filled(element, version),) * 2
    fields = {name: hint.__metadata__[0] for name, hint in get_type_hints(wire_type, include_extras=True).items()}
    return wire_type(**{name: filled(field.wire_type, version) for name, field in fields.items() if field.since <= version <= field.until})


def _filled_body(message: schema.Message[Any]) -> Callable[[int], bytes]:
    return lambda version: message.encode(version, message.widened(version, filled(message.shape(version), version)))


def _produce_body(version: int) -> bytes:
    request_class = kio_adapter.request_class(ApiKey.PRODUCE, max(version, 3))
    topic_class = kio_element(request_class, "topic_data")
    partition_class = kio_element(topic_class, "partition_data")
    partitions = tuple(partition_class(index=index, records=b"records" * 3) for index in range(2))
    topics = tuple(topic_class(name=name, partition_data=partitions) for name in ("one", "two"))
    body = kio_adapter.encode(request_class(transactional_id=None, acks=1, timeout=datetime.timedelta(seconds=1), topic_data=topics))
    return body[2:] if version < 3 else body


def _fetch_body(version: int) -> bytes:
    # kio begins at version 4; before it there is no isolation level (a byte at 16), before 3 no max_bytes (four bytes at 12).
    request_class = kio_adapter.request_class(ApiKey.FETCH, max(version, 4))
    topic_class = kio_element(request_class, "topics")
    partition_class = kio_element(topic_class, "partitions")
    partitions = tuple(kio_message(partition_class, partition=index, fetch_offset=7, partition_max_bytes=1000) for index in range(2))
    names: dict[str, Any] = {"topic": "one", "topic_id": uuid.UUID(bytes=bytes(TOPIC_ID))}
    forgotten: tuple[Any, ...] = ()
    if version >= 7:
        forgotten = (kio_message(kio_element(request_class, "forgotten_topics_data"), **names, partitions=(3, 4)),)
    values: dict[str, Any] = {"max_wait": datetime.timedelta(milliseconds=500), "min_bytes": 1, "max_bytes": 9, "rack_id": "r1", "cluster_id": "cluster"}
    topics = (kio_message(topic_class, **names, partitions=partitions),) * 2
    body = kio_adapter.encode(kio_message(request_class, **values, replica_id=-1, isolation_level=0, topics=topics, forgotten_topics_data=forgotten))
    return body if version >= 4 else body[: 16 if version == 3 else 12] + body[17:]


def _list_offsets_body(version: int) -> bytes:
    partitions = tuple(offset_apis.ListOffsetsPartition(index) for index in range(2))
    topics = (offset_apis.ListOffsetsTopic("one", partitions), offset_apis.ListOffsetsTopic("two", partitions))
    return offset_apis.LIST_OFFSETS_REQUEST.encode(version, offset_apis.ListOffsetsRequest(-1, 0, topics))


def _metadata_body(version: int) -> bytes:
    topics = (metadata.MetadataRequestTopic(TOPIC_ID, "one"), metadata.MetadataRequestTopic(TOPIC_ID, "two"))
    return metadata.REQUEST.encode(version, metadata.MetadataRequest(topics))


def _find_coordinator_body(version: int) -> bytes:
    return cluster_apis.FIND_COORDINATOR_REQUEST.encode(version, cluster_apis.FindCoordinatorRequest("group", 0, ("group", "other")))


def _api_versions_body(version: int) -> bytes:
    return API_VERSIONS_REQUEST.encode(version, ApiVersionsRequest("millrace", "1.0"))


def _create_topics_body(version: int) -> bytes:
    assignments = (topic_apis.ReplicaAssignment(0, (1, 2)), topic_apis.ReplicaAssignment(1, (2, 1)))
    topic = topic_apis.CreatableTopic("one", -1, -1, assignments, (topic_apis.TopicConfig("retention.ms", "1"),))
    return topic_apis.CREATE_TOPICS_REQUEST.encode(version, topic_apis.CreateTopicsRequest((topic, topic)))


def _delete_topics_body(version: int) -> bytes:
    topics = (topic_apis.TopicToDelete("one"), topic_apis.TopicToDelete(None, TOPIC_ID))
    return topic_apis.DELETE_TOPICS_REQUEST.encode(version, topic_apis.DeleteTopicsRequest(topics, ("one", "two")))


def _create_partitions_body(version: int) -> bytes:
    assignments = (topic_apis.PartitionAssignment((1, 2)), topic_apis.PartitionAssignment((2, 1)))
    topics = (topic_apis.TopicToGrow("one", 4, assignments), topic_apis.TopicToGrow("two", 3))
    return topic_apis.CREATE_PARTITIONS_REQUEST.encode(version, topic_apis.CreatePartitionsRequest(topics))


def _describe_configs_body(version: int) -> bytes:
    resources = (config_apis.ResourceToDescribe(2, "one", ("retention.ms", "segment.bytes")), config_apis.ResourceToDescribe(4, "1"))
    return config_apis.DESCRIBE_CONFIGS_REQUEST.encode(version, config_apis.DescribeConfigsRequest(resources, True, True))


def _alter_configs_body(version: int) -> bytes:
    configs = (config_apis.ConfigToSet("retention.ms", "1"), config_apis.ConfigToSet("segment.bytes", None))
    resources = (config_apis.ResourceToReplace(2, "one", configs), config_apis.ResourceToReplace(2, "two", configs))
    return config_apis.ALTER_CONFIGS_REQUEST.encode(version, config_apis.AlterConfigsRequest(resources, True))


def _incremental_alter_configs_body(version: int) -> bytes:
    configs = (config_apis.ConfigToAlter("retention.ms", 0, "1"), config_apis.ConfigToAlter("segment.bytes", 1))
    resources = (config_apis.ResourceToAlter(2, "one", configs), config_apis.ResourceToAlter(2, "two", configs))
    return config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(version, config_apis.IncrementalAlterConfigsRequest(resources, True))


def _describe_cluster_body(version: int) -> bytes:
    return cluster_apis.DESCRIBE_CLUSTER_REQUEST.encode(version, cluster_apis.DescribeClusterRequest(True, 1))


def _describe_log_dirs_body(version: int) -> bytes:
    topics = (log_dir_apis.LogDirTopicToDescribe("one", (0, 1)), log_dir_apis.LogDirTopicToDescribe("two", (0,)))
    return log_dir_apis.DESCRIBE_LOG_DIRS_REQUEST.encode(version, log_dir_apis.DescribeLogDirsRequest(topics))


def _alter_replica_log_dirs_body(version: int) -> bytes:
    topics = (log_dir_apis.LogDirTopicToMove("one", (0, 1)), log_dir_apis.LogDirTopicToMove("two", (0,)))
    dirs = (log_dir_apis.LogDirToFill("/srv/d0", topics), log_dir_apis.LogDirToFill("/srv/d1", ()))
    return log_dir_apis.ALTER_REPLICA_LOG_DIRS_REQUEST.encode(version, log_dir_apis.AlterReplicaLogDirsRequest(dirs))


def _describe_topic_partitions_body(version: int) -> bytes:
    topics = (topic_apis.TopicToDescribe("one"), topic_apis.TopicToDescribe("two"))
    cursor = topic_apis.PartitionCursor("one", 1)
    return topic_apis.DESCRIBE_TOPIC_PARTITIONS_REQUEST.encode(version, topic_apis.DescribeTopicPartitionsRequest(topics, 10, cursor))


def _delete_records_body(version: int) -> bytes:
    partitions = tuple(offset_apis.DeleteRecordsPartition(index, 5) for index in range(2))
    topics = (offset_apis.DeleteRecordsTopic("one", partitions), offset_apis.DeleteRecordsTopic("two", partitions))
    return offset_apis.DELETE_RECORDS_REQUEST.encode(version, offset_apis.DeleteRecordsRequest(topics))


def _offset_for_leader_epoch_body(version: int) -> bytes:
    partitions = tuple(offset_apis.EpochPartition(index, leader_epoch=3) for index in range(2))
    topics = (offset_apis.EpochTopic("one", partitions), offset_apis.EpochTopic("two", partitions))
    return offset_apis.OFFSET_FOR_LEADER_EPOCH_REQUEST.encode(version, offset_apis.OffsetForLeaderEpochRequest(-1, topics))


_BODIES: dict[ApiKey, Callable[[int], bytes]] = {
    ApiKey.PRODUCE: _produce_body,
    ApiKey.FETCH: _fetch_body,
    ApiKey.LIST_OFFSETS: _list_offsets_body,
    ApiKey.METADATA: _metadata_body,
    ApiKey.FIND_COORDINATOR: _find_coordinator_body,
    ApiKey.API_VERSIONS: _api_versions_body,
    ApiKey.CREATE_TOPICS: _create_topics_body,
    ApiKey.DELETE_TOPICS: _delete_topics_body,
    ApiKey.DELETE_RECORDS: _delete_records_body,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch_body,
    ApiKey.CREATE_PARTITIONS: _create_partitions_body,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs_body,
    ApiKey.ALTER_CONFIGS: _alter_configs_body,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs_body,
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster_body,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs_body,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs_body,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions_body,
    **{message.api.key: _filled_body(message) for message in _FILLED},
}
