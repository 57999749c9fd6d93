"""A live group moves from the classic protocol to the newer one, and back, with its members in it.

Up: the first member of the newer protocol finds a classic group of consumers; what its members read becomes what they are assigned, in the epoch that was
their generation. Down: the last member of the newer protocol is gone and classic ones are left; what they read becomes their assignment, and they
rebalance. One batch takes the one group out of the log and puts the other in. Owned by the group coordinator. Weak spot: members of a classic group whose
words cannot be read keep their group from moving.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.errors import ProtocolViolation
from appliance.cluster.state_log import StateRecord
from appliance.protocol.schema import BYTES, INT32, STRING, ArrayOf, Field, decode_struct, struct_codec
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.wire import INT16
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_member import ClassicSide, ConsumerMember, CurrentAssignment, MemberRequest, MemberState, Partitions
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_directory import GroupDirectory
from services.coordinator.groups.group_membership import ClassicMembership
from services.coordinator.groups.group_records import group_tombstone, metadata_record
from services.coordinator.groups.member import CONSUMER_PROTOCOL_TYPE, Member
from services.coordinator.groups.ports import GroupSettings, Topics
from services.coordinator.groups.rebalances import Rebalances

# ---- the embedded protocol of classic members in a consumer group


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


NO_GENERATION: Final = 0


def may_upgrade(group: Group, settings: GroupSettings) -> bool:
    return settings.may_upgrade and group.protocol_type == CONSUMER_PROTOCOL_TYPE and len(group.members) <= settings.group_consumer_max_size


def upgraded(group: Group, topics: Topics) -> ConsumerGroup | None:
    """The same members in the newer protocol; None if what one of them says cannot be read."""
    found = ConsumerGroup()
    found.group_epoch = found.target_epoch = group.generation_id
    taken: Partitions = frozenset()
    for member in group.members.values():
        subscription = read_subscription(_words(group, member))
        assignment = read_assignment(member.assignment)
        if subscription is None or assignment is None:
            return None
        assigned = by_id(assignment.topics, topics) - taken
        taken |= assigned
        wish = MemberRequest(
            member.group_instance_id,
            subscription.rack_id,
            member.client,
            tuple(sorted(set(subscription.topics))),
            None,
            member.rebalance_timeout_ms,
            None,
            ClassicSide(member.session_timeout_ms, member.protocols),
        )
        current = CurrentAssignment(group.generation_id, group.generation_id, MemberState.STABLE, assigned)
        found.put(ConsumerMember(member.member_id, wish, current))
        found.aim(member.member_id, assigned)
    return found


def _words(group: Group, member: Member) -> bytes:
    """What it said for the protocol of the generation, or before there is one, for the first it offers."""
    offered = {protocol.name: protocol.metadata for protocol in member.protocols}
    return offered.get(group.protocol_name or "", member.protocols[0].metadata)


class Downgrade:
    """A classic group of what is left of a consumer group (`group_turns.Farewell`)."""

    def __init__(self, group_id: str, consumer: ConsumerGroup, directory: GroupDirectory, topics: Topics, rebalances: Rebalances) -> None:
        self._directory = directory
        self._rebalances = rebalances
        self._group = group = Group(group_id, directory.partition_for(group_id), 0)
        group.protocol_type = CONSUMER_PROTOCOL_TYPE
        group.generation_id = max([NO_GENERATION, *(member.current.epoch for member in consumer.members.values())])
        for each in consumer.members.values():
            wish = each.wish
            assert wish.classic is not None
            assignment = write_assignment(each.current.assigned, topics, wish.classic.protocols[0].metadata)
            group.add(
                Member(
                    each.member_id,
                    wish.instance_id,
                    wish.client,
                    wish.rebalance_timeout_ms,
                    wish.classic.session_timeout_ms,
                    wish.classic.protocols,
                    assignment,
                )
            )
        group.protocol_name = group.select_protocol()
        group.subscribed_topics = group.topics_of_members()
        group.state = GroupState.STABLE
        group.state_since_ms = None
        self.record: StateRecord = metadata_record(group, {member.member_id: member.assignment for member in group.members.values()})
        self.tombstone: StateRecord = group_tombstone(group_id)

    def on_appended(self, now_ms: int) -> None:
        hosted = self._directory.find(self._group.group_id)
        assert hosted is not None
        hosted.membership = ClassicMembership(self._group)
        for member in self._group.members.values():
            self._rebalances.renew_session(self._group, member, now_ms)
        self._rebalances.prepare(self._group, now_ms)
