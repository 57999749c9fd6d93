"""What offsets, listings, deletions and expiry need from a group's members, for each group protocol.

A group id maps to one hosted group; its offsets stay when its membership changes to the other protocol. `ClassicMembership`
serves classic groups; those of KIP-848 and KIP-1071 have the same methods. Owns nothing. Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import LoadedRecord, StateRecord
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_records import group_tombstone
from services.coordinator.groups.member import CONSUMER_PROTOCOL_TYPE


class GroupType(Enum):
    """As ListGroups writes them."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    STREAMS = "streams"


class ExpiryRule(NamedTuple):
    """Which offsets of a group grow old, and since when (KIP-211)."""

    since_ms: int | None
    """None: each since its own commit."""
    spared_topics: frozenset[str] = frozenset()
    """Offsets of topics that members read stay."""


class CommitPartition(Protocol):
    @property
    def partition(self) -> int: ...
    @property
    def metadata(self) -> str | None: ...


class CommitTopic(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def partitions(self) -> tuple[CommitPartition, ...]: ...


class GroupMembership(Protocol):
    """The members of one group, and what may be done to it because of them."""

    @property
    def group_type(self) -> GroupType: ...

    @property
    def state_name(self) -> str:
        """As ListGroups writes it."""

    @property
    def protocol_type(self) -> str:
        """`consumer` for consumers; "" before the first member."""

    @property
    def generation_id(self) -> int:
        """It changes with every change of members that the log knows of."""

    @property
    def is_empty(self) -> bool:
        """No members, and none on the way."""

    def commit_problem(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        is_transactional: bool,
        version: int,
        topics: Sequence[CommitTopic] = (),
    ) -> ErrorCode:
        """Why this sender may not commit offsets of `topics` by a request of this version, or NONE; `generation_id` is a member epoch in KIP-848."""

    def fetch_problem(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Why this sender may not read offsets, or NONE."""

    def deletion_problem(self) -> ErrorCode:
        """Why the group may not be deleted, or NONE."""

    def offset_deletion_problem(self) -> ErrorCode:
        """Why offsets of no topic at all may be deleted, or NONE."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads it, or may."""

    def expiry_rule(self) -> ExpiryRule | None:
        """None: nothing expires now."""

    def tombstones(self) -> list[StateRecord]:
        """What takes the membership out of the log; nothing where the log has nothing of it."""


class OtherMemberships(Protocol):
    """Keeps the members of groups of the newer protocols, whose records are in the same log."""

    def begin_load(self, partition: int) -> None:
        """Whatever a load before this one had read is void."""

    def load(self, partition: int, record: LoadedRecord) -> bool:
        """A record of a key that is not of classic groups and not of offsets, in the order of the log; whether it is understood."""

    def forget(self, partition: int, group_id: str) -> None:
        """What was loaded of this group; behind it the log says that it is a classic one."""

    def finish_load(self, partition: int, now_ms: int) -> Mapping[str, GroupMembership]:
        """The memberships by group id; their timers run from now on."""

    def stop_load(self, partition: int) -> None:
        """There is nothing more to load, if there was anything."""


# ---- members of a group of the classic protocol


class ClassicMembership:
    """A `Group` as `Membership`."""

    __slots__ = ("group",)

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def group_type(self) -> GroupType:
        return GroupType.CLASSIC

    @property
    def state_name(self) -> str:
        return self.group.state.value

    @property
    def protocol_type(self) -> str:
        return self.group.protocol_type or ""

    @property
    def generation_id(self) -> int:
        return self.group.generation_id

    @property
    def is_empty(self) -> bool:
        return self.group.state is GroupState.EMPTY and not self.group.pending_members

    def commit_problem(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        is_transactional: bool,
        version: int,
        topics: Sequence[CommitTopic] = (),
    ) -> ErrorCode:
        group = self.group
        if generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE  # an admin client, or a consumer that assigns itself
        if generation_id >= 0 or member_id or group_instance_id is not None:
            problem = group.member_problem(member_id, group_instance_id)
            if problem is not ErrorCode.NONE:
                return problem
            if generation_id != group.generation_id:
                return ErrorCode.ILLEGAL_GENERATION
        elif not is_transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID  # old transactional producers name no member
        if group.state is GroupState.COMPLETING_REBALANCE and not is_transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def fetch_problem(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def deletion_problem(self) -> ErrorCode:
        return ErrorCode.NONE if self.group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def offset_deletion_problem(self) -> ErrorCode:
        group = self.group
        may_be = group.state is GroupState.EMPTY or group.protocol_type == CONSUMER_PROTOCOL_TYPE
        return ErrorCode.NONE if may_be else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        """True also if the members' subscriptions cannot be read."""
        group = self.group
        return group.state is not GroupState.EMPTY and (group.subscribed_topics is None or topic in group.subscribed_topics)

    def expiry_rule(self) -> ExpiryRule | None:
        group = self.group
        if group.protocol_type is None:
            return ExpiryRule(None)  # consumers that only keep offsets here
        if group.state is GroupState.EMPTY:
            return ExpiryRule(group.state_since_ms)
        if group.protocol_type == CONSUMER_PROTOCOL_TYPE and group.state is GroupState.STABLE and group.subscribed_topics is not None:
            return ExpiryRule(None, group.subscribed_topics)
        return None

    def tombstones(self) -> list[StateRecord]:
        """A group of generation 0 only ever kept offsets."""
        return [group_tombstone(self.group.group_id)] if self.group.generation_id > 0 else []
