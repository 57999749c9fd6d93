"""Requests to ZooKeeper as values, and the ACL of each node: operations yield them,
`services.controller.zookeeper.session` sends them.

As values they can be counted, replayed and refused by a test, and an operation can be stopped
before any of them. Only the boxes' own user may change the tree. High-level consumers of Kafka 0.8
to 0.10 keep their groups in ZooKeeper: on servers of our own they log in as a limited user (SASL),
which reads `/brokers` and writes below `/consumers`. An ensemble elsewhere knows no such user;
there `/brokers` can be read and `/consumers` written by everyone, as Kafka's `zookeeper.set.acl`
leaves it.

Weak: `ZooKeeperConnectionLost` does not say whether a write took place, so each operation must be
safe to restart from its beginning. An ACL holds for its node alone; a node that another program
creates has the ACL that that program chooses.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from appliance.base.errors import MillraceError
from appliance.base.zookeeper_access import CONSUMER_USER, ZooKeeperAccess, digest_id


class Get(NamedTuple):
    """Read a node; the result is a `Node`. `watch`: report the next change of its data, or its
    deletion.
    """

    path: str
    watch: bool = False


class GetChildren(NamedTuple):
    """List the names of the children, sorted; the result is a `tuple[str, ...]`."""

    path: str
    watch: bool = False


class Exists(NamedTuple):
    """The result is a `Node` with empty data, or None. With `watch` the node's creation is
    reported, too.
    """

    path: str
    watch: bool = False


class Create(NamedTuple):
    """Create a node; the result is its path. With `sequence` ZooKeeper appends ten growing digits
    to the name.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetData(NamedTuple):
    """Write a node's data if it has `version` (-1: any version); the result is the new version."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Delete a node without children if it has `version` (-1: any version)."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """A condition in a `Multi`: the node must have this version."""

    path: str
    version: int


class GetAcl(NamedTuple):
    """Read a node's ACL; the result is an `Acl`."""

    path: str


class SetAcl(NamedTuple):
    """Replace a node's ACL."""

    path: str
    acl: Acl


Write: TypeAlias = Create | SetData | Delete | Check


class Multi(NamedTuple):
    """All writes or none; the result is a tuple of their results. Raises `MultiFailed` for the
    first that failed.
    """

    writes: tuple[Write, ...]


Request: TypeAlias = Get | GetChildren | Exists | Create | SetData | Delete | Multi | GetAcl | SetAcl


class Node(NamedTuple):
    """A node's data, and what of its stat is needed here.

    `owner` is the session of an ephemeral node, else 0; `created_ms` is the server's time.
    """

    data: bytes
    version: int
    czxid: int
    owner: int
    created_ms: int = 0


class ZooKeeperFailed(MillraceError):
    """A request was refused, or may not have reached ZooKeeper."""


class NoNode(ZooKeeperFailed):
    pass


class NodeExists(ZooKeeperFailed):
    pass


class BadVersion(ZooKeeperFailed):
    pass


class NotEmpty(ZooKeeperFailed):
    pass


class ZooKeeperConnectionLost(ZooKeeperFailed):
    """No reply came, or the session is over: a write may or may not have taken place."""


class RequestRejected(ZooKeeperFailed):
    """Any other error of ZooKeeper (no permission, too large, …); the text names it."""


class MultiFailed(ZooKeeperFailed):
    """A transaction was not carried out: `index` is the first write that failed, `cause` says why."""

    def __init__(self, index: int, write: Write, cause: ZooKeeperFailed) -> None:
        super().__init__(f"write {index} of a transaction ({type(write).__name__} {write.path}) failed: {type(cause).__name__}")
        self.index = index
        self.write = write
        self.cause = cause


READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL = READ | WRITE | CREATE | DELETE | ADMIN


class AclEntry(NamedTuple):
    """One line of an ACL, in the order of ZooKeeper's own record."""

    permissions: int
    scheme: str
    identity: str


Acl = tuple[AclEntry, ...]

OPEN: Acl = (AclEntry(ALL, "world", "anyone"),)
CONSUMERS = "/consumers"
BROKERS = "/brokers"


def acl_of(path: str, access: ZooKeeperAccess | None) -> Acl:
    """The ACL of the node at `path` (without a chroot)."""
    if access is None or not access.guards:
        return OPEN
    own = own_entry(access)
    if _is_below(path, CONSUMERS):
        return (own, AclEntry(ALL & ~ADMIN, "sasl", CONSUMER_USER)) if access.is_own else OPEN
    if _is_below(path, BROKERS):
        return (
            own,
            AclEntry(READ, "sasl", CONSUMER_USER) if access.is_own else AclEntry(READ, "world", "anyone"),
        )
    return (own,)


def own_entry(access: ZooKeeperAccess) -> AclEntry:
    """Return the entry of the boxes' own user: a SASL identity on servers of our own, a digest
    elsewhere.
    """
    if access.is_own:
        return AclEntry(ALL, "sasl", access.user)
    return AclEntry(ALL, "digest", digest_id(access.user, access.password))


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")
