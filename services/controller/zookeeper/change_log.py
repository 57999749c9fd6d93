"""The change log: `/millrace/changes/change_N`, one node in every transaction that changes what other boxes must hear of.

`{"version":1,"broker":N,"states":[…],"topics":[…],"placements":[[broker, topic], …],"boxes":[…]}`; lists that are empty are left out. Every box watches the
list of nodes and applies those above the largest number that it knows: one watch tells of everything. A state counts only if its version is above the
known one, and of all else only the name is told, so neither order nor repetition matters. Numbers have no gaps, so a box that was slower than the
tidying sees what it has missed, and loads everything anew. Owned by nobody; written by every box, tidied by the controller of the cluster.
Weak spot: what other tools change in the tree is not in here; lists of topics, deletions, brokers and configs are watched beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from appliance.cluster.znodes import DocumentUnreadable, PartitionState
from services.controller.zookeeper.operation import Operation, all_of
from services.controller.zookeeper.requests import Create, Delete, Get, GetChildren, Node, NoNode

CHANGES = "/millrace/changes"
CHANGE_PREFIX = "change_"
KEPT = 200
"""Nodes that are left when older ones are removed: a box reads what is new within milliseconds."""
TIDIED_ABOVE = 300


class StateRow(NamedTuple):
    """A partition's new state; `version` is its znode's version."""

    topic: str
    topic_id: str
    partition: int
    state: PartitionState
    version: int


class Change(NamedTuple):
    """What one transaction changed. `topics`: their document, or the order to delete them; `placements`: (broker, topic); `boxes`: their registration
    or record."""

    broker_id: int
    states: tuple[StateRow, ...] = ()
    topics: tuple[str, ...] = ()
    placements: tuple[tuple[int, str], ...] = ()
    boxes: tuple[int, ...] = ()

    def encode(self) -> bytes:
        document: dict[str, Any] = {"version": 1, "broker": self.broker_id}
        if self.states:
            document["states"] = [_encode_row(row) for row in self.states]
        for name in ("topics", "placements", "boxes"):
            if getattr(self, name):
                document[name] = getattr(self, name)
        return orjson.dumps(document)

    @classmethod
    def decode(cls, path: str, data: bytes) -> Change:
        """Raises DocumentUnreadable."""
        try:
            document: Any = orjson.loads(data)
            return cls(
                int(document["broker"]),
                tuple(_decode_row(row) for row in document.get("states", ())),
                tuple(str(name) for name in document.get("topics", ())),
                tuple((int(broker_id), str(name)) for broker_id, name in document.get("placements", ())),
                tuple(int(broker_id) for broker_id in document.get("boxes", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise DocumentUnreadable(f"znode {path} does not hold a change: {problem}") from None


def _encode_row(row: StateRow) -> list[Any]:
    state = row.state
    return [
        row.topic,
        row.topic_id,
        row.partition,
        state.leader,
        state.leader_epoch,
        state.controller_epoch,
        list(state.isr),
        state.leader_recovery_state,
        row.version,
    ]


def _decode_row(row: list[Any]) -> StateRow:
    topic, topic_id, partition, leader, leader_epoch, controller_epoch, isr, recovery, version = row
    state = PartitionState(int(leader), int(leader_epoch), int(controller_epoch), tuple(isr), int(recovery))
    return StateRow(str(topic), str(topic_id), int(partition), state, int(version))


# --- writing -----------------------------------------------------------------------------------------------------------


def change_write(change: Change) -> Create:
    """The write that tells of a transaction, to be one of it."""
    return Create(f"{CHANGES}/{CHANGE_PREFIX}", change.encode(), sequence=True)


# --- reading -----------------------------------------------------------------------------------------------------------


def number_of(name: str) -> int:
    """The sequence number of a node's name; -1 for what is none of ours."""
    digits = name.removeprefix(CHANGE_PREFIX)
    return int(digits) if digits != name and digits.isdigit() else -1


def list_changes() -> Operation[list[str]]:
    """Names of the nodes that are there, oldest first; the next change of the list is told."""
    names = yield GetChildren(CHANGES, True)
    return sorted((name for name in names if number_of(name) >= 0), key=number_of)


def last_number(names: Iterable[str]) -> int:
    return max((number_of(name) for name in names), default=-1)


def is_complete_since(names: list[str], known: int) -> bool:
    """Whether `names` has everything above `known`: numbers have no gaps."""
    newer = [number_of(name) for name in names if number_of(name) > known]
    return not newer or known < 0 or newer[0] == known + 1


def read_changes(names: Iterable[str]) -> Operation[list[Change] | None]:
    """What these nodes say, in order; None when one of them is gone already, or is of a later release: then everything is to be loaded anew."""
    paths = [f"{CHANGES}/{name}" for name in names]
    nodes = yield from all_of([Get(path) for path in paths])
    changes = []
    for path, node in zip(paths, nodes, strict=True):
        if isinstance(node, NoNode):
            return None
        if not isinstance(node, Node):
            raise node
        try:
            changes.append(Change.decode(path, node.data))
        except DocumentUnreadable:
            return None
    return changes


def remove_old_changes(names: list[str]) -> Operation[None]:
    """Remove all but the newest, once there are many more."""
    if len(names) <= TIDIED_ABOVE:
        return
    for outcome in (yield from all_of([Delete(f"{CHANGES}/{name}") for name in names[:-KEPT]])):
        if isinstance(outcome, Exception) and not isinstance(outcome, NoNode):
            raise outcome
