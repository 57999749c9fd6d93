"""From a box's advertised host to addresses, without ever waiting: numbers at once, names by a thread of their own.

Owned by who connects, and looks at `found` with each of his turns. A resolver may take seconds, and an event loop must not. Weak spot: a thread that its
resolver holds stays until that gives up; who starts a look-up only when the last has ended has no more than one.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from appliance.client.address import Address
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused


class SocketAddress(NamedTuple):
    """What `socket.socket` and `connect` want."""

    family: int
    sockaddr: Any
    """as `getaddrinfo` gives it"""


class HostLookup:
    """One look-up. `found` is None until it has ended, and empty when there is no such host."""

    def __init__(self, address: Address) -> None:
        self.found: list[SocketAddress] | None = None
        try:
            self.found = _look_up(address, socket.AI_NUMERICHOST | socket.AI_NUMERICSERV)
        except (OSError, UnicodeError):
            try:
                BackgroundThread(self._look_up_name, f"lookup of {address.host}", (address,)).start()
            except ThreadRefused:  # like a resolver that does not answer: the next connection attempt looks it up again
                self.found = []

    def _look_up_name(self, address: Address) -> None:
        try:
            self.found = _look_up(address, socket.AI_NUMERICSERV)
        except (OSError, UnicodeError):
            self.found = []


def _look_up(address: Address, flags: int) -> list[SocketAddress]:
    answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    return [SocketAddress(family, sockaddr) for family, _, _, _, sockaddr in answers]
