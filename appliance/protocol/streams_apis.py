"""APIs of streams groups (KIP-1071): messages as data.

StreamsGroupHeartbeat 0 is the whole protocol of a member in one request; a null field means that it has not
changed since the last request. StreamsGroupDescribe 0 returns topology, members and tasks. A task is a
partition of a subtopology. The topology is also what the coordinator keeps of a group, in the same form.
"""

from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.cluster_apis import OPERATIONS_NOT_ASKED
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UINT16, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicPartitions


class GroupStatus(IntEnum):
    """What a response says of the group."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4


class KeyValue(NamedTuple):
    """A config of a topic, or a tag of a client."""

    key: Annotated[str, Field(STRING)]
    value: Annotated[str, Field(STRING)]


class Endpoint(NamedTuple):
    """Where an instance answers interactive queries."""

    host: Annotated[str, Field(STRING)]
    port: Annotated[int, Field(UINT16)]


class TopicInfo(NamedTuple):
    """An internal topic; 0 partitions or replicas: the coordinator's choice."""

    name: Annotated[str, Field(STRING)]
    partitions: Annotated[int, Field(INT32)] = 0
    replication_factor: Annotated[int, Field(INT16)] = 0
    configs: Annotated[tuple[KeyValue, ...], Field(ArrayOf(KeyValue))] = ()


class CopartitionGroup(NamedTuple):
    """Topics that must have as many partitions as each other: indices into the lists of the subtopology."""

    source_topics: Annotated[tuple[int, ...], Field(ArrayOf(INT16))] = ()
    source_topic_regex: Annotated[tuple[int, ...], Field(ArrayOf(INT16))] = ()
    repartition_source_topics: Annotated[tuple[int, ...], Field(ArrayOf(INT16))] = ()


class Subtopology(NamedTuple):
    """A part of an application whose topics are read together."""

    subtopology_id: Annotated[str, Field(STRING)]
    source_topics: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    source_topic_regex: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    changelog_topics: Annotated[tuple[TopicInfo, ...], Field(ArrayOf(TopicInfo))] = ()
    repartition_sink_topics: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    repartition_source_topics: Annotated[tuple[TopicInfo, ...], Field(ArrayOf(TopicInfo))] = ()
    copartition_groups: Annotated[tuple[CopartitionGroup, ...], Field(ArrayOf(CopartitionGroup))] = ()


class Topology(NamedTuple):
    """All subtopologies of an application."""

    epoch: Annotated[int, Field(INT32)] = 0
    subtopologies: Annotated[tuple[Subtopology, ...], Field(ArrayOf(Subtopology))] = ()


class TaskIds(NamedTuple):
    """Tasks of one subtopology."""

    subtopology_id: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()


class TaskOffset(NamedTuple):
    """How far a task is in its changelogs; Kafka 4.2 sends none."""

    subtopology_id: Annotated[str, Field(STRING)]
    partition: Annotated[int, Field(INT32)]
    offset: Annotated[int, Field(INT64)]


class StreamsGroupHeartbeatRequest(NamedTuple):
    """A member, its epoch, its topology when it joins, and the tasks that it has."""

    group_id: Annotated[str, Field(STRING)] = ""
    member_id: Annotated[str, Field(STRING)] = ""
    member_epoch: Annotated[int, Field(INT32)] = 0
    endpoint_information_epoch: Annotated[int, Field(INT32)] = 0
    instance_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rack_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rebalance_timeout_ms: Annotated[int, Field(INT32)] = -1
    topology: Annotated[Topology | None, Field(Topology, nullable_since=0)] = None
    active_tasks: Annotated[tuple[TaskIds, ...] | None, Field(ArrayOf(TaskIds), nullable_since=0)] = None
    standby_tasks: Annotated[tuple[TaskIds, ...] | None, Field(ArrayOf(TaskIds), nullable_since=0)] = None
    warmup_tasks: Annotated[tuple[TaskIds, ...] | None, Field(ArrayOf(TaskIds), nullable_since=0)] = None
    process_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    user_endpoint: Annotated[Endpoint | None, Field(Endpoint, nullable_since=0)] = None
    client_tags: Annotated[tuple[KeyValue, ...] | None, Field(ArrayOf(KeyValue), nullable_since=0)] = None
    task_offsets: Annotated[tuple[TaskOffset, ...] | None, Field(ArrayOf(TaskOffset), nullable_since=0)] = None
    task_end_offsets: Annotated[tuple[TaskOffset, ...] | None, Field(ArrayOf(TaskOffset), nullable_since=0)] = None
    shutdown_application: Annotated[bool, Field(BOOL)] = False


class Status(NamedTuple):
    """A `GroupStatus` in words."""

    status_code: Annotated[int, Field(INT8)]
    status_detail: Annotated[str, Field(STRING)] = ""


class EndpointToPartitions(NamedTuple):
    """The partitions whose state one instance holds."""

    user_endpoint: Annotated[Endpoint, Field(Endpoint)]
    active_partitions: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()
    standby_partitions: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()


