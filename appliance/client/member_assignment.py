"""What a consumer's assignment says (the consumer protocol's own bytes inside SyncGroup and DescribeGroups).

int16 version, int32 topics, for each: string, int32 partitions, int32 each; then bytes of the user's. Source: Kafka's `ConsumerProtocolAssignment`.
Weak spot: what cannot be read is shown as nothing.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from appliance.base.model import TopicPartition

_HEAD = Struct(">hi")
_LENGTH = Struct(">h")
_COUNT = Struct(">i")


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Sorted; nothing for an empty or foreign assignment."""
    found: list[TopicPartition] = []
    try:
        _version, topics = _HEAD.unpack_from(data)
        position = _HEAD.size
        for _ in range(topics):
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            if length < 0:  # it would lead back to where we were
                return ()
            topic = data[position : position + length].decode()
            position += length
            (count,) = _COUNT.unpack_from(data, position)
            position += _COUNT.size
            if count < 0:
                return ()
            numbers = Struct(f">{count}i")
            found += (TopicPartition(topic, number) for number in numbers.unpack_from(data, position))
            position += numbers.size
    except (StructError, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))
