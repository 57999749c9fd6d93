"""Certificates of the listeners that speak TLS: read at start, and again when their files change.

Owned by one ingest agent. Connections that live keep the context they were made with. Files that cannot be used (a certificate that is written while
we look, a key that does not fit it) are said once, and those before stay in use. Weak: files are looked at by their time, size and inode, not by content.
"""

from __future__ import annotations

import os
import ssl

from appliance.base.logging import Logger
from appliance.senders.listener import Listener, Protocol

_HTTP_PROTOCOLS = ["h2", "http/1.1"]


class TlsContext:
    """One listener's certificate. `current` is None while no usable one was ever there."""

    def __init__(self, listener: Listener, log: Logger) -> None:
        self._listener = listener
        self._log = log
        self._seen: tuple[object, ...] = ()
        self.current: ssl.SSLContext | None = None
        self.look()

    def look(self) -> bool:
        """Read the files if they are others than before. True if new connections get another certificate now."""
        seen = tuple(_stamp(path) for path in _files(self._listener))
        if seen == self._seen:
            return False
        is_first = not self._seen
        self._seen = seen
        try:
            self.current = make_context(self._listener)
        except ValueError as error:
            outlook = "the certificate before it stays in use" if self.current else "its senders are turned away until that is mended"
            self._log.error(f"{error}; {outlook}", listener=self._listener.name)
            return False
        if not is_first:
            self._log.notice(f"listener {self._listener.name} has read its certificate again; new connections get it", listener=self._listener.name)
        return True


def make_context(listener: Listener) -> ssl.SSLContext:
    """TLS 1.2 and above with the listener's certificate. Raises ValueError naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    where = f"listener {listener.name}"
    try:
        context.load_cert_chain(listener.certificate, listener.private_key or None, password=_no_password)
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: certificate {listener.certificate} and key {listener.private_key} cannot be used: {_words(error)}") from error
    if listener.client_ca:
        try:
            context.load_verify_locations(listener.client_ca)
        except (OSError, ValueError) as error:
            raise ValueError(f"{where}: client-ca {listener.client_ca} cannot be used: {_words(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    if listener.protocol is Protocol.HTTP:
        context.set_alpn_protocols(_HTTP_PROTOCOLS)
    else:
        # A sender of syslog never reads. With our tickets unread its close would reset the connection, and throw away the lines that it has not sent yet.
        context.num_tickets = 0
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is here to type its password")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "what should be in them is not"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _files(listener: Listener) -> list[str]:
    return [path for path in (listener.certificate, listener.private_key, listener.client_ca) if path]


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)
