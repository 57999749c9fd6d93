"""HOST:PORT as people write it: `localhost:9092`, `[::1]:9092`, several with commas; or the Unix socket of a box on this machine, `unix:PATH`.

Text only; nothing is resolved or connected."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_KAFKA_PORT = 9092
UNIX = "unix:"


class Address(NamedTuple):
    """Where something listens; printed so that it can be pasted back. A host that begins with `/` is the path of a Unix socket."""

    host: str
    port: int

    @property
    def is_unix(self) -> bool:
        return self.host.startswith("/")

    def __str__(self) -> str:
        if self.is_unix:
            return UNIX + self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """`a:1,b,[::1]:2` → three addresses, 9092 where no port is given. Raises ValueError saying which part is wrong."""
    parts = [part.strip() for part in text.split(",")]
    return [_parse_address(part) for part in parts if part] or _nothing(text)


def _nothing(text: str) -> list[Address]:
    raise ValueError(f"{text!r} names no broker; write HOST:PORT, for example localhost:9092")


def _parse_address(part: str) -> Address:
    if part.startswith(UNIX):
        if not part.startswith(f"{UNIX}/"):
            raise ValueError(f"{part!r} is not an address; the path of a Unix socket begins with /")
        return Address(part.removeprefix(UNIX), 0)
    if part.startswith("["):
        host, closed, rest = part[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"{part!r} is not an address; an IPv6 host is written [HOST]:PORT")
        port = rest[1:]
    elif part.count(":") > 1:
        raise ValueError(f"{part!r} is not an address; an IPv6 host is written [HOST]:PORT")
    else:
        host, _, port = part.partition(":")
    if not host:
        raise ValueError(f"{part!r} names no host; write HOST:PORT, for example localhost:9092")
    if not port:
        return Address(host, DEFAULT_KAFKA_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{part!r} has no valid port; a port is a number from 1 to 65535")
    return Address(host, int(port))
