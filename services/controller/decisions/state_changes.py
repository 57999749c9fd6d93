"""Change the states of many partitions in conditional transactions, each with a change node,
despite concurrent writers.

Every change of an existing state goes through `change_states`. If another process wrote a
partition's state first, that partition is read and decided again, and the others continue. If the
process dies between two transactions, the next controller or incarnation decides the rest again.
Owned by the controller process of each box. Weak: a partition that others keep writing costs one
transaction per attempt, and is skipped after `ATTEMPTS_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from appliance.cluster.znodes import PartitionState, partition_state_path
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import topic_registry
from services.controller.zookeeper.change_log import ClusterChange, StateRow, change_write
from services.controller.zookeeper.operation import WRITES_MAX, Guard, Operation, all_of
from services.controller.zookeeper.requests import BadVersion, Check, Get, MultiFailed, Node, NoNode, Write
from services.controller.zookeeper.topic_registry import TopicState

ATTEMPTS_MAX = 5
"""Decisions for one partition while others write its state."""
REREAD_ALL_AFTER = 2
"""After so many refused transactions all partitions of the batch are read again: another process is
changing many.
"""


class StateChange(NamedTuple):
    """A change of one partition's state.

    `decide` gets the newest known state and returns the new one, or None to leave it. If one of
    `checks` (znode versions) fails, the change is dropped. `is_forced`: write the state even if it
    is the same, so that any write that is under way on the known version fails.
    """

    topic: TopicState
    partition: int
    decide: Callable[[PartitionState], PartitionState | None]
    checks: tuple[Check, ...] = ()
    is_forced: bool = False


class _Written(NamedTuple):
    change: StateChange
    row: StateRow


def change_states(cluster: Cluster, changes: Iterable[StateChange], guard: Guard) -> Operation[list[StateChange]]:
    """Decide and write; return the changes that were made.

    The others were not needed, were refused by a check, or were given up.
    """
    waiting = list(changes)
    attempts: dict[tuple[str, int], int] = {}
    made: list[StateChange] = []
    refusals = 0
    while waiting:
        batch, writes, waiting = _next_batch(waiting)
        if not batch:
            continue
        try:
            results = yield from guard.guard((*writes, change_write(ClusterChange(cluster.broker_id, states=tuple(written.row for written in batch)))))
        except MultiFailed as refused:
            if not isinstance(refused.cause, BadVersion | NoNode):
                raise
            culprit = _owner(batch, refused.index)
            again = [written.change for written in batch if written.change is not culprit]
            refusals += 1
            if not isinstance(refused.write, Check):
                key = (culprit.topic.name, culprit.partition)
                attempts[key] = attempts.get(key, 0) + 1
                stale = [culprit] if refusals <= REREAD_ALL_AFTER else [written.change for written in batch]
                there = yield from reread(cluster, [(change.topic, change.partition) for change in stale])
                if attempts[key] < ATTEMPTS_MAX and there[stale.index(culprit)]:
                    again.append(culprit)
            waiting = again + waiting
            continue
        del results
        cluster.is_image_due = True
        for change, row in batch:
            cluster.learn_state(change.topic, change.partition, row.state, row.version)
            made.append(change)
    return made


def _next_batch(waiting: list[StateChange]) -> tuple[list[_Written], list[Write], list[StateChange]]:
    """As many as one transaction takes, and what is left for the next."""
    batch: list[_Written] = []
    writes: list[Write] = []
    for index, change in enumerate(waiting):
        topic, partition = change.topic, change.partition
        current = topic.states.get(partition)
        state = change.decide(current) if current is not None else None
        if state is None or (state == current and not change.is_forced):
            continue
        if len(writes) + 1 + len(change.checks) > WRITES_MAX:
            return batch, writes, waiting[index:]
        writes += [*change.checks, topic_registry.state_write(topic, partition, state)]
        batch.append(_Written(change, state_row(topic, partition, state, topic.state_versions[partition] + 1)))
    return batch, writes, []


def _owner(batch: list[_Written], index: int) -> StateChange:
    """Return the change to which the `index`-th write of the transaction belongs."""
    for written in batch:
        index -= 1 + len(written.change.checks)
        if index < 0:
            return written.change
    return batch[-1].change


def state_row(topic: TopicState, partition: int, state: PartitionState, version: int) -> StateRow:
    return StateRow(topic.name, str(topic.topic_id), partition, state, version)


def reread(cluster: Cluster, partitions: list[tuple[TopicState, int]]) -> Operation[list[bool]]:
    """Read these states again; return for each whether it exists."""
    paths = [partition_state_path(topic.name, partition) for topic, partition in partitions]
    nodes = yield from all_of([Get(path) for path in paths])
    there = []
    for (topic, partition), path, node in zip(partitions, paths, nodes, strict=True):
        if isinstance(node, Node):
            cluster.learn_state(topic, partition, PartitionState.decode(path, node.data), node.version)
        elif not isinstance(node, NoNode):
            raise node
        there.append(isinstance(node, Node))
    return there
