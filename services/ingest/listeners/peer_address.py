"""Format the address of a sender. Weak: the zone of a link-local address stays in it."""

from __future__ import annotations


def address_text(address: str, port: int) -> tuple[bytes, bytes]:
    """Return (`ADDRESS:PORT`, `ADDRESS`) of a peer: IPv4 in IPv6 as IPv4, IPv6 with brackets before
    a port."""
    host = address.removeprefix("::ffff:")
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode(), host.encode()
