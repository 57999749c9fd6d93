"""The state of one consumer group (KIP-848): members, epochs, and the assignment that they are on their way to.

A change is made on a copy (`copy`), which takes the place of the state before it when the log has it (`group_turns.py`); the difference of the two is
what is appended (`consumer_records.py`). The group epoch grows with every change of what is to be assigned; the target epoch says for which group epoch the
target was made; a member's epoch says which target it has reached. Owned by the group coordinator. Weak spot: the first change of a copy costs a pointer a
member.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from appliance.base.invariants import check
from appliance.base.model import TopicId
from services.coordinator.groups.consumer_member import NO_PARTITIONS, ConsumerMember, Partitions
from services.coordinator.groups.group_records import SubscribedTopic

EMPTY: Final = "Empty"
ASSIGNING: Final = "Assigning"
RECONCILING: Final = "Reconciling"
STABLE: Final = "Stable"


class ConsumerGroup:
    """Values are replaced, never changed; a state that is in the log is not touched any more."""

    __slots__ = ("_owners", "_shares", "checked_generation", "group_epoch", "members", "of_regexes", "static_members", "target_epoch", "targets", "topics")

    def __init__(self) -> None:
        self.group_epoch = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Partitions] = {}
        self.topics: dict[str, SubscribedTopic] = {}
        """Those that members read and that there are, as they were when they were looked at last."""
        self.of_regexes: dict[str, frozenset[str]] = {}
        """Member id → the topics of its expression that it may see, as they were then; empty after a load."""
        self.checked_generation: int | None = None
        """Which generation of all topics that was."""
        self._owners: dict[tuple[TopicId, int], str] | None = None
        self._shares = False

    def copy(self) -> ConsumerGroup:
        """What it does not change it has in common with this one."""
        other = ConsumerGroup()
        other.group_epoch = self.group_epoch
        other.target_epoch = self.target_epoch
        other.members, other.static_members, other.targets = self.members, self.static_members, self.targets
        other._shares = True
        other.topics, other.of_regexes = self.topics, self.of_regexes
        other.checked_generation = self.checked_generation
        return other

    def _unshare(self) -> None:
        if self._shares:
            self.members, self.static_members, self.targets = self.members.copy(), self.static_members.copy(), self.targets.copy()
            self._shares = False

    # ---- members

    def put(self, member: ConsumerMember) -> None:
        """A new member, or one that has changed."""
        self._unshare()
        before = self.members.get(member.member_id)
        instance = member.wish.instance_id
        if before is not None and before.wish.instance_id is not None and before.wish.instance_id != instance:
            del self.static_members[before.wish.instance_id]
        if instance is not None:
            holder = self.static_members.setdefault(instance, member.member_id)
            check(holder == member.member_id, f"instance {instance} is held by {holder} and put as {member.member_id}")
        self._disown(before)
        self.members[member.member_id] = member
        self._own(member)

    def remove(self, member_id: str) -> ConsumerMember:
        self._unshare()
        member = self.members.pop(member_id)
        self.targets.pop(member_id, None)
        if member.wish.instance_id is not None:
            del self.static_members[member.wish.instance_id]
        self._disown(member)
        return member

    def aim(self, member_id: str, target: Partitions) -> None:
        """What this member is to read in the end."""
        self._unshare()
        self.targets[member_id] = target

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def instance(self, instance_id: str) -> ConsumerMember | None:
        """Return the member that has this instance id now."""
        member_id = self.static_members.get(instance_id)
        return self.members[member_id] if member_id is not None else None

    @property
    def has_only_classic(self) -> bool:
        """There are members, and all of them speak the classic protocol."""
        return bool(self.members) and all(member.is_classic for member in self.members.values())

    def supports_classic(self, names: set[str]) -> bool:
        """Whether one of these assignors is offered by every classic member."""
        sides = [member.wish.classic for member in self.members.values() if member.wish.classic is not None]
        return bool(names) and (not sides or any(all(name in {each.name for each in side.protocols} for side in sides) for name in names))

    @property
    def assignor(self) -> str | None:
        """Return the assignor that most members prefer; None if no member names one."""
        votes = Counter(member.wish.assignor for member in self.members.values() if member.wish.assignor is not None)
        return max(votes, key=lambda name: (votes[name], name or "")) if votes else None

    # ---- partitions

    @property
    def owners(self) -> dict[tuple[TopicId, int], str]:
        """Return the member that has a partition, or has not confirmed its revocation."""
        if self._owners is None:
            self._owners = {}
            for member in self.members.values():
                self._own(member)
        return self._owners

    def _own(self, member: ConsumerMember) -> None:
        if self._owners is not None:
            for place in member.current.assigned | member.current.revoking:
                holder = self._owners.setdefault(place, member.member_id)
                check(holder == member.member_id, f"partition {place[1]} of {place[0]} is with {holder} and given to {member.member_id}")

    def _disown(self, member: ConsumerMember | None) -> None:
        if self._owners is not None and member is not None:
            for place in member.current.assigned | member.current.revoking:
                del self._owners[place]

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """True if another member still has a partition of its target."""
        missing = self.target_of(member.member_id) - member.current.assigned
        return any(self.owners.get(place, member.member_id) != member.member_id for place in missing)

    # ---- from outside

    @property
    def state_name(self) -> str:
        if not self.members:
            return EMPTY
        if self.group_epoch > self.target_epoch:
            return ASSIGNING
        is_there = all(member.is_reconciled_to(self.target_epoch) for member in self.members.values())
        return STABLE if is_there else RECONCILING
