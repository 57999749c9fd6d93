"""A classic consumer group: its members, generation and state, and the rules between them. `rebalances.py` decides when they change.

State is changed by methods only, so that what they keep holds: the leader is a member, an instance id belongs to one member, the votes count what the
members offer, the generation only grows. Owned by the group coordinator. Weak spot: what a protocol's metadata says is read for the protocol type
`consumer` only, and only its topics (`member.py`).
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.base.invariants import check
from appliance.protocol.group_apis import JoinGroupProtocol
from appliance.runtime.timers import Timer
from services.coordinator.groups.member import CONSUMER_PROTOCOL_TYPE, Member, topics_of_subscription


class GroupState(Enum):
    """As DescribeGroups writes them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_BEFORE: Final = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


def bytes_of(protocols: tuple[JoinGroupProtocol, ...]) -> int:
    """Return the bytes that a member's protocols hold in memory, about."""
    return sum(len(protocol.name) + len(protocol.metadata) for protocol in protocols)


class Group:
    """Members by id, in the order in which they came."""

    def __init__(self, group_id: str, partition: int, now_ms: int) -> None:
        self.group_id = group_id
        self.partition = partition
        self.state = GroupState.EMPTY
        self.state_since_ms: int | None = now_ms
        """None: loaded from a record that is too old to say."""
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.group_leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, Timer] = {}
        """Ids that were given out with MEMBER_ID_REQUIRED and have not come back, with the time until which they may."""
        self.pending_sync: set[str] = set()
        """Members that received the newest generation and have not sent SyncGroup."""
        self.awaiting_join_count = 0
        self.subscribed_topics: frozenset[str] | None = None
        """The topics of all subscriptions; None: a subscription could not be read."""
        self.join_timer: Timer | None = None
        self.initial_delay_left_ms: int | None = None
        """Set while the first members of an empty group are waited for: how much longer they may be."""
        self.member_came_in_delay = False
        self.sync_timer: Timer | None = None
        self.is_assigning = False
        """The leader's assignment of this generation is on its way into the log."""
        self.offered_protocols: Counter[str] = Counter()
        self.metadata_bytes = 0
        """Bytes of all that its members offer: names of protocols and metadata."""

    def move_to(self, state: GroupState, now_ms: int) -> None:
        check(self.state in _BEFORE[state], f"group {self.group_id} cannot go from {self.state.value} to {state.value}")
        self.state = state
        self.state_since_ms = now_ms

    # ---- members

    def add(self, member: Member) -> None:
        check(member.member_id not in self.members, f"member {member.member_id} of group {self.group_id} is added again")
        if member.group_instance_id is not None:
            check(member.group_instance_id not in self.static_members, f"instance {member.group_instance_id} of group {self.group_id} is added again")
            self.static_members[member.group_instance_id] = member.member_id
        if self.group_leader_id is None:
            self.group_leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member.protocols, +1)
        self.awaiting_join_count += member.awaiting_join is not None

    def remove(self, member_id: str) -> Member | None:
        """Without it another member leads, the oldest; its parked requests are the caller's to answer."""
        member = self.members.pop(member_id, None)
        self.pending_sync.discard(member_id)
        if member is None:
            return None
        self._count_protocols(member.protocols, -1)
        self.awaiting_join_count -= member.awaiting_join is not None
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.group_leader_id == member_id:
            self.group_leader_id = next(iter(self.members), None)
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """A static member goes on under another member id: the instance was started again."""
        instance = member.group_instance_id
        check(instance is not None and member_id not in self.members, f"member {member.member_id} of group {self.group_id} cannot become {member_id}")
        assert instance is not None
        del self.members[member.member_id]
        if self.group_leader_id == member.member_id:
            self.group_leader_id = member_id
        self.pending_sync.discard(member.member_id)
        member.member_id = member_id
        self.members[member_id] = member
        self.static_members[instance] = member_id

    def update(self, member: Member, protocols: tuple[JoinGroupProtocol, ...], rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, +1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def member_problem(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return the error for a member id or instance id that is not valid: fenced by a newer process of its instance, or unknown; NONE if it is."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect_joined_leader(self) -> bool:
        """Elect a group leader among the members that have joined; return False if there is none."""
        if self.group_leader_id is None:
            return False
        if self.members[self.group_leader_id].awaiting_join is None:
            joined = next((member_id for member_id, member in self.members.items() if member.awaiting_join is not None), None)
            if joined is None:
                return False
            self.group_leader_id = joined
        return True

    @property
    def has_all_joined(self) -> bool:
        return self.awaiting_join_count == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # ---- the protocol

    def supports(self, protocol_type: str, protocols: tuple[JoinGroupProtocol, ...]) -> bool:
        """Whether a member that offers this can be in one group with those that are in it."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(self.offered_protocols[protocol.name] == len(self.members) for protocol in protocols)

    def select_protocol(self) -> str:
        """Every member votes for the first it likes of those that all offer; most votes win, among equals the one that was voted for first."""
        candidates = {name for name, count in self.offered_protocols.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def begin_generation(self, now_ms: int) -> None:
        """The next generation, with a protocol for its members; without members the group is empty."""
        check(self.state is GroupState.PREPARING_REBALANCE, f"group {self.group_id} begins a generation in {self.state.value}")
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.topics_of_members()
        self.pending_sync.clear()
        self.is_assigning = False
        self.move_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)

    def topics_of_members(self) -> frozenset[str] | None:
        """What consumers have subscribed to; None for other protocol types, and where a subscription cannot be read."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            if self.protocol_name is None:
                return None
            subscribed = topics_of_subscription(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            topics.update(subscribed)
        return frozenset(topics)

    def _count_protocols(self, protocols: tuple[JoinGroupProtocol, ...], by: int) -> None:
        self.metadata_bytes += by * bytes_of(protocols)
        for name in {protocol.name for protocol in protocols}:
            self.offered_protocols[name] += by
            if not self.offered_protocols[name]:
                del self.offered_protocols[name]
