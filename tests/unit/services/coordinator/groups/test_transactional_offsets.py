"""TxnOffsetCommit: offsets that count when their transaction is committed, and never otherwise."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import ProducerIdentity
from tests.support.group_world import World, codes

A0 = ("syslog", 0)
A1 = ("syslog", 1)


def test_offsets_of_a_transaction_count_from_its_commit_on() -> None:
    world = World()
    world.commit({A0: 1})
    world.settle()
    told = world.txn_commit(9, {A0: 5, A1: 6})
    assert world.log.waiting[0].producer == ProducerIdentity(9, 0)
    world.settle()
    assert codes(told.only) == {A0: ErrorCode.NONE, A1: ErrorCode.NONE}
    assert world.offsets() == {A0: 1}
    assert world.fetch([A0], require_stable=True)[A0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(9, is_commit=True)
    assert world.offsets() == {A0: 5, A1: 6}
    assert world.fetch([A0], require_stable=True)[A0].offset == 5


def test_a_fetch_of_all_offsets_reports_a_pending_first_commit() -> None:
    """Left out, it would look as if the group had none there: a sink that asks whether its batch is in went on."""
    world = World()
    world.txn_commit(9, {A0: 5})
    world.settle()
    assert world.fetch(require_stable=True)[A0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert world.fetch() == {}
    world.end_transaction(9, is_commit=True)
    assert world.fetch(require_stable=True)[A0].offset == 5


def test_offsets_of_an_aborted_transaction_never_were() -> None:
    world = World()
    world.txn_commit(9, {A0: 5})
    world.settle()
    world.end_transaction(9, is_commit=False)
    assert world.offsets() == {}
    assert world.fetch([A0], require_stable=True)[A0].error_code == 0


def test_a_marker_ends_the_transaction_of_its_producer_only() -> None:
    world = World()
    for producer_id, place in ((9, A0), (10, A1)):
        world.txn_commit(producer_id, {place: 5})
    world.settle()
    world.end_transaction(10, is_commit=True)
    assert world.offsets() == {A1: 5}
    assert world.fetch([A0], require_stable=True)[A0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_a_marker_ends_the_transaction_in_all_groups_of_its_partition() -> None:
    world = World(offsets_topic_num_partitions=1)
    for group in ("one", "two"):
        world.txn_commit(9, {A0: 5}, group=group)
    world.settle()
    world.end_transaction(9, is_commit=True)
    assert world.offsets(group="one") == world.offsets(group="two") == {A0: 5}


def test_a_transaction_that_ends_late_does_not_put_back_an_older_offset() -> None:
    world = World()
    world.txn_commit(9, {A0: 5})
    world.settle()
    world.commit({A0: 50})
    world.settle()
    world.end_transaction(9, is_commit=True)
    assert world.offsets() == {A0: 50}
    world.restart()
    assert world.offsets() == {A0: 50}


def test_an_undecided_offset_goes_with_its_topic_and_does_not_come_back_with_the_commit() -> None:
    world = World()
    world.txn_commit(9, {A0: 5, ("audit", 0): 6})
    world.settle()
    world.coordinator.on_topics_deleted({"syslog"}, world.now_ms)
    world.settle()
    assert world.fetch([A0], require_stable=True)[A0].error_code == 0
    world.end_transaction(9, is_commit=True)
    assert world.offsets() == {("audit", 0): 6}
    world.restart()
    assert world.offsets() == {("audit", 0): 6}


def test_a_group_that_is_deleted_does_not_come_back_with_a_commit() -> None:
    world = World()
    world.txn_commit(9, {A0: 5})
    world.settle()
    told = world.delete_groups("readers")
    world.settle()
    assert [each.error_code for each in told.only.groups] == [ErrorCode.NONE]
    world.end_transaction(9, is_commit=True)
    assert world.offsets() == {}
    world.restart()
    assert world.offsets() == {}


def test_the_last_of_two_commits_in_one_transaction_counts() -> None:
    world = World()
    for offset in (5, 6):
        world.txn_commit(9, {A0: offset})
    world.settle()
    world.end_transaction(9, is_commit=True)
    assert world.offsets() == {A0: 6}
    assert world.fetch([A0], require_stable=True)[A0].offset == 6


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_that_is_heard_of_before_the_answer_of_the_append_decides_about_it(is_commit: bool) -> None:
    world = World()
    told = world.txn_commit(9, {A0: 5})
    world.coordinator.complete_transaction(world.partition(), 9, is_commit)
    assert world.offsets() == {}
    world.settle()
    assert codes(told.only) == {A0: ErrorCode.NONE}
    assert world.offsets() == ({A0: 5} if is_commit else {})
    assert world.fetch([A0], require_stable=True)[A0].error_code == 0


@pytest.mark.parametrize(
    ("refusal", "version", "told_as"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, 4, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.PRODUCER_FENCED, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_a_refused_append_leaves_nothing_of_the_transaction(refusal: ErrorCode, version: int, told_as: ErrorCode) -> None:
    world = World()
    told = world.txn_commit(9, {A0: 5}, version=version)
    world.settle(refusal)
    assert codes(told.only) == {A0: told_as}
    world.end_transaction(9, is_commit=True)
    assert world.offsets() == {} and world.fetch([A0], require_stable=True)[A0].error_code == 0


def test_producers_send_their_consumers_generation_from_version_3_on_only() -> None:
    world = World()
    (member_id,), generation_id = world.stable_group(1)
    assert codes(world.txn_commit(9, {A0: 5}, member_id=member_id, generation_id=generation_id - 1).only) == {A0: ErrorCode.ILLEGAL_GENERATION}
    assert codes(world.txn_commit(9, {A0: 5}, member_id="nobody", generation_id=generation_id).only) == {A0: ErrorCode.UNKNOWN_MEMBER_ID}
    told = [world.txn_commit(9, {A0: 5}, member_id=member_id, generation_id=generation_id), world.txn_commit(9, {A1: 5}, version=2)]
    world.settle()
    assert [list(codes(each.only).values()) for each in told] == [[ErrorCode.NONE]] * 2


def test_old_producers_know_no_coordinator_that_loads() -> None:
    world = World()
    world.coordinator.unload(world.partition(), world.now_ms)
    world.coordinator.begin_load(world.partition())
    assert codes(world.txn_commit(9, {A0: 5}, version=1).only) == {A0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert codes(world.txn_commit(9, {A0: 5}, version=2).only) == {A0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert codes(world.txn_commit(9, {A0: 5}, group="").only) == {A0: ErrorCode.INVALID_GROUP_ID}


def test_an_open_transaction_is_still_open_after_a_restart() -> None:
    world = World()
    world.commit({A0: 1})
    world.txn_commit(9, {A0: 5})
    world.txn_commit(10, {A1: 6})
    world.settle()
    world.end_transaction(10, is_commit=True)
    world.restart()
    assert world.offsets() == {A0: 1, A1: 6}
    assert world.fetch([A0], require_stable=True)[A0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(9, is_commit=True)
    assert world.offsets() == {A0: 5, A1: 6}
    world.restart()
    assert world.offsets() == {A0: 5, A1: 6}


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_that_is_written_while_its_partition_is_being_read_counts(is_commit: bool) -> None:
    world = World()
    world.commit({A0: 1})
    world.txn_commit(9, {A0: 5})
    world.settle()
    partition, before = world.partition(), list(world.log.content[world.partition()])
    world.restart()
    world.coordinator.unload(partition, world.now_ms)
    world.coordinator.begin_load(partition)
    world.coordinator.load(partition, before[:1])
    world.end_transaction(9, is_commit)
    world.coordinator.load(partition, before[1:])
    world.coordinator.finish_load(partition, world.now_ms)
    assert world.fetch([A0], require_stable=True)[A0].error_code == 0
    assert world.offsets() == {A0: 5 if is_commit else 1}
