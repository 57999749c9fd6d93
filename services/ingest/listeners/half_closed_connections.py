"""Connections that their peer has closed and that are not read to their end.

Owned by `SenderConnections`. A sender that was cut off may reconnect within a millisecond and
repeat everything that was not answered. The end of its old connection is behind bytes that are not
read yet, or behind a pause. If the new connection were read first, its repeats would be taken for
new lines. The kernel knows that the old connection is closed before the new one exists. So before
anything of a new connection is read, the kernel is asked about all others of the same peer and
listener: once a turn for each peer, one call, about 0.2 µs a connection.

Weak: an end that never arrived (a power cut, a firewall that dropped its state), or arrives after
the first bytes of the new connection (lost and sent again, or delayed by a proxy), is unknown; such
a repeat is stored twice.
"""

from __future__ import annotations

import select

from appliance.senders.listener import Protocol
from services.ingest.listeners.listening_socket import SenderListeningSocket
from services.ingest.listeners.sender_connection import ENDED, SenderConnection

SESSION_SCOPED_IDS: frozenset[Protocol] = frozenset((Protocol.RELP, Protocol.LUMBERJACK))
"""Protocols whose repeats are recognised only by comparing a session with the one before."""

_Peer = tuple[SenderListeningSocket, str]


class HalfClosedConnections:
    """The connections of one ingest by listener and peer address (a proxy's, if there is one)."""

    def __init__(self) -> None:
        self._of_peer: dict[_Peer, dict[SenderConnection, None]] = {}
        self._left: dict[_Peer, frozenset[SenderConnection]] = {}
        """Half-closed connections of the peers that were polled in this turn."""

    def add(self, connection: SenderConnection) -> None:
        self._of_peer.setdefault((connection.listening, connection.peer_address), {})[connection] = None

    def remove(self, connection: SenderConnection) -> None:
        peer = connection.listening, connection.peer_address
        others = self._of_peer.get(peer)
        if others is not None:
            others.pop(connection, None)
            if not others:
                del self._of_peer[peer]

    def begin_turn(self) -> None:
        self._left.clear()

    def before(self, connection: SenderConnection) -> list[SenderConnection]:
        """Return the connections that must be read to their end before this one. If this one is
        half-closed, too: only earlier ones."""
        peer = connection.listening, connection.peer_address
        others = self._of_peer.get(peer, {})
        if len(others) < 2:
            return []
        left = self._left.get(peer)
        if left is None:
            left = self._left[peer] = _left_of(others)
        found: list[SenderConnection] = []
        if left:
            for each in others:
                if each is connection:
                    if each in left:
                        break
                elif each in left and each.phase is not ENDED and not each.close_reason:
                    found.append(each)
        return found


def _left_of(connections: dict[SenderConnection, None]) -> frozenset[SenderConnection]:
    """Return the connections whose peer has ended its side or reset the connection."""
    poll = select.poll()
    by_descriptor = {connection.descriptor: connection for connection in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLRDHUP)
    return frozenset(by_descriptor[descriptor] for descriptor, _ in poll.poll(0))
