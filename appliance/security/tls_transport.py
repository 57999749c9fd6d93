"""TLS on a client's socket: decrypts straight into the caller's memory, encrypts record by record.

Three rules of OpenSSL that `ClientConnections` and this class keep together. (1) OpenSSL returns
one record at a time and keeps the rest of it, which the poller does not report: `has_buffered`
says that there is more to receive. (2) Reading may need to write (a key update): `wants_write`.
(3) A write that found the socket full has to be repeated with the same bytes: they are kept here,
and what later calls offer again is skipped.

Owned by one connection. Weak: encryption is in user space: 1.1 s of CPU for a GB sent (plain: 0.35).
`send_file` copies, and waits for the disk as sendfile does.
"""

from __future__ import annotations

import fcntl
import os
import ssl
import sys
import termios

from appliance.security.distinguished_names import CertificateUnreadable, PrincipalMapping, subject_of
from appliance.security.principals import LOCAL_NAMES
from appliance.security.transport import WOULD_BLOCK, peer_name

RECORD_BYTES = 16 << 10
"""The largest content of a TLS record."""
CHUNK_BYTES = 64 << 10
"""Offered to OpenSSL at a time; what it could not send at once is copied."""
ESTABLISHED, WANTS_READ, WANTS_WRITE = range(3)


def words_of(error: OSError) -> str:
    """Return why TLS with a peer failed, for a log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message or error.reason}"
    if isinstance(error, ssl.SSLEOFError):
        return "it closed the connection"
    return f"no agreement on TLS: {(getattr(error, 'reason', '') or str(error)).replace('_', ' ').lower()}"


class CertificateRefused(OSError):
    """The client's certificate is valid, but no rule makes a principal of it."""


class TlsTransport:
    """As `PlainTransport`; `handshake` comes first."""

    __slots__ = ("_ahead_bytes", "_descriptor", "_held", "_pending", "_pending_bytes", "_socket", "wants_write")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        """`sock`: not blocking, and without a handshake so far."""
        self._socket = sock
        self._descriptor = sock.fileno()
        self._held = b""
        """small pieces that share the record of what follows"""
        self._pending: bytes | None = None
        """what OpenSSL was given and could not send"""
        self._pending_bytes = 0
        """how much of `_pending` the caller has not seen taken"""
        self._ahead_bytes = 0
        """sent, and offered by the caller again"""
        self.wants_write = False
        """receiving needs the socket to be writable"""

    def fileno(self) -> int:
        return self._descriptor

    def handshake(self) -> int:
        """Make one step. Raises ssl.SSLError and OSError."""
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return WANTS_READ
        except ssl.SSLWantWriteError:
            return WANTS_WRITE
        return ESTABLISHED

    def client_name(self, mapping: PrincipalMapping) -> str | None:
        """Return the name that `mapping` makes of the client's certificate; None without one.

        Raises CertificateRefused if no rule matches, or makes the name of a local user.
        """
        certificate = self._socket.getpeercert(binary_form=True)
        if certificate is None:
            return None
        try:
            subject = subject_of(certificate)
        except CertificateUnreadable as error:
            raise CertificateRefused(f"the subject of its certificate cannot be read: {error}") from error
        name = mapping.name_of(subject) if subject else None
        if not name:
            raise CertificateRefused(f"no rule of ssl.principal.mapping.rules matches the subject {subject!r} of its certificate")
        if name.startswith(LOCAL_NAMES):
            raise CertificateRefused(f"ssl.principal.mapping.rules make {name!r} of its certificate: names with {LOCAL_NAMES!r} are those of local users")
        return name

    def certificate_names(self) -> frozenset[str | bytes]:
        """Return the alternative names of the peer's verified certificate: host names in small letters, addresses packed."""
        certificate = self._socket.getpeercert() or {}
        found = ((str(each[0]), str(each[1])) for each in certificate.get("subjectAltName", ()))
        return frozenset(peer_name(text) for kind, text in found if kind in ("DNS", "IP Address"))

    @property
    def has_buffered(self) -> bool:
        """True if decrypted bytes wait that the poller does not report."""
        return self._socket.pending() > 0

    def receive_into(self, buffer: memoryview) -> int:
        """Receive until the buffer is full or nothing more has come.

        librdkafka sends each message in a record of its own; one record a turn cost four times as
        much.
        """
        received, wanted, receive = 0, len(buffer), self._socket.recv_into
        self.wants_write = False
        try:
            while received < wanted:
                count = receive(buffer[received:])
                if not count:
                    break
                received += count
        except ssl.SSLWantReadError:
            return received or WOULD_BLOCK
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return received or WOULD_BLOCK
        except ssl.SSLZeroReturnError:
            return received
        return received

    def receivable_bytes(self) -> int:
        answer = bytearray(4)
        fcntl.ioctl(self._descriptor, termios.FIONREAD, answer)
        return self._socket.pending() + int.from_bytes(answer, sys.byteorder)

    def send(self, data: bytes | memoryview, more: bool) -> int:
        if self._ahead_bytes:
            taken = min(self._ahead_bytes, len(data))
            self._ahead_bytes -= taken
            return taken
        chunk: bytes | memoryview
        if self._pending is not None:
            chunk, count = self._pending, self._pending_bytes
        elif more and len(self._held) + len(data) < RECORD_BYTES:
            self._held += data
            return len(data)
        elif self._held:
            part = bytes(data[: RECORD_BYTES - len(self._held)])
            chunk, count = self._held + part, len(part)
        else:
            chunk = data[:CHUNK_BYTES]
            count = len(chunk)
        try:
            self._socket.send(chunk)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if self._pending is None:
                self._pending, self._pending_bytes = bytes(chunk), count
            return WOULD_BLOCK
        self._pending, self._held = None, b""
        taken = min(count, len(data))
        self._ahead_bytes = count - taken
        return taken

    def send_file(self, descriptor: int, position: int, size_bytes: int) -> int:
        data = os.pread(descriptor, min(size_bytes, CHUNK_BYTES), position)
        return self.send(data, False) if data else 0

    def close(self) -> None:
        self._socket.close()
