"""Metadata 0-12: brokers, topics and leaders. The request is data, the response is packed by hand.

The acceptor calls it. A response about all topics of a large box is the longest one without records, so a
topic can be encoded by itself (`encode_topic`) and kept by the caller while its image is current. The parts
that partitions share (leader, replicas, ISR) are encoded once and cached.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Annotated, Final, NamedTuple

from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, STRING, UUID, ArrayOf, Field, Message, response_frame
from appliance.protocol.wire import (
    INT16,
    INT32,
    NO_TAGGED_FIELDS,
    Buffer,
    write_compact_count,
    write_compact_nullable_string,
    write_compact_string,
    write_count,
    write_nullable_string,
    write_string,
)

FLEXIBLE_SINCE: Final = 9
_CONTROLLER_SINCE: Final = 1
_CLUSTER_ID_SINCE: Final = 2
_THROTTLE_SINCE: Final = 3
_OFFLINE_REPLICAS_SINCE: Final = 5
_LEADER_EPOCH_SINCE: Final = 7
_AUTHORIZED_OPERATIONS_SINCE: Final = 8
_CLUSTER_AUTHORIZED_OPERATIONS_UNTIL: Final = 10
_TOPIC_ID_SINCE: Final = 10
_NULL_NAME_SINCE: Final = 12

OPERATIONS_NOT_ASKED: Final = -(2**31)


class MetadataRequestTopic(NamedTuple):
    """A topic by name, or (v10+) by id with a null name."""

    topic_id: Annotated[TopicId, Field(UUID, since=_TOPIC_ID_SINCE)] = NO_TOPIC_ID
    name: Annotated[str | None, Field(STRING, nullable_since=_TOPIC_ID_SINCE)] = None


class MetadataRequest(NamedTuple):
    """`topics` None asks for all, empty for none; version 0, where empty means all, is decoded to that too."""

    topics: Annotated[tuple[MetadataRequestTopic, ...] | None, Field(ArrayOf(MetadataRequestTopic), nullable_since=1)]
    allow_auto_topic_creation: Annotated[bool, Field(BOOL, since=4)] = True
    include_cluster_authorized_operations: Annotated[bool, Field(BOOL, since=8, until=_CLUSTER_AUTHORIZED_OPERATIONS_UNTIL)] = False
    include_topic_authorized_operations: Annotated[bool, Field(BOOL, since=8)] = False


REQUEST: Final = Message(ApiKey.METADATA, "Metadata request", MetadataRequest)


def decode_metadata(buffer: Buffer, position: int, limit: int, version: int) -> MetadataRequest:
    request = REQUEST.decode(buffer, position, limit, version)
    return request._replace(topics=None) if version == 0 and not request.topics else request


# ---- the response


class MetadataBroker(NamedTuple):
    """How a client reaches one broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataPartition(NamedTuple):
    """One partition; the three lists of broker ids are tuples, for they are looked up."""

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    error_code: int = 0


class MetadataTopic(NamedTuple):
    """One topic. `name` is None (v12+) only for an unknown id."""

    name: str | None
    partitions: Sequence[MetadataPartition] = ()
    topic_id: TopicId = NO_TOPIC_ID
    is_internal: bool = False
    error_code: int = 0
    authorized_operations: int = OPERATIONS_NOT_ASKED


