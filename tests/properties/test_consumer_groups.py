"""A consumer group with members of both protocols, a log that refuses, a coordinator that dies and
topics that change: no two members read the same partition.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from services.coordinator.groups.consumer_assignors import ASSIGNORS, Subscriber
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_member import NO_PARTITIONS
from services.coordinator.groups.consumer_membership import ConsumerMembership
from services.coordinator.groups.consumer_records import PartitionLoad
from tests.support.consumer_world import ClassicReader, ConsumerWorld, NewReader
from tests.support.group_world import GROUP

pytestmark = pytest.mark.slow

NEW_SESSION_MS = 45_000
CLASSIC_SESSION_MS = 10_000
TOPICS = ("syslog", "audit")
REFUSALS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.MESSAGE_TOO_LARGE)

new_names = st.sampled_from("abcd")
classic_names = st.sampled_from("xyz")


class ConsumerGroupUnderStress(RuleBasedStateMachine):
    """Clients behave; everything else is chance. `said_ms` is each client's last request: a client
    that is silent for a session has lost its partitions.
    """

    @initialize(may=st.sampled_from(("bidirectional", "upgrade")))
    def begin(self, may: str) -> None:
        self.world = ConsumerWorld(group_consumer_migration_policy=may)
        self.new: dict[str, NewReader] = {}
        self.classic: dict[str, ClassicReader] = {}
        self.said_ms: dict[str, int] = {}
        self.last_epoch: tuple[ConsumerMembership, int] | None = None

    # ---- clients

    @rule(name=new_names, topics=st.sampled_from((TOPICS, TOPICS[:1])), assignor=st.sampled_from((None, "range")), is_static=st.booleans())
    def a_new_reader_comes(self, name: str, topics: tuple[str, ...], assignor: str | None, is_static: bool) -> None:
        if name not in self.new:
            fields = {"server_assignor": assignor} | ({"instance_id": f"instance-{name}"} if is_static else {})
            self.new[name] = NewReader(self.world, name, topics, **fields)

    @rule(name=new_names)
    def a_new_reader_asks(self, name: str) -> None:
        subscriber = self.new.get(name)
        if subscriber is not None and subscriber.waiting is None:
            self.said_ms[name] = self.world.now_ms
            subscriber.ask()
            self.look()

    @rule(name=new_names, epoch=st.sampled_from((-1, -2)))
    def a_new_reader_leaves(self, name: str, epoch: int) -> None:
        subscriber = self.new.get(name)
        if subscriber is not None and subscriber.epoch > 0 and subscriber.waiting is None and (epoch == -1 or "instance_id" in subscriber.fields):
            subscriber.leave(epoch)
            del self.new[name]
            self.look()

    @rule(name=new_names)
    def a_new_reader_dies(self, name: str) -> None:
        self.new.pop(name, None)

    @rule(name=classic_names, topics=st.sampled_from((TOPICS, TOPICS[:1])))
    def a_classic_reader_comes_or_goes_on(self, name: str, topics: tuple[str, ...]) -> None:
        if name not in self.classic:
            self.classic[name] = ClassicReader(self.world, topics)
        self.step_classic(name)

    def step_classic(self, name: str) -> None:
        self.world.settle()
        subscriber = self.classic[name]
        if subscriber.joining is None and subscriber.syncing is None:
            self.said_ms[name] = self.world.now_ms
        subscriber.step()
        self.look()

    @rule(name=classic_names)
    def a_classic_reader_leaves(self, name: str) -> None:
        subscriber = self.classic.pop(name, None)
        if subscriber is not None and subscriber.joining is None and subscriber.syncing is None:
            subscriber.leave()
            self.look()

    def look(self) -> None:
        """Answers reach their clients."""
        for subscriber in self.new.values():
            subscriber.look()

    # ---- the world

    @rule(error=st.sampled_from((ErrorCode.NONE, *REFUSALS)), is_kept=st.booleans())
    @precondition(lambda self: self.world.log.waiting)
    def the_log_answers_once(self, error: ErrorCode, is_kept: bool) -> None:
        self.world.log.answer_one(error, is_kept=is_kept or error is ErrorCode.NONE)
        self.world.turn()
        self.look()

    @rule()
    def the_log_answers(self) -> None:
        self.world.settle()
        self.look()

    @rule(milliseconds=st.sampled_from((1, 3_000, CLASSIC_SESSION_MS, 20_000, NEW_SESSION_MS)))
    def time_passes(self, milliseconds: int) -> None:
        self.world.pass_ms(milliseconds)
        self.lose_the_silent()
        self.look()

    def lose_the_silent(self) -> None:
        for name, subscriber in {**self.new, **self.classic}.items():
            session_ms = NEW_SESSION_MS if name in self.new else CLASSIC_SESSION_MS
            if self.world.now_ms - self.said_ms.get(name, self.world.now_ms) >= session_ms:
                subscriber.holds = frozenset()

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(0, 5))
    def a_topic_changes(self, topic: str, count: int) -> None:
        is_growth = count > self.world.topics.counts.get(topic, 0)
        if is_growth or count == 0:
            self.world.topics.set_count(topic, count)
            if count == 0:
                for subscriber in [*self.new.values(), *self.classic.values()]:
                    subscriber.holds = frozenset(place for place in subscriber.holds if place[0] != topic)

    @rule()
    def the_coordinator_dies(self) -> None:
        epoch = self.group.group_epoch if self.group is not None else None
        self.world.restart()
        for subscriber in [*self.new.values(), *self.classic.values()]:
            subscriber.lose_answer()
        self.last_epoch = None
        if epoch is not None and self.group is not None:
            assert self.group.group_epoch >= epoch

    @rule()
    def all_members_settle(self) -> None:
        """All present members send requests until nothing changes: then every partition is read by
        exactly one.
        """
        self.world.settle()
        self.world.pass_ms(60_000)  # the dead are out
        self.world.pass_ms(NEW_SESSION_MS)
        self.lose_the_silent()
        self.look()
        subscribers = [*self.new.values(), *self.classic.values()]
        if subscribers:
            for subscriber in subscribers:
                subscriber.lose_answer()
            self.world.run(*subscribers, rounds=100)
            self.said_ms = dict.fromkeys([*self.new, *self.classic], self.world.now_ms)
            wanted = {
                (topic, partition) for topic in {topic for subscriber in subscribers for topic in subscriber.topics} for partition in range(self.count(topic))
            }
            assert frozenset().union(*(subscriber.holds for subscriber in subscribers)) == wanted

    def count(self, topic: str) -> int:
        return self.world.topics.counts.get(topic, 0)

    # ---- what always holds

    @property
    def membership(self) -> ConsumerMembership | None:
        hosted = self.world.coordinator.directory.find(GROUP)
        return hosted.membership if hosted is not None and isinstance(hosted.membership, ConsumerMembership) else None

    @property
    def group(self) -> ConsumerGroup | None:
        return self.membership.group if self.membership is not None else None

    @invariant()
    def no_two_members_read_a_partition(self) -> None:
        held = [(place, name) for name, subscriber in {**self.new, **self.classic}.items() for place in subscriber.holds]
        assert len({place for place, _ in held}) == len(held), sorted(held)

    @invariant()
    def the_coordinator_gives_every_partition_to_one(self) -> None:
        if self.group is not None:
            had = [place for member in self.group.members.values() for place in member.current.assigned | member.current.revoking]
            assert len(had) == len(set(had))
            aimed = [place for target in self.group.targets.values() for place in target]
            assert len(aimed) == len(set(aimed))
            assert self.group.static_members == {
                member.wish.instance_id: member_id for member_id, member in self.group.members.items() if member.wish.instance_id is not None
            }

    @invariant()
    def the_group_epoch_only_grows(self) -> None:
        membership = self.membership
        if membership is None:
            self.last_epoch = None
            return
        group = membership.group
        if self.last_epoch is not None and self.last_epoch[0] is membership:
            assert group.group_epoch >= self.last_epoch[1]
        assert group.target_epoch <= group.group_epoch
        assert all(member.current.epoch <= group.target_epoch for member in group.members.values())
        self.last_epoch = (membership, group.group_epoch)

    @invariant()
    def memory_is_what_the_log_says(self) -> None:
        membership = self.membership
        if membership is None or self.world.log.waiting or membership.turns.is_in_doubt:
            return
        load = PartitionLoad()
        for record in self.world.log.content.get(self.world.partition(), []):
            load.load(record)
        found, group = load.groups().get(GROUP, ConsumerGroup()), membership.group
        assert (found.group_epoch, found.target_epoch, found.members) == (group.group_epoch, group.target_epoch, group.members)
        assert {key: value for key, value in found.targets.items() if value} == {key: value for key, value in group.targets.items() if value}
        assert found.topics == group.topics


TestConsumerGroupUnderStress = ConsumerGroupUnderStress.TestCase
TestConsumerGroupUnderStress.settings = settings(stateful_step_count=60)


# ---- assignors

topic_ids = [TopicId(bytes([number] * 16)) for number in range(1, 5)]
members = st.lists(st.lists(st.sampled_from(topic_ids), unique=True), min_size=1, max_size=6)


@given(counts=st.lists(st.integers(0, 7), min_size=4, max_size=4), rounds=st.lists(members, min_size=1, max_size=3), name=st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_that_is_read_has_one_reader_of_its_topic(counts: list[int], rounds: list[list[list[TopicId]]], name: str) -> None:
    partitions = dict(zip(topic_ids, counts, strict=True))
    targets: dict[str, frozenset[tuple[TopicId, int]]] = {}
    for topics in rounds:
        subscribers = [Subscriber(f"m{rank}", None, tuple(sorted(each)), targets.get(f"m{rank}", NO_PARTITIONS)) for rank, each in enumerate(topics)]
        targets = ASSIGNORS[name](subscribers, partitions)
        given_out = [place for target in targets.values() for place in target]
        read = {topic_id for subscriber in subscribers for topic_id in subscriber.topics}
        assert len(given_out) == len(set(given_out))
        assert set(given_out) == {(topic_id, partition) for topic_id in read for partition in range(partitions[topic_id])}
        assert all(topic_id in subscriber.topics for subscriber in subscribers for topic_id, _ in targets[subscriber.member_id])
        again = ASSIGNORS[name]([subscriber._replace(target=targets[subscriber.member_id]) for subscriber in subscribers], partitions)
        assert again == targets, "nothing moves when nothing has changed"


@given(partitions=st.integers(0, 30), sizes=st.lists(st.integers(1, 8), min_size=2, max_size=4))
def test_uniform_is_even_and_moves_no_more_than_it_must(partitions: int, sizes: list[int]) -> None:
    topic_id = topic_ids[0]
    targets: dict[str, frozenset[tuple[TopicId, int]]] = {}
    for size in sizes:
        before = targets
        subscribers = [Subscriber(f"m{rank}", None, (topic_id,), before.get(f"m{rank}", NO_PARTITIONS)) for rank in range(size)]
        targets = ASSIGNORS["uniform"](subscribers, {topic_id: partitions})
        loads = [len(target) for target in targets.values()]
        assert max(loads) - min(loads) <= 1
        kept = sum(len(targets[name] & before.get(name, NO_PARTITIONS)) for name in targets)
        share, more = divmod(partitions, size)
        olds = sorted((len(before.get(name, NO_PARTITIONS)) for name in targets), reverse=True)
        assert kept == sum(min(old, share + (rank < more)) for rank, old in enumerate(olds))
