"""Metadata, DescribeCluster and DescribeTopicPartitions: answered from the metadata image.

A Metadata request with unknown topics, from a client that allows it, on a box that allows it, waits until the
controller has created them (or a few seconds: then LEADER_NOT_AVAILABLE, which clients retry).
DescribeTopicPartitions returns topics in the order of their names, in pages. A page ends at the limit of
partitions and says where the next one begins. Topics may change between two pages, so the pages are no
snapshot, as in Kafka.

With an authorizer, topics that the client may not describe are left out; named ones get an error that does not
tell whether they exist. Authorized operations (KIP-430) are those of the principal, without an authorizer all.
Owned by one acceptor. Weak spot: each page sorts all names again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from typing import TYPE_CHECKING, Final

import orjson

from appliance.base.errors import ErrorCode
from appliance.base.model import INTERNAL_TOPICS, NO_TOPIC_ID, topic_name_problem
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.ipc.request_frames import AUTO_CREATE
from appliance.ipc.request_link import ControllerLink
from appliance.protocol.cluster_apis import (
    DESCRIBE_CLUSTER_REQUEST,
    DESCRIBE_CLUSTER_RESPONSE,
    ENDPOINT_BROKERS,
    ENDPOINT_UNKNOWN,
    OPERATIONS_NOT_ASKED,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedBroker,
)
from appliance.protocol.framing import RequestHeader
from appliance.protocol.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataTopic,
    decode_metadata,
    encode_metadata_response,
    encode_topic,
)
from appliance.protocol.topic_apis import (
    DESCRIBE_TOPIC_PARTITIONS_REQUEST,
    DESCRIBE_TOPIC_PARTITIONS_RESPONSE,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    PartitionCursor,
    PartitionDescription,
    TopicDescription,
)
from appliance.security.acl import CLUSTER_NAME, AclOperation, AclResource
from appliance.security.authorizer import Rights
from appliance.shm.counters import Counters
from services.acceptor.connection import Connection

if TYPE_CHECKING:
    from appliance.protocol.config_apis import ListConfigResourcesRequest, ListConfigResourcesResponse
    from services.acceptor.audit.audit_trail import AuditTrail

CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""


AUTO_CREATE_TIMEOUT_MS = 5_000
_NO_LEADER = -1
_LISTENER_ERROR_SINCE = 6
_DEAD_REPLICAS_UNTIL = 0
"""Older clients expect each replica to be in the list of brokers."""


def _describe(version: int, index: int, partition: PartitionImage, live: Container[int], reachable: Container[int]) -> MetadataPartition:
    """Describe a partition for a client: without a leader if that broker is gone and no other one is elected yet, or if it is not `reachable` because it
    does not have the listener of the client."""
    leader, leader_epoch, replicas, isr = partition[:4]
    code = ErrorCode.NONE
    offline: tuple[int, ...] = ()
    if any(replica not in live for replica in replicas):
        offline = tuple(replica for replica in replicas if replica not in live)
        if version <= _DEAD_REPLICAS_UNTIL:
            replicas, isr = (tuple(each for each in ids if each in live) for ids in (replicas, isr))
            code = ErrorCode.REPLICA_NOT_AVAILABLE
    if leader not in live:
        leader, code = _NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    elif leader not in reachable:
        leader = _NO_LEADER
        code = ErrorCode.LISTENER_NOT_FOUND if version >= _LISTENER_ERROR_SINCE else ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataPartition(index, leader, leader_epoch, replicas, isr, offline, code)


class MetadataHandler:
    """All metadata requests of one acceptor. Encoded topics are kept while their image stands."""

    def __init__(self, view: MetadataCache, controller: ControllerLink, counters: Counters, auto_create: bool, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._controller = controller
        self._auto_create = auto_create
        self._on_reply = on_reply
        self._requests = counters.counter("metadata.requests")
        self._encoded: dict[tuple[int, str, int, str], bytes] = {}
        self._encoded_generation = -1
        self.audit: AuditTrail | None = None

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_metadata(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        reply, rights = connection.expect_reply(False), connection.rights

        def answer(errors: dict[str, int]) -> None:
            reply.pieces = [self._encode(header, request, errors, connection)]
            reply.ready = True
            self._on_reply(connection)

        missing = self._missing(request) if self._auto_create and request.allow_auto_topic_creation else []
        denied: dict[str, int] = {}
        if rights is not None and missing:
            missing = [name for name in missing if rights.allows(AclOperation.DESCRIBE, AclResource.TOPIC, name)]
            denied = {name: int(ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in missing if not _may_create(rights, name)}
            missing = [name for name in missing if name not in denied]
        if not missing:
            answer(denied)
            return

        def on_created(payload: bytes | None) -> None:
            errors: dict[str, int] = orjson.loads(payload)["errors"] if payload is not None else {}
            if self.audit is not None:
                self.audit.topics_created(connection, errors)
            if payload is None:
                errors = dict.fromkeys(missing, int(ErrorCode.LEADER_NOT_AVAILABLE))
            answer(errors | denied)

        self._controller.request(AUTO_CREATE, orjson.dumps({"topics": missing}), AUTO_CREATE_TIMEOUT_MS, on_created)

    def _missing(self, request: MetadataRequest) -> list[str]:
        """Names that may be created: legal, not internal, not there."""
        topics = self._view.image.topics
        names = [topic.name for topic in request.topics or () if topic.name is not None and topic.topic_id == NO_TOPIC_ID]
        return [name for name in dict.fromkeys(names) if name not in topics and name not in INTERNAL_TOPICS and topic_name_problem(name) is None]

    def _encode(self, header: RequestHeader, request: MetadataRequest, errors: dict[str, int], connection: Connection) -> bytes:
        image, rights, listener = self._view.image, connection.rights, connection.listener
        version = header.api_version
        if self._encoded_generation != image.generation:
            self._encoded_generation = image.generation
            self._encoded.clear()
        brokers = [MetadataBroker(broker.id, broker.host, broker.port, broker.rack) for broker in image.brokers_at(listener).values()]
        if not listener and (own_path := connection.listening.own_path):
            brokers = [each._replace(host=own_path, port=0) if each.node_id == self._view.broker_id else each for each in brokers]
        topics: list[MetadataTopic | bytes]
        allowed = TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
        if rights is not None:
            topics = self._authorized(version, request, errors, rights, listener)
        elif request.topics is None:
            topics = [self._encode_topic(version, topic, allowed, listener) for topic in image.topics.values()]
        else:
            # Each topic once, as Kafka does: named a hundred thousand times, a large one would make an answer of gigabytes.
            # A topic id counts before a name: Java sends the id with an empty name.
            distinct = dict.fromkeys((wanted.name if wanted.topic_id == NO_TOPIC_ID else None, wanted.topic_id) for wanted in request.topics)
            topics = [self._find(version, name, topic_id, errors, allowed, listener) for name, topic_id in distinct]
        of_cluster = cluster_operations(rights) if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
        return encode_metadata_response(
            version, header.correlation_id, brokers, image.cluster_id, image.controller_id, topics, cluster_authorized_operations=of_cluster
        )

    def _authorized(self, version: int, request: MetadataRequest, errors: dict[str, int], rights: Rights, listener: str) -> list[MetadataTopic | bytes]:
        """The topics that a principal may describe; of others that are named only that they are denied."""
        image, describe, kind = self._view.image, AclOperation.DESCRIBE, AclResource.TOPIC
        includes_operations = request.include_topic_authorized_operations

        def found(name: str | None, topic_id: bytes, of_topic: str) -> MetadataTopic | bytes:
            operations = rights.operations(kind, of_topic) if includes_operations else OPERATIONS_NOT_ASKED
            return self._find(version, name, topic_id, errors, operations, listener)

        if request.topics is None:
            return [found(name, NO_TOPIC_ID, name) for name in image.topics if rights.would_allow(describe, kind, name)]
        topics: list[MetadataTopic | bytes] = []
        for wanted in dict.fromkeys((wanted.name if wanted.topic_id == NO_TOPIC_ID else None, wanted.topic_id) for wanted in request.topics):
            name, topic_id = wanted
            known = image.topics_by_id.get(topic_id) if name is None else None
            of_topic = name if name is not None else known.name if known is not None else None
            if of_topic is None or rights.allows(describe, kind, of_topic):
                topics.append(found(name, topic_id, of_topic or ""))
            else:
                topics.append(MetadataTopic(name, (), topic_id, False, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        return topics

    def _find(self, version: int, name: str | None, topic_id: bytes, errors: dict[str, int], allowed: int, listener: str) -> MetadataTopic | bytes:
        image = self._view.image
        if name is None:
            topic = image.topics_by_id.get(topic_id)  # type: ignore[call-overload]
            if topic is not None:
                return self._encode_topic(version, topic, allowed, listener)
            return MetadataTopic(None, (), topic_id, False, ErrorCode.UNKNOWN_TOPIC_ID)  # type: ignore[arg-type]
        known = image.topics.get(name)
        if known is not None:
            return self._encode_topic(version, known, allowed, listener)
        if topic_name_problem(name) is not None:
            return MetadataTopic(name, (), NO_TOPIC_ID, False, ErrorCode.INVALID_TOPIC_EXCEPTION)
        code = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            code = ErrorCode.LEADER_NOT_AVAILABLE  # it was made, our image is a moment behind
        return MetadataTopic(name, (), NO_TOPIC_ID, name in INTERNAL_TOPICS, code, authorized_operations=allowed)

    def _encode_topic(self, version: int, topic: TopicImage, allowed: int, listener: str) -> bytes:
        key = (version, topic.name, allowed, listener)
        encoded = self._encoded.get(key)
        if encoded is None:
            brokers = self._view.image.brokers
            reachable = self._view.image.brokers_at(listener)
            partitions = [_describe(version, index, partition, brokers, reachable) for index, partition in enumerate(topic.partitions)]
            encoded = self._encoded[key] = encode_topic(
                version, MetadataTopic(topic.name, partitions, topic.topic_id, topic.is_internal, authorized_operations=allowed)
            )
        return encoded


def _may_create(rights: Rights, name: str) -> bool:
    return rights.would_allow_on_cluster(AclOperation.CREATE) or rights.allows(AclOperation.CREATE, AclResource.TOPIC, name)


def cluster_operations(rights: Rights | None) -> int:
    """What a client may do to the cluster; nothing without DESCRIBE, as in Kafka."""
    if rights is None:
        return CLUSTER_OPERATIONS
    return rights.operations(AclResource.CLUSTER, CLUSTER_NAME) if rights.would_allow_on_cluster(AclOperation.DESCRIBE) else 0


class DescribeClusterHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = DESCRIBE_CLUSTER_REQUEST.decode(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        reply.pieces = [
            DESCRIBE_CLUSTER_RESPONSE.encode_response(header.api_version, header.correlation_id, self.describe(request, connection.listener, connection.rights))
        ]
        reply.ready = True
        self._on_reply(connection)

    def describe(self, request: DescribeClusterRequest, listener: str, rights: Rights | None = None) -> DescribeClusterResponse:
        """Return the response for brokers, or the error of another endpoint type (KIP-919)."""
        if request.endpoint_type != ENDPOINT_BROKERS:
            unknown = request.endpoint_type == ENDPOINT_UNKNOWN
            code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE if unknown else ErrorCode.MISMATCHED_ENDPOINT_TYPE
            return DescribeClusterResponse(0, code, f"This is an endpoint of brokers (type {ENDPOINT_BROKERS}); type {request.endpoint_type} was requested.")
        image = self._view.image
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            brokers=tuple(DescribedBroker(broker.id, broker.host, broker.port, broker.rack) for broker in image.brokers_at(listener).values()),
            cluster_authorized_operations=cluster_operations(rights) if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED,
        )


PARTITIONS_MAX = 2000
"""Kafka's default of max.request.partition.size.limit."""


class ListConfigResourcesHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        from appliance.protocol import config_apis  # schemas that few acceptors need

        request = config_apis.LIST_CONFIG_RESOURCES_REQUEST.decode(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        response = self.list_all(request, header.api_version, connection.rights)
        reply.pieces = [config_apis.LIST_CONFIG_RESOURCES_RESPONSE.encode_response(header.api_version, header.correlation_id, response)]
        reply.ready = True
        self._on_reply(connection)

    def list_all(self, request: ListConfigResourcesRequest, version: int, rights: Rights | None = None) -> ListConfigResourcesResponse:
        """Return topics, brokers and their loggers, and groups that have configs. Version 0 lists client metrics, of which there are none."""
        from appliance.protocol import config_apis

        response, kinds = config_apis.ListConfigResourcesResponse, config_apis.ResourceType
        if rights is not None and not rights.allows_on_cluster(AclOperation.DESCRIBE_CONFIGS):
            return response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        image = self._view.image
        brokers = [str(broker_id) for broker_id in sorted(image.brokers)]
        names = {kinds.TOPIC: sorted(image.topics), kinds.BROKER: brokers, kinds.BROKER_LOGGER: brokers, kinds.GROUP: sorted(image.group_configs)}
        known = {*names, kinds.CLIENT_METRICS}
        if not known.issuperset(request.resource_types):
            return response(error_code=ErrorCode.UNSUPPORTED_VERSION)
        asked = set(request.resource_types) or known
        rows = [config_apis.ListedConfigResource(name, kind) for kind, found in names.items() if version and kind in asked for name in found]
        return response(config_resources=tuple(rows))


class DescribeTopicPartitionsHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = DESCRIBE_TOPIC_PARTITIONS_REQUEST.decode(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        reply.pieces = [
            DESCRIBE_TOPIC_PARTITIONS_RESPONSE.encode_response(
                header.api_version, header.correlation_id, describe_page(self._view.image, request, connection.rights)
            )
        ]
        reply.ready = True
        self._on_reply(connection)


def describe_page(image: MetadataImage, request: DescribeTopicPartitionsRequest, rights: Rights | None = None) -> DescribeTopicPartitionsResponse:
    """One page of `image`, with what `rights` allow to describe."""
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
        if rights is not None and not (rights.allows if asked else rights.would_allow)(AclOperation.DESCRIBE, AclResource.TOPIC, name):
            if asked:
                described.append(TopicDescription(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name))
            continue
        if topic is None:
            described.append(_absent(name))
            continue
        first = cursor.partition_index if name == cursor.topic_name else 0
        described.append(_describe_topic(image, topic, first, left))
        if rights is not None:
            described[-1] = described[-1]._replace(topic_authorized_operations=rights.operations(AclResource.TOPIC, name))
        left -= len(described[-1].partitions)
        if first + len(described[-1].partitions) < len(topic.partitions):
            return DescribeTopicPartitionsResponse(0, tuple(described), PartitionCursor(name, first + len(described[-1].partitions)))
    return DescribeTopicPartitionsResponse(0, tuple(described))


def _absent(name: str) -> TopicDescription:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    return TopicDescription(code, name, is_internal=name in INTERNAL_TOPICS)


def _describe_topic(image: MetadataImage, topic: TopicImage, first: int, count: int) -> TopicDescription:
    live = image.brokers.keys()
    partitions = tuple(_partition(index, topic.partitions[index], live) for index in range(first, min(first + count, len(topic.partitions))))
    return TopicDescription(0, topic.name, topic.topic_id, topic.is_internal, partitions, TOPIC_OPERATIONS)


def _partition(index: int, partition: PartitionImage, live: Collection[int]) -> PartitionDescription:
    offline = tuple(replica for replica in partition.replicas if replica not in live)
    leader, code = (partition.leader, ErrorCode.NONE) if partition.leader in live else (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    return PartitionDescription(code, index, leader, partition.leader_epoch, partition.replicas, partition.isr, (), (), offline)
