"""Internet addresses and networks as bytes: for settings, and to check where a connection is from.

Owned by no process; pure.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

_IPV4_MAPPED = bytes(10) + b"\xff\xff"

Network = tuple[int, bytes]
"""(prefix length, packed network address)"""


def packed_address(text: str) -> bytes:
    """Return the 4 or 16 bytes of an address, without a scope; an IPv4-mapped one as the IPv4
    address.

    Empty if `text` is no address.
    """
    number = text.partition("%")[0]
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in number else socket.AF_INET, number)
    except (OSError, ValueError):
        return b""
    return packed[len(_IPV4_MAPPED) :] if packed.startswith(_IPV4_MAPPED) else packed


def read_networks(text: str) -> tuple[Network, ...]:
    """Return the networks of a list such as `10.1.0.0/16, fd00::/8, 192.0.2.7`.

    Raises ValueError.
    """
    networks = []
    for part in map(str.strip, text.split(",")):
        network = parse_network(part)
        if network is None:
            raise ValueError(f"{part!r} is no network; write 10.1.0.0/16, or a single address")
        if masked(network[1], network[0]) != network[1]:
            raise ValueError(f"{part} has bits after its prefix; write the network's first address")
        networks.append(network)
    return tuple(networks)


def lies_in(packed: bytes, networks: Iterable[Network]) -> bool:
    """Return whether a packed address is in one of the networks."""
    return any(len(network) == len(packed) and masked(packed, length) == network for length, network in networks)


def parse_network(text: str) -> Network | None:
    """Return a network, or a single address as one; None if `text` is neither."""
    address, slash, length = text.partition("/")
    packed = packed_address(address)
    bits = len(packed) * 8
    is_length = length.isascii() and length.isdigit() and int(length) <= bits
    if not packed or (slash and not is_length):
        return None
    return (int(length) if slash else bits), packed


def split_networks(text: str) -> list[str]:
    """Return the parts of a list for systemd (`IPAddressAllow=`), separated by commas or spaces."""
    return [part for part in text.replace(",", " ").split(" ") if part]


def is_network(text: str) -> bool:
    """Whether systemd can filter by `text`: an address, or a network such as 10.0.0.0/24, without a
    scope.
    """
    return "%" not in text and parse_network(text) is not None


def masked(packed: bytes, prefix_length: int) -> bytes:
    """Return the address with all bits behind the prefix set to 0."""
    shift = len(packed) * 8 - prefix_length
    return (int.from_bytes(packed, "big") >> shift << shift).to_bytes(len(packed), "big")
