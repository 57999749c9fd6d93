"""One member of a classic group: its identity, its protocols, and its one parked request.

Owned by its group (`group.py`), which alone may change what others count. Weak spot: a member holds at most one parked JoinGroup and one parked
SyncGroup; a client that sends the same again before it is answered replaces the older one, whose connection is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from appliance.base.invariants import check
from appliance.protocol.group_apis import JoinGroupProtocol, JoinGroupResponse, SyncGroupResponse
from appliance.runtime.timers import Timer

# ---- a consumer's subscription: int16 version, then the topics. Unreadable bytes count as a subscription to every topic, so no offset expires


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


# ---- clients


class ClientIdentity(NamedTuple):
    """The client id of the request's header, and the client's address as Java writes it (`/10.0.0.1`)."""

    client_id: str
    client_host: str


ReplyToJoin = Callable[[JoinGroupResponse], None]
ReplyToSync = Callable[[SyncGroupResponse], None]


class Member:
    """`assignment` is what the leader of the current generation gave it, b"" before."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "session_timer",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client: ClientIdentity,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[JoinGroupProtocol, ...],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client = client
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        """Its JoinGroup was never answered: it does not know its member id, so it cannot send heartbeats."""
        self.awaiting_join: ReplyToJoin | None = None
        self.awaiting_sync: ReplyToSync | None = None
        self.session_timer: Timer | None = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_parked(self) -> bool:
        """Its connection waits for us, so its silence says nothing; a new member's parked join does not count, it may be long gone."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """What it said for a protocol that the group chose, so one it offers."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        check(False, f"member {self.member_id} does not offer the protocol {protocol_name} that its group has chosen")
        raise AssertionError

    def vote(self, candidates: set[str]) -> str:
        """The first protocol in its own order that every member offers."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        check(False, f"member {self.member_id} offers none of the protocols {sorted(candidates)} that all members are said to offer")
        raise AssertionError

    def take_sync(self) -> ReplyToSync | None:
        """The parked SyncGroup, which is parked no longer."""
        reply, self.awaiting_sync = self.awaiting_sync, None
        return reply
