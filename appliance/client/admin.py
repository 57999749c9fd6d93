"""Topics from outside: create, alter, delete, describe, and where their logs begin and end. One thread, through a ClusterClient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import BrokerId, Offset, TopicPartition, topic_name_problem
from appliance.client.cluster import ClusterClient
from appliance.client.errors import ClientFailed, is_retriable, refused
from appliance.client.messages import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    Api,
)
from appliance.client.metadata import PartitionMetadata, TopicMetadata

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
ADMIN_TIMEOUT_MS = 30_000
TOPIC_RESOURCE = 2
SET_ON_TOPIC = 1
"""The source of a value that was set on the topic itself (KIP-226)."""
SET_VALUE, DELETE_VALUE = 0, 1
"""Operations of IncrementalAlterConfigs (KIP-339)."""


class FoundOffset(NamedTuple):
    """An answer of ListOffsets; -1 where there is none."""

    offset: Offset
    timestamp: int


class PartitionDescription(NamedTuple):
    """A partition and its log; the offsets are None while it has no leader to tell them."""

    metadata: PartitionMetadata
    log_start_offset: Offset | None
    end_offset: Offset | None


class TopicDescription(NamedTuple):
    topic: TopicMetadata
    partitions: tuple[PartitionDescription, ...]


def create_topic(cluster: ClusterClient, name: str, *, partitions: int | None = None, replication_factor: int | None = None,
                 configs: dict[str, str] | None = None) -> None:  # fmt: skip
    """Returns when the topic is there. None means the cluster's default."""
    topic = {
        "name": name,
        "num_partitions": -1 if partitions is None else partitions,
        "replication_factor": -1 if replication_factor is None else replication_factor,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    values = {"topics": [topic], "timeout": ADMIN_TIMEOUT_MS, "validate_only": False}
    doing = f"create topic {name!r}"
    if problem := topic_name_problem(name):
        raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"could not {doing}: {problem}")
    _ask_controller(cluster, CREATE_TOPICS, values, "topics", doing)


def delete_topic(cluster: ClusterClient, name: str) -> None:
    """Returns when the topic is gone for clients; its files follow."""
    values = {"topic_names": [name], "timeout": ADMIN_TIMEOUT_MS}
    _ask_controller(cluster, DELETE_TOPICS, values, "responses", f"delete topic {name!r}")
    cluster.latest.topics.pop(name, None)


def add_partitions(cluster: ClusterClient, name: str, count: int, validate_only: bool = False) -> None:
    """Make the topic have `count` partitions, which must be more than it has. Records stay where they are; keys may go elsewhere from now on.
    With `validate_only` the broker says only whether it would."""
    topic = {"name": name, "count": count, "assignments": None}
    values = {"topics": [topic], "timeout": ADMIN_TIMEOUT_MS, "validate_only": validate_only}
    _ask_controller(cluster, CREATE_PARTITIONS, values, "results", f"give topic {name!r} {count} partitions")


def alter_topic_settings(cluster: ClusterClient, name: str, values: dict[str, str], unset: Iterable[str]) -> None:
    """Set some settings of a topic and take others back to their default: all of them or, if one is refused, none."""
    configs = [{"name": key, "config_operation": SET_VALUE, "value": value} for key, value in values.items()]
    configs += [{"name": key, "config_operation": DELETE_VALUE, "value": None} for key in unset]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": configs}
    _ask_controller(cluster, INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False}, "responses", f"alter topic {name!r}")


class TopicSettings(NamedTuple):
    """What a topic's settings are: every name that there is, and the values of those that are set on the topic itself."""

    names: frozenset[str]
    own: dict[str, str]


