"""Pass each listener's socket to the component that serves its transport.

Owned by one ingest agent. The sockets belong to the supervisor or systemd; all ingests share them.
A listener without a socket (no unit for it) is logged, and the others serve. Weak: a socket without
a listener is closed here and stays open where it was opened; its clients wait.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Protocol

from appliance.base.logging import Logger
from appliance.senders.listener import Listener, Transport


class ConnectionManager(Protocol):
    """Serves the senders of some listeners."""

    def add(self, listener: Listener, sock: socket.socket) -> None: ...


def hand_out(listeners: Iterable[Listener], sockets: Mapping[str, socket.socket], rooms: Mapping[Transport, ConnectionManager], log: Logger) -> list[Listener]:
    """Pass each listener with a socket to its component; return those listeners."""
    served = []
    left = dict(sockets)
    for listener in listeners:
        sock = left.pop(listener.fd_name, None)
        if sock is None:
            message = f"listener {listener.name} has no socket; run `millrace units apply`, then restart the box"
            log.error(message, listener=listener.name)
            continue
        rooms[listener.transport].add(listener, sock)
        served.append(listener)
    for name, sock in left.items():
        log.warning(f"socket {name} belongs to no listener; run `millrace units apply`, then restart the box")
        sock.close()
    return served
