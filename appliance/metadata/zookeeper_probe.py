"""Does a ZooKeeper server serve? Asked with the four-letter word `srvr`, without kazoo.

Owns nothing. `srvr`, not `imok`: a server that is up but belongs to no quorum answers `imok`, and says in `srvr` that it
is not serving. Weak spot: `srvr` must be on the server's `4lw.commands.whitelist`; it is by default.
"""

from __future__ import annotations

import socket

PROBE_TIMEOUT_SECONDS = 0.25


def zookeeper_serves(host: str, port: int, timeout_seconds: float = PROBE_TIMEOUT_SECONDS) -> bool:
    """True if the server answers as a standalone server, leader, follower or observer; waits `timeout_seconds` per step at most."""
    try:
        with socket.create_connection((host, port), timeout_seconds) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return False
    return b"\nMode: " in answer
