"""What consumers of the classic protocol say inside of it: their subscriptions, and the assignments that they are given.

In a group of both protocols it is the coordinator that reads the one and writes the other. Owned by nobody; messages as data. Weak spot: user data of
assignors is not looked at.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.errors import ProtocolViolation
from appliance.protocol.schema import BYTES, INT32, STRING, ArrayOf, Field, decode_struct, struct_codec
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.wire import INT16
from services.coordinator.groups.consumer_member import Partitions
from services.coordinator.groups.ports import Topics

VERSION_MAX: Final = 3


class EmbeddedSubscription(NamedTuple):
    """What a consumer wants to read, and from version 1 what it still has."""

    topics: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    user_data: Annotated[bytes | None, Field(BYTES, nullable_since=0)] = None
    owned: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions), since=1)] = ()
    generation_id: Annotated[int, Field(INT32, since=2)] = -1
    rack_id: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None


class EmbeddedAssignment(NamedTuple):
    """What a consumer is to read; the same in all versions."""

    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()
    user_data: Annotated[bytes | None, Field(BYTES, nullable_since=0)] = None


def read_subscription(metadata: bytes) -> EmbeddedSubscription | None:
    """None if these are not the bytes of a subscription; what a later version has behind is left alone."""
    (version,) = INT16.unpack_from(metadata) if len(metadata) >= INT16.size else (-1,)
    if version < 0:
        return None
    try:
        return decode_struct(EmbeddedSubscription, min(version, VERSION_MAX), False, metadata, INT16.size, len(metadata), "subscription")
    except ProtocolViolation:
        return None


def read_assignment(data: bytes) -> EmbeddedAssignment | None:
    """No bytes are no partitions; None if the bytes are no assignment."""
    if not data:
        return EmbeddedAssignment()
    if len(data) < INT16.size:
        return None
    try:
        return decode_struct(EmbeddedAssignment, 0, False, data, INT16.size, len(data), "assignment")
    except ProtocolViolation:
        return None


def write_assignment(partitions: Partitions, topics: Topics, metadata: bytes) -> bytes:
    """For a member whose subscription is `metadata`, in its version. Topics that are gone are left out."""
    version = min(INT16.unpack_from(metadata)[0], VERSION_MAX)
    by_name: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        name = topics.name_of(topic_id)
        if name is not None:
            by_name.setdefault(name, []).append(partition)
    value = EmbeddedAssignment(tuple(TopicPartitions(name, tuple(each)) for name, each in by_name.items()))
    return INT16.pack(version) + struct_codec(EmbeddedAssignment, version, flexible=False).write(value)


def by_id(partitions: tuple[TopicPartitions, ...], topics: Topics) -> Partitions:
    """Topics by their ids; those that are gone are left out."""
    known = {name: topics.find(name) for name, _ in partitions}
    return frozenset((found.topic_id, partition) for name, each in partitions if (found := known[name]) is not None for partition in each)
