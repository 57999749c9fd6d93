"""Offsets of the oldest consumers (Kafka 0.8.1) in ZooKeeper, written by OffsetCommit 0 and read by
OffsetFetch 0.

The node `/consumers/GROUP/offsets/TOPIC/PARTITION` holds a decimal text. Any broker serves any
group; the last write counts. Weak: one node and one write per partition; new consumers should not
use these versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.base.errors import ErrorCode
from services.controller.zookeeper.operation import Operation, all_of
from services.controller.zookeeper.requests import Create, Get, Node, NodeExists, NoNode, SetData, ZooKeeperFailed

Key = tuple[str, int]
"""Topic and partition."""


def offset_path(group_id: str, topic: str, partition: int) -> str:
    return f"/consumers/{group_id}/offsets/{topic}/{partition}"


def group_problem(group_id: str) -> str | None:
    """Return why a group id cannot be a node's name, or None."""
    if not group_id or group_id in (".", "..") or any(character == "/" or ord(character) < 32 for character in group_id):
        return f"group {group_id!r} cannot be the name of a node in ZooKeeper"
    return None


def commit(group_id: str, offsets: Mapping[Key, int]) -> Operation[dict[Key, ErrorCode]]:
    """Write all offsets in one round trip; create the znodes that are missing, level by level."""
    data = {offset_path(group_id, *key): b"%d" % offset for key, offset in offsets.items()}
    missing = yield from _write(NoNode, {path: SetData(path, data[path], -1) for path in data})
    for depth in range(2, 6):  # /consumers, the group, `offsets`, the topics
        parents = {"/".join(path.split("/")[:depth]) for path in missing}
        yield from _write(NodeExists, {parent: Create(parent) for parent in parents})
    concurrent = yield from _write(NodeExists, {path: Create(path, data[path]) for path in missing})
    yield from _write(None, {path: SetData(path, data[path], -1) for path in concurrent})
    return dict.fromkeys(offsets, ErrorCode.NONE)


def _write(expected: type[ZooKeeperFailed] | None, writes: Mapping[str, SetData | Create]) -> Operation[list[str]]:
    """Send all writes (by path) at once. Return the paths that failed with `expected`; raise any other failure."""
    results = yield from all_of([*writes.values()])
    failed = []
    for path, result in zip(writes, results, strict=True):
        if expected is not None and isinstance(result, expected):
            failed.append(path)
        elif isinstance(result, ZooKeeperFailed):
            raise result
    return failed


def fetch(group_id: str, partitions: Iterable[Key]) -> Operation[dict[Key, int]]:
    """Return the offsets that exist."""
    wanted = list(partitions)
    nodes = yield from all_of([Get(offset_path(group_id, *key)) for key in wanted])
    found: dict[Key, int] = {}
    for key, node in zip(wanted, nodes, strict=True):
        if isinstance(node, Node):
            try:
                found[key] = int(node.data)
            except ValueError:
                continue  # not an offset: another program wrote this znode
        elif not isinstance(node, NoNode):
            raise node
    return found
