"""One well-formed request body of every API and version that has a codec, with more than one of everything that can be many."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_type_hints

from appliance.base.model import TopicId
from appliance.protocol import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    schema,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    write_txn_markers,
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
    offset_commit.REQUEST,
    offset_fetch.REQUEST,
    join_group.REQUEST,
    heartbeat.REQUEST,
    leave_group.REQUEST,
    sync_group.REQUEST,
    describe_groups.REQUEST,
    list_groups.REQUEST,
    init_producer_id.REQUEST,
    add_partitions_to_txn.REQUEST,
    add_offsets_to_txn.REQUEST,
    end_txn.REQUEST,
    write_txn_markers.REQUEST,
    txn_offset_commit.REQUEST,
    delete_groups.REQUEST,
    offset_delete.REQUEST,
    describe_producers.REQUEST,
    describe_transactions.REQUEST,
    list_transactions.REQUEST,
    consumer_group_heartbeat.REQUEST,
    consumer_group_describe.REQUEST,
    elect_leaders.REQUEST,
    alter_partition_reassignments.REQUEST,
    list_partition_reassignments.REQUEST,
    unregister_broker.REQUEST,
)
"""Requests whose samples are made from their fields."""

DECODERS: dict[ApiKey, Decoder] = {
    ApiKey.PRODUCE: decode_produce,
    ApiKey.FETCH: decode_fetch,
    ApiKey.LIST_OFFSETS: list_offsets.decode_list_offsets,
    ApiKey.METADATA: metadata.decode_metadata,
    ApiKey.FIND_COORDINATOR: find_coordinator.decode_find_coordinator,
    ApiKey.API_VERSIONS: decode_api_versions,
    ApiKey.CREATE_TOPICS: create_topics.decode_create_topics,
    ApiKey.DELETE_TOPICS: delete_topics.decode_delete_topics,
    ApiKey.DELETE_RECORDS: delete_records.decode_delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.decode_offset_for_leader_epoch,
    ApiKey.CREATE_PARTITIONS: create_partitions.REQUEST.decode,
    ApiKey.DESCRIBE_CONFIGS: describe_configs.REQUEST.decode,
    ApiKey.ALTER_CONFIGS: alter_configs.REQUEST.decode,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.REQUEST.decode,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.REQUEST.decode,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.REQUEST.decode,
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs.REQUEST.decode,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.REQUEST.decode,
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
    partitions = tuple(list_offsets.ListOffsetsPartition(index) for index in range(2))
    topics = (list_offsets.ListOffsetsTopic("one", partitions), list_offsets.ListOffsetsTopic("two", partitions))
    return list_offsets.REQUEST.encode(version, list_offsets.ListOffsetsRequest(-1, 0, topics))


def _metadata_body(version: int) -> bytes:
    topics = (metadata.MetadataRequestTopic(TOPIC_ID, "one"), metadata.MetadataRequestTopic(TOPIC_ID, "two"))
    return metadata.REQUEST.encode(version, metadata.MetadataRequest(topics))


def _find_coordinator_body(version: int) -> bytes:
    return find_coordinator.REQUEST.encode(version, find_coordinator.FindCoordinatorRequest("group", 0, ("group", "other")))


def _api_versions_body(version: int) -> bytes:
    return API_VERSIONS_REQUEST.encode(version, ApiVersionsRequest("millrace", "1.0"))


def _create_topics_body(version: int) -> bytes:
    assignments = (create_topics.ReplicaAssignment(0, (1, 2)), create_topics.ReplicaAssignment(1, (2, 1)))
    topic = create_topics.CreatableTopic("one", -1, -1, assignments, (create_topics.TopicConfig("retention.ms", "1"),))
    return create_topics.REQUEST.encode(version, create_topics.CreateTopicsRequest((topic, topic)))


def _delete_topics_body(version: int) -> bytes:
    topics = (delete_topics.TopicToDelete("one"), delete_topics.TopicToDelete(None, TOPIC_ID))
    return delete_topics.REQUEST.encode(version, delete_topics.DeleteTopicsRequest(topics, ("one", "two")))


def _create_partitions_body(version: int) -> bytes:
    assignments = (create_partitions.PartitionAssignment((1, 2)), create_partitions.PartitionAssignment((2, 1)))
    topics = (create_partitions.TopicToGrow("one", 4, assignments), create_partitions.TopicToGrow("two", 3))
    return create_partitions.REQUEST.encode(version, create_partitions.CreatePartitionsRequest(topics))


def _describe_configs_body(version: int) -> bytes:
    resources = (describe_configs.ResourceToDescribe(2, "one", ("retention.ms", "segment.bytes")), describe_configs.ResourceToDescribe(4, "1"))
    return describe_configs.REQUEST.encode(version, describe_configs.DescribeConfigsRequest(resources, True, True))


def _alter_configs_body(version: int) -> bytes:
    configs = (alter_configs.ConfigToSet("retention.ms", "1"), alter_configs.ConfigToSet("segment.bytes", None))
    resources = (alter_configs.ResourceToReplace(2, "one", configs), alter_configs.ResourceToReplace(2, "two", configs))
    return alter_configs.REQUEST.encode(version, alter_configs.AlterConfigsRequest(resources, True))


def _incremental_alter_configs_body(version: int) -> bytes:
    configs = (incremental_alter_configs.ConfigToAlter("retention.ms", 0, "1"), incremental_alter_configs.ConfigToAlter("segment.bytes", 1))
    resources = (incremental_alter_configs.ResourceToAlter(2, "one", configs), incremental_alter_configs.ResourceToAlter(2, "two", configs))
    return incremental_alter_configs.REQUEST.encode(version, incremental_alter_configs.IncrementalAlterConfigsRequest(resources, True))


def _describe_cluster_body(version: int) -> bytes:
    return describe_cluster.REQUEST.encode(version, describe_cluster.DescribeClusterRequest(True, 1))


def _describe_log_dirs_body(version: int) -> bytes:
    topics = (describe_log_dirs.LogDirTopicToDescribe("one", (0, 1)), describe_log_dirs.LogDirTopicToDescribe("two", (0,)))
    return describe_log_dirs.REQUEST.encode(version, describe_log_dirs.DescribeLogDirsRequest(topics))


def _alter_replica_log_dirs_body(version: int) -> bytes:
    topics = (alter_replica_log_dirs.LogDirTopicToMove("one", (0, 1)), alter_replica_log_dirs.LogDirTopicToMove("two", (0,)))
    dirs = (alter_replica_log_dirs.LogDirToFill("/srv/d0", topics), alter_replica_log_dirs.LogDirToFill("/srv/d1", ()))
    return alter_replica_log_dirs.REQUEST.encode(version, alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs))


def _describe_topic_partitions_body(version: int) -> bytes:
    topics = (describe_topic_partitions.TopicToDescribe("one"), describe_topic_partitions.TopicToDescribe("two"))
    cursor = describe_topic_partitions.PartitionCursor("one", 1)
    return describe_topic_partitions.REQUEST.encode(version, describe_topic_partitions.DescribeTopicPartitionsRequest(topics, 10, cursor))


def _delete_records_body(version: int) -> bytes:
    partitions = tuple(delete_records.DeleteRecordsPartition(index, 5) for index in range(2))
    topics = (delete_records.DeleteRecordsTopic("one", partitions), delete_records.DeleteRecordsTopic("two", partitions))
    return delete_records.REQUEST.encode(version, delete_records.DeleteRecordsRequest(topics))


def _offset_for_leader_epoch_body(version: int) -> bytes:
    partitions = tuple(offset_for_leader_epoch.EpochPartition(index, leader_epoch=3) for index in range(2))
    topics = (offset_for_leader_epoch.EpochTopic("one", partitions), offset_for_leader_epoch.EpochTopic("two", partitions))
    return offset_for_leader_epoch.REQUEST.encode(version, offset_for_leader_epoch.OffsetForLeaderEpochRequest(-1, topics))


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
