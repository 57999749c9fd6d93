"""What is asked of ZooKeeper, as values: operations yield them, `services.controller.zookeeper.session` carries them out.

Nobody owns it. Being values they can be counted, replayed and refused by a test, and an operation can be stopped
before any of them. Weak spot: a `ConnectionLost` does not tell whether a write took place, so every operation must be
safe to start again from the beginning.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from appliance.base.errors import MillraceError
from services.controller.zookeeper.access_rules import Acl


class Get(NamedTuple):
    """Read a node → `Node`. `watch`: tell when its data changes or it goes."""

    path: str
    watch: bool = False


class GetChildren(NamedTuple):
    """List the children's names, sorted → `tuple[str, ...]`."""

    path: str
    watch: bool = False


class Exists(NamedTuple):
    """→ `Node` with empty data, or None; with `watch` the node's appearance is told too."""

    path: str
    watch: bool = False


class Create(NamedTuple):
    """Make a node → its path; with `sequence` ZooKeeper puts ten growing digits behind the name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetData(NamedTuple):
    """Write a node's data if its version is `version` (-1: whatever it is) → the new version."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Remove a node without children if its version is `version` (-1: whatever it is)."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """In a `Multi`: go on only if the node has this version."""

    path: str
    version: int


class GetAcl(NamedTuple):
    """Read a node's ACL → `Acl`."""

    path: str


class SetAcl(NamedTuple):
    """Give a node another ACL, whatever it has → None."""

    path: str
    acl: Acl


Write: TypeAlias = Create | SetData | Delete | Check


class Multi(NamedTuple):
    """All of these or none → a tuple of their results; `MultiFailed` names the first that could not be done."""

    writes: tuple[Write, ...]


Request: TypeAlias = Get | GetChildren | Exists | Create | SetData | Delete | Multi | GetAcl | SetAcl


class Node(NamedTuple):
    """A node's data and what of its stat matters here; `owner` is the session of an ephemeral node, else 0; `created_ms` is the server's time."""

    data: bytes
    version: int
    czxid: int
    owner: int
    created_ms: int = 0


class ZooKeeperFailed(MillraceError):
    """A request was refused or may not have reached ZooKeeper."""


class NoNode(ZooKeeperFailed):
    pass


class NodeExists(ZooKeeperFailed):
    pass


class BadVersion(ZooKeeperFailed):
    pass


class NotEmpty(ZooKeeperFailed):
    pass


class ConnectionLost(ZooKeeperFailed):
    """No answer came, or the session is over: a write may or may not have taken place."""


class RequestRejected(ZooKeeperFailed):
    """Anything else that ZooKeeper answers (no rights, too large, …); the text says what."""


class MultiFailed(ZooKeeperFailed):
    """A transaction was not carried out; `index` is the first write that could not be done, `cause` says why."""

    def __init__(self, index: int, write: Write, cause: ZooKeeperFailed) -> None:
        super().__init__(f"write {index} of a transaction ({type(write).__name__} {write.path}) failed: {type(cause).__name__}")
        self.index = index
        self.write = write
        self.cause = cause
