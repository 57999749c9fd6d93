"""Principals, and the origin of a request: principal, listener and flags of its connection.

Pure values. Kafka's words: a principal has a type, nearly always `User`, and a name. Its text is
`User:alice`, as in `super.users` and in ACLs.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from appliance.base.networks import packed_address

USER_TYPE: Final = "User"

PRIVILEGED: Final = 1
"""Flag of an origin: a process of this box, or an administrator on the local socket. A super user."""
BY_TOKEN: Final = 2
"""Flag of an origin: it authenticated with a delegation token."""
FROM_BOX: Final = 4
"""Flag of an origin: the controller of another box, at an address of a box. No quota counts its requests."""

_ORIGIN: Final = Struct("<BHHH")


class Principal(NamedTuple):
    """An authenticated identity."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def from_text(cls, text: str) -> Principal:
        """Return the principal with this text. Raises ValueError for a text without a type."""
        kind, colon, name = text.partition(":")
        if not kind or not colon or not name:
            raise ValueError(f"{text!r} is no principal; it must look like User:NAME")
        return cls(kind, name)


LOCAL_NAMES: Final = "local:"
"""How names of users of this machine begin, which no login over a network can have."""


def local_principal(user: int | str) -> Principal:
    """Return the principal of a user of this machine, by its number: `User:local:1000`."""
    return Principal(USER_TYPE, f"{LOCAL_NAMES}{user}")


ANONYMOUS: Final = Principal(USER_TYPE, "ANONYMOUS")
"""The principal of a connection without authentication, as in Kafka."""
BOX: Final = Principal(USER_TYPE, "millrace")
"""The principal of requests that the processes of a box send each other."""


ACTING: Final = "CONSOLE"
"""The SASL mechanism by which the console acts for a person, on the Unix socket and between boxes with certificates."""


class ActingFor(NamedTuple):
    """Its only token. `password`: to be verified; else `tag`, the response to such a login ('': a proxy has authenticated the person)."""

    user: str
    address: str
    """where the person is, for access control entries and the audit"""
    tag: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"ActingFor({self.user!r}, {self.address!r}, ***)"

    def pack(self) -> bytes:
        """Four texts with NUL between them. Raises ValueError for texts that have a NUL, or are not UTF-8."""
        if any("\0" in text for text in self):
            raise ValueError("a NUL in a name or password")
        return "\0".join(self).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> ActingFor:
        """Inverse of `pack`. Raises ValueError for other bytes."""
        texts = packed.decode().split("\0")
        if len(texts) != len(cls._fields) or not texts[0] or not texts[1].isprintable() or not packed_address(texts[1]):
            raise ValueError("no user at an address")
        return cls(*texts)


class RequestOrigin(NamedTuple):
    """Principal, listener name and flags of a connection."""

    principal: Principal = ANONYMOUS
    listener: str = "PLAINTEXT"
    flags: int = 0

    @property
    def is_privileged(self) -> bool:
        return bool(self.flags & PRIVILEGED)

    @property
    def is_from_box(self) -> bool:
        return bool(self.flags & FROM_BOX)

    def pack(self) -> bytes:
        """uint8 flags, uint16 lengths of principal type, name and listener name, these three."""
        kind, name, listener = self.principal.kind.encode(), self.principal.name.encode(), self.listener.encode()
        return _ORIGIN.pack(self.flags, len(kind), len(name), len(listener)) + kind + name + listener

    @classmethod
    def unpack(cls, packed: bytes) -> RequestOrigin:
        """Inverse of `pack`. Raises struct.error or ValueError for other bytes."""
        flags, *lengths = _ORIGIN.unpack_from(packed)
        texts, position = [], _ORIGIN.size
        for length in lengths:
            texts.append(packed[position : position + length].decode())
            position += length
        if position != len(packed):
            raise ValueError(f"an origin of {position} bytes in {len(packed)} bytes")
        kind, name, listener = texts
        return cls(Principal(kind, name), listener, flags)


UNAUTHENTICATED: Final = RequestOrigin()
OF_BOX: Final = RequestOrigin(BOX, "", PRIVILEGED)
