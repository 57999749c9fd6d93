"""Certificates of the TLS listeners: loaded at the start, and again when their files change.

Owned by one ingest agent. Open connections keep the context that they were made with. Files that
cannot be used (half written, a key that does not match) are logged once, and the previous
certificate stays in use. Weak: changes are found by time, size and inode, not by content.
"""

from __future__ import annotations

import os
import ssl

from appliance.base.logging import Logger
from appliance.senders.listener import Listener, Protocol

_HTTP_PROTOCOLS = ["h2", "http/1.1"]


class TlsContext:
    """One listener's certificate. `current` is None until there is a usable one."""

    def __init__(self, listener: Listener, log: Logger) -> None:
        self._listener = listener
        self._log = log
        self._seen: tuple[object, ...] = ()
        self.current: ssl.SSLContext | None = None
        self.reload()

    def reload(self) -> bool:
        """Load the files if they changed. True if new connections use another certificate now."""
        seen = tuple(_stamp(path) for path in _files(self._listener))
        if seen == self._seen:
            return False
        is_first = not self._seen
        self._seen = seen
        try:
            self.current = make_context(self._listener)
        except ValueError as error:
            outlook = "the previous certificate stays in use" if self.current else "its senders are refused until the file is replaced"
            self._log.error(f"{error}; {outlook}", listener=self._listener.name)
            return False
        if not is_first:
            self._log.notice(f"listener {self._listener.name} has loaded its changed certificate; new connections use it", listener=self._listener.name)
        return True


def make_context(listener: Listener) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and above with the listener's certificate. Raises ValueError
    naming the unusable file."""
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
        # A syslog sender never reads. If our tickets were unread at its close, the kernel would
        # reset the connection and drop the lines that were not sent yet.
        context.num_tickets = 0
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; use one without a password")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "not a certificate or key"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _files(listener: Listener) -> list[str]:
    return [path for path in (listener.certificate, listener.private_key, listener.client_ca) if path]


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)
