"""The identifiers and kinds of number that all other packages use.

Values only. Weak: NewTypes exist only for mypy.
"""

from __future__ import annotations

import base64
import re
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""Position of a record in its partition (inclusive, unless the name has `end` or `watermark`)."""

Position = NewType("Position", int)
"""Bytes from the start of a segment file."""

LeaderEpoch = NewType("LeaderEpoch", int)
ControllerEpoch = NewType("ControllerEpoch", int)
BrokerId = NewType("BrokerId", int)

NO_OFFSET = Offset(-1)
NO_TIMESTAMP = -1
NO_LEADER = BrokerId(-1)

MAX_TOPIC_NAME_LENGTH = 249
_LEGAL_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class TopicPartition(NamedTuple):
    """One partition by name; its text is the name of its directory: `syslog-3`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicId(bytes):
    """The 16-byte id of a topic (KIP-516); its text is base64url without padding, 22 characters."""

    def __new__(cls, value: bytes) -> TopicId:
        if len(value) != 16:
            raise ValueError(f"a topic id has 16 bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def from_text(cls, text: str) -> TopicId:
        """Return the topic id with this text. Raises ValueError."""
        return cls(base64.urlsafe_b64decode(text + "=="))

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self).decode().rstrip("=")


NO_TOPIC_ID = TopicId(bytes(16))


def topic_name_problem(name: str) -> str | None:
    """Return why `name` cannot be the name of a topic, or None. The rules are Kafka's."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"a topic name has at most {MAX_TOPIC_NAME_LENGTH} characters, this one has {len(name)}"
    if not _LEGAL_TOPIC_NAME.match(name):
        return f"topic name {name!r} has characters other than letters, digits, '.', '_' and '-'"
    return None


def topic_names_collide(one: str, other: str) -> bool:
    """Return whether two names differ only in '.' and '_', which Kafka refuses because metric names
    cannot distinguish them."""
    return one.replace(".", "_") == other.replace(".", "_")
