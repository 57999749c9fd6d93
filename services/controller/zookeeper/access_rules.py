"""Which ACL each node of the tree has, as values. The session gives it to every node that it
creates; `tree_protection` gives it to those of earlier releases.

Only the boxes' own user may do anything. High-level consumers of Kafka 0.8 to 0.10 keep their
groups in ZooKeeper: on servers of our own they log in as a limited user (SASL), which reads
`/brokers` and writes below `/consumers`. An ensemble elsewhere knows no such user; there `/brokers`
can be read and `/consumers` written by everyone, as Kafka's `zookeeper.set.acl` leaves it.

Weak spot: an ACL holds for its node alone; ZooKeeper has no inheritance, so a node that another
program creates has the ACL that it says.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.zookeeper_access import CONSUMER_USER, ZooKeeperAccess, digest_id

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
