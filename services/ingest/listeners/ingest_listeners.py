"""Gives every listener's socket to the room that serves its transport.

Owned by one ingest agent. The sockets are the supervisor's, or systemd's; all ingests share them. A listener without a socket (no unit for it) is told,
and the others serve. Weak: a socket that no listener knows is closed here and stays open where it was opened; what connects to it waits.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Protocol

from appliance.base.logging import Logger
from appliance.senders.listener import Listener, Transport


class ConnectionManager(Protocol):
    """Serves all connections of some listeners."""

    def add(self, listener: Listener, sock: socket.socket) -> None: ...


def hand_out(listeners: Iterable[Listener], sockets: Mapping[str, socket.socket], rooms: Mapping[Transport, ConnectionManager], log: Logger) -> list[Listener]:
    """Give each listener with a socket to its room; returns them."""
    served = []
    left = dict(sockets)
    for listener in listeners:
        sock = left.pop(listener.fd_name, None)
        if sock is None:
            words = f"listener {listener.name} has no socket; say `millrace units apply`, then start the box again"
            log.error(words, listener=listener.name)
            continue
        rooms[listener.transport].add(listener, sock)
        served.append(listener)
    for name, sock in left.items():
        log.warning(f"socket {name} is for no listener; say `millrace units apply`, then start the box again")
        sock.close()
    return served
