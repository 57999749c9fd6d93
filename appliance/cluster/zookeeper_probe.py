"""Does a ZooKeeper server serve? Asked with the four-letter word `srvr`, without kazoo.

Owns nothing. `srvr`, not `imok`: a server that is up but belongs to no quorum answers `imok`, and says in `srvr` that it
is not serving. Weak spot: a server whose `4lw.commands.whitelist` lacks `srvr` (it is there by default) says so, and is taken at its word that it lives.
"""

from __future__ import annotations

import socket

PROBE_TIMEOUT_SECONDS = 0.25
NOT_WHITELISTED = b"not in the whitelist"


def zookeeper_serves(host: str, port: int, timeout_seconds: float = PROBE_TIMEOUT_SECONDS) -> bool:
    """True if the server answers as a standalone server, leader, follower or observer (or will not say); waits `timeout_seconds` per step at most."""
    try:
        with socket.create_connection((host, port), timeout_seconds) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return False
    return b"\nMode: " in answer or NOT_WHITELISTED in answer
