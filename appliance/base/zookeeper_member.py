"""A member of the ZooKeeper ensemble that several boxes run together, as settings and connect
strings write it.

`ID=HOST`, or with ports `ID=HOST:CLIENT` and `ID=HOST:CLIENT:PEER:ELECTION`; an IPv6 address is in
brackets. The id is the broker id of the box that runs the member, so that all boxes of a cluster
can have the same lines. Pure. Weak: whether all boxes have the same members is not checked; those
that differ do not form a quorum.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

CLIENT_PORT = 2181
PEER_PORT = 2888
ELECTION_PORT = 3888
MEMBER_ID_MAX = 255
"""Limit of ZooKeeper."""
COUNTS = "1, 3, 5 or 7"
_MEMBER = re.compile(r"(\d{1,10})=(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9.\-_]+)(?::(\d{1,5})(?::(\d{1,5}):(\d{1,5}))?)?\Z")


class ZooKeeperMember(NamedTuple):
    """One member. `host` is its address for the other boxes; an IPv6 address is in brackets."""

    member_id: int
    host: str
    client_port: int = CLIENT_PORT
    peer_port: int = PEER_PORT
    election_port: int = ELECTION_PORT

    @property
    def text(self) -> str:
        """The member as in settings, without the default ports."""
        usual = (self.client_port, self.peer_port, self.election_port) == (CLIENT_PORT, PEER_PORT, ELECTION_PORT)
        return f"{self.member_id}={self.host}" + ("" if usual else f":{self.client_port}:{self.peer_port}:{self.election_port}")

    @property
    def client_address(self) -> str:
        return f"{self.host}:{self.client_port}"

    @property
    def plain_host(self) -> str:
        """The host without brackets."""
        return self.host.strip("[]")

    @property
    def ports(self) -> tuple[tuple[int, str], ...]:
        """Return each port and its purpose."""
        return ((self.client_port, "clients"), (self.peer_port, "the other members"), (self.election_port, "elections"))


def parse_member(text: str) -> ZooKeeperMember:
    """Inverse of `text`, for texts that were checked before. Raises ValueError."""
    found = _MEMBER.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no member of a ZooKeeper ensemble")
    member_id, host, *ports = found.groups()
    return ZooKeeperMember(int(member_id), host, *(int(port) for port in ports if port is not None))


def read_members(texts: Sequence[str]) -> tuple[list[ZooKeeperMember], list[str]]:
    """Return the members of an ensemble by id, and all problems, without the name of the option."""
    members, problems = [], []
    for text in texts:
        if _MEMBER.match(text) is None:
            problems.append(f"has {text!r}; a member is written ID=HOST, such as 1=10.0.0.1, or with its ports ID=HOST:2181:2888:3888")
            continue
        member = parse_member(text)
        if not 1 <= member.member_id <= MEMBER_ID_MAX:
            problems.append(f"has {text!r}; a member's id is the broker id of its box, which must be from 1 to {MEMBER_ID_MAX} for that")
        elif wrong := [port for port, _ in member.ports if not 1 <= port <= 65535]:
            problems.append(f"has {text!r}; a port must be from 1 to 65535, not {wrong[0]}")
        else:
            members.append(member)
    return sorted(members), problems or _problems_between(members)


def _problems_between(members: Sequence[ZooKeeperMember]) -> list[str]:
    problems = []
    ids = [member.member_id for member in members]
    problems += [f"names member {member_id} twice" for member_id in sorted(set(ids)) if ids.count(member_id) > 1]
    places = [(member.host, port) for member in members for port, _ in member.ports]
    problems += [f"gives {host}:{port} to two things; each needs its own" for host, port in sorted(set(places)) if places.count((host, port)) > 1]
    if len(members) not in (0, 1, 3, 5, 7):
        problems.append(f"names {len(members)} members; an ensemble has {COUNTS}: one more than that bears no more losses")
    return problems


def connect_string(members: Sequence[ZooKeeperMember], own_id: int) -> str:
    """Return the connect string of the ensemble for clients on box `own_id`: its own member first,
    if it has one."""
    return ",".join(member.client_address for member in sorted(members, key=lambda member: (member.member_id != own_id, member.member_id)))


def in_words(member_ids: Sequence[int]) -> str:
    """Return `member 2`, `members 2 and 3` or `members 2, 3 and 4`."""
    texts = [str(member_id) for member_id in member_ids]
    return f"member {texts[0]}" if len(texts) == 1 else f"members {', '.join(texts[:-1])} and {texts[-1]}"
