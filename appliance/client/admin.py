"""Topics from outside: create, alter, delete, describe, and where their logs begin and end. One thread, through a ClusterClient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId, Offset, TopicPartition, topic_name_problem
from appliance.client.cluster import ClusterClient, PartitionMetadata, TopicMetadata
from appliance.client.coordinator import by_topic
from appliance.client.errors import ClientFailed, VersionUnsupported, is_retriable, refused
from appliance.client.messages import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    Answered,
    Asked,
    ClientApi,
)
from appliance.protocol.config_apis import (
    ConfigSource,
    ConfigToAlter,
    DescribeConfigsRequest,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    ResourceToAlter,
    ResourceToDescribe,
    ResourceType,
)
from appliance.protocol.offset_apis import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from appliance.protocol.topic_apis import CreatableTopic, CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, TopicConfig, TopicToGrow

ADMIN_TIMEOUT_MS = 30_000
SET_VALUE, DELETE_VALUE = 0, 1
"""Operations of IncrementalAlterConfigs (KIP-339)."""
ASKED_MAX = 2_000
"""Partitions in one request of `find_unserved`."""


class FoundOffset(NamedTuple):
    """An answer of ListOffsets; -1 where there is none."""

    offset: Offset
    timestamp: int


class DescribedPartition(NamedTuple):
    """A partition and its log; the offsets are None while it has no leader to tell them."""

    metadata: PartitionMetadata
    log_start_offset: Offset | None
    end_offset: Offset | None


class DescribedTopic(NamedTuple):
    topic: TopicMetadata
    partitions: tuple[DescribedPartition, ...]


def create_topic(cluster: ClusterClient, name: str, *, partitions: int | None = None, replication_factor: int | None = None,
                 configs: dict[str, str] | None = None, validate_only: bool = False) -> None:  # fmt: skip
    """Returns when the topic is there. None means the cluster's default. With `validate_only` the broker says only whether it would."""
    topic = CreatableTopic(
        name,
        -1 if partitions is None else partitions,
        -1 if replication_factor is None else replication_factor,
        configs=tuple(TopicConfig(key, value) for key, value in (configs or {}).items()),
    )
    doing = f"create topic {name!r}"
    if problem := topic_name_problem(name):
        raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"could not {doing}: {problem}")
    _ask_controller(cluster, CREATE_TOPICS, CreateTopicsRequest((topic,), ADMIN_TIMEOUT_MS, validate_only), lambda body: body.topics, doing)


def delete_topic(cluster: ClusterClient, name: str) -> None:
    """Returns when the topic is gone for clients; its files follow."""
    request = DeleteTopicsRequest(topic_names=(name,), timeout_ms=ADMIN_TIMEOUT_MS)
    _ask_controller(cluster, DELETE_TOPICS, request, lambda body: body.topics, f"delete topic {name!r}")
    cluster.latest.topics.pop(name, None)


def add_partitions(cluster: ClusterClient, name: str, count: int, validate_only: bool = False) -> None:
    """Make the topic have `count` partitions, which must be more than it has. Records stay where they are; keys may go elsewhere from now on.
    With `validate_only` the broker says only whether it would."""
    request = CreatePartitionsRequest((TopicToGrow(name, count),), ADMIN_TIMEOUT_MS, validate_only)
    _ask_controller(cluster, CREATE_PARTITIONS, request, lambda body: body.results, f"give topic {name!r} {count} partitions")


def alter_topic_settings(cluster: ClusterClient, name: str, values: dict[str, str], unset: Iterable[str]) -> None:
    """Set some settings of a topic and take others back to their default: all of them or, if one is refused, none."""
    request = altered_configs(ResourceType.TOPIC, name, values, unset)
    _ask_controller(cluster, INCREMENTAL_ALTER_CONFIGS, request, lambda body: body.responses, f"alter topic {name!r}")


def altered_configs(resource_type: ResourceType, name: str, values: Mapping[str, str], unset: Iterable[str]) -> IncrementalAlterConfigsRequest:
    configs = [ConfigToAlter(key, SET_VALUE, value) for key, value in values.items()]
    configs += [ConfigToAlter(key, DELETE_VALUE) for key in unset]
    return IncrementalAlterConfigsRequest((ResourceToAlter(resource_type, name, tuple(configs)),))


class TopicSettings(NamedTuple):
    """What a topic's settings are: every name that there is, and the values of those that are set on the topic itself."""

    names: frozenset[str]
    own: dict[str, str]


def topic_settings(cluster: ClusterClient, name: str) -> TopicSettings:
    """Return them from any broker."""
    configs = topic_configs(cluster, name)
    own = {config.name: config.value or "" for config in configs if config.config_source == ConfigSource.TOPIC}
    return TopicSettings(frozenset(config.name for config in configs), dict(sorted(own.items())))


