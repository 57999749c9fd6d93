"""The assignor `sticky` of streams groups (KIP-1071): which member has which task.

Pure. Every task is active on one member; every task with state has as many standbys as the group wants, each on another process,
as far as there are processes. Members have as many active tasks as each other, give or take one. A task stays where it was, or goes to
a member that has it as a standby; only then to the one that has the least. Weak spot: racks and client tags are ignored, as
in Kafka 4.2, where no member warms up either.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from typing import NamedTuple

from services.coordinator.streams.streams_member import Task, TaskSet


class Candidate(NamedTuple):
    """A member: its process, and what it was to have before."""

    process_id: str
    former: TaskSet


class _Loads:
    """What members and processes have so far."""

    def __init__(self, candidates: Mapping[str, Candidate]) -> None:
        self._process_of = {member_id: candidate.process_id for member_id, candidate in candidates.items()}
        self.active: dict[str, set[Task]] = {member_id: set() for member_id in candidates}
        self.standby: dict[str, set[Task]] = {member_id: set() for member_id in candidates}
        self.of_process: dict[str, set[Task]] = {process_id: set() for process_id in self._process_of.values()}

    def count(self, member_id: str) -> int:
        return len(self.active[member_id]) + len(self.standby[member_id])

    def holds(self, member_id: str, task: Task) -> bool:
        """Whether the member's process has the task: its state directory serves one task once."""
        return task in self.of_process[self._process_of[member_id]]

    def add(self, member_id: str, task: Task, is_active: bool) -> None:
        (self.active if is_active else self.standby)[member_id].add(task)
        self.of_process[self._process_of[member_id]].add(task)


def sticky_tasks(candidates: Mapping[str, Candidate], tasks: Collection[Task], stateful: Collection[Task], standby_count: int) -> dict[str, TaskSet]:
    """Return the tasks of each member. `stateful`: those of `tasks` that have standbys."""
    if not candidates:
        return {}
    loads = _Loads(candidates)
    _assign_active(loads, candidates, sorted(tasks, key=_by_partition))
    if standby_count > 0:
        _assign_standbys(loads, candidates, sorted(stateful, key=_by_partition, reverse=True), standby_count)
    return {member_id: TaskSet(frozenset(loads.active[member_id]), frozenset(loads.standby[member_id])) for member_id in candidates}


def _by_partition(task: Task) -> tuple[int, str]:
    """Members get partitions of each subtopology, not all of one."""
    return task[1], task[0]


def _owners(candidates: Mapping[str, Candidate], is_active: bool) -> dict[Task, list[str]]:
    owners: dict[Task, list[str]] = {}
    for member_id in sorted(candidates):
        former = candidates[member_id].former
        for task in former.active if is_active else former.standby:
            owners.setdefault(task, []).append(member_id)
    return owners


def _assign_active(loads: _Loads, candidates: Mapping[str, Candidate], tasks: list[Task]) -> None:
    least, with_one_more = divmod(len(tasks), len(candidates))

    def has_room(member_id: str) -> bool:
        count = len(loads.active[member_id])
        return count < least or (count == least and with_one_more > 0)

    def give(member_id: str, task: Task) -> None:
        nonlocal with_one_more
        with_one_more -= len(loads.active[member_id]) == least
        loads.add(member_id, task, True)

    for is_active in (True, False):
        owners, left = _owners(candidates, is_active), []
        for task in tasks:
            takers = [member_id for member_id in owners.get(task, ()) if has_room(member_id)]
            if takers:
                give(min(takers, key=lambda member_id: (len(loads.active[member_id]), member_id)), task)
            else:
                left.append(task)
        tasks = left
    queue = [(len(loads.active[member_id]), member_id) for member_id in candidates]
    heapq.heapify(queue)
    for task in tasks:
        count, member_id = heapq.heappop(queue)
        loads.add(member_id, task, True)
        heapq.heappush(queue, (count + 1, member_id))


def _assign_standbys(loads: _Loads, candidates: Mapping[str, Candidate], tasks: list[Task], standby_count: int) -> None:
    """First where they were, or where the task was active, as long as that is not too much; then where the least is."""
    total = sum(map(len, loads.active.values())) + len(tasks) * min(standby_count, len(loads.of_process) - 1)
    quota = -(-total // len(candidates))
    active, standby = _owners(candidates, True), _owners(candidates, False)
    left: list[tuple[Task, int]] = []
    for task in tasks:
        wanted = standby_count
        for member_id in (*active.get(task, ()), *standby.get(task, ())):
            if wanted and loads.count(member_id) < quota and not loads.holds(member_id, task):
                loads.add(member_id, task, False)
                wanted -= 1
        if wanted:
            left.append((task, wanted))
    members: dict[str, list[tuple[int, str]]] = {}
    for member_id in sorted(candidates):
        members.setdefault(candidates[member_id].process_id, []).append((loads.count(member_id), member_id))
    for of_process in members.values():
        heapq.heapify(of_process)
    queue = [(sum(count for count, _ in of_process) / len(of_process), process_id) for process_id, of_process in members.items()]
    heapq.heapify(queue)
    for task, wanted in left:
        passed = []
        while wanted and queue:
            load, process_id = heapq.heappop(queue)
            of_process = members[process_id]
            count, member_id = of_process[0]
            if not loads.holds(member_id, task):
                loads.add(member_id, task, False)
                heapq.heapreplace(of_process, (count + 1, member_id))
                load += 1 / len(of_process)
                wanted -= 1
            passed.append((load, process_id))
        for each in passed:
            heapq.heappush(queue, each)