class StreamsGroupHeartbeatResponse(NamedTuple):
    """The member's epoch, and its tasks if they changed. No member warms up in Kafka 4.2, so its two fields about that are 0."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_id: Annotated[str, Field(STRING)] = ""
    member_epoch: Annotated[int, Field(INT32)] = 0
    heartbeat_interval_ms: Annotated[int, Field(INT32)] = 0
    acceptable_recovery_lag: Annotated[int, Field(INT32)] = 0
    task_offset_interval_ms: Annotated[int, Field(INT32)] = 0
    status: Annotated[tuple[Status, ...] | None, Field(ArrayOf(Status), nullable_since=0)] = ()
    active_tasks: Annotated[tuple[TaskIds, ...] | None, Field(ArrayOf(TaskIds), nullable_since=0)] = None
    standby_tasks: Annotated[tuple[TaskIds, ...] | None, Field(ArrayOf(TaskIds), nullable_since=0)] = None
    warmup_tasks: Annotated[tuple[TaskIds, ...] | None, Field(ArrayOf(TaskIds), nullable_since=0)] = None
    endpoint_information_epoch: Annotated[int, Field(INT32)] = 0
    partitions_by_user_endpoint: Annotated[tuple[EndpointToPartitions, ...] | None, Field(ArrayOf(EndpointToPartitions), nullable_since=0)] = None


STREAMS_GROUP_HEARTBEAT_REQUEST: Final = Message(ApiKey.STREAMS_GROUP_HEARTBEAT, "StreamsGroupHeartbeat request", StreamsGroupHeartbeatRequest)
STREAMS_GROUP_HEARTBEAT_RESPONSE: Final = Message(ApiKey.STREAMS_GROUP_HEARTBEAT, "StreamsGroupHeartbeat response", StreamsGroupHeartbeatResponse)


class StreamsGroupDescribeRequest(NamedTuple):
    """Groups by their ids."""

    group_ids: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    include_authorized_operations: Annotated[bool, Field(BOOL)] = False


class DescribedSubtopology(NamedTuple):
    """A subtopology; its topics have the numbers of partitions that the coordinator found."""

    subtopology_id: Annotated[str, Field(STRING)]
    source_topics: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    repartition_sink_topics: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    changelog_topics: Annotated[tuple[TopicInfo, ...], Field(ArrayOf(TopicInfo))] = ()
    repartition_source_topics: Annotated[tuple[TopicInfo, ...], Field(ArrayOf(TopicInfo))] = ()


class DescribedTopology(NamedTuple):
    """Without subtopologies: the group's topics are missing, or have wrong numbers of partitions."""

    epoch: Annotated[int, Field(INT32)] = 0
    subtopologies: Annotated[tuple[DescribedSubtopology, ...] | None, Field(ArrayOf(DescribedSubtopology), nullable_since=0)] = None


class TaskAssignment(NamedTuple):
    """The tasks of a member."""

    active_tasks: Annotated[tuple[TaskIds, ...], Field(ArrayOf(TaskIds))] = ()
    standby_tasks: Annotated[tuple[TaskIds, ...], Field(ArrayOf(TaskIds))] = ()
    warmup_tasks: Annotated[tuple[TaskIds, ...], Field(ArrayOf(TaskIds))] = ()


class StreamsGroupMember(NamedTuple):
    """One member, its current and its target tasks."""

    member_id: Annotated[str, Field(STRING)]
    member_epoch: Annotated[int, Field(INT32)] = 0
    instance_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rack_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    client_id: Annotated[str, Field(STRING)] = ""
    client_host: Annotated[str, Field(STRING)] = ""
    topology_epoch: Annotated[int, Field(INT32)] = 0
    process_id: Annotated[str, Field(STRING)] = ""
    user_endpoint: Annotated[Endpoint | None, Field(Endpoint, nullable_since=0)] = None
    client_tags: Annotated[tuple[KeyValue, ...], Field(ArrayOf(KeyValue))] = ()
    task_offsets: Annotated[tuple[TaskOffset, ...], Field(ArrayOf(TaskOffset))] = ()
    task_end_offsets: Annotated[tuple[TaskOffset, ...], Field(ArrayOf(TaskOffset))] = ()
    assignment: Annotated[TaskAssignment, Field(TaskAssignment)] = TaskAssignment()
    target_assignment: Annotated[TaskAssignment, Field(TaskAssignment)] = TaskAssignment()
    is_classic: Annotated[bool, Field(BOOL)] = False


class DescribedStreamsGroup(NamedTuple):
    """One group, or an error."""

    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    group_id: Annotated[str, Field(STRING)] = ""
    group_state: Annotated[str, Field(STRING)] = ""
    group_epoch: Annotated[int, Field(INT32)] = 0
    assignment_epoch: Annotated[int, Field(INT32)] = 0
    topology: Annotated[DescribedTopology | None, Field(DescribedTopology, nullable_since=0)] = None
    members: Annotated[tuple[StreamsGroupMember, ...], Field(ArrayOf(StreamsGroupMember))] = ()
    authorized_operations: Annotated[int, Field(INT32)] = OPERATIONS_NOT_ASKED


class StreamsGroupDescribeResponse(NamedTuple):
    """Groups in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    groups: Annotated[tuple[DescribedStreamsGroup, ...], Field(ArrayOf(DescribedStreamsGroup))] = ()


STREAMS_GROUP_DESCRIBE_REQUEST: Final = Message(ApiKey.STREAMS_GROUP_DESCRIBE, "StreamsGroupDescribe request", StreamsGroupDescribeRequest)
STREAMS_GROUP_DESCRIBE_RESPONSE: Final = Message(
    ApiKey.STREAMS_GROUP_DESCRIBE,
    "StreamsGroupDescribe response",
    StreamsGroupDescribeResponse,
    error=lambda _version, request, code, _text: StreamsGroupDescribeResponse(
        0, tuple(DescribedStreamsGroup(code, group_id=each) for each in request.group_ids)
    ),
)
