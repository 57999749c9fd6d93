"""The members of one consumer group (KIP-848): their rights on offsets, and the target assignment of their subscriptions.

Implements `Membership` for the rest of the coordinator, and the rules for the group's turns (`group_turns.py`). Owned by
the group coordinator. Weak spot: changes of topics are noticed with the next request of a member, so a group without requests
does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import StateRecord
from appliance.runtime.timers import Timers
from services.coordinator.groups.consumer_assignors import ASSIGNORS, UNIFORM, Subscriber
from services.coordinator.groups.consumer_group import EMPTY, ConsumerGroup
from services.coordinator.groups.consumer_member import ConsumerMember
from services.coordinator.groups.consumer_records import all_tombstones, changed_records
from services.coordinator.groups.consumer_topic_regex import TopicRegexes
from services.coordinator.groups.group_log import GroupLog
from services.coordinator.groups.group_membership import CommitTopic, ExpiryRule, GroupType
from services.coordinator.groups.group_records import SubscribedTopic
from services.coordinator.groups.group_turns import Farewell, GroupTurns
from services.coordinator.groups.member import CONSUMER_PROTOCOL_TYPE
from services.coordinator.groups.member_deadlines import MemberDeadlines
from services.coordinator.groups.ports import GroupSettings, NameBound, OnRefused, Topics

MEMBER_EPOCHS_SINCE: Final = 9
"""In OffsetCommit."""


class ConsumerSurroundings(NamedTuple):
    """What all consumer groups have in common."""

    settings: GroupSettings
    topics: Topics
    regexes: TopicRegexes
    timers: Timers
    log: GroupLog
    bid_farewell: Callable[[str, ConsumerGroup], Farewell]
    """A group of members of the classic protocol becomes a classic one."""
    on_refused: OnRefused


class ConsumerMembership:
    """`committed` is where the group begins: empty, loaded, or what a classic group was."""

    def __init__(self, group_id: str, partition: int, committed: ConsumerGroup, surroundings: ConsumerSurroundings) -> None:
        self.group_id = group_id
        self._settings = surroundings.settings
        self._topics = surroundings.topics
        self._regexes = surroundings.regexes
        self._bid_farewell = surroundings.bid_farewell
        self._on_refused = surroundings.on_refused
        self.turns = GroupTurns(group_id, partition, committed, surroundings.log, self)
        self.deadlines = MemberDeadlines(surroundings.timers, lambda: self._topics.consumer_timing(group_id), self.turns.submit)

    @property
    def group(self) -> ConsumerGroup:
        """As the log has it."""
        return self.turns.committed

    def begin(self, now_ms: int) -> None:
        """Its members have all their time before them."""
        self.deadlines.on_committed(ConsumerGroup(), self.group, now_ms)

    def end(self, error: ErrorCode) -> None:
        """Another coordinator has the group; answer waiting requests."""
        self.deadlines.forget_all()
        self.turns.end(error)

    # ---- `Membership`

    @property
    def group_type(self) -> GroupType:
        return GroupType.CONSUMER

    @property
    def state_name(self) -> str:
        return self.group.state_name

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def generation_id(self) -> int:
        return self.group.group_epoch

    @property
    def is_empty(self) -> bool:
        return self.state_name == EMPTY and not self.turns.is_busy

    def commit_problem(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        is_transactional: bool,
        version: int,
        topics: Sequence[CommitTopic] = (),
    ) -> ErrorCode:
        if generation_id < 0 and not self.group.members:
            return ErrorCode.NONE  # an admin client, or a consumer that assigns itself
        if is_transactional and generation_id == -1 and not member_id and group_instance_id is None:
            return ErrorCode.NONE  # producers may name the group alone
        member = self.group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and not member.is_classic and version < MEMBER_EPOCHS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        return _epoch_problem(member, generation_id)

    def fetch_problem(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.group.members.get(member_id or "")
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else _epoch_problem(member, member_epoch)

    def deletion_problem(self) -> ErrorCode:
        return ErrorCode.NONE if self.is_empty else ErrorCode.NON_EMPTY_GROUP

    def offset_deletion_problem(self) -> ErrorCode:
        return ErrorCode.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        """True also while a member's regular expression is not resolved."""
        names = [self._last_topics_of(member) for member in self.group.members.values()]
        return any(each is None or topic in each for each in names)

    def expiry_rule(self) -> ExpiryRule | None:
        names = [self._last_topics_of(member) for member in self.group.members.values()]
        known = [each for each in names if each is not None]
        return ExpiryRule(None, frozenset().union(*known)) if len(known) == len(names) else None

    def tombstones(self) -> list[StateRecord]:
        return self.turns.tombstones()

    # ---- `GroupRules`

    def _last_topics_of(self, member: ConsumerMember) -> frozenset[str] | None:
        """Return the names that it reads, or None if its expression was not resolved yet; there need not be such topics."""
        if member.wish.regex is None:
            return frozenset(member.wish.topics)
        matched = self._regexes.last_matching(member.wish.regex)
        return None if matched is None else matched.union(member.wish.topics)

    def _assigned_topics(self, member: ConsumerMember) -> frozenset[str]:
        """Return what a member has by its expression while that is not resolved for the topics of now: what the expression matched before."""
        committed = self.group.members.get(member.member_id)
        if committed is None or committed.wish.regex != member.wish.regex:
            return frozenset()
        names = {self._topics.name_of(topic_id) for topic_id, _ in self.group.target_of(member.member_id)}
        return frozenset(name for name in names if name is not None)

    def _of_regex(self, member: ConsumerMember, matched: frozenset[str] | None) -> frozenset[str] | None:
        """Return what the member's expression matches and the member may see, or None if one of both is not known yet."""
        return None if matched is None else self._topics.visible(self.group_id, member.member_id, matched)

    def _sees_otherwise(self, group: ConsumerGroup, member_id: str, names: frozenset[str], of_regex: frozenset[str] | None) -> bool:
        """True if the member's rights have changed, although the group as a whole reads the same topics: it needs another target."""
        if of_regex is None:
            return False
        if of_regex != group.of_regexes.get(member_id, of_regex):
            return True
        targeted = (self._topics.name_of(topic_id) for topic_id, _ in group.target_of(member_id))
        return not all(name in names for name in targeted if name is not None)

    def no_state(self) -> ConsumerGroup:
        return ConsumerGroup()

    def changed_records(self, before: ConsumerGroup, after: ConsumerGroup) -> list[StateRecord]:
        return changed_records(self.group_id, before, after)

    def all_tombstones(self, states: Sequence[ConsumerGroup]) -> list[StateRecord]:
        return all_tombstones(self.group_id, states)

    def settle_target(self, group: ConsumerGroup, now_ms: int) -> None:
        generation = self._topics.generation
        is_changed = group.group_epoch != self.group.group_epoch
        if not group.members or (group.checked_generation == generation and not is_changed):
            return
        patterns = {member.wish.regex for member in group.members.values()}
        matched = {pattern: self._regexes.matching(pattern, now_ms) for pattern in patterns if pattern is not None}
        of_regexes = {
            member_id: self._of_regex(member, matched[member.wish.regex]) for member_id, member in group.members.items() if member.wish.regex is not None
        }
        is_resolved = None not in of_regexes.values()
        if not is_resolved and not is_changed:
            return  # a later request of a member comes here again
        names = {}
        for member_id, member in group.members.items():
            subscribed = frozenset(member.wish.topics)
            if member.wish.regex is not None:
                of_regex = of_regexes[member_id]
                of_regex = self._assigned_topics(member) if of_regex is None else of_regex
                subscribed = subscribed | of_regex if subscribed else of_regex
            names[member_id] = subscribed
        found = self._found(frozenset().union(*names.values()))
        is_seen_otherwise = any(self._sees_otherwise(group, member_id, names[member_id], of_regex) for member_id, of_regex in of_regexes.items())
        group.of_regexes = {member_id: of_regex for member_id, of_regex in of_regexes.items() if of_regex is not None}
        if found != group.topics or is_seen_otherwise:
            group.topics = found
            if group.group_epoch == self.group.group_epoch:
                group.group_epoch += 1
        group.checked_generation = generation
        if group.group_epoch > group.target_epoch:
            subscribers = [
                Subscriber(
                    member.member_id,
                    member.wish.instance_id,
                    tuple(sorted(found[name].topic_id for name in names[member.member_id] if name in found)),
                    group.target_of(member.member_id),
                )
                for member in group.members.values()
            ]
            counts = {topic.topic_id: topic.partition_count for topic in found.values()}
            group.targets = ASSIGNORS[group.assignor or UNIFORM](subscribers, counts)
            group.target_epoch = group.group_epoch
        if not is_resolved:  # the next look finds other topics than these, in this process or the next, and raises the epoch
            group.topics, group.checked_generation = {}, None

    def _found(self, names: frozenset[str]) -> dict[str, SubscribedTopic]:
        found = {}
        for name in sorted(names):
            topic = self._topics.find(name)
            if topic is not None:
                found[name] = SubscribedTopic(topic.topic_id, name, topic.partition_count)
        return found

    def on_refused(self, code: ErrorCode) -> None:
        if code is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._on_refused(NameBound.MEMBERS)

    def on_committed(self, before: ConsumerGroup, now_ms: int) -> None:
        self.deadlines.on_committed(before, self.group, now_ms)

    def farewell(self, group: ConsumerGroup) -> Farewell | None:
        settings = self._settings
        if settings.may_downgrade and group.has_only_classic and len(group.members) <= settings.group_max_size:
            return self._bid_farewell(self.group_id, group)
        return None


def _epoch_problem(member: ConsumerMember, epoch: int) -> ErrorCode:
    if epoch == member.current.epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
