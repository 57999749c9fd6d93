"""Which names a box answers to by HTTP, and which requests come from pages of other sites.

A web page may send requests to any address that its browser reaches. Two checks keep it out of a
box: `Host` must name the box, because a page can point a DNS name of its own at any address (DNS
rebinding), and the headers that only browsers send, `Origin` (RFC 6454) and `Sec-Fetch-Site` (Fetch
Metadata), must not name another site. Programs send neither. Pure, but for `machine_names`. Weak: a
browser sends no `Sec-Fetch-Site` to a plain HTTP address other than localhost, so there a GET of
another site is not recognised; it cannot read the answer.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache

from appliance.base.settings import Box

HOST_BYTES_MAX = 300
"""A longer `Host` is unknown; a DNS name has at most 253 characters."""
ANY_ORIGIN = "*"
_OTHER_SITES = (b"cross-site", b"same-site")


def machine_names() -> set[str]:
    """Return the host name of this machine, its first label, and its names in /etc/hosts."""
    host_name = socket.gethostname().lower()
    names = {host_name, host_name.partition(".")[0]}
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].lower().split() for line in file]
    except OSError:
        return names
    return names.union(*(line[1:] for line in lines if host_name in line[1:]))


def box_names(box: Box) -> frozenset[str]:
    """Return the names, in lower case, that the HTTP ports of a box answer to, beside addresses."""
    allowed = box.text("http.allowed.hosts").replace(",", " ").split()
    return frozenset({"localhost", *machine_names(), *(name.lower().rstrip(".") for name in (box.listen, box.advertise, *allowed))})


def is_known_host(host: bytes, names: frozenset[str]) -> bool:
    """Whether a `Host` header (or `:authority`) is an IP address or one of `names`. Browsers always
    send one, so a request without it is accepted.
    """
    return not host or (len(host) <= HOST_BYTES_MAX and _is_known(host, names))


@lru_cache(maxsize=64)
def _is_known(host: bytes, names: frozenset[str]) -> bool:
    text = host.decode("latin-1").strip().lower()
    name, colon, port = text.rpartition(":")
    if not colon or "]" in port or not (port.isdigit() or not port):
        name = text
    if name[:1] == "[" and name[-1:] == "]":
        return _is_address(socket.AF_INET6, name[1:-1])
    return name.rstrip(".") in names or _is_address(socket.AF_INET, name) or _is_address(socket.AF_INET6, text)


def _is_address(family: int, text: str) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True


def is_allowed_origin(origin: bytes, allowed: Iterable[str]) -> bool:
    """Whether `allowed` (origins as `https://app.example.com`, or `*`) contains an origin."""
    text = origin.decode("latin-1").lower()
    return any(each in (text, ANY_ORIGIN) for each in allowed)


def is_cross_site(headers: Mapping[bytes, bytes], host: bytes) -> bool:
    """Whether a page that the box did not serve sent this request. `headers` have lower-case names;
    `host` is what the request addresses.
    """
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
        return True
    return headers.get(b"sec-fetch-site") in _OTHER_SITES


def is_navigation(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser opens a page in a tab, as after a click on a link; no other page can read
    the answer.
    """
    return b"origin" not in headers and headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
