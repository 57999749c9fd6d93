"""Groups of the newer protocol (KIP-848) with real clients: librdkafka and Apache's Java client share partitions, the coordinator dies under them, and a
live group goes from the classic protocol to the newer one and back. Every record that is produced comes to the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from appliance.protocol import consumer_group_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.consumer_group_apis import CLASSIC_MEMBER, CONSUMER_MEMBER, ConsumerGroupDescribeRequest, DescribedConsumerGroup
from lab.foreign_clients import JavaMembers
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

PARTITIONS = 6
CLASSIC = {"heartbeat_interval_ms": 300, "session_timeout_ms": 6_000}
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
NEW = {"group_protocol": "consumer"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    settings = {"group.consumer.heartbeat.interval.ms": 200, "group.initial.rebalance.delay.ms": 0}
    box = start_shared(tmp_path_factory.mktemp("consumer-groups"), settings=settings)
    yield box
    box.stop()


@pytest.fixture(scope="module")
def java(box: RunningBox) -> Iterator[JavaMembers]:
    members = JavaMembers(box.bootstrap)
    yield members
    members.close()


@pytest.fixture
def crew() -> Iterator[list[LibRdKafkaMember]]:
    """Members that have to be closed, however the test ends."""
    members: list[LibRdKafkaMember] = []
    yield members
    for member in members:
        member.stop()


class Member(Protocol):
    """A consumer in a group."""

    def look(self) -> frozenset[int]:
        """Its partitions now."""

    def stop(self) -> None:
        """It leaves."""


class LibRdKafkaMember:
    """Polled by `look`; commits what it was given before it asks for more."""

    def __init__(self, crew: list[LibRdKafkaMember], box: RunningBox, group: str, topic: str, values: list[str], **options: Any) -> None:
        names = {name.replace("_", "."): value for name, value in options.items()}
        fixed = {"bootstrap.servers": box.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self._consumer = Consumer(fixed | names)
        self._consumer.subscribe([topic])
        self._values = values
        crew.append(self)

    def look(self) -> frozenset[int]:
        messages = self._consumer.consume(100, 0.05)
        for message in messages:
            assert message.error() is None, message.error()
            self._values.append(message.value().decode())
        if messages:
            self._commit()
        return frozenset(each.partition for each in self._consumer.assignment())

    def _commit(self) -> None:
        """A commit during a rebalance or a death of the coordinator: the next owner of the
        partition then reads it again.
        """
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as problem:
            retried = (KafkaError.STALE_MEMBER_EPOCH, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError._NO_OFFSET)
            assert problem.args[0].code() in retried, problem

    def stop(self) -> None:
        self._consumer.close()


class JavaMember:
    """One of the Java process's consumers."""

    def __init__(self, java: JavaMembers, name: str, group: str, topic: str, values: list[str], **options: Any) -> None:
        self._java = java
        self._name = name
        self._values = values
        java.start(name, topic, group_id=group, **options)

    def look(self) -> frozenset[int]:
        partitions, values = self._java.look(self._name)
        self._values += values
        return partitions

    def stop(self) -> None:
        self._values += self._java.stop(self._name)


