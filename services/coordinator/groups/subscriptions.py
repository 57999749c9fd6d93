"""The topics in a consumer's subscription: the one thing a coordinator reads in what members say to each other.

Every version of the consumer protocol begins as version 0 does: int16 version, then the topics; the rest is not looked at. Owned by nobody. Weak
spot: what cannot be read counts as subscribed to everything, so that no offset is lost over it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_HEAD: Final = Struct(">hi")
_LENGTH: Final = Struct(">h")


def topics_of_subscription(metadata: bytes) -> list[str] | None:
    """None if these are not the bytes of a consumer's subscription."""
    if len(metadata) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(metadata)
    if version < 0 or count < 0:
        return None
    position = _HEAD.size
    topics: list[str] = []
    for _ in range(count):
        if position + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(metadata):
            return None
        try:
            topics.append(metadata[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return topics
