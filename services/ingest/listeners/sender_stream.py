"""What is between a socket's bytes and a session's: nothing (`PlainStream`) or TLS (`tls_stream`).

A stream owns no socket: its connection receives and sends for it, so that limits, pauses and
bounded answers exist once for both. Weak: a stream decodes everything that one receive returned, so
a piece may be one TLS record larger than the receive.
"""

from __future__ import annotations

from typing import Protocol


class StreamError(Exception):
    """The stream cannot continue. `reason` is the label of a counter; `message`, if any, is logged
    once."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason
        self.message = message


class SenderStream(Protocol):
    """The stream of one connection."""

    @property
    def is_established(self) -> bool:
        """True if a session may start."""

    @property
    def has_started(self) -> bool:
        """True if something was decoded."""

    @property
    def principal(self) -> str:
        """The verified name of the peer; "" without one."""

    @property
    def broken(self) -> StreamError | None:
        """Why the stream cannot continue after what was decoded last."""

    def decode(self, received: bytes) -> bytes:
        """Decode received bytes for the session. Raises StreamError if there is nothing to decode
        and nothing can follow."""

    def encode(self, data: bytes) -> bytes:
        """Encode data for the wire, behind the stream's own bytes."""

    def take_outgoing(self) -> bytes:
        """Take the stream's own bytes (handshake, alerts), if any."""

    def end(self) -> bytes:
        """Return the last bytes for the wire."""


class PlainStream:
    """Bytes without a transformation."""

    has_started = is_established = True
    principal = ""
    broken = None

    def decode(self, received: bytes) -> bytes:
        return received

    def encode(self, data: bytes) -> bytes:
        return data

    def take_outgoing(self) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""


PLAIN = PlainStream()
