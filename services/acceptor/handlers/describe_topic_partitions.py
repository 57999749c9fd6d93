"""DescribeTopicPartitions: topics in pages, answered from the image.

Topics come in the order of their names. A page ends at the limit of partitions, and says where the next one begins; between two pages topics may
come and go, so the set of pages is no snapshot, as in Kafka. Owned by one acceptor. Weak spot: every page sorts all names again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from appliance.base.errors import ErrorCode
from appliance.base.model import INTERNAL_TOPICS, topic_name_problem
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.protocol.framing import RequestHeader
from appliance.protocol.topic_apis import (
    DESCRIBE_TOPIC_PARTITIONS_REQUEST,
    DESCRIBE_TOPIC_PARTITIONS_RESPONSE,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    PartitionCursor,
    PartitionDescription,
    TopicDescription,
)
from services.acceptor.connection import Connection
from services.acceptor.operations import TOPIC_OPERATIONS

PARTITIONS_MAX = 2000
"""Kafka's default of max.request.partition.size.limit."""


class DescribeTopicPartitionsHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = DESCRIBE_TOPIC_PARTITIONS_REQUEST.decode(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        reply.pieces = [DESCRIBE_TOPIC_PARTITIONS_RESPONSE.encode_response(header.api_version, header.correlation_id, describe_page(self._view.image, request))]
        reply.ready = True
        self._on_reply(connection)


def describe_page(image: MetadataImage, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """One page of `image`."""
    cursor = request.cursor or PartitionCursor("", 0)
    asked = {topic.name for topic in request.topics}
    if cursor.partition_index < 0:
        return DescribeTopicPartitionsResponse(0, tuple(TopicDescription(ErrorCode.INVALID_REQUEST, name) for name in sorted(asked)))
    left = max(1, min(PARTITIONS_MAX, request.response_partition_limit))
    described: list[TopicDescription] = []
    for name in sorted(asked or image.topics):
        if name < cursor.topic_name:
            continue
        if not left:
            return DescribeTopicPartitionsResponse(0, tuple(described), PartitionCursor(name, 0))
        topic = image.topics.get(name)
        if topic is None:
            described.append(_absent(name))
            continue
        first = cursor.partition_index if name == cursor.topic_name else 0
        described.append(_describe(image, topic, first, left))
        left -= len(described[-1].partitions)
        if first + len(described[-1].partitions) < len(topic.partitions):
            return DescribeTopicPartitionsResponse(0, tuple(described), PartitionCursor(name, first + len(described[-1].partitions)))
    return DescribeTopicPartitionsResponse(0, tuple(described))


def _absent(name: str) -> TopicDescription:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    return TopicDescription(code, name, is_internal=name in INTERNAL_TOPICS)


def _describe(image: MetadataImage, topic: TopicImage, first: int, count: int) -> TopicDescription:
    live = image.brokers.keys()
    partitions = tuple(_partition(index, topic.partitions[index], live) for index in range(first, min(first + count, len(topic.partitions))))
    return TopicDescription(0, topic.name, topic.topic_id, topic.is_internal, partitions, TOPIC_OPERATIONS)


def _partition(index: int, partition: PartitionImage, live: Collection[int]) -> PartitionDescription:
    offline = tuple(replica for replica in partition.replicas if replica not in live)
    leader, code = (partition.leader, ErrorCode.NONE) if partition.leader in live else (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    return PartitionDescription(code, index, leader, partition.leader_epoch, partition.replicas, partition.isr, (), (), offline)
