"""One member of a streams group (KIP-1071): what it said of itself, and the tasks that it has.

Values that never change; a change makes a new one. A task is (subtopology, partition), and a member has it in one of three roles. Owned by its
group (`streams_group.py`). Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from appliance.protocol.streams_apis import Endpoint, KeyValue, TaskIds
from services.coordinator.groups.consumer_member import NEVER_JOINED, NO_EPOCH, MemberState
from services.coordinator.groups.member import ClientIdentity

Task: TypeAlias = tuple[str, int]
Tasks: TypeAlias = frozenset[Task]
NO_TASKS: Final[Tasks] = frozenset()


class TaskRole(IntEnum):
    """Also the index in a `TaskSet`."""

    ACTIVE = 0
    STANDBY = 1
    WARMUP = 2


class TaskSet(NamedTuple):
    """Tasks by role. Warm-up tasks are read from the log and never assigned, as in Kafka 4.2."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    def __and__(self, other: TaskSet) -> TaskSet:
        return TaskSet(*(mine & its for mine, its in zip(self, other, strict=True)))

    def __or__(self, other: TaskSet) -> TaskSet:
        return TaskSet(*(mine | its for mine, its in zip(self, other, strict=True)))

    def __sub__(self, other: TaskSet) -> TaskSet:
        return TaskSet(*(mine - its for mine, its in zip(self, other, strict=True)))

    def __bool__(self) -> bool:
        return any(tuple(self))


NOTHING: Final = TaskSet()


def tasks_of(rows: Iterable[TaskIds]) -> Tasks:
    return frozenset((subtopology_id, partition) for subtopology_id, partitions in rows for partition in partitions)


def as_rows(tasks: Tasks) -> tuple[TaskIds, ...]:
    """By subtopology, in an order that is always the same."""
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        found.setdefault(subtopology_id, []).append(partition)
    return tuple(TaskIds(subtopology_id, tuple(partitions)) for subtopology_id, partitions in found.items())


class StreamsWish(NamedTuple):
    """What a member said of itself; kept until it says something else."""

    rack_id: str | None = None
    client: ClientIdentity = ClientIdentity("", "")
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: Endpoint | None = None
    tags: tuple[KeyValue, ...] = ()


class CurrentTasks(NamedTuple):
    """How far a member has come. `assigned` are its own; `revoking` are still its own until it says that they are not."""

    epoch: int = NEVER_JOINED
    previous_epoch: int = NO_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: TaskSet = NOTHING
    revoking: TaskSet = NOTHING
    since: Mapping[Task, int] = {}
    """Of active tasks: the epoch in which the member got it, so that commits from then on count."""


class StreamsMember(NamedTuple):
    """Implements `member_deadlines.TimedMember`."""

    member_id: str
    wish: StreamsWish = StreamsWish()
    current: CurrentTasks = CurrentTasks()

    @property
    def is_classic(self) -> bool:
        return False

    @property
    def has_to_revoke(self) -> bool:
        return self.current.state is MemberState.UNREVOKED_PARTITIONS

    @property
    def rebalance_timeout_ms(self) -> int:
        return self.wish.rebalance_timeout_ms

    @property
    def session_timeout_ms(self) -> int | None:
        return None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.epoch == epoch


IsFree = Callable[[TaskRole, Task], bool]
"""Whether the member may have the task in this role now: no other member has it active, and no other of its process has it at all."""


def reconciled(member: StreamsMember, target_epoch: int, target: TaskSet, is_free: IsFree, owned: TaskSet | None) -> StreamsMember:
    """The member one step nearer to its target, if it can take one. `owned` is what it says it has; None if it did not say.

    As in consumer groups (`consumer_member.reconciled`): tasks are given up first, in whatever role, then the member enters the target epoch with the
    tasks that are free. So no task is ever active twice, and no process has a task twice.
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
    kept, given_up = current.assigned & target, current.assigned - target
    if given_up and (owned is None or owned & given_up):
        since = {task: current.since.get(task, epoch) for task in kept.active | given_up.active}
        return member._replace(current=CurrentTasks(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, given_up, since))
    wanted = target - kept
    free = TaskSet(*(frozenset(task for task in wanted[role] if is_free(role, task)) for role in TaskRole))
    state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS
    previous_epoch = current.previous_epoch if current.epoch == target_epoch else current.epoch
    assigned = kept | free
    since = {task: current.since.get(task, epoch) if task in kept.active else target_epoch for task in assigned.active}
    return member._replace(current=CurrentTasks(target_epoch, previous_epoch, state, assigned, NOTHING, since))
