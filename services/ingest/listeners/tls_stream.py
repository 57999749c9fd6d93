"""TLS of the listeners: certificates, and OpenSSL over memory for each connection.

Over memory, a receive of many small records is one system call. Imported on demand, because OpenSSL
takes 4 MB. Certificates are loaded at the start, and again when their files change; open
connections keep the context that they were made with. Files that cannot be used (half written, a
key that does not match) are logged once, and the previous certificate stays in use. OpenSSL
verifies a client's certificate against `client-ca`, `TlsStream` its names against `client-names`.

Weak: changes of files are found by time, size and inode, not by content. A stream without TLS's
close_notify is accepted like one with it, because processes of syslog senders are often killed.
"""

from __future__ import annotations

import os
import ssl
from typing import Any

from appliance.base.logging import Logger
from appliance.senders.listener import Listener, Protocol
from services.ingest.listeners.sender_stream import StreamError

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
            consequence = "the previous certificate stays in use" if self.current else "its senders are refused until the file is replaced"
            self._log.error(f"{error}; {consequence}", listener=self._listener.name)
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
        raise ValueError(f"{where}: certificate {listener.certificate} and key {listener.private_key} cannot be used: {_reason_of(error)}") from error
    if listener.client_ca:
        try:
            context.load_verify_locations(listener.client_ca)
        except (OSError, ValueError) as error:
            raise ValueError(f"{where}: client-ca {listener.client_ca} cannot be used: {_reason_of(error)}") from error
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


def _reason_of(error: Exception) -> str:
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


READ_BYTES = 16384
"""The largest content of a TLS record."""
_HANDSHAKE_RECORD = 0x16


class TlsStream:
    """The server's side of one connection."""

    __slots__ = ("_client_names", "_incoming", "_outgoing", "_read", "_scratch", "_tls", "broken", "has_started", "is_established", "principal")

    def __init__(self, context: ssl.SSLContext, client_names: tuple[str, ...]) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._read = self._tls.read
        self._client_names = client_names
        self.has_started = False
        self.broken: StreamError | None = None
        self.is_established = False
        self.principal = ""

    def decode(self, received: bytes) -> bytes:
        incoming = self._incoming
        if not self.has_started:
            self.has_started = True
            if received[0] != _HANDSHAKE_RECORD:
                raise StreamError("tls-plaintext", "speaks plaintext where TLS is expected; nothing of it is taken")
        incoming.write(received)
        pieces: list[bytes] = []
        try:
            if not self.is_established:
                self._tls.do_handshake()
                self._on_established()
            while incoming.pending:
                pieces.append(self._read(READ_BYTES))
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass  # the peer sent close_notify; the end of the socket follows
        except ssl.SSLCertVerificationError as error:
            raise StreamError("tls-certificate", f"has a certificate that is not accepted: {error.verify_message or error.reason}") from error
        except ssl.SSLError as error:
            self.broken = self._failure(error)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _failure(self, error: ssl.SSLError) -> StreamError:
        if self.is_established:
            return StreamError("tls-broken")
        message = (error.reason or str(error)).replace("_", " ").lower()
        return StreamError("tls-handshake", f"cannot agree on TLS with us: {message}")

    def _on_established(self) -> None:
        certificate: dict[str, Any] | None = self._tls.getpeercert()
        names = certificate_names(certificate or {})
        if self._client_names:
            self.principal = next((name for name in names if any(name_matches(name, wanted) for wanted in self._client_names)), "")
            if not self.principal:
                raise StreamError("tls-client-name", f"has a certificate for {', '.join(names) or 'no name'}, which is not in client-names")
        elif names:
            self.principal = names[0]
        self.is_established = True

    def encode(self, data: bytes) -> bytes:
        try:
            self._tls.write(data)
        except ssl.SSLError:
            return b""  # it ended meanwhile; the next read reports it
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the peer's close_notify has not arrived, or no handshake began; ours is written
        return self._outgoing.read()


def certificate_names(certificate: dict[str, Any]) -> list[str]:
    """Return the names of a verified certificate: alternative names (DNS, IP, e-mail), then the
    subject's common name."""
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address", "email")]
    names += [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return list(dict.fromkeys(names))


def name_matches(name: str, wanted: str) -> bool:
    """True if a certificate's name matches; `*.example.com` stands for one label in front."""
    name, wanted = name.lower(), wanted.lower()
    if wanted.startswith("*."):
        label, dot, rest = name.partition(".")
        return bool(label and dot) and rest == wanted[2:]
    return name == wanted
