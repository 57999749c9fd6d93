"""One listener for Kafka clients: its socket, origin of its connections, and limits.

Owned by one acceptor.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from appliance.base.logging import Logger
from appliance.base.settings import Box, KafkaListener
from appliance.runtime.listening import kafka_socket_names
from appliance.security.listeners import SASL_SETTINGS, TLS_SETTINGS, TokenSettings, is_encrypted, mechanisms_of
from appliance.security.principals import ANONYMOUS, RequestOrigin

if TYPE_CHECKING:
    from appliance.security.tls_contexts import ReloadedContext


class ListeningSocket:
    """A listener as one acceptor serves it. `open_count`: its open connections."""

    __slots__ = (
        "_own_connections_max",
        "connections_max",
        "idle_ns",
        "is_inter_broker",
        "mechanisms",
        "name",
        "open_count",
        "origin",
        "per_address_max",
        "session_ms",
        "socket",
        "tls",
        "tokens",
    )

    def __init__(self, listener: KafkaListener, sock: socket.socket, box: Box, connections_max: int, log: Logger) -> None:
        """`connections_max`: for all listeners together."""
        self.name = listener.name
        self.is_inter_broker = listener.name == box.kafka_listeners[0].name
        self.socket = sock
        self.origin = RequestOrigin(ANONYMOUS, listener.name)
        self._own_connections_max = listener.settings.get("max.connections")
        self.limit_connections(connections_max)
        self.per_address_max = box.integer_of(listener, "max.connections.per.ip")
        self.idle_ns = box.integer_of(listener, "connections.max.idle.ms") * 1_000_000
        self.mechanisms = mechanisms_of(listener, {name: box.setting(name) for name in SASL_SETTINGS})
        """of SASL; none: its clients do not authenticate"""
        self.session_ms = box.integer_of(listener, "connections.max.reauth.ms")
        """after this time its clients must authenticate again; 0: never"""
        self.tokens = TokenSettings.of(listener, box)
        self.open_count = 0
        self.tls: ReloadedContext | None = None
        """None for a listener without TLS"""
        if is_encrypted(listener.protocol):
            from appliance.security.tls_contexts import ReloadedContext, TlsSettings  # OpenSSL takes 4 MB

            self.tls = ReloadedContext(TlsSettings.of(listener, {name: box.setting(name) for name in TLS_SETTINGS}), log)

    def limit_connections(self, connections_max: int) -> None:
        """Accept as many as all listeners together may have, or fewer if the listener has a limit of its own."""
        own = self._own_connections_max
        self.connections_max = min(connections_max, own) if isinstance(own, int) else connections_max

    @property
    def can_serve(self) -> bool:
        """False while it needs a certificate and has none that can be used."""
        return self.tls is None or self.tls.current is not None


def listening_sockets(box: Box, sockets: Mapping[str, socket.socket], connections_max: int, log: Logger) -> list[ListeningSocket]:
    """Return the listeners of the box whose sockets this process received, without blocking."""
    listeners = box.kafka_listeners
    found = [
        ListeningSocket(listener, sockets[name], box, connections_max, log)
        for name, listener in zip(kafka_socket_names(listeners), listeners, strict=True)
        if name in sockets
    ]
    for listening in found:
        listening.socket.setblocking(False)
    return found
