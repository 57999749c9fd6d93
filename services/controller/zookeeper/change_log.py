"""The change log: one node `/millrace/changes/change_N` in each transaction that other boxes must
learn of.

`{"version":1,"broker":N,"states":[…],"topics":[…],"placements":[[broker, topic], …],"boxes":[…]}`;
empty lists are left out. Each box watches the list of nodes and applies those above the largest
number it has applied, so one watch covers all changes. A partition state carries its version and is
applied only if it is newer than the known one. All other entries only name what to read again. So
neither order nor repetition matters. Numbers have no gaps: a box that missed removed nodes notices
it and reloads everything.

Owned by no process: every box writes, the controller of the cluster removes old nodes. Weak:
changes by other tools are not in the log; the lists of topics, deletions, brokers and configs are
watched beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from appliance.base.model import LeaderEpoch
from appliance.cluster.znodes import DocumentUnreadable, PartitionState
from services.controller.zookeeper.operation import Operation, all_of
from services.controller.zookeeper.requests import Create, Delete, Get, GetChildren, Node, NoNode

CHANGES = "/millrace/changes"
CHANGE_PREFIX = "change_"
KEPT = 200
"""Nodes that remain when older ones are removed: a box reads new ones within milliseconds."""
TIDIED_ABOVE = 300


class StateRow(NamedTuple):
    """A partition's new state; `version` is its znode's version."""

    topic: str
    topic_id: str
    partition: int
    state: PartitionState
    version: int


class ClusterChange(NamedTuple):
    """What one transaction changed.

    `topics`: their documents, or orders to delete them; `placements`: (broker, topic); `boxes`:
    their registrations or records.
    """

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
    def decode(cls, path: str, data: bytes) -> ClusterChange:
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
    state = PartitionState(int(leader), LeaderEpoch(int(leader_epoch)), int(controller_epoch), tuple(isr), int(recovery))
    return StateRow(str(topic), str(topic_id), int(partition), state, int(version))


# --- writing -----------------------------------------------------------------------------------------------------------


def change_write(change: ClusterChange) -> Create:
    """Return the change node's creation, to be a part of the transaction that it describes."""
    return Create(f"{CHANGES}/{CHANGE_PREFIX}", change.encode(), sequence=True)


# --- reading -----------------------------------------------------------------------------------------------------------


def number_of(name: str) -> int:
    """Return the sequence number of a node's name; -1 for a node that is not ours."""
    digits = name.removeprefix(CHANGE_PREFIX)
    return int(digits) if digits != name and digits.isdigit() else -1


def list_changes() -> Operation[list[str]]:
    """Return the names of all change nodes, oldest first, and set a watch on the list."""
    names = yield GetChildren(CHANGES, True)
    return sorted((name for name in names if number_of(name) >= 0), key=number_of)


def last_number(names: Iterable[str]) -> int:
    return max((number_of(name) for name in names), default=-1)


def is_complete_since(names: list[str], known: int) -> bool:
    """Whether `names` contains every number above `known`: numbers have no gaps."""
    newer = [number_of(name) for name in names if number_of(name) > known]
    return not newer or known < 0 or newer[0] == known + 1


def read_changes(names: Iterable[str]) -> Operation[list[ClusterChange] | None]:
    """Read these nodes in order; None if one is gone or of a later release: then everything is to
    be reloaded.
    """
    paths = [f"{CHANGES}/{name}" for name in names]
    nodes = yield from all_of([Get(path) for path in paths])
    changes = []
    for path, node in zip(paths, nodes, strict=True):
        if isinstance(node, NoNode):
            return None
        if not isinstance(node, Node):
            raise node
        try:
            changes.append(ClusterChange.decode(path, node.data))
        except DocumentUnreadable:
            return None
    return changes


def remove_old_changes(names: list[str]) -> Operation[None]:
    """Remove all but the newest `KEPT` nodes once there are more than `TIDIED_ABOVE`."""
    if len(names) <= TIDIED_ABOVE:
        return
    for outcome in (yield from all_of([Delete(f"{CHANGES}/{name}") for name in names[:-KEPT]])):
        if isinstance(outcome, Exception) and not isinstance(outcome, NoNode):
            raise outcome