def topic_configs(cluster: ClusterClient, name: str, documented: bool = False) -> list[DescribedConfig]:
    """Return each setting of a topic as it holds now, and where its value comes from. Any broker knows them."""
    brokers = cluster.metadata([]).brokers
    doing = f"read the settings of topic {name!r}"
    if not brokers:
        raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, f"could not {doing}: no broker is registered at the moment")
    return describe_configs(cluster, min(brokers), ResourceToDescribe(ResourceType.TOPIC, name), doing, documented)


DESCRIBED_MAX = 200
"""Topics in one request of `settings_of_topics`."""


def settings_of_topics(cluster: ClusterClient, names: Iterable[str]) -> dict[str, TopicSettings]:
    """Return the settings of many topics; topics that are refused are left out."""
    found: dict[str, TopicSettings] = {}
    wanted = sorted(names)
    brokers = cluster.metadata([]).brokers
    for start in range(0, len(wanted), DESCRIBED_MAX):
        request = DescribeConfigsRequest(tuple(ResourceToDescribe(ResourceType.TOPIC, name) for name in wanted[start : start + DESCRIBED_MAX]))
        for result in cluster.ask_broker(min(brokers, default=NO_LEADER), DESCRIBE_CONFIGS, request).results:
            if result.error_code == ErrorCode.NONE:
                own = {config.name: config.value or "" for config in result.configs if config.config_source == ConfigSource.TOPIC}
                found[result.resource_name] = TopicSettings(frozenset(config.name for config in result.configs), own)
    return found


def describe_configs(cluster: ClusterClient, broker_id: BrokerId, resource: ResourceToDescribe, doing: str, documented: bool = False) -> list[DescribedConfig]:
    request = DescribeConfigsRequest((resource,), True, documented)
    body = cluster.ask_broker(broker_id, DESCRIBE_CONFIGS, request)
    for result in body.results:
        if result.error_code != ErrorCode.NONE:
            raise refused(result.error_code, doing, result.error_message)
    return [config for result in body.results for config in result.configs]


class _AdminResult(Protocol):
    @property
    def error_code(self) -> int: ...

    @property
    def error_message(self) -> str | None: ...


def _ask_controller(
    cluster: ClusterClient, api: ClientApi[Asked, Answered], request: Asked, results_of: Callable[[Answered], Sequence[_AdminResult]], doing: str
) -> None:
    """One topic's worth of an admin request, tried again while the controller moves or restarts."""
    backoff = cluster.backoff()
    while True:
        try:
            body = cluster.ask_controller(api, request, timeout_ms=ADMIN_TIMEOUT_MS + 5_000)
            for result in results_of(body):
                if result.error_code != ErrorCode.NONE:
                    raise refused(result.error_code, doing, result.error_message)
            return
        except RequestRefused as error:
            # The admin APIs answer for good, except while there is no controller to answer: the topic is unknown, it is not "unknown yet".
            if error.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.BROKER_NOT_AVAILABLE):
                raise
            backoff.pause_or_raise(error)


def list_offsets(cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: int = 0) -> dict[TopicPartition, FoundOffset]:
    """For each partition the offset of the first record at or after `timestamp` (or EARLIEST_, LATEST_TIMESTAMP). With isolation level 1
    (read_committed) the latest is the last stable offset."""
    wanted = set(partitions)
    found: dict[TopicPartition, FoundOffset] = {}
    backoff = cluster.backoff()
    while wanted:
        answers, error = try_list_offsets(cluster, wanted, timestamp, isolation_level)
        found.update(answers)
        wanted -= answers.keys()
        if wanted and error is not None:
            backoff.pause_or_raise(error)
            cluster.metadata({partition.topic for partition in wanted})
    return found


def try_list_offsets(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: int = 0, timeout_ms: int | None = None
) -> tuple[dict[TopicPartition, FoundOffset], Exception | None]:
    """Ask each leader once: return the offsets of the partitions that answered, and an error of the others. Raises errors that no retry can heal."""
    found: dict[TopicPartition, FoundOffset] = {}
    trouble: Exception | None = None
    for leader, led in _by_leader(cluster, partitions).items():
        try:
            answers = _ask_leader(cluster, leader, led, timestamp, isolation_level, timeout_ms)
        except (ClientFailed, RequestRefused) as error:
            answers = dict.fromkeys(led, error)
        for partition, answer in answers.items():
            if isinstance(answer, FoundOffset):
                found[partition] = answer
            elif is_retriable(answer):
                trouble = answer
            else:
                raise answer
    return found, trouble


