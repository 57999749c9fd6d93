"""Metadata: answered from the image; topics that are missing may be created on the way.

A request that names unknown topics, from a client that allows it, on a box that allows it, waits until the controller has created them (or a
few seconds: then LEADER_NOT_AVAILABLE, which clients retry). Owned by one acceptor.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import orjson

from appliance.base.errors import ErrorCode
from appliance.base.model import INTERNAL_TOPICS, NO_TOPIC_ID, topic_name_problem
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import PartitionImage, TopicImage
from appliance.ipc.controller_frames import AUTO_CREATE
from appliance.ipc.controller_link import ControllerLink
from appliance.protocol.framing import RequestHeader
from appliance.protocol.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataTopic,
    decode_metadata,
    encode_metadata_response,
    encode_topic,
)
from appliance.shm.counters import Counters
from services.acceptor.connection import Connection
from services.acceptor.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS

AUTO_CREATE_TIMEOUT_MS = 5_000
_NO_LEADER = -1
_DEAD_REPLICAS_UNTIL = 0
"""Older clients take it for granted that every replica named is a broker named."""


def _describe(version: int, index: int, partition: PartitionImage, live: Container[int]) -> MetadataPartition:
    """One partition as clients are told of it: a leader that is gone is none, until another one is elected."""
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
    return MetadataPartition(index, leader, leader_epoch, replicas, isr, offline, code)


class MetadataHandler:
    """All metadata requests of one acceptor. Encoded topics are kept while their image stands."""

    def __init__(self, view: MetadataCache, controller: ControllerLink, counters: Counters, auto_create: bool, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._controller = controller
        self._auto_create = auto_create
        self._on_reply = on_reply
        self._requests = counters.counter("metadata.requests")
        self._encoded: dict[tuple[int, str, int], bytes] = {}
        self._encoded_generation = -1

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_metadata(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        reply = connection.expect_reply(False)

        def answer(errors: dict[str, int]) -> None:
            reply.pieces = [self._encode(header, request, errors)]
            reply.ready = True
            self._on_reply(connection)

        missing = self._missing(request) if self._auto_create and request.allow_auto_topic_creation else []
        if not missing:
            answer({})
            return

        def on_created(payload: bytes | None) -> None:
            errors: dict[str, int] = orjson.loads(payload)["errors"] if payload is not None else {}
            if payload is None:
                errors = dict.fromkeys(missing, int(ErrorCode.LEADER_NOT_AVAILABLE))
            answer(errors)

        self._controller.request(AUTO_CREATE, orjson.dumps({"topics": missing}), AUTO_CREATE_TIMEOUT_MS, on_created)

    def _missing(self, request: MetadataRequest) -> list[str]:
        """Names that may be created: legal, not internal, not there."""
        topics = self._view.image.topics
        names = [topic.name for topic in request.topics or () if topic.name is not None]
        return [name for name in dict.fromkeys(names) if name not in topics and name not in INTERNAL_TOPICS and topic_name_problem(name) is None]

    def _encode(self, header: RequestHeader, request: MetadataRequest, errors: dict[str, int]) -> bytes:
        image = self._view.image
        version = header.api_version
        if self._encoded_generation != image.generation:
            self._encoded_generation = image.generation
            self._encoded.clear()
        brokers = [MetadataBroker(broker.id, broker.host, broker.port, broker.rack) for broker in image.brokers.values()]
        topics: list[MetadataTopic | bytes]
        allowed = TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
        if request.topics is None:
            topics = [self._encode_topic(version, topic, allowed) for topic in image.topics.values()]
        else:
            # Each topic once, as Kafka does: named a hundred thousand times, a large one would make an answer of gigabytes.
            distinct = {(wanted.name, None if wanted.name is not None else wanted.topic_id): wanted for wanted in request.topics}
            topics = [self._find(version, wanted.name, wanted.topic_id, errors, allowed) for wanted in distinct.values()]
        of_cluster = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
        return encode_metadata_response(
            version, header.correlation_id, brokers, image.cluster_id, image.controller_id, topics, cluster_authorized_operations=of_cluster
        )

    def _find(self, version: int, name: str | None, topic_id: bytes, errors: dict[str, int], allowed: int) -> MetadataTopic | bytes:
        image = self._view.image
        if name is None:
            topic = image.topics_by_id.get(topic_id)  # type: ignore[call-overload]
            if topic is not None:
                return self._encode_topic(version, topic, allowed)
            return MetadataTopic(None, (), topic_id, False, ErrorCode.UNKNOWN_TOPIC_ID)  # type: ignore[arg-type]
        known = image.topics.get(name)
        if known is not None:
            return self._encode_topic(version, known, allowed)
        if topic_name_problem(name) is not None:
            return MetadataTopic(name, (), NO_TOPIC_ID, False, ErrorCode.INVALID_TOPIC_EXCEPTION)
        code = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            code = ErrorCode.LEADER_NOT_AVAILABLE  # it was made, our image is a moment behind
        return MetadataTopic(name, (), NO_TOPIC_ID, name in INTERNAL_TOPICS, code)

    def _encode_topic(self, version: int, topic: TopicImage, allowed: int) -> bytes:
        key = (version, topic.name, allowed)
        encoded = self._encoded.get(key)
        if encoded is None:
            brokers = self._view.image.brokers
            partitions = [_describe(version, index, partition, brokers) for index, partition in enumerate(topic.partitions)]
            encoded = self._encoded[key] = encode_topic(
                version, MetadataTopic(topic.name, partitions, topic.topic_id, topic.is_internal, authorized_operations=allowed)
            )
        return encoded
