"""One member of a consumer group (KIP-848): what it wants, and what it has.

Values that never change; a change makes a new one. Partitions are a set of (topic id, partition), because everything about them is set algebra. A member
that still speaks the classic protocol has what it said in that beside (`ClassicSide`). Owned by its group (`consumer_group.py`). Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from appliance.base.model import TopicId
from appliance.protocol.consumer_group_apis import LEAVE_FOR_A_WHILE
from appliance.protocol.group_apis import JoinGroupProtocol
from appliance.protocol.topic_partitions import TopicIdPartitions
from services.coordinator.groups.member import ClientIdentity

Partitions: TypeAlias = frozenset[tuple[TopicId, int]]

NO_PARTITIONS: Partitions = frozenset()
NEVER_JOINED = 0
"""The epoch of a member that has not received one yet."""
NO_EPOCH = -1


def partitions_of(topics: Iterable[TopicIdPartitions]) -> Partitions:
    return frozenset((topic_id, partition) for topic_id, partitions in topics for partition in partitions)


def as_topics(partitions: Partitions) -> tuple[TopicIdPartitions, ...]:
    """By topic, in an order that is always the same."""
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(partition)
    return tuple(TopicIdPartitions(topic_id, tuple(each)) for topic_id, each in by_topic.items())


class MemberState(IntEnum):
    """As records have it."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has partitions that it is to give up, and has not said that it did."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given up."""
    UNKNOWN = 127


class ClassicSide(NamedTuple):
    """What a member of the classic protocol said in its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]


class MemberRequest(NamedTuple):
    """What a member said of itself; kept until it says something else."""

    instance_id: str | None = None
    rack_id: str | None = None
    client: ClientIdentity = ClientIdentity("", "")
    topics: tuple[str, ...] = ()
    """Sorted, without repetition."""
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None


class CurrentAssignment(NamedTuple):
    """How far a member has come. `assigned` is its to read; `revoking` is still its until it says that it is not."""

    epoch: int = NEVER_JOINED
    previous_epoch: int = NO_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS


class ConsumerMember(NamedTuple):
    """The requested and the current assignment each have a record of their own."""

    member_id: str
    wish: MemberRequest = MemberRequest()
    current: CurrentAssignment = CurrentAssignment()

    @property
    def is_classic(self) -> bool:
        return self.wish.classic is not None

    @property
    def has_to_revoke(self) -> bool:
        return self.current.state is MemberState.UNREVOKED_PARTITIONS

    @property
    def rebalance_timeout_ms(self) -> int:
        return self.wish.rebalance_timeout_ms

    @property
    def session_timeout_ms(self) -> int | None:
        """None: that of its group."""
        return None if self.wish.classic is None else self.wish.classic.session_timeout_ms

    @property
    def is_away(self) -> bool:
        """A static member that said it would be back."""
        return self.current.epoch == LEAVE_FOR_A_WHILE

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.epoch == epoch


Owners = Mapping[tuple[TopicId, int], str]
"""Partition → the member that has it, or has not confirmed its revocation."""


def reconciled(member: ConsumerMember, target_epoch: int, target: Partitions, owners: Owners, owned: Partitions | None) -> ConsumerMember:
    """The member one step nearer to its target, if it can take one. `owned` is what it says it has; None if it did not say.

    Revocation first (KIP-848): while the member has partitions to revoke, it stays in its epoch. Then it enters the target epoch, with the
    partitions that no other member has any more. So no partition ever has two members.
    """
    current = member.current
    match current.state:
        case MemberState.STABLE if current.epoch == target_epoch:
            return member
        case MemberState.UNREVOKED_PARTITIONS if owned is None or owned & current.revoking:
            return member
        case MemberState.UNREVOKED_PARTITIONS:
            epoch = current.epoch + 1
        case _:
            epoch = current.epoch
    kept = current.assigned & target
    given_up = current.assigned - target
    if given_up and (owned is None or owned & given_up):
        return member._replace(current=CurrentAssignment(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, given_up))
    wanted = target - kept
    free = frozenset(place for place in wanted if owners.get(place, member.member_id) == member.member_id)
    state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED_PARTITIONS
    previous_epoch = current.previous_epoch if current.epoch == target_epoch else current.epoch
    return member._replace(current=CurrentAssignment(target_epoch, previous_epoch, state, kept | free))
