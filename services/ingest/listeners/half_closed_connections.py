"""Which connections their senders have left, though we have not read them to their end: of protocols where a sender is known again by what broke off.

Owned by the room of the connections. A sender that was cut off may be back within a millisecond, with all that it has no answer for. Its old connection's end
stands behind bytes that wait for their turn, or behind a pause: whoever read the new connection first would take its replays for new lines. The kernel knows
that the old one is over before the new one is there, so it is asked, before anything of a new connection is read, about all others of the same peer and
listener. It is asked once a turn for each peer: one call, about 0.2 µs a connection.

Weak: an end that never came here (a box that lost its power, a firewall that forgot the connection), or comes later than the new connection's first bytes
(it was lost on the way and sent again; a proxy that passes it on late), is not known: such a replay is stored twice.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from appliance.senders.listener import Protocol

if TYPE_CHECKING:
    from services.ingest.listeners.listening_socket import ListeningSocket
    from services.ingest.listeners.sender_connection import SenderConnection

SESSION_SCOPED_IDS: frozenset[Protocol] = frozenset((Protocol.RELP, Protocol.LUMBERJACK))
"""Protocols whose replays are known by the session before, and by nothing else."""

_Peer = tuple["ListeningSocket", str]


class HalfClosedConnections:
    """Those of one room, by the address that each came from: a proxy's, where one is in front."""

    def __init__(self) -> None:
        self._of_peer: dict[_Peer, dict[SenderConnection, None]] = {}
        self._left: dict[_Peer, frozenset[SenderConnection]] = {}
        """Of the peers that were asked about in this turn."""

    def add(self, connection: SenderConnection) -> None:
        self._of_peer.setdefault((connection.door, connection.came_from), {})[connection] = None

    def remove(self, connection: SenderConnection) -> None:
        peer = connection.door, connection.came_from
        others = self._of_peer.get(peer)
        if others is not None:
            others.pop(connection, None)
            if not others:
                del self._of_peer[peer]

    def begin_turn(self) -> None:
        self._left.clear()

    def before(self, connection: SenderConnection) -> list[SenderConnection]:
        """Those that have to be read to their end before anything of this one is; if its sender has left it, too, only those that came before it."""
        peer = connection.door, connection.came_from
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
                elif each in left and not each.is_finishing and not each.close_reason:
                    found.append(each)
        return found


def _left_of(connections: dict[SenderConnection, None]) -> frozenset[SenderConnection]:
    """Those whose peer has ended its side, or reset the connection."""
    poll = select.poll()
    by_descriptor = {connection.descriptor: connection for connection in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLRDHUP)
    return frozenset(by_descriptor[descriptor] for descriptor, _ in poll.poll(0))
