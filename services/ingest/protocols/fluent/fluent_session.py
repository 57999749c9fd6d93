"""Fluent's forward protocol (v1) on one connection: a chunk is acknowledged when its records meet
the listener's `acks`.

A message with `chunk` is an ack group whose identity is the chunk's id and the sender (certificate
or address), so a repeated chunk is not stored again, on any of its connections. Each chunk is answered `{"ack": chunk}` when it completes, in any
order. A chunk that is refused for now is not answered and the connection closes, so that the sender
repeats it. Messages without `chunk` share one ack group without an answer. `nil` is a heartbeat.
Invalid msgpack or messages close the connection; entries that cannot be parsed are stored
(`fluent_messages`).

Weak: heartbeats over UDP are not answered (set `heartbeat_type transport` or `none`); the old JSON
form is not supported; a chunk that is repeated from another address, without a certificate, is
stored again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from services.ingest.protocols.bounded_inflate import TooLarge
from services.ingest.protocols.document import utf8
from services.ingest.protocols.fluent.fluent_messages import FluentMessage, read_messages, records_of
from services.ingest.protocols.fluent.msgpack_stream import ObjectSplitter, decode_objects, pack
from services.ingest.protocols.session import SessionConnection, Unfinished
from services.ingest.protocols.steps import SLICE_RECORDS, Steps
from services.ingest.records.ack_group import AckGroup, AckOutcome, identity_of
from services.ingest.records.intake import Oddity, RefusedReason

MESSAGES_A_STEP = 64
NONCE_BYTES = 16
SERVER_NAME = b"millrace"


class HandshakeResult(NamedTuple):
    """Whether the sender is accepted, and the answer to it."""

    is_welcome: bool
    answer: bytes


class FluentHandshake:
    """The shared-key handshake: HELO from ingest, PING from the sender, PONG from ingest.

    Each side proves that it knows the key: a SHA-512 of salt, name, nonce and key (version 1 of the
    protocol). Users and passwords of the protocol are not checked. hashlib brings OpenSSL, so it is
    loaded for the first connection with a `shared-key`.
    """

    def __init__(self, shared_key: str, chance: Callable[[int], bytes]) -> None:
        self._key = shared_key.encode()
        self._nonce = chance(NONCE_BYTES)
        self.greeting = pack(["HELO", {"nonce": self._nonce, "auth": b"", "keepalive": True}])

    def judge(self, message: Any) -> HandshakeResult | None:
        """Check a PING; None if the message is not one."""
        if type(message) is not list or len(message) != 6 or message[0] not in ("PING", b"PING"):
            return None
        _, name, salt, digest, _user, _password = map(_bytes, message)
        import hmac

        if not hmac.compare_digest(digest.lower(), self.digest(salt, name)):
            return HandshakeResult(False, pack(["PONG", False, "shared_key mismatch", "", ""]))
        return HandshakeResult(True, pack(["PONG", True, "", SERVER_NAME.decode(), self.digest(salt, SERVER_NAME).decode()]))

    def digest(self, salt: bytes, name: bytes) -> bytes:
        import hashlib

        return hashlib.sha512(salt + name + self._nonce + self._key).hexdigest().encode()


def _bytes(value: Any) -> bytes:
    return value if type(value) is bytes else utf8(value) if type(value) is str else b""


class FluentSession:
    """Answers by chunk."""

    __slots__ = ("_connection", "_handshake", "_is_ended", "_nobody_waits", "_splitter", "_unfinished", "unacknowledged_bytes")

    def __init__(self, connection: SessionConnection, chance: Callable[[int], bytes] = os.urandom) -> None:
        self._connection = connection
        listener = connection.listener
        self._splitter = ObjectSplitter(listener.frame_bytes_max)
        self._nobody_waits = AckGroup(listener, connection.source)
        self._unfinished = Unfinished()
        self._is_ended = False
        self.unacknowledged_bytes = 0
        self._handshake: FluentHandshake | None = None
        if listener.shared_key:
            self._handshake = FluentHandshake(listener.shared_key, chance)
            connection.send(self._handshake.greeting)

    # -- in

    @property
    def buffered_bytes(self) -> int:
        return self._splitter.buffered_bytes

    def received(self, data: bytes | memoryview) -> None:
        if self._is_ended:
            return
        whole, ends = self._splitter.feed(data)
        if ends and self._handshake is not None:
            whole, ends = self._on_ping(self._handshake, whole, ends)
        if ends and not self._is_ended:
            self._connection.run(self._take_messages(whole, ends))
        if self._splitter.problem:
            self._connection.run(self._give_up())

    def _give_up(self) -> Steps:
        """End the connection after the messages before the problem."""
        yield from ()
        if self._splitter.problem and not self._is_ended:
            self._refuse(RefusedReason.TOO_LARGE if self._splitter.problem == "too-large" else RefusedReason.MALFORMED, f"fluent-{self._splitter.problem}")

    def _take_messages(self, whole: bytes, ends: list[int]) -> Steps:
        start = 0
        for count, (message, end) in enumerate(zip(read_messages(whole, ends), ends, strict=True), 1):
            if self._is_ended:
                return
            if message is not None:
                yield from self._take(message, end - start)
            elif whole[start:end] != b"\xc0":
                self._refuse(RefusedReason.MALFORMED, "fluent-malformed")
            start = end
            if not count % MESSAGES_A_STEP:
                yield

    def _take(self, message: FluentMessage, size_bytes: int) -> Steps:
        connection, intake = self._connection, self._connection.intake
        chunk = message.chunk
        unit = self._nobody_waits
        if chunk is not None:
            unit = AckGroup(connection.listener, connection.source, [self._identity(chunk)], self._on_completed)
            unit.context = (chunk, size_bytes)
            self.unacknowledged_bytes += size_bytes
        taken = 0
        try:
            for records, unparsed in records_of(message, connection.listener, connection.charge):
                if taken >= SLICE_RECORDS or not records:
                    taken = 0
                    yield
                if records:
                    intake.take(unit, records)
                    taken += len(records)
                if unparsed:
                    intake.note(connection.listener, connection.source, Oddity.UNPARSED, unparsed)
                if chunk is not None and unit.outcome is AckOutcome.REFUSED:
                    break  # all of it will come again
        except TooLarge:  # before the first record
            if chunk is not None:
                self.unacknowledged_bytes -= size_bytes
            self._refuse(RefusedReason.TOO_LARGE, "fluent-too-large")
            return
        except GeneratorExit:
            if chunk is not None:
                intake.abandon(unit)
            else:
                intake.refuse(connection.listener, connection.source, RefusedReason.INCOMPLETE)
            raise
        if chunk is not None:
            intake.close_group(unit)

    def _identity(self, chunk: Any) -> bytes:
        connection = self._connection
        sender = connection.principal.encode() or connection.source.host
        return identity_of(b"fluent", connection.listener.name.encode(), sender, pack(chunk))

    def _on_ping(self, handshake: FluentHandshake, whole: bytes, ends: list[int]) -> tuple[bytes, list[int]]:
        """Judge the first message; what is left are messages."""
        first = ends[0]
        verdict = handshake.judge(decode_objects(whole[:first], [first])[0])
        if verdict is None:
            self._refuse(RefusedReason.UNAUTHORIZED, "fluent-no-handshake")
            return b"", []
        self._connection.send(verdict.answer)
        if not verdict.is_welcome:
            self._refuse(RefusedReason.UNAUTHORIZED, "fluent-wrong-key")
            return b"", []
        self._handshake = None
        return whole[first:], [end - first for end in ends[1:]]

    def finished(self) -> None:
        if self._splitter.buffered_bytes and not self._is_ended:
            self._connection.intake.refuse(self._connection.listener, self._connection.source, RefusedReason.INCOMPLETE)

    def lost(self) -> None:
        self._is_ended = True

    def tick(self, now_ms: int) -> None:
        buffered_bytes = self._splitter.buffered_bytes or (self._handshake is not None)
        if not self._is_ended and self._unfinished.is_overdue(self._splitter.objects_done, buffered_bytes, now_ms, self._connection.listener.idle_ms_max):
            self._refuse(RefusedReason.TIMED_OUT, "idle")

    # -- out

    def _on_completed(self, unit: AckGroup) -> None:
        chunk, size_bytes = unit.context
        self.unacknowledged_bytes -= size_bytes
        if unit.outcome is AckOutcome.REFUSED:
            self._end("refused")
        elif not self._is_ended:
            self._connection.send(pack({"ack": chunk}))

    def _refuse(self, reason: RefusedReason, words: str) -> None:
        self._connection.intake.refuse(self._connection.listener, self._connection.source, reason)
        self._end(words)

    def _end(self, reason: str) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._connection.close(reason)
