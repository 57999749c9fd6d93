"""Which module speaks which protocol of a listener, by name: it is imported by the first connection that needs it, so that an idle box stays small.

Owned by the room of each transport. Weak: a wrong name is found by that connection, not at start; a test imports them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from appliance.senders.listener import Protocol

if TYPE_CHECKING:
    from services.ingest.listeners.sender_datagrams import MakeDatagramHandler
    from services.ingest.protocols.session import MakeSession

SESSIONS: dict[Protocol, tuple[str, str]] = {
    Protocol.SYSLOG: ("services.ingest.protocols.syslog.syslog_session", "SyslogSession"),
    Protocol.RELP: ("services.ingest.protocols.syslog.relp_session", "RelpSession"),
    Protocol.FLUENT: ("services.ingest.protocols.fluent.fluent_session", "FluentSession"),
    Protocol.LUMBERJACK: ("services.ingest.protocols.lumberjack.lumberjack_session", "LumberjackSession"),
    Protocol.GELF: ("services.ingest.protocols.gelf.gelf_session", "GelfSession"),
    Protocol.HTTP: ("services.ingest.protocols.http.http_session", "HttpSession"),
}
"""Over streams: (module, what makes a session of a connection)."""
DATAGRAM_HANDLERS: dict[Protocol, tuple[str, str]] = {
    Protocol.SYSLOG: ("services.ingest.protocols.syslog.syslog_datagrams", "SyslogDatagrams"),
    Protocol.GELF: ("services.ingest.protocols.gelf.gelf_datagrams", "GelfDatagrams"),
}
"""Over datagrams: (module, what makes the handler of a listener)."""


def session_of(protocol: Protocol) -> MakeSession:
    """What makes the sessions of a protocol."""
    module, name = SESSIONS[protocol]
    return cast("MakeSession", getattr(import_module(module), name))


def handler_of(protocol: Protocol) -> MakeDatagramHandler:
    """What makes the handler of a listener's datagrams."""
    module, name = DATAGRAM_HANDLERS[protocol]
    return cast("MakeDatagramHandler", getattr(import_module(module), name))
