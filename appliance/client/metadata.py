"""What a cluster says about itself: brokers, topics, who leads what. Values, and the one function that asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from appliance.client.address import Address
from appliance.client.connection import ClientConnection
from appliance.client.errors import error_code
from appliance.client.messages import METADATA


class PartitionMetadata(NamedTuple):
    """One partition as Metadata describes it; `leader` is NO_LEADER while there is none."""

    partition: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    assigned_replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    error: ErrorCode


class TopicMetadata(NamedTuple):
    """One topic; `error` is NONE where the topic is there and well."""

    name: str
    topic_id: TopicId | None
    partitions: tuple[PartitionMetadata, ...]
    is_internal: bool
    error: ErrorCode


class ClusterMetadata(NamedTuple):
    """A whole answer."""

    brokers: dict[BrokerId, Address]
    cluster_id: str | None
    controller_id: BrokerId
    topics: dict[str, TopicMetadata]


EMPTY_METADATA = ClusterMetadata({}, None, NO_LEADER, {})


def read_metadata(connection: ClientConnection, topics: Iterable[str] | None, *, allow_auto_topic_creation: bool = False) -> ClusterMetadata:
    """Ask for `topics` (None: all). A topic that is not there comes back with its error, it does not raise."""
    asked = None if topics is None else [{"name": name, "topic_id": None} for name in topics]
    body = connection.request(METADATA, {
        "topics": asked, "allow_auto_topic_creation": allow_auto_topic_creation,
        "include_topic_authorized_operations": False, "include_cluster_authorized_operations": False,
    })  # fmt: skip
    return ClusterMetadata(
        {BrokerId(int(broker.node_id)): Address(broker.host, int(broker.port)) for broker in body.brokers},
        getattr(body, "cluster_id", None),
        BrokerId(int(body.controller_id)),
        {topic.name: _topic(topic) for topic in body.topics if topic.name is not None},
    )


def _topic(topic: Any) -> TopicMetadata:
    topic_id = getattr(topic, "topic_id", None)
    return TopicMetadata(
        topic.name,
        None if topic_id is None else TopicId(topic_id.bytes),
        tuple(sorted(_partition(partition) for partition in topic.partitions)),
        bool(topic.is_internal),
        error_code(int(topic.error_code)),
    )


def _partition(partition: Any) -> PartitionMetadata:
    return PartitionMetadata(
        int(partition.partition_index),
        BrokerId(int(partition.leader_id)),
        LeaderEpoch(int(getattr(partition, "leader_epoch", -1))),
        tuple(BrokerId(int(node)) for node in partition.replica_nodes),
        tuple(BrokerId(int(node)) for node in partition.isr_nodes),
        error_code(int(partition.error_code)),
    )