def topic_settings(cluster: ClusterClient, name: str) -> TopicSettings:
    """Any broker knows them."""
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
    brokers = cluster.metadata([]).brokers
    if not brokers:
        raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, f"could not read the settings of topic {name!r}: no broker is registered at the moment")
    body = cluster.ask_broker(min(brokers), DESCRIBE_CONFIGS, {"resources": [resource]})
    for result in body.results:
        if result.error_code != ErrorCode.NONE:
            raise refused(int(result.error_code), f"read the settings of topic {name!r}", result.error_message)
    configs = [config for result in body.results for config in result.configs]
    own = {str(config.name): str(config.value or "") for config in configs if config.config_source == SET_ON_TOPIC}
    return TopicSettings(frozenset(str(config.name) for config in configs), dict(sorted(own.items())))


def _ask_controller(cluster: ClusterClient, api: Api, values: dict[str, Any], results: str, doing: str) -> None:
    """One topic's worth of an admin request, tried again while the controller moves or restarts."""
    backoff = cluster.backoff()
    while True:
        try:
            body = cluster.ask_controller(api, values, timeout_ms=ADMIN_TIMEOUT_MS + 5_000)
            for result in getattr(body, results):
                if result.error_code != ErrorCode.NONE:
                    raise refused(int(result.error_code), doing, getattr(result, "error_message", None))
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
    cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: int = 0
) -> tuple[dict[TopicPartition, FoundOffset], Exception | None]:
    """One round: the offsets of those partitions whose leader tells them, and an error of the others. Raises what will not heal."""
    found: dict[TopicPartition, FoundOffset] = {}
    trouble: Exception | None = None
    for leader, led in _by_leader(cluster, partitions).items():
        try:
            answers = _ask_leader(cluster, leader, led, timestamp, isolation_level)
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
    cluster: ClusterClient, leader: BrokerId, partitions: list[TopicPartition], timestamp: int, isolation_level: int
) -> dict[TopicPartition, FoundOffset | Exception]:
    by_topic: dict[str, list[dict[str, int]]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append({"partition_index": partition.partition, "timestamp": timestamp})
    topics = [{"name": name, "partitions": asked} for name, asked in by_topic.items()]
    body = cluster.ask_broker(leader, LIST_OFFSETS, {"replica_id": -1, "isolation_level": isolation_level, "topics": topics})
    found: dict[TopicPartition, FoundOffset | Exception] = {}
    for topic in body.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, int(answer.partition_index))
            if answer.error_code == ErrorCode.NONE:
                found[partition] = FoundOffset(Offset(int(answer.offset)), int(answer.timestamp))
            else:
                found[partition] = refused(int(answer.error_code), f"read offsets of {partition}")
    return found


def delete_records(cluster: ClusterClient, offsets: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, RequestRefused]:
    """Let each partition begin at an offset, for good. Returns when that is durable; what was refused, and why."""
    refusals: dict[TopicPartition, RequestRefused] = {}
    for leader, led in _by_leader(cluster, offsets).items():
        topics = [{"name": partition.topic, "partitions": [{"partition_index": partition.partition, "offset": offsets[partition]}]} for partition in led]
        body = cluster.ask_broker(leader, DELETE_RECORDS, {"topics": topics, "timeout": ADMIN_TIMEOUT_MS}, timeout_ms=ADMIN_TIMEOUT_MS + 5_000)
        for topic in body.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.name, int(answer.partition_index))
                if answer.error_code != ErrorCode.NONE:
                    refusals[partition] = refused(int(answer.error_code), f"delete records of {partition}")
    return refusals


def describe_topic(cluster: ClusterClient, name: str) -> TopicDescription:
    """Metadata, and both ends of every partition whose leader tells them now: a disk that is offline delays nothing."""
    topic = cluster.topic(name, complete=False)
    led = [TopicPartition(name, partition.partition) for partition in topic.partitions if partition.leader in cluster.latest.brokers]
    starts, _ = try_list_offsets(cluster, led, EARLIEST_TIMESTAMP)
    ends, _ = try_list_offsets(cluster, led, LATEST_TIMESTAMP)
    described = []
    for partition in topic.partitions:
        start, end = (found.get(TopicPartition(name, partition.partition)) for found in (starts, ends))
        described.append(PartitionDescription(partition, start.offset if start else None, end.offset if end else None))
    return TopicDescription(topic, tuple(described))
