"""Probe whether a ZooKeeper server serves, with the four-letter word `srvr` and without kazoo.

`srvr`, not `ruok`: a running server that belongs to no quorum answers `ruok` all the same. Weak: a
server whose `4lw.commands.whitelist` lacks `srvr` (it is there by default) counts as serving.
"""

from __future__ import annotations

import socket

PROBE_TIMEOUT_SECONDS = 0.25
NOT_WHITELISTED = b"not in the whitelist"


def zookeeper_serves(host: str, port: int, timeout_seconds: float = PROBE_TIMEOUT_SECONDS) -> bool:
    """Whether the server answers as a standalone server, leader, follower or observer, or refuses
    `srvr`.

    Waits at most `timeout_seconds` per step.
    """
    try:
        with socket.create_connection((host, port), timeout_seconds) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return False
    return b"\nMode: " in answer or NOT_WHITELISTED in answer
