"""The answer to a request over which the controller died more than once: whether it was carried out nobody knows, and nobody should try again at once.

Owned by one acceptor, which opens the request only now. UNKNOWN_SERVER_ERROR is what Kafka answers when it fails over a request; clients tell it to
their callers, where a closed connection would make them send the same request again. Weak spot: a request that cannot be read is answered by
closing the connection.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.ipc.request_frames import unpack_kafka_request

WORDS = "The controller failed more than once while it had this request; whether it was carried out is not known."


def lost_answer(payload: bytes) -> bytes | None:
    """The body of the answer to a request as it was packed for the controller; None where there is none to give."""
    api_key, version, _client_id, _client_host, body = unpack_kafka_request(payload)
    try:
        return _body(api_key, version, body)
    except ProtocolViolation:
        return None


def _body(api_key: int, version: int, body: bytes) -> bytes | None:
    # Imported here: no acceptor needs to read these otherwise.
    from appliance.protocol import cluster_apis, config_apis, log_dir_apis, reassignment_apis, topic_apis
    from appliance.protocol.apis import ApiKey
    from appliance.protocol.cluster_apis import UnregisterBrokerResponse
    from appliance.protocol.config_apis import AlteredResource, AlteredResources, DescribeConfigsResponse, DescribedResource
    from appliance.protocol.log_dir_apis import AlterReplicaLogDirsResponse, MovedPartition, MovedTopic
    from appliance.protocol.reassignment_apis import (
        AlterPartitionReassignmentsResponse,
        ElectedPartition,
        ElectedTopic,
        ElectLeadersResponse,
        ListPartitionReassignmentsResponse,
    )
    from appliance.protocol.topic_apis import CreatedTopic, CreatePartitionsResponse, DeletedTopic, GrownTopic

    code, size = ErrorCode.UNKNOWN_SERVER_ERROR, len(body)
    if api_key == ApiKey.CREATE_TOPICS:
        names = dict.fromkeys(topic.name for topic in topic_apis.CREATE_TOPICS_REQUEST.decode(body, 0, size, version).topics)
        return topic_apis.encode_create_topics_body(version, tuple(CreatedTopic(name, error_code=code, error_message=WORDS) for name in names))
    if api_key == ApiKey.DELETE_TOPICS:
        topics = topic_apis.decode_delete_topics(body, 0, size, version).topics
        return topic_apis.encode_delete_topics_body(version, tuple(DeletedTopic(topic.name, topic.topic_id, code, WORDS) for topic in topics))
    if api_key == ApiKey.CREATE_PARTITIONS:
        names = dict.fromkeys(topic.name for topic in topic_apis.CREATE_PARTITIONS_REQUEST.decode(body, 0, size, version).topics)
        return topic_apis.CREATE_PARTITIONS_RESPONSE.encode(version, CreatePartitionsResponse(0, tuple(GrownTopic(name, code, WORDS) for name in names)))
    if api_key == ApiKey.DESCRIBE_CONFIGS:
        asked = config_apis.DESCRIBE_CONFIGS_REQUEST.decode(body, 0, size, version).resources
        described = tuple(DescribedResource(code, WORDS, resource.resource_type, resource.resource_name) for resource in asked)
        return config_apis.DESCRIBE_CONFIGS_RESPONSE.encode(version, DescribeConfigsResponse(0, described))
    if api_key == ApiKey.ALTER_CONFIGS:
        replaced = config_apis.ALTER_CONFIGS_REQUEST.decode(body, 0, size, version).resources
        done = tuple(AlteredResource(code, WORDS, resource.resource_type, resource.resource_name) for resource in replaced)
        return config_apis.ALTER_CONFIGS_RESPONSE.encode(version, AlteredResources(0, done))
    if api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS:
        altered = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.decode(body, 0, size, version).resources
        done = tuple(AlteredResource(code, WORDS, resource.resource_type, resource.resource_name) for resource in altered)
        return config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE.encode(version, AlteredResources(0, done))
    if api_key == ApiKey.ALTER_REPLICA_LOG_DIRS:
        dirs = log_dir_apis.ALTER_REPLICA_LOG_DIRS_REQUEST.decode(body, 0, size, version).dirs
        moved = (MovedTopic(topic.name, tuple(MovedPartition(number, code) for number in topic.partitions)) for each in dirs for topic in each.topics)
        return log_dir_apis.ALTER_REPLICA_LOG_DIRS_RESPONSE.encode(version, AlterReplicaLogDirsResponse(0, tuple(moved)))
    if api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        return reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_RESPONSE.encode(version, AlterPartitionReassignmentsResponse(0, code, WORDS))
    if api_key == ApiKey.LIST_PARTITION_REASSIGNMENTS:
        return reassignment_apis.LIST_PARTITION_REASSIGNMENTS_RESPONSE.encode(version, ListPartitionReassignmentsResponse(0, code, WORDS))
    if api_key == ApiKey.UNREGISTER_BROKER:
        return cluster_apis.UNREGISTER_BROKER_RESPONSE.encode(version, UnregisterBrokerResponse(0, code, WORDS))
    if api_key == ApiKey.ELECT_LEADERS:
        wanted = reassignment_apis.ELECT_LEADERS_REQUEST.decode(body, 0, size, version).topic_partitions or ()
        elected = (ElectedTopic(topic.topic, tuple(ElectedPartition(number, code, WORDS) for number in topic.partitions)) for topic in wanted)
        return reassignment_apis.ELECT_LEADERS_RESPONSE.encode(version, ElectLeadersResponse(0, code, tuple(elected)))
    return None
