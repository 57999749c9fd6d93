"""OffsetCommit and OffsetFetch: what is committed, by whom it may be, and when it can be seen."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.protocol.group_offset_apis import OffsetCommitPartition, OffsetFetchGroup
from tests.support.group_world import World, as_topics, codes

A0 = ("syslog", 0)
A1 = ("syslog", 1)


def test_a_commit_is_seen_when_it_is_in_the_log_and_answered_then() -> None:
    world = World()
    told = world.commit({A0: OffsetCommitPartition(0, 42, leader_epoch=3, metadata="note"), A1: 7})
    assert not told and world.offsets() == {}
    world.settle()
    assert codes(told.only) == {A0: ErrorCode.NONE, A1: ErrorCode.NONE}
    found = world.fetch([A0, A1])
    assert found[A0] == (0, 42, 3, "note", 0)
    assert found[A1] == (1, 7, -1, "", 0), "no metadata is an empty text"
    assert world.log.batches == 1


def test_a_partition_without_a_commit_has_no_offset_and_no_error() -> None:
    world = World()
    assert world.fetch([A0], group="unheard-of")[A0] == (0, -1, -1, "", 0)
    world.commit({A0: 1})
    world.settle()
    assert world.fetch([A1])[A1] == (1, -1, -1, "", 0)


@pytest.mark.parametrize(
    ("refusal", "told_as"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_is_refused_changes_nothing(refusal: ErrorCode, told_as: ErrorCode) -> None:
    world = World()
    world.commit({A0: 5})
    world.settle()
    told = world.commit({A0: 9, A1: 9})
    world.settle(refusal)
    assert codes(told.only) == {A0: told_as, A1: told_as}
    assert world.offsets() == {A0: 5}
    assert world.fetch([A0], require_stable=True)[A0].offset == 5, "nothing is left undecided"


def test_the_later_of_two_commits_counts_even_if_the_earlier_is_refused_later() -> None:
    world = World()
    world.commit({A0: 1})
    world.commit({A0: 2})
    world.log.answer_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.turn()
    world.log.answer_one()
    world.turn()
    assert world.offsets() == {A0: 2}


def test_if_the_later_of_two_commits_is_refused_the_earlier_counts() -> None:
    world = World()
    world.commit({A0: 1})
    world.commit({A0: 2})
    world.log.answer_one()
    world.log.answer_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.turn()
    assert world.offsets() == {A0: 1}


def test_partitions_that_do_not_exist_are_refused_and_the_others_are_not() -> None:
    world = World()
    told = world.commit({A0: 1, ("syslog", 4): 1, ("nowhere", 0): 1})
    world.settle()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(told.only) == {A0: ErrorCode.NONE, ("syslog", 4): unknown, ("nowhere", 0): unknown}
    assert world.offsets() == {A0: 1}


def test_a_commit_of_unknown_partitions_alone_writes_nothing() -> None:
    world = World()
    told = world.commit({("nowhere", 0): 1}, member_id="nobody", generation_id=7)
    assert codes(told.only) == {("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not world.log.waiting and len(world.coordinator.directory) == 0


@pytest.mark.parametrize(("metadata", "error"), [("m" * 4_096, 0), ("m" * 4_097, 12), ("ä" * 4_096, 0), ("💡" * 2_048, 0), ("💡" * 2_049, 12)])
def test_metadata_has_a_largest_size_in_javas_characters(metadata: str, error: int) -> None:
    world = World()
    told = world.commit({A0: OffsetCommitPartition(0, 1, metadata=metadata), A1: 1})
    world.settle()
    assert codes(told.only) == {A0: ErrorCode(error), A1: ErrorCode.NONE}
    assert (A0 in world.offsets()) == (not error)


def test_members_commit_in_their_generation_only() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    for member_id, generation, error in (
        (leader, generation_id, ErrorCode.NONE),
        (other, generation_id, ErrorCode.NONE),
        (leader, generation_id - 1, ErrorCode.ILLEGAL_GENERATION),
        (leader, generation_id + 1, ErrorCode.ILLEGAL_GENERATION),
        (leader, -1, ErrorCode.ILLEGAL_GENERATION),
        ("nobody", generation_id, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        before = world.offsets()
        told = world.commit({A0: generation + 100}, member_id=member_id, generation_id=generation)
        world.settle()
        assert codes(told.only) == {A0: error}, (member_id, generation)
        assert (world.offsets() == before) == (error is not ErrorCode.NONE or before.get(A0) == generation + 100)


def test_during_a_rebalance_members_may_commit_until_they_have_joined_again() -> None:
    world = World()
    (leader, other), generation_id = world.stable_group(2)
    joined = world.join(leader)
    told = world.commit({A0: 8}, member_id=other, generation_id=generation_id)
    world.settle()
    assert codes(told.only) == {A0: ErrorCode.NONE}
    world.join(other)
    late = world.commit({A0: 9}, member_id=other, generation_id=joined.only.generation_id)
    assert codes(late.only) == {A0: ErrorCode.REBALANCE_IN_PROGRESS}
    old = world.commit({A0: 9}, member_id=other, generation_id=generation_id)
    assert codes(old.only) == {A0: ErrorCode.ILLEGAL_GENERATION}
    assert world.offsets() == {A0: 8}


def test_a_generation_of_an_unknown_group_is_illegal() -> None:
    world = World()
    told = world.commit({A0: 1}, member_id="m", generation_id=3)
    assert codes(told.only) == {A0: ErrorCode.ILLEGAL_GENERATION} and len(world.coordinator.directory) == 0


def test_consumers_that_assign_themselves_commit_to_groups_without_members_and_without_a_name() -> None:
    world = World()
    for group in ("simple", ""):
        world.commit({A0: 3}, group=group)
        world.settle()
        assert world.offsets(group=group) == {A0: 3}
    assert {(group.group_id, group.protocol_type, group.group_state) for group in world.list_groups().groups} == {("simple", "", "Empty"), ("", "", "Empty")}


def test_commits_of_an_unloaded_partition_receive_not_coordinator() -> None:
    world = World()
    world.coordinator.unload(world.partition(), world.now_ms)
    assert codes(world.commit({A0: 1}).only) == {A0: ErrorCode.NOT_COORDINATOR}
    for version, group_error, partition_error in ((8, 16, None), (7, 16, None), (1, 0, 16)):
        (answer,) = world.fetch_groups(OffsetFetchGroup("readers", topics=as_topics([A0])), version=version).only.groups
        assert answer.error_code == group_error
        assert [each.error_code for topic in answer.topics for each in topic.partitions] == ([partition_error] if partition_error else [])
    world.coordinator.begin_load(world.partition())
    assert codes(world.commit({A0: 1}).only) == {A0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


def test_an_append_that_is_answered_after_the_partition_went_still_answers_its_client() -> None:
    world = World()
    told = world.commit({A0: 1})
    world.coordinator.unload(world.partition(), world.now_ms)
    world.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert codes(told.only) == {A0: ErrorCode.NOT_COORDINATOR}


def test_several_groups_are_asked_at_once_and_each_has_its_own_answer() -> None:
    world = World()
    world.commit({A0: 1}, group="one")
    world.commit({A0: 2, A1: 3}, group="two")
    world.settle()
    told = world.fetch_groups(OffsetFetchGroup("one", topics=as_topics([A0])), OffsetFetchGroup("two"), OffsetFetchGroup("three"))
    answers = {group.group_id: {(topic, each.partition): each.offset for topic, results in group.topics for each in results} for group in told.only.groups}
    assert answers == {"one": {A0: 1}, "two": {A0: 2, A1: 3}, "three": {}}


def test_a_commit_in_flight_makes_its_partition_unstable() -> None:
    world = World()
    world.commit({A0: 1, A1: 1})
    world.settle()
    world.commit({A0: 2})
    found = world.fetch([A0, A1], require_stable=True)
    assert (found[A0].offset, found[A0].error_code) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert (found[A1].offset, found[A1].error_code) == (1, 0)
    assert world.fetch(None, require_stable=True)[A0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert world.fetch([A0])[A0].offset == 1
    world.settle()
    assert world.fetch([A0], require_stable=True)[A0].offset == 2


def test_the_oldest_clients_keep_their_offsets_in_zookeeper() -> None:
    world = World()
    told = world.commit({A0: 11, ("nowhere", 0): 1}, version=0)
    assert not told
    world.zookeeper.answer_all()
    world.settle()
    assert codes(told.only) == {A0: ErrorCode.NONE, ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.log.batches == 0 and world.offsets() == {}
    fetched = world.fetch_groups(OffsetFetchGroup("readers", topics=as_topics([A0, A1, ("nowhere", 0)])), version=0)
    world.zookeeper.answer_all()
    world.settle()
    results = {(topic, each.partition): (each.offset, each.error_code) for topic, partitions in fetched.only.groups[0].topics for each in partitions}
    assert results == {A0: (11, 0), A1: (-1, 3), ("nowhere", 0): (-1, 3)}
