"""The groups that this box coordinates, and whether it may answer for them now.

A group id maps to one hosted group: its offsets, and its members under one of the two protocols. Groups come and go with the
partitions of `__consumer_offsets` that this box leads. Owned by the group coordinator. Weak spot: an empty group without
commits stays until the next check for expired offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.base.invariants import check
from appliance.base.model import ProducerId
from appliance.cluster.state_log import partition_of
from services.coordinator.groups.group import Group
from services.coordinator.groups.group_membership import ClassicMembership, GroupMembership
from services.coordinator.groups.offsets import GroupOffsets
from services.coordinator.groups.ports import NameBound, OnRefused

NAME_CHARACTERS_MAX: Final = 1_024
"""Of a new group's id, and of its protocol type; all are in one answer of ListGroups. Kafka: 32,767."""


class HostedGroup:
    """`membership` is replaced when an empty group changes its protocol; `is_gone` once the group was deleted or its partition went elsewhere."""

    __slots__ = ("group_id", "is_gone", "membership", "offsets", "partition")

    def __init__(self, group_id: str, partition: int, membership: GroupMembership) -> None:
        self.group_id = group_id
        self.partition = partition
        self.membership = membership
        self.offsets = GroupOffsets()
        self.is_gone = False

    @property
    def classic(self) -> Group | None:
        """Its members, if they speak the classic protocol."""
        return self.membership.group if isinstance(self.membership, ClassicMembership) else None


class GroupDirectory:
    """Groups by id; partitions by state: loading, active, or led elsewhere."""

    def __init__(self, partitions: int, groups_max: int, on_refused: OnRefused) -> None:
        """`groups_max`: further groups are refused. More may be there: those in the log are loaded, whatever the bound."""
        self._partitions = partitions
        self._groups_max = groups_max
        self.on_refused = on_refused
        self.has_memory: Callable[[], bool] = lambda: True
        """False while nothing may grow."""
        self._loading: set[int] = set()
        self._active: dict[int, dict[str, HostedGroup]] = {}
        self._groups: dict[str, HostedGroup] = {}
        self._transactions: dict[tuple[int, ProducerId], set[str]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[HostedGroup]:
        return iter(self._groups.values())

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def partition_for(self, group_id: str) -> int:
        return partition_of(group_id, self._partitions)

    def refusal(self, group_id: str, may_be_empty: bool = False, may_create: bool = False) -> ErrorCode:
        """Why nothing can be said about this group here, or NONE. The empty id is a group for old consumers that only keep offsets.

        `may_create`: the request creates the group if it does not exist; POLICY_VIOLATION if that is one too many.
        """
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        if group_id in self._groups:
            return ErrorCode.NONE
        if may_create and len(group_id) > NAME_CHARACTERS_MAX:
            return ErrorCode.INVALID_GROUP_ID
        partition = self.partition_for(group_id)
        if partition in self._active:
            if may_create and len(self._groups) >= self._groups_max:
                self.on_refused(NameBound.GROUPS)
                return ErrorCode.POLICY_VIOLATION
            if may_create and not self.may_grow(1):
                return ErrorCode.POLICY_VIOLATION
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if partition in self._loading else ErrorCode.NOT_COORDINATOR

    def may_grow(self, growth: int) -> bool:
        """Return whether a group may have so many bytes more; a refusal is counted."""
        if growth <= 0 or self.has_memory():
            return True
        self.on_refused(NameBound.MEMORY)
        return False

    def find(self, group_id: str) -> HostedGroup | None:
        return self._groups.get(group_id)

    def find_classic(self, group_id: str) -> Group | None:
        hosted = self._groups.get(group_id)
        return hosted.classic if hosted is not None else None

    def host(self, group_id: str, now_ms: int) -> HostedGroup:
        """The group, made if it is not there: an empty classic one."""
        hosted = self._groups.get(group_id)
        if hosted is None:
            partition = self.partition_for(group_id)
            hosted = HostedGroup(group_id, partition, ClassicMembership(Group(group_id, partition, now_ms)))
            self._add(hosted)
        return hosted

    def _add(self, hosted: HostedGroup) -> None:
        check(hosted.partition in self._active, f"group {hosted.group_id} is hosted in partition {hosted.partition}, which is not active here")
        self._groups[hosted.group_id] = hosted
        self._active[hosted.partition][hosted.group_id] = hosted

    def remove(self, hosted: HostedGroup) -> None:
        hosted.is_gone = True
        del self._groups[hosted.group_id]
        del self._active[hosted.partition][hosted.group_id]

    # ---- partitions

    def begin_load(self, partition: int) -> None:
        check(partition not in self._active, f"partition {partition} is loaded while it is active")
        self._loading.add(partition)

    def activate(self, partition: int, groups: list[HostedGroup]) -> None:
        self._loading.remove(partition)
        self._active[partition] = {}
        for hosted in groups:
            self._add(hosted)
            for producer_id in hosted.offsets.producers():
                self.note_transaction(hosted, producer_id)

    def unload(self, partition: int) -> list[HostedGroup]:
        """What was hosted there, which is gone now."""
        self._loading.discard(partition)
        gone = list(self._active.pop(partition, {}).values())
        for hosted in gone:
            hosted.is_gone = True
            del self._groups[hosted.group_id]
        for key in [key for key in self._transactions if key[0] == partition]:
            del self._transactions[key]
        return gone

    # ---- transactions

    def note_transaction(self, hosted: HostedGroup, producer_id: ProducerId) -> None:
        """This producer has undecided offsets of the group."""
        self._transactions.setdefault((hosted.partition, producer_id), set()).add(hosted.group_id)

    def end_transaction(self, partition: int, producer_id: ProducerId, is_commit: bool) -> None:
        """Its marker is in this partition: its offsets of all groups there are decided."""
        for group_id in self._transactions.pop((partition, producer_id), ()):
            hosted = self._groups.get(group_id)
            if hosted is not None:
                hosted.offsets.end_transaction(producer_id, is_commit)