def encode_metadata_response(
    version: int,
    correlation_id: int,
    brokers: Sequence[MetadataBroker],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[MetadataTopic | bytes],
    throttle_time_ms: int = 0,
    cluster_authorized_operations: int = OPERATIONS_NOT_ASKED,
) -> bytes:
    """The whole frame. A topic may be given as the bytes that `encode_topic` made for the same version."""
    flexible = version >= FLEXIBLE_SINCE
    count = write_compact_count if flexible else write_count
    parts = [INT32.pack(throttle_time_ms)] if version >= _THROTTLE_SINCE else []
    parts.append(count(len(brokers)))
    parts += [_encode_broker(version, broker) for broker in brokers]
    if version >= _CLUSTER_ID_SINCE:
        parts.append(write_compact_nullable_string(cluster_id) if flexible else write_nullable_string(cluster_id))
    if version >= _CONTROLLER_SINCE:
        parts.append(INT32.pack(controller_id))
    parts.append(count(len(topics)))
    parts += [topic if isinstance(topic, bytes) else encode_topic(version, topic) for topic in topics]
    if _AUTHORIZED_OPERATIONS_SINCE <= version <= _CLUSTER_AUTHORIZED_OPERATIONS_UNTIL:
        parts.append(INT32.pack(cluster_authorized_operations))
    if flexible:
        parts.append(NO_TAGGED_FIELDS)
    return response_frame(flexible, correlation_id, b"".join(parts))


def _encode_broker(version: int, broker: MetadataBroker) -> bytes:
    node_id, host, port, rack = broker
    if version >= FLEXIBLE_SINCE:
        return b"".join((INT32.pack(node_id), write_compact_string(host), INT32.pack(port), write_compact_nullable_string(rack), NO_TAGGED_FIELDS))
    return b"".join((INT32.pack(node_id), write_string(host), INT32.pack(port), write_nullable_string(rack) if version >= 1 else b""))


_ERROR_AND_INDEX: Final = Struct(">hi")
_LEADER: Final = Struct(">i")
_LEADER_AND_EPOCH: Final = Struct(">ii")
_pack_error_and_index = _ERROR_AND_INDEX.pack


def encode_topic(version: int, topic: MetadataTopic) -> bytes:
    """One topic of a response of `version`."""
    name, partitions, topic_id, is_internal, error_code, authorized_operations = topic
    flexible = version >= FLEXIBLE_SINCE
    parts = [INT16.pack(error_code), _encode_name(version, name)]
    if version >= _TOPIC_ID_SINCE:
        parts.append(topic_id)
    if version >= _CONTROLLER_SINCE:
        parts.append(b"\1" if is_internal else b"\0")
    parts.append(write_compact_count(len(partitions)) if flexible else write_count(len(partitions)))
    for partition, leader_id, leader_epoch, replicas, isr, offline_replicas, partition_error_code in partitions:
        parts += (_pack_error_and_index(partition_error_code, partition), _rest_of_partition(version, leader_id, leader_epoch, replicas, isr, offline_replicas))
    if version >= _AUTHORIZED_OPERATIONS_SINCE:
        parts.append(INT32.pack(authorized_operations))
    if flexible:
        parts.append(NO_TAGGED_FIELDS)
    return b"".join(parts)


def _encode_name(version: int, name: str | None) -> bytes:
    if version >= _NULL_NAME_SINCE:
        return write_compact_nullable_string(name)
    return write_compact_string(name or "") if version >= FLEXIBLE_SINCE else write_string(name or "")


@lru_cache(maxsize=1024)
def _rest_of_partition(
    version: int, leader_id: int, leader_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...], offline_replicas: tuple[int, ...]
) -> bytes:
    """Everything behind a partition's index. Few values on one box: same broker, same ISR, few leader epochs."""
    if version < FLEXIBLE_SINCE:
        lists = (replicas, isr, offline_replicas) if version >= _OFFLINE_REPLICAS_SINCE else (replicas, isr)
        leader = _LEADER_AND_EPOCH.pack(leader_id, leader_epoch) if version >= _LEADER_EPOCH_SINCE else _LEADER.pack(leader_id)
        return leader + b"".join([write_count(len(ids)) + _pack_ids(ids) for ids in lists])
    compact = [write_compact_count(len(ids)) + _pack_ids(ids) for ids in (replicas, isr, offline_replicas)]
    return _LEADER_AND_EPOCH.pack(leader_id, leader_epoch) + b"".join(compact) + NO_TAGGED_FIELDS


def _pack_ids(broker_ids: tuple[int, ...]) -> bytes:
    return b"".join(map(INT32.pack, broker_ids))
