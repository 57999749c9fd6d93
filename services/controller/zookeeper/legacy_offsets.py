"""Offsets that the oldest consumers keep in ZooKeeper: `/consumers/GROUP/offsets/TOPIC/PARTITION`, a decimal text, written by OffsetCommit 0 and read by
OffsetFetch 0 (Kafka 0.8.1).

Any broker answers for any group; the last write counts. Weak spot: a node each, a write each; nobody should begin with these today.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.base.errors import ErrorCode
from services.controller.zookeeper.operation import Operation, all_of
from services.controller.zookeeper.requests import Create, Get, Node, NodeExists, NoNode, SetData

Key = tuple[str, int]
"""Topic and partition."""


def offset_path(group_id: str, topic: str, partition: int) -> str:
    return f"/consumers/{group_id}/offsets/{topic}/{partition}"


def group_problem(group_id: str) -> str | None:
    """Why a group cannot be a node of ZooKeeper, or None."""
    if not group_id or group_id in (".", "..") or any(character == "/" or ord(character) < 32 for character in group_id):
        return f"group {group_id!r} cannot be the name of a node in ZooKeeper"
    return None


def commit(group_id: str, offsets: Mapping[Key, int]) -> Operation[dict[Key, ErrorCode]]:
    """Write each; parents are made where they are missing."""
    outcome: dict[Key, ErrorCode] = {}
    for (topic, partition), offset in offsets.items():
        path, data = offset_path(group_id, topic, partition), b"%d" % offset
        try:
            yield SetData(path, data, -1)
        except NoNode:
            yield from _create(path, data)
        outcome[topic, partition] = ErrorCode.NONE
    return outcome


def _create(path: str, data: bytes) -> Operation[None]:
    names = path.split("/")[1:]
    for depth in range(1, len(names)):
        try:
            yield Create("/" + "/".join(names[:depth]))
        except NodeExists:
            pass
    try:
        yield Create(path, data)
    except NodeExists:
        yield SetData(path, data, -1)


def fetch(group_id: str, partitions: Iterable[Key]) -> Operation[dict[Key, int]]:
    """Those that are there."""
    wanted = list(partitions)
    nodes = yield from all_of([Get(offset_path(group_id, *key)) for key in wanted])
    found: dict[Key, int] = {}
    for key, node in zip(wanted, nodes, strict=True):
        if isinstance(node, Node):
            try:
                found[key] = int(node.data)
            except ValueError:
                continue  # somebody else's text
        elif not isinstance(node, NoNode):
            raise node
    return found
