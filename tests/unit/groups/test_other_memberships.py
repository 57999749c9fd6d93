"""Groups whose members are kept by somebody else: their offsets are kept here, and their members are asked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from appliance.base.errors import ErrorCode
from appliance.coordination.state_log import LoadedRecord, StateRecord
from appliance.groups.group_coordinator import GroupCoordinator
from appliance.groups.group_records import CONSUMER_GROUP_METADATA, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue
from appliance.groups.membership import ExpiryRule, GroupType, Membership
from tests.support.group_world import GROUP, START_MS, World, codes

A0 = ("syslog", 0)
KEY = CONSUMER_GROUP_METADATA.encode_key(ConsumerGroupMetadataKey(GROUP))


class OneEpoch:
    """A `Membership` of which only the epoch is known."""

    group_type = GroupType.CONSUMER
    protocol_type = "consumer"

    def __init__(self, epoch: int, is_empty: bool) -> None:
        self.generation_id = epoch
        self.is_empty = is_empty

    @property
    def state_name(self) -> str:
        return "Empty" if self.is_empty else "Stable"

    def commit_problem(self, member_id: str, group_instance_id: str | None, generation_id: int, is_transactional: bool) -> ErrorCode:
        return ErrorCode.NONE if generation_id == self.generation_id else ErrorCode.STALE_MEMBER_EPOCH

    def fetch_problem(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def deletion_problem(self) -> ErrorCode:
        return ErrorCode.NONE if self.is_empty else ErrorCode.NON_EMPTY_GROUP

    def offset_deletion_problem(self) -> ErrorCode:
        return ErrorCode.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        return not self.is_empty

    def expiry_rule(self) -> ExpiryRule | None:
        return None

    def tombstones(self) -> list[StateRecord]:
        return [StateRecord(KEY, None)]


class Others:
    """`OtherMemberships` that reads epochs and nothing else."""

    def __init__(self, is_empty: bool) -> None:
        self.is_empty = is_empty
        self.epochs: dict[str, int] = {}
        self.unloaded: list[int] = []

    def load(self, partition: int, record: LoadedRecord) -> None:
        assert record.key == KEY
        if record.value is None:
            self.epochs.pop(GROUP, None)
        else:
            self.epochs[GROUP] = CONSUMER_GROUP_METADATA.decode_value(record.value).epoch

    def finish_load(self, partition: int, now_ms: int) -> Mapping[str, Membership]:
        memberships = {group_id: OneEpoch(epoch, self.is_empty) for group_id, epoch in self.epochs.items()}
        self.epochs.clear()
        return memberships

    def unload(self, partition: int, now_ms: int) -> None:
        self.unloaded.append(partition)


class ConsumerWorld(World):
    """The group is one of the newer protocol, of epoch 7."""

    def __init__(self, is_empty: bool = False) -> None:
        self.others = Others(is_empty)
        super().__init__()
        value = CONSUMER_GROUP_METADATA.encode_value(ConsumerGroupMetadataValue(7))
        self.log.content[self.partition()] = [LoadedRecord(0, START_MS, KEY, value)]
        self.restart()

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.log, self.settings, self.new_member_id, self.topics, self.zookeeper, self.others)


def test_offsets_are_committed_by_whom_the_membership_knows() -> None:
    world = ConsumerWorld()
    told = [world.commit({A0: 1}, member_id="m", generation_id=epoch) for epoch in (6, 7)]
    world.settle()
    assert [codes(each.only)[A0] for each in told] == [ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.NONE]
    world.restart()
    assert world.offsets() == {A0: 1}
    assert [tuple(group) for group in world.list_groups().groups] == [(GROUP, "consumer", "Stable", "consumer")]
    assert world.coordinator.skipped_records == 0


def test_classic_requests_do_not_reach_members_of_the_newer_protocol() -> None:
    world = ConsumerWorld()
    assert world.join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join("m").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("m", 7) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync("m", 7).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.describe().group_state == "Dead"


def test_an_empty_group_takes_the_protocol_of_who_comes_and_keeps_its_offsets() -> None:
    world = ConsumerWorld(is_empty=True)
    world.commit({A0: 1}, generation_id=7)
    world.settle()
    (member_id,), _ = world.stable_group(1)
    assert world.describe().group_state == "Stable" and world.offsets() == {A0: 1}
    world.restart()
    assert [member.member_id for member in world.describe().members] == [member_id]
    assert world.offsets() == {A0: 1}


@pytest.mark.parametrize(("is_empty", "error"), [(True, 0), (False, 68)])
def test_a_group_is_deleted_if_its_membership_lets_it(is_empty: bool, error: int) -> None:
    world = ConsumerWorld(is_empty)
    told = world.delete_groups(GROUP)
    world.settle()
    assert told.only.groups[0].error_code == error
    world.restart()
    assert bool(world.list_groups().groups) == bool(error)


def test_who_keeps_the_members_is_told_when_a_partition_goes() -> None:
    world = ConsumerWorld()
    world.coordinator.unload(world.partition(), world.now_ms)
    assert world.others.unloaded == [world.partition()]
