"""The identifiers and kinds of number that all other packages use.

Values only. Weak: the kinds of number exist only for mypy, and it accepts a comparison, or a sum,
of two kinds; values that come from a ring, a struct or a document have no kind until a signature
gives them one.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, NamedTuple, NewType, overload

if TYPE_CHECKING:

    class Offset(int):
        """Position of a record in its partition (inclusive, unless the name has `end` or
        `watermark`).

        Like each kind of number here, a plain int at run time. mypy sees the arithmetic: an offset
        moved by a count is an offset, and the distance of two offsets is a count.
        """

        def __add__(self, count: int, /) -> Offset: ...
        def __radd__(self, count: int, /) -> Offset: ...
        @overload
        def __sub__(self, other: Offset, /) -> int: ...  # type: ignore[overload-overlap]
        @overload
        def __sub__(self, count: int, /) -> Offset: ...
        def __sub__(self, other: int, /) -> int: ...

    class Position(int):
        """Bytes from the start of a segment file. Arithmetic as with offsets."""

        def __add__(self, size_bytes: int, /) -> Position: ...
        def __radd__(self, size_bytes: int, /) -> Position: ...
        @overload
        def __sub__(self, other: Position, /) -> int: ...  # type: ignore[overload-overlap]
        @overload
        def __sub__(self, size_bytes: int, /) -> Position: ...
        def __sub__(self, other: int, /) -> int: ...

    class LeaderEpoch(int):
        """Term of a partition's leader. mypy sees that the next one is a leader epoch, too."""

        def __add__(self, steps: int, /) -> LeaderEpoch: ...

else:
    Offset = NewType("Offset", int)
    Position = NewType("Position", int)
    LeaderEpoch = NewType("LeaderEpoch", int)

ProducerId = NewType("ProducerId", int)
ControllerEpoch = NewType("ControllerEpoch", int)
BrokerId = NewType("BrokerId", int)

NO_OFFSET = Offset(-1)
FIRST_OFFSET = Offset(0)
FILE_START = Position(0)
NO_LEADER_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
NO_TIMESTAMP = -1
NO_LEADER = BrokerId(-1)

MAX_TOPIC_NAME_LENGTH = 249
_LEGAL_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")

AUDIT_TOPIC = "__millrace_audit"
"""What acceptors write about logins, denials and changes; no client writes, changes or deletes it."""
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", AUDIT_TOPIC})


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