class Topic:
    """What is produced to a topic, and which readers have to read it."""

    def __init__(self, box: RunningBox, name: str) -> None:
        self.box = box
        self.name = name
        self.partitions = PARTITIONS
        self.values: list[str] = []
        self._sent = 0
        self._producer = self._new_producer()
        self.admin = AdminClient({"bootstrap.servers": box.bootstrap})
        self.admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)

    def _new_producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.box.bootstrap, "acks": "all", "enable.idempotence": True})

    def produce(self, count: int = 60) -> None:
        for number in range(self._sent, self._sent + count):
            self._producer.produce(self.name, str(number).encode(), partition=number % self.partitions)
        self._sent += count
        assert self._producer.flush(60) == 0

    def grow(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(60)
        self.partitions = partitions
        self._producer = self._new_producer()  # which knows of them

    def await_shares(self, members: Sequence[Member], what: str) -> None:
        """All partitions are with the members, each with one, as evenly as it can be."""

        def is_shared() -> bool:
            held = [member.look() for member in members]
            sizes = [len(each) for each in held]
            return sum(sizes) == self.partitions and frozenset().union(*held) == set(range(self.partitions)) and max(sizes) - min(sizes) <= 1

        eventually(is_shared, what)

    def await_values(self, members: Sequence[Member]) -> None:
        """Everything that was ever produced has come."""
        wanted = {str(number) for number in range(self._sent)}

        def has_come() -> bool:
            for member in members:
                member.look()
            return set(self.values) == wanted

        eventually(has_come, f"all {self._sent} values of {self.name}")


def described(box: RunningBox, group: str) -> DescribedConsumerGroup:
    client = RawClient(box.kafka)
    try:
        client.send(
            ApiKey.CONSUMER_GROUP_DESCRIBE, 1, b"\0" + consumer_group_apis.CONSUMER_GROUP_DESCRIBE_REQUEST.encode(1, ConsumerGroupDescribeRequest((group,)))
        )
        _, reply = client.receive()
        found: DescribedConsumerGroup = consumer_group_apis.CONSUMER_GROUP_DESCRIBE_RESPONSE.decode(reply, 1, len(reply), 1).groups[0]
        return found
    finally:
        client.close()


def counted_requests(box: RunningBox) -> int:
    """By all incarnations of the coordinator."""
    return box.counters("coordinator").values["coordinator.requests"]


def is_stable(box: RunningBox, group: str) -> Callable[[], DescribedConsumerGroup | None]:
    def look() -> DescribedConsumerGroup | None:
        found = described(box, group)
        return found if found.group_state == "Stable" else None

    return look


def test_members_of_two_clients_share_a_topic_and_go_on_when_the_coordinator_dies(box: RunningBox, java: JavaMembers, crew: list[LibRdKafkaMember]) -> None:
    topic = Topic(box, "shared")
    first = LibRdKafkaMember(crew, box, "shared", topic.name, topic.values, **NEW)
    second = JavaMember(java, "second", "shared", topic.name, topic.values, **NEW)
    topic.produce()
    topic.await_shares([first, second], "two members have three partitions each")
    topic.await_values([first, second])
    before = described(box, "shared")
    assert before.group_state == "Stable" and {member.member_type for member in before.members} == {CONSUMER_MEMBER}

    pid = box.kill("coordinator")
    topic.produce()
    topic.await_values([first, second])
    box.await_restart("coordinator", pid)
    asked = counted_requests(box)
    eventually(lambda: counted_requests(box) > asked + 20, "its members ask the next coordinator")
    after = eventually(is_stable(box, "shared"), "the group is back")
    assert (after.group_epoch, after.assignment_epoch, set(after.members)) == (before.group_epoch, before.assignment_epoch, set(before.members))

    third = LibRdKafkaMember(crew, box, "shared", "^share.*", topic.values, **NEW)
    topic.await_shares([first, second, third], "three members have two partitions each")
    assert {member.subscribed_topic_regex for member in described(box, "shared").members} == {None, "(^share.*)"}, "which the coordinator resolves"
    second.stop()
    topic.await_shares([first, third], "the remaining members have three partitions each")
    topic.grow(PARTITIONS + 2)
    topic.await_shares([first, third], "the members have four partitions each when there are more")
    topic.produce()
    topic.await_values([first, third])
    first.stop()
    third.stop()
    assert described(box, "shared").group_state == "Empty"
    listed = topic.admin.list_consumer_groups().result(30).valid
    assert {group.group_id: group.type for group in listed}["shared"] is ConsumerGroupType.CONSUMER


def test_a_live_group_goes_to_the_newer_protocol_and_back_with_its_members(box: RunningBox, java: JavaMembers, crew: list[LibRdKafkaMember]) -> None:
    topic = Topic(box, "moving")
    old = LibRdKafkaMember(crew, box, "moving", topic.name, topic.values, **CLASSIC, **COOPERATIVE)
    older = JavaMember(
        java,
        "older",
        "moving",
        topic.name,
        topic.values,
        **CLASSIC,
        partition_assignment_strategy="org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    )
    topic.produce()
    topic.await_shares([old, older], "two classic members have three partitions each")

    new = JavaMember(java, "new", "moving", topic.name, topic.values, **NEW)
    topic.produce()
    topic.await_shares([old, older, new], "members of both protocols have two partitions each")
    topic.await_values([old, older, new])
    mixed = eventually(is_stable(box, "moving"), "the group has settled")
    assert sorted(member.member_type for member in mixed.members) == [CLASSIC_MEMBER, CLASSIC_MEMBER, CONSUMER_MEMBER]

    pid = box.kill("coordinator")
    topic.produce()
    box.await_restart("coordinator", pid)
    topic.await_shares([old, older, new], "both go on after the coordinator's death")
    topic.await_values([old, older, new])

    new.stop()
    topic.await_shares([old, older], "the classic members have everything again")
    topic.produce()
    topic.await_values([old, older])
    assert described(box, "moving").group_state == "Dead", "it is a classic group"
    old.stop()
    older.stop()
