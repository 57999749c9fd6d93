"""Give every node of the tree its ACL (`requests.acl_of`): nodes of releases that set none, of
another secret, or of boxes that did not protect theirs yet.

The controller of each box runs this once per incarnation, after its first arrival with
`zookeeper.auth.required`; the node `/millrace/protected/N` records that it is done. Each box does
it, because boxes that do not protect their nodes yet create open ones while a cluster changes over:
the last box that changes over protects what they left. A node is protected before its children are
listed, so no other program can add one in between. The operation may be dropped at any step and
starts again at the root; nodes that have their ACL cost a read. On servers of our own it also sets
the quotas of what clients can fill: with them (`enforceQuota`) a full tree is a refused request,
and not a full heap.

Weak: two reads for each node, once; a tree of 100,000 nodes takes a minute, in which the nodes that
are not reached yet are as they were. On an ensemble elsewhere, nodes that belong to another user
stay as they are, and are reported once.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.base.zookeeper_access import ZooKeeperAccess, digest_id, open_tree_mark
from appliance.cluster.acl_znodes import ACL_ROOTS
from appliance.cluster.token_image import TOKEN_ROOTS
from appliance.cluster.znodes import CLUSTER, CONTROLLER, CONTROLLER_EPOCH, PERSISTENT_PATHS
from services.controller.zookeeper.operation import Operation, OperationOutcome, OperationRunner, Pause, all_of
from services.controller.zookeeper.requests import (
    CONSUMERS,
    OPEN,
    Create,
    Delete,
    Get,
    GetAcl,
    GetChildren,
    Node,
    NodeExists,
    NoNode,
    SetAcl,
    SetData,
    ZooKeeperConnectionLost,
    acl_of,
)

PROTECTED = "/millrace/protected"
BATCH = 100
"""Nodes that are read together."""
PAUSE_MS = 10
_RULES = 1
"""Grows when the rules in `acl_of` change, so that every tree is protected again."""
QUOTA = "/zookeeper/quota"
CONFIGURATION = "/zookeeper/config"
"""The server's own: readable, and written by the server alone."""
LIMITS_NODE, STATS_NODE = "zookeeper_limits", "zookeeper_stats"


class Quota(NamedTuple):
    """What may lie below `path`, itself included."""

    path: str
    nodes_max: int
    bytes_max: int


def quotas(heap_mb: int) -> tuple[Quota, ...]:
    """A quarter of the servers' heap for what clients may write: a node takes some 500 bytes beside
    its data.
    """
    return (Quota(CONSUMERS, heap_mb * 256, heap_mb << 17),)


def marker_path(broker_id: int) -> str:
    return f"{PROTECTED}/{broker_id}"


def protect_tree(access: ZooKeeperAccess, broker_id: int, heap_mb: int, is_forced: bool = False) -> Operation[int | None]:
    """Protect the tree, unless this box has done so with these credentials (and not `is_forced`); how many
    nodes got another ACL, None if nothing was to be done.
    """
    marker = f"{_RULES} {heap_mb} {digest_id(access.user, access.password)}".encode()
    try:
        node: Node = yield Get(marker_path(broker_id))
        if node.data == marker and not is_forced:
            return None
    except NoNode:
        pass
    changed = 0
    waiting = deque(["/"] if access.is_own else roots())
    while waiting:
        batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        changed += yield from _protect(batch, access)
        for path, children in zip(batch, (yield from all_of([GetChildren(path) for path in batch])), strict=True):
            if isinstance(children, NoNode):
                continue
            if isinstance(children, Exception):
                raise children
            waiting += [child for name in children if (child := f"{path.rstrip('/')}/{name}") != CONFIGURATION]
        yield Pause(PAUSE_MS)
    if access.is_own:
        for quota in quotas(heap_mb):
            yield from _set_quota(quota)
    yield from _put(PROTECTED, b"")
    yield from _put(marker_path(broker_id), marker)
    return changed


def forget_protection(broker_id: int) -> Operation[None]:
    """This box creates open nodes from now on: when it guards them again, the tree must be gone
    through again.
    """
    try:
        yield Delete(marker_path(broker_id))
    except NoNode:
        pass


def roots() -> list[str]:
    """The nodes below which the boxes and Kafka's clients keep theirs; in an ensemble elsewhere the
    root itself may be shared.
    """
    paths = (*PERSISTENT_PATHS, *ACL_ROOTS, *TOKEN_ROOTS, CLUSTER, CONTROLLER, CONTROLLER_EPOCH, "/millrace")
    return sorted({f"/{path.split('/')[1]}" for path in paths})


def _protect(paths: list[str], access: ZooKeeperAccess) -> Operation[int]:
    """Set the ACLs of these nodes where they differ; how many did. What must be open is left as it is."""
    found: list[Any] = yield from all_of([GetAcl(path) for path in paths])
    changes = []
    for path, acl in zip(paths, found, strict=True):
        wanted = acl_of(path, access)
        if isinstance(acl, Exception):
            if not isinstance(acl, NoNode):
                raise acl
        elif wanted != OPEN and set(acl) != set(wanted):
            changes.append(SetAcl(path, wanted))
    for result in (yield from all_of([*changes])):
        if isinstance(result, Exception) and not isinstance(result, NoNode):
            raise result
    return len(changes)


def _set_quota(quota: Quota) -> Operation[None]:
    place = QUOTA
    for name in quota.path.strip("/").split("/"):
        place = f"{place}/{name}"
        try:
            yield Create(place)
        except NodeExists:
            pass
    limits = f"count=-1,bytes=-1=;byteHardLimit={quota.bytes_max};countHardLimit={quota.nodes_max}"
    yield from _put(f"{place}/{LIMITS_NODE}", limits.encode())
    try:
        yield Create(f"{place}/{STATS_NODE}", b"count=0,bytes=0")  # the server counts what is there when this node appears
    except NodeExists:
        pass


def _put(path: str, data: bytes) -> Operation[None]:
    try:
        yield Create(path, data)
    except NodeExists:
        yield SetData(path, data, -1)


class TreeGuard:
    """Start the protection after an arrival, unless it is done; nothing to do where ZooKeeper is
    open.
    """

    def __init__(self, access: ZooKeeperAccess | None, box: Box, runner: OperationRunner, log: Logger) -> None:
        self._access = access
        self._box = box
        self._runner = runner
        self._log = log
        self._is_done = access is None

    def on_arrived(self) -> None:
        access = self._access
        if self._is_done or access is None:
            return
        if access.guards:
            has_run_open = os.path.exists(open_tree_mark(self._box.state_directory))
            heap_mb = self._box.integer("zookeeper.heap.mb")
            operation = protect_tree(access, self._box.broker_id, heap_mb, has_run_open)
            self._runner.start("protect-tree", operation, self._on_protected)
        else:
            self._runner.start("protect-tree", forget_protection(self._box.broker_id), self._on_forgotten)

    def _on_forgotten(self, outcome: OperationOutcome) -> None:
        self._is_done = outcome.failure is None

    def _on_protected(self, outcome: OperationOutcome) -> None:
        if isinstance(outcome.failure, ZooKeeperConnectionLost):
            return  # the next arrival begins again
        self._is_done = True
        if outcome.failure is not None:
            words = f"could not give every ZooKeeper node its ACL: {outcome.failure}"
            self._log.warning(f"{words}; the next start of the controller tries again")
            return
        Path(open_tree_mark(self._box.state_directory)).unlink(missing_ok=True)
        if outcome.value:
            self._log.info(f"protected the ZooKeeper tree: {outcome.value} nodes have got an ACL")