UNSERVED_WAIT_MS = 3_000
"""How long a leader may take to say where its logs end, which it reads from memory."""


def find_unserved(cluster: ClusterClient, topics: Iterable[TopicMetadata]) -> dict[TopicPartition, str]:
    """Ask each leader once for the log ends of its partitions: return why each partition that has a leader is not served.

    Metadata says which broker should lead; a log-writer that restarts, a disk that hangs or a broker that is gone shows only there.
    """
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for topic in topics:
        for each in topic.partitions:
            if each.leader != NO_LEADER:
                by_leader.setdefault(each.leader, []).append(TopicPartition(topic.name, each.partition))
    unserved: dict[TopicPartition, str] = {}
    for leader, led in by_leader.items():
        for start in range(0, len(led), ASKED_MAX):
            asked = led[start : start + ASKED_MAX]
            try:
                answers = _ask_leader(cluster, leader, asked, LATEST_TIMESTAMP, 0, UNSERVED_WAIT_MS)
            except VersionUnsupported:
                break
            except (ClientFailed, RequestRefused):
                unserved.update(dict.fromkeys(led[start:], f"broker {leader} does not answer"))
                break
            for partition, answer in answers.items():
                if isinstance(answer, RequestRefused):
                    unserved[partition] = answer.code.name
    return unserved


def _by_leader(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[BrokerId, list[TopicPartition]]:
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        if partition.topic not in cluster.latest.topics:
            cluster.metadata([partition.topic])
        topic = cluster.latest.topics[partition.topic]
        if topic.error != ErrorCode.NONE:
            raise refused(topic.error, f"read offsets of topic {partition.topic!r}")
        leaders = {known.partition: known.leader for known in topic.partitions}
        if partition.partition not in leaders:
            words = f"topic {partition.topic!r} has no partition {partition.partition}; it has {len(leaders)}, counted from 0"
            raise RequestRefused(ErrorCode.INVALID_PARTITIONS, words)
        by_leader.setdefault(leaders[partition.partition], []).append(partition)
    return by_leader


def _ask_leader(
    cluster: ClusterClient, leader: BrokerId, partitions: list[TopicPartition], timestamp: int, isolation_level: int, timeout_ms: int | None = None
) -> dict[TopicPartition, FoundOffset | Exception]:
    asked = by_topic((topic, ListOffsetsPartition(partition, timestamp=timestamp)) for topic, partition in partitions)
    request = ListOffsetsRequest(-1, isolation_level, tuple(ListOffsetsTopic(*topic) for topic in asked))
    body = cluster.ask_broker(leader, LIST_OFFSETS, request, timeout_ms)
    found: dict[TopicPartition, FoundOffset | Exception] = {}
    for topic in body.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.topic, answer.partition)
            if answer.error_code == ErrorCode.NONE:
                found[partition] = FoundOffset(Offset(answer.offset), answer.timestamp)
            else:
                found[partition] = refused(answer.error_code, f"read offsets of {partition}")
    return found


def delete_records(cluster: ClusterClient, offsets: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, RequestRefused]:
    """Let each partition begin at an offset, for good. Returns when that is durable; what was refused, and why."""
    refusals: dict[TopicPartition, RequestRefused] = {}
    for leader, led in _by_leader(cluster, offsets).items():
        topics = by_topic((each.topic, DeleteRecordsPartition(each.partition, offsets[each])) for each in led)
        request = DeleteRecordsRequest(tuple(DeleteRecordsTopic(*topic) for topic in topics), ADMIN_TIMEOUT_MS)
        body = cluster.ask_broker(leader, DELETE_RECORDS, request, timeout_ms=ADMIN_TIMEOUT_MS + 5_000)
        for topic in body.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.topic, answer.partition)
                if answer.error_code != ErrorCode.NONE:
                    refusals[partition] = refused(answer.error_code, f"delete records of {partition}")
    return refusals


def describe_topic(cluster: ClusterClient, name: str) -> DescribedTopic:
    """Return metadata and log start and end of every partition whose leader answers now; an offline disk does not delay the others."""
    topic = cluster.topic(name, complete=False)
    led = [TopicPartition(name, partition.partition) for partition in topic.partitions if partition.leader in cluster.latest.brokers]
    starts, _ = try_list_offsets(cluster, led, EARLIEST_TIMESTAMP)
    ends, _ = try_list_offsets(cluster, led, LATEST_TIMESTAMP)
    described = []
    for partition in topic.partitions:
        start, end = (found.get(TopicPartition(name, partition.partition)) for found in (starts, ends))
        described.append(DescribedPartition(partition, start.offset if start else None, end.offset if end else None))
    return DescribedTopic(topic, tuple(described))
