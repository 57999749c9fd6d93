"""What lies between a socket's bytes and a session's: nothing (`PlainStream`) or TLS (`tls_stream`).

A stream owns no socket: its connection receives and sends for it, so that limits, pauses and bounded answers exist once for both. Weak: a stream decodes
all that one receive brought, so a piece may be a TLS record larger than the receive.
"""

from __future__ import annotations

from typing import Protocol


class StreamError(Exception):
    """The stream cannot go on. `reason` is the label of a counter; `words`, if any, are worth saying in the log once."""

    def __init__(self, reason: str, words: str = "") -> None:
        super().__init__(words or reason)
        self.reason = reason
        self.words = words


class SenderStream(Protocol):
    """One connection's stream."""

    @property
    def is_established(self) -> bool:
        """Whether a session may begin."""

    @property
    def principal(self) -> str:
        """Who the peer proved to be; "" if it did not."""

    @property
    def broken(self) -> StreamError | None:
        """Why the stream cannot go on behind what was decoded last."""

    def decode(self, received: bytes) -> bytes:
        """What the bytes from the wire say to the session. Raises StreamError if they say nothing and nothing can follow."""

    def encode(self, data: bytes) -> bytes:
        """The bytes for the wire that say `data`, behind what the stream itself has to say."""

    def take_outgoing(self) -> bytes:
        """What the stream itself has to say (handshake, alerts), if anything."""

    def end(self) -> bytes:
        """The last bytes for the wire."""


class PlainStream:
    """Bytes as they are."""

    is_established = True
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
