"""The state of one streams group (KIP-1071): members, epochs, topology, and the tasks that members are on their way to.

As `consumer_group.py`: a change is made on a copy, which takes the place of the state before it when the log has it. Only what the topics are for the
topology (`configured`) is not in the log. Owned by the group coordinator. Weak spot: the first change of a copy costs a pointer a member.
"""

from __future__ import annotations

from typing import Final

from appliance.base.invariants import check
from appliance.protocol.streams_apis import Topology
from services.coordinator.groups.consumer_group import ASSIGNING, EMPTY, RECONCILING, STABLE
from services.coordinator.streams.streams_member import NOTHING, StreamsMember, Task, TaskRole, TaskSet
from services.coordinator.streams.topology import Configured

NOT_READY: Final = "NotReady"
FIRST_EPOCH: Final = 1
"""Of a group that nothing was assigned in: what a member is in while the group waits for more members."""


class StreamsGroup:
    """Values are replaced, never changed; a state that is in the log is not touched any more. Implements `group_turns.TurnState`."""

    __slots__ = (
        "_holders",
        "_shares",
        "assigned_ms",
        "checked_generation",
        "configured",
        "group_epoch",
        "members",
        "standby_count",
        "target_epoch",
        "targets",
        "topics_hash",
        "topology",
        "validated_epoch",
    )

    def __init__(self) -> None:
        self.group_epoch = FIRST_EPOCH
        self.target_epoch = FIRST_EPOCH
        self.members: dict[str, StreamsMember] = {}
        self.targets: dict[str, TaskSet] = {}
        self.topology: Topology | None = None
        self.topics_hash = 0
        self.validated_epoch = -1
        """Of the topology for which all topics were there, or -1."""
        self.standby_count = 0
        """With which the target was made."""
        self.assigned_ms = 0
        self.configured: Configured | None = None
        self.checked_generation: int | None = None
        """Which generation of all topics `configured` was made for."""
        self._holders: dict[Task, dict[tuple[str, TaskRole], str]] | None = None
        self._shares = False

    def copy(self) -> StreamsGroup:
        """What it does not change it has in common with this one."""
        other = StreamsGroup()
        for name in self.__slots__:
            if name != "_holders":
                setattr(other, name, getattr(self, name))
        other._shares = True
        return other

    def _unshare(self) -> None:
        if self._shares:
            self.members, self.targets = self.members.copy(), self.targets.copy()
            self._shares = False

    # ---- members

    def put(self, member: StreamsMember) -> None:
        """A new member, or one that has changed."""
        self._unshare()
        self._disown(self.members.get(member.member_id))
        self.members[member.member_id] = member
        self._own(member)

    def remove(self, member_id: str) -> StreamsMember:
        self._unshare()
        member = self.members.pop(member_id)
        self.targets.pop(member_id, None)
        self._disown(member)
        return member

    def aim(self, targets: dict[str, TaskSet]) -> None:
        """What the members are to have in the end."""
        self._unshare()
        self.targets = targets

    def target_of(self, member_id: str) -> TaskSet:
        return self.targets.get(member_id, NOTHING)

    # ---- tasks

    def _own(self, member: StreamsMember) -> None:
        if self._holders is None:
            return
        for role in TaskRole:
            for task in member.current.assigned[role] | member.current.revoking[role]:
                holders = self._holders.setdefault(task, {})
                if role is TaskRole.ACTIVE:
                    other = next((who for who, its_role in holders if its_role is TaskRole.ACTIVE), None)
                    check(other is None, f"task {task} is active on {other} and given to {member.member_id}")
                holders[member.member_id, role] = member.wish.process_id

    def _disown(self, member: StreamsMember | None) -> None:
        if self._holders is None or member is None:
            return
        for role in TaskRole:
            for task in member.current.assigned[role] | member.current.revoking[role]:
                self._holders[task].pop((member.member_id, role), None)

    def is_free(self, member: StreamsMember, role: TaskRole, task: Task) -> bool:
        """Whether the member may have the task in this role. What it has itself, in any role, it has given up by then."""
        if self._holders is None:
            self._holders = {}
            for each in self.members.values():
                self._own(each)
        process_id = member.wish.process_id
        return not any(
            who != member.member_id and (its_process == process_id or (role is TaskRole.ACTIVE and its_role is TaskRole.ACTIVE))
            for (who, its_role), its_process in self._holders.get(task, {}).items()
        )

    # ---- from outside

    @property
    def is_ready(self) -> bool:
        """Whether the topology and all its topics are there."""
        return self.topology is not None and self.configured is not None and self.configured.is_ready

    @property
    def state_name(self) -> str:
        if not self.members:
            return EMPTY
        if not self.is_ready:
            return NOT_READY
        if self.group_epoch > self.target_epoch:
            return ASSIGNING
        is_there = all(member.is_reconciled_to(self.target_epoch) for member in self.members.values())
        return STABLE if is_there else RECONCILING
