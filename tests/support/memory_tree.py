"""ZooKeeper's tree in memory: nodes with versions and czxid, ephemeral and sequential ones, transactions that are carried out whole or not at all.

No sessions, no watches, no time: the modules that add these (`memory_zookeeper`,
`simulation/zookeeper`, `played_tree`) read from `changed` what watches are for, and end owners.
Against the real server: `tests/system/test_controller.py` runs the same operations there. Weak
spots: ACLs are not enforced, no quotas, no containers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.controller.zookeeper.requests import (
    OPEN,
    Acl,
    BadVersion,
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetAcl,
    GetChildren,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Request,
    SetAcl,
    SetData,
    Write,
    ZooKeeperFailed,
)

Undo = list[Callable[[], None]]


class Znode:
    """One node. `created_below`: children ever created, the next sequence number."""

    __slots__ = ("acl", "children", "created_below", "created_ms", "czxid", "data", "owner", "version")

    def __init__(self, data: bytes, czxid: int, owner: int, created_ms: int) -> None:
        self.data = data
        self.czxid = czxid
        self.owner = owner
        self.created_ms = created_ms
        self.version = self.created_below = 0
        self.children: set[str] = set()
        self.acl: Acl = OPEN


class MemoryTree:
    """`carry_out` requests. `changed`: paths, and `PATH/` for the children of a path; `written`: (path, former data, data, write) of each SetData. Both are
    their reader's to empty."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self._nodes = {"": Znode(b"", 0, 0, 0)}
        self._owned: dict[int, set[str]] = {}
        self._zxid = 100
        self.changed: dict[str, None] = {}
        self.written: list[tuple[str, bytes, bytes, Write]] = []

    def __contains__(self, path: str) -> bool:
        return path in self._nodes

    def __getitem__(self, path: str) -> Znode:
        return self._nodes[path]

    def paths(self) -> list[str]:
        return sorted(path for path in self._nodes if path)

    def put(self, path: str, data: bytes = b"") -> None:
        """A node and its parents, as they are; a version more for one that is there."""
        if path in self._nodes:
            self.carry_out(SetData(path, data, -1))
            return
        parent = path.rpartition("/")[0]
        if parent not in self._nodes:
            self.put(parent)
        self.carry_out(Create(path, data))

    def end(self, owner: int) -> None:
        """Its ephemeral nodes go."""
        self._zxid += 1
        for path in sorted(self._owned.pop(owner, ())):
            self._remove(path, [])

    def carry_out(self, request: Request | Write, owner: int = 0) -> Any:
        """The result, or raises `ZooKeeperFailed`."""
        if isinstance(request, Exists):
            node = self._nodes.get(request.path)
            return None if node is None else _found(node, b"")
        if isinstance(request, Get):
            node = self._node(request.path, request)
            return _found(node, node.data)
        if isinstance(request, GetChildren):
            return tuple(sorted(self._node(request.path, request).children))
        if isinstance(request, GetAcl):
            return self._node(request.path, request).acl
        if isinstance(request, SetAcl):
            self._node(request.path, request).acl = request.acl
            return None
        self._zxid += 1
        if isinstance(request, Multi):
            return self._all_or_nothing(request, owner)
        return self._write(request, owner, [])

    def _node(self, path: str, request: Request | Write) -> Znode:
        node = self._nodes.get("" if path == "/" else path)
        if node is None:
            raise NoNode(f"{type(request).__name__} {path}")
        return node

    def _all_or_nothing(self, multi: Multi, owner: int) -> tuple[Any, ...]:
        undo: Undo = []
        results = []
        for index, write in enumerate(multi.writes):
            try:
                results.append(self._write(write, owner, undo))
            except ZooKeeperFailed as refused:
                for step in reversed(undo):
                    step()
                self.changed.clear()
                self.written.clear()
                raise MultiFailed(index, write, refused) from refused
        return tuple(results)

    def _write(self, write: Write, owner: int, undo: Undo) -> Any:
        if isinstance(write, Create):
            return self._create(write, owner, undo)
        node = self._node(write.path, write)
        if write.version not in (-1, node.version):
            raise BadVersion(f"{type(write).__name__} {write.path}: version {node.version}, not {write.version}")
        if isinstance(write, Check):
            return True
        if isinstance(write, Delete):
            if node.children:
                raise NotEmpty(f"Delete {write.path}")
            self._remove(write.path, undo)
            return True
        former, version = node.data, node.version

        def put_back() -> None:
            node.data, node.version = former, version

        undo.append(put_back)
        self.written.append((write.path, former, write.data, write))
        node.data, node.version = write.data, version + 1
        self.changed[write.path] = None
        return node.version

    def _create(self, write: Create, owner: int, undo: Undo) -> str:
        parent_path, _, name = write.path.rpartition("/")
        parent = self._nodes.get(parent_path)
        if parent is None:
            raise NoNode(f"Create {write.path}: there is no {parent_path}")
        if write.sequence:
            name = f"{name}{parent.created_below:010d}"
        path = f"{parent_path}/{name}"
        if path in self._nodes:
            raise NodeExists(f"Create {path}")
        parent.created_below += 1
        parent.children.add(name)
        owned = self._owned.setdefault(owner, set()) if write.ephemeral else None
        self._nodes[path] = Znode(write.data, self._zxid, owner if write.ephemeral else 0, self._now_ms())
        if owned is not None:
            owned.add(path)
        self.changed[path] = self.changed[f"{parent_path}/"] = None

        def put_back() -> None:
            parent.created_below -= 1
            parent.children.discard(name)
            del self._nodes[path]
            if owned is not None:
                owned.discard(path)

        undo.append(put_back)
        return path

    def _remove(self, path: str, undo: Undo) -> None:
        node = self._nodes.pop(path)
        parent_path, _, name = path.rpartition("/")
        self._nodes[parent_path].children.discard(name)
        owned = self._owned.get(node.owner)
        if owned is not None:
            owned.discard(path)
        self.changed[path] = self.changed[f"{path}/"] = self.changed[f"{parent_path}/"] = None

        def put_back() -> None:
            self._nodes[path] = node
            self._nodes[parent_path].children.add(name)
            if owned is not None:
                owned.add(path)

        undo.append(put_back)


def _found(node: Znode, data: bytes) -> Node:
    return Node(data, node.version, node.czxid, node.owner, node.created_ms)
