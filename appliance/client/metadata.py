"""What a cluster says about itself: brokers, topics, who leads what. Values, and the one function that asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER, NO_TOPIC_ID, BrokerId, LeaderEpoch, TopicId
from appliance.client.address import Address
from appliance.client.connection import ClientConnection
from appliance.client.errors import error_code
from appliance.client.messages import METADATA, PartitionOfMetadata, TopicOfMetadata
from appliance.protocol.metadata import MetadataRequest, MetadataRequestTopic


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
    asked = None if topics is None else tuple(MetadataRequestTopic(name=name) for name in topics)
    body = connection.request(METADATA, MetadataRequest(asked, allow_auto_topic_creation))
    return ClusterMetadata(
        {BrokerId(broker.node_id): Address(broker.host, broker.port) for broker in body.brokers},
        body.cluster_id,
        BrokerId(body.controller_id),
        {topic.name: _topic(topic.name, topic) for topic in body.topics if topic.name is not None},
    )


def _topic(name: str, topic: TopicOfMetadata) -> TopicMetadata:
    topic_id = None if topic.topic_id == NO_TOPIC_ID else topic.topic_id
    return TopicMetadata(name, topic_id, tuple(sorted(map(_partition, topic.partitions))), topic.is_internal, error_code(topic.error_code))


def _partition(found: PartitionOfMetadata) -> PartitionMetadata:
    replicas, isr = tuple(map(BrokerId, found.replicas)), tuple(map(BrokerId, found.isr))
    return PartitionMetadata(found.partition, BrokerId(found.leader_id), LeaderEpoch(found.leader_epoch), replicas, isr, error_code(found.error_code))
