"""How the address of a sender is written. Values only; nothing is resolved. Weak: the zone of a link-local address stays in it."""

from __future__ import annotations


def address_text(address: str, port: int) -> tuple[bytes, bytes]:
    """(`ADDRESS:PORT`, `ADDRESS`) of a peer; IPv4 inside IPv6 is written as IPv4, IPv6 with brackets where a port follows."""
    host = address.removeprefix("::ffff:")
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode(), host.encode()
