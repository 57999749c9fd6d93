"""Read the PROXY header of a connection: the address of the sender behind the proxy.

Bytes in, addresses out; the connection owns the stream. Version 1 is a line of text (HAProxy,
loggen -H; it may end with a bare LF), version 2 is binary. A header without an address (`UNKNOWN`,
`LOCAL`, a Unix socket) is removed and changes nothing.

Weak: a header is only a claim.
"""

from __future__ import annotations

import socket
from struct import Struct
from typing import NamedTuple

from appliance.senders.listener import ProxyMode

V1_START = b"PROXY "
V2_START = b"\r\n\r\n\x00\r\nQUIT\n"
V1_BYTES_MAX = 107
V2_BYTES_MAX = 4096
"""Addresses need 36 bytes, a Unix socket's 216; the rest are extensions, which are skipped."""

_V2_HEAD = Struct(">12sBBH")  # signature, version and command, family and protocol, size of what follows
_V2_VERSION, _V2_LOCAL, _V2_PROXY = 0x20, 0x0, 0x1
_V2_ADDRESSES = {0x10: (socket.AF_INET, Struct(">4s4sHH")), 0x20: (socket.AF_INET6, Struct(">16s16sHH"))}
assert _V2_HEAD.size == 16 and len(V2_START) == 12


class ProxyHeader(NamedTuple):
    """A header of `size_bytes`; `address` is "" if it names no sender."""

    size_bytes: int
    address: str = ""
    port: int = 0


class BadProxyHeader(ValueError):
    """The header is malformed, or missing where one is required."""


NO_HEADER = ProxyHeader(0)


def read_proxy_header(data: bytes, mode: ProxyMode) -> ProxyHeader | None:
    """Return the header at the start of a connection; `NO_HEADER` if there is none, None if more
    bytes are needed. Raises BadProxyHeader."""
    if mode is not ProxyMode.V2 and (data.startswith(V1_START) or V1_START.startswith(data)):
        return _read_v1(data)
    if mode is not ProxyMode.V1 and (data.startswith(V2_START) or V2_START.startswith(data)):
        return _read_v2(data)
    if mode is ProxyMode.REQUIRED:
        raise BadProxyHeader("this listener requires a PROXY header, and the connection starts without one")
    return NO_HEADER


def _read_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\n", 0, V1_BYTES_MAX)
    if end < 0:
        if len(data) >= V1_BYTES_MAX:
            raise BadProxyHeader(f"a PROXY header of version 1 has at most {V1_BYTES_MAX} bytes")
        return None
    fields = data[:end].removesuffix(b"\r").split(b" ")
    if len(fields) >= 2 and fields[1] == b"UNKNOWN":
        return ProxyHeader(end + 1)
    families = {b"TCP4": socket.AF_INET, b"TCP6": socket.AF_INET6}
    if len(fields) != 6 or fields[1] not in families or not (fields[4].isdigit() and int(fields[4]) < 65536):
        raise BadProxyHeader("a PROXY header of version 1 reads PROXY TCP4|TCP6 SOURCE DESTINATION SOURCE-PORT DESTINATION-PORT")
    try:
        packed = socket.inet_pton(families[fields[1]], fields[2].decode("ascii"))
    except (OSError, ValueError) as error:
        raise BadProxyHeader("the source of a PROXY header is no address of its family") from error
    return ProxyHeader(end + 1, socket.inet_ntop(families[fields[1]], packed), int(fields[4]))


def _read_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEAD.size:
        return None
    _, version_and_command, family, size_bytes = _V2_HEAD.unpack_from(data)
    command = version_and_command & 0x0F
    if version_and_command & 0xF0 != _V2_VERSION or command > _V2_PROXY:
        raise BadProxyHeader(f"a PROXY header of version 2 with version and command {version_and_command:#x} is not known")
    end = _V2_HEAD.size + size_bytes
    if end > V2_BYTES_MAX:
        raise BadProxyHeader(f"a PROXY header of {end} bytes is larger than {V2_BYTES_MAX}")
    if len(data) < end:
        return None
    known = _V2_ADDRESSES.get(family & 0xF0)
    if command == _V2_LOCAL or known is None:
        return ProxyHeader(end)
    address_family, layout = known
    if size_bytes < layout.size:
        raise BadProxyHeader(f"a PROXY header with {size_bytes} bytes of addresses is too short for its family")
    source, _, port, _ = layout.unpack_from(data, _V2_HEAD.size)
    return ProxyHeader(end, socket.inet_ntop(address_family, source), port)


class Networks:
    """The networks of `proxy-from`. Raises ValueError for a malformed one."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._networks = [_network(text) for text in texts]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def holds(self, address: str) -> bool:
        """True if an address (IPv4 in IPv6 counts as IPv4) is in one of them."""
        number, bits = _number(address.removeprefix("::ffff:"))
        return any(bits == network_bits and number >> shift == prefix for network_bits, shift, prefix in self._networks)


def _number(address: str) -> tuple[int, int]:
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        packed = socket.inet_pton(family, address.partition("%")[0])
    except (OSError, ValueError) as error:
        raise ValueError(f"{address!r} is no IP address") from error
    return int.from_bytes(packed, "big"), len(packed) * 8


def _network(text: str) -> tuple[int, int, int]:
    address, slash, length = text.partition("/")
    number, bits = _number(address)
    if slash and not (length.isdigit() and int(length) <= bits):
        raise ValueError(f"{text!r} is no network; write ADDRESS/LENGTH")
    shift = bits - int(length) if slash else 0
    return bits, shift, number >> shift
