"""TLS between a socket's bytes and a session's: OpenSSL over memory, so that a receive of many
small records is one system call.

Owned by one connection, which checks the deadline of the handshake. OpenSSL verifies a client's
certificate against `client-ca`, this class its names against `client-names`. Weak: a stream without
TLS's close_notify is accepted like one with it, because processes of syslog senders are often
killed.
"""

from __future__ import annotations

import ssl
from typing import Any

from services.ingest.listeners.sender_stream import StreamError

READ_BYTES = 16384
"""The largest content of a TLS record."""
_HANDSHAKE_RECORD = 0x16


class TlsStream:
    """The server's side of one connection."""

    __slots__ = ("_client_names", "_incoming", "_outgoing", "_read", "_scratch", "_started", "_tls", "broken", "is_established", "principal")

    def __init__(self, context: ssl.SSLContext, client_names: tuple[str, ...]) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._read = self._tls.read
        self._client_names = client_names
        self._started = False
        self.broken: StreamError | None = None
        self.is_established = False
        self.principal = ""

    def decode(self, received: bytes) -> bytes:
        incoming = self._incoming
        if not self._started:
            self._started = True
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
