"""One listener for Kafka clients: its socket, origin of its connections, and limits.

Also the listener on a Unix socket, for commands on this machine: the kernel says which user connects, so
there is no password. Root and the user that owns the logs are super users, others are what access control
entries allow to `User:local:UID`. Without an authorizer, which allows everything, they are refused.

Owned by one acceptor; the Unix socket by the first one. Weak: in an installed box all users that are none
of the box's have the same number, because the acceptor's user namespace does not have them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.base.logging import Logger
from appliance.base.setting_row import INT32_MAX, SettingValue
from appliance.base.settings import Box, KafkaListener
from appliance.base.trusted_files import SYSTEM_USER, faces_network, runs_box
from appliance.ipc.frames import listen_unix, peer_identity
from appliance.runtime.listening import kafka_socket_names
from appliance.security.listeners import PLAINTEXT, SASL_SETTINGS, TLS_SETTINGS, TokenSettings, inter_broker_mechanism, is_encrypted, mechanisms_of, uses_sasl
from appliance.security.principals import ANONYMOUS, PRIVILEGED, RequestOrigin, local_principal

if TYPE_CHECKING:
    from appliance.security.tls_contexts import ReloadedContext


ADMINISTRATION: Final = "administration"
"""Name of its socket, if systemd made it."""
LOCAL: Final = "local"
"""Name of the listener on the Unix socket; others have capital letters."""
LOCAL_ADDRESS: Final = "127.0.0.1"
"""The host of its clients, for access control entries."""
LOCAL_CONNECTIONS_MAX: Final = 256
LOCAL_PER_USER_MAX: Final = 64


class Accepted(NamedTuple):
    """A new connection. `words`: why its user is refused."""

    sock: socket.socket
    address: str
    origin: RequestOrigin
    words: str = ""


class ListeningSocket:
    """A listener as one acceptor serves it. `open_count`: its open connections."""

    __slots__ = (
        "_own_connections_max",
        "box_login",
        "connections_max",
        "creation_rate",
        "idle_ns",
        "is_inter_broker",
        "mechanisms",
        "name",
        "open_count",
        "origin",
        "paused_until_ns",
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
        logs_in = self.is_inter_broker and uses_sasl(listener.protocol) and box.text("inter.broker.user")
        self.box_login = (box.text("inter.broker.user"), inter_broker_mechanism(box.text)) if logs_in else None
        """user and mechanism by which boxes log in here; None: they do not. A token of the same subject is no box"""
        self.socket = sock
        self.origin = RequestOrigin(ANONYMOUS, listener.name)
        self._own_connections_max = listener.settings.get("max.connections")
        self.limit_connections(connections_max)
        self.per_address_max = box.integer_of(listener, "max.connections.per.ip")
        own_rate = listener.settings.get("max.connection.creation.rate")
        self.creation_rate = own_rate if isinstance(own_rate, int) else INT32_MAX
        """new connections a second, beside those of all listeners"""
        self.paused_until_ns = 0
        """until when it takes no connection; 0: it takes them"""
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

    def accept(self) -> Accepted:
        """Take a waiting connection. Raises OSError, BlockingIOError if none waits."""
        sock, peer = self.socket.accept()
        return Accepted(sock, peer[0], self.origin)

    def limited(self, address: str, origin: RequestOrigin) -> tuple[str, str]:
        """Return what is counted for the limit of connections of an address."""
        return self.name, address

    @property
    def own_path(self) -> str:
        """The host by which its clients connect to this box; empty: the advertised one."""
        return ""

    @property
    def can_serve(self) -> bool:
        """False while it needs a certificate and has none that can be used."""
        return self.tls is None or self.tls.current is not None


class LocalListeningSocket(ListeningSocket):
    """The listener on the Unix socket `path`. `sock`: as systemd made it; None: it is made here. `has_authorizer`: users that are none of the box's may
    connect."""

    __slots__ = ("_has_authorizer", "_path")

    def __init__(self, path: str, box: Box, log: Logger, has_authorizer: bool, sock: socket.socket | None = None) -> None:
        self._path = path
        self._has_authorizer = has_authorizer
        sock = sock or listen_unix(path)
        sock.setblocking(False)
        settings: dict[str, SettingValue] = {"max.connections": LOCAL_CONNECTIONS_MAX}
        super().__init__(KafkaListener(LOCAL, PLAINTEXT, "", 0, "", 0, settings), sock, box, LOCAL_CONNECTIONS_MAX, log)
        self.is_inter_broker = False
        self.per_address_max = LOCAL_PER_USER_MAX

    def accept(self) -> Accepted:
        sock, _ = self.socket.accept()
        try:
            user, group = peer_identity(sock)
        except OSError:
            sock.close()
            raise
        if user == 0:
            return Accepted(sock, LOCAL_ADDRESS, RequestOrigin(local_principal(user), "", PRIVILEGED))
        if runs_box(user, group):
            return Accepted(sock, LOCAL_ADDRESS, RequestOrigin(local_principal(SYSTEM_USER if faces_network() else user), "", PRIVILEGED))
        origin, words = RequestOrigin(local_principal(user), ""), ""
        if not self._has_authorizer and user != os.geteuid():  # whose processes face the network
            words = f"user {user} is none of the box's, and without authorizer.class.name the local socket is for these; use a listener, or sudo"
        return Accepted(sock, LOCAL_ADDRESS, origin, words)

    def limited(self, address: str, origin: RequestOrigin) -> tuple[str, str]:
        return str(origin.principal), address

    @property
    def own_path(self) -> str:
        return self._path


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
