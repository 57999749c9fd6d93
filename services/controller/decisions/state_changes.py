"""Changing the states of many partitions: conditional transactions, each with its change node, that survive it when others write at the same time.

Every change of a state that is there goes through `change_states`. What to write is decided anew for a partition whose state was written by somebody
else in between, and the rest goes on. Killed between two transactions, the rest is decided again by whoever comes next.
Owned by the controller process of each box. Weak spot: one partition that others keep writing costs a transaction for each attempt; it is
left after `ATTEMPTS_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from appliance.cluster.znodes import PartitionState, partition_state_path
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import topic_registry
from services.controller.zookeeper.change_log import Change, StateRow, change_write
from services.controller.zookeeper.operation import WRITES_MAX, Guard, Operation, all_of
from services.controller.zookeeper.requests import BadVersion, Check, Get, MultiFailed, Node, NoNode, Write
from services.controller.zookeeper.topic_registry import TopicState

ATTEMPTS_MAX = 5
"""Times that a partition is decided anew because somebody else wrote its state."""
REREAD_ALL_AFTER = 2
"""Refused transactions after which not one partition but all of them are read again: somebody is changing many."""


class StateChange(NamedTuple):
    """A change that is wanted. `decide` sees the newest known state and gives the new one, or None to leave it. `checks`: what else must hold (znode
    versions); where one does not, the change is dropped. `is_forced`: write it even if it is the same, so that whatever is under way under the known version
    comes to nothing."""

    topic: TopicState
    partition: int
    decide: Callable[[PartitionState], PartitionState | None]
    checks: tuple[Check, ...] = ()
    is_forced: bool = False


class _Written(NamedTuple):
    change: StateChange
    row: StateRow


def change_states(cluster: Cluster, changes: Iterable[StateChange], guard: Guard) -> Operation[list[StateChange]]:
    """Decide and write; returns the changes that were made. Those that are not there were not needed any more, were refused by a check, or gave up."""
    waiting = list(changes)
    attempts: dict[tuple[str, int], int] = {}
    made: list[StateChange] = []
    refusals = 0
    while waiting:
        batch, writes, waiting = _next_batch(waiting)
        if not batch:
            continue
        try:
            results = yield from guard.guard((*writes, change_write(Change(cluster.broker_id, states=tuple(written.row for written in batch)))))
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
    """Whose write the `index`-th of a transaction is."""
    for written in batch:
        index -= 1 + len(written.change.checks)
        if index < 0:
            return written.change
    return batch[-1].change


def state_row(topic: TopicState, partition: int, state: PartitionState, version: int) -> StateRow:
    return StateRow(topic.name, str(topic.topic_id), partition, state, version)


def reread(cluster: Cluster, partitions: list[tuple[TopicState, int]]) -> Operation[list[bool]]:
    """Read these states again; for each whether it is there."""
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
