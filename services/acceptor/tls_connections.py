"""TLS connections of an acceptor beyond what plain ones need: handshakes, and buffered input.

A turn makes at most `STEPS_A_TURN` steps of handshakes, because one takes up to 6 ms (RSA-4096; P-256:
0.6). A handshake has the deadline of a request (`request.frame.timeout.ms`). Input that OpenSSL has
decrypted and the poller does not report is received in the next turn. Owned by one acceptor.
Weak: one address may use all steps; `max.connections.per.ip` limits its handshakes under way.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from appliance.security.principals import USER_TYPE, Principal
from appliance.security.tls_transport import ESTABLISHED, WANTS_WRITE, CertificateRefused, TlsTransport, words_of
from services.acceptor.closings import CERTIFICATE_REFUSED, CLIENT_LEFT, TLS_HANDSHAKE
from services.acceptor.connection import Connection

STEPS_A_TURN = 8

OnEstablished = Callable[[Connection], None]
OnWants = Callable[[Connection, bool], None]
"""Called with True if the handshake waits to write."""
OnFailed = Callable[[Connection, str, str], None]
"""Called with the reason and the words of the log."""


class TlsConnections:
    """`do_work` each turn; True in `has_work` keeps the process from waiting."""

    def __init__(self, on_established: OnEstablished, on_wants: OnWants, on_failed: OnFailed, receive: Callable[[Connection], None]) -> None:
        self._on_established = on_established
        self._on_wants = on_wants
        self._on_failed = on_failed
        self._receive = receive
        self._handshakes: dict[Connection, None] = {}
        """whose peers have sent something, in that order"""
        self._buffered: dict[Connection, None] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._handshakes) or any(not connection.read_paused for connection in self._buffered)

    def on_handshake_event(self, connection: Connection) -> None:
        self._handshakes[connection] = None

    def on_received(self, connection: Connection) -> None:
        """Note whether OpenSSL keeps input that the poller does not report."""
        transport = connection.transport
        assert isinstance(transport, TlsTransport)
        if not connection.closed and transport.has_buffered:
            self._buffered[connection] = None
        else:
            self._buffered.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        self._handshakes.pop(connection, None)
        self._buffered.pop(connection, None)

    def do_work(self) -> int:
        work = 0
        for connection in [each for each in self._buffered if not each.read_paused]:
            if connection in self._buffered:
                work += 1
                self._receive(connection)
        for connection in list(self._handshakes)[:STEPS_A_TURN]:
            del self._handshakes[connection]
            work += 1
            self._step(connection)
        return work

    def _step(self, connection: Connection) -> None:
        transport, context = connection.transport, connection.listening.tls
        assert isinstance(transport, TlsTransport) and context is not None
        try:
            state = transport.handshake()
            if state != ESTABLISHED:
                self._on_wants(connection, state == WANTS_WRITE)
                return
            name = transport.client_name(context.mapping) if not connection.listening.mechanisms else None  # SASL's principal counts, as in Kafka
        except CertificateRefused as refusal:
            self._on_failed(connection, CERTIFICATE_REFUSED, str(refusal))
            return
        except ssl.SSLCertVerificationError as error:
            self._on_failed(connection, CERTIFICATE_REFUSED, words_of(error))
            return
        except ssl.SSLEOFError:
            self._on_failed(connection, CLIENT_LEFT, "")
            return
        except ssl.SSLError as error:
            self._on_failed(connection, TLS_HANDSHAKE, words_of(error))
            return
        except OSError:
            self._on_failed(connection, CLIENT_LEFT, "")
            return
        if connection.listening.is_inter_broker:
            connection.certificate_names = transport.certificate_names()
        if name is not None:
            connection.set_origin(connection.origin._replace(principal=Principal(USER_TYPE, name)))
        self._on_established(connection)
