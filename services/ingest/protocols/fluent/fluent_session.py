"""Fluent's forward protocol (v1) on one connection: chunks are acknowledged when their records are where the listener's `acks` wants them.

Owned by one connection. A message with `chunk` is a unit with one identity, the chunk's id: sent again, on whatever connection, it is not stored again. Each
chunk is answered `{"ack": chunk}` when it settles, in whatever order; one that is refused for now is not answered, and the connection ends: the sender brings
it again. Messages without `chunk` are one unit that nobody waits for. `nil` is a heartbeat of senders that have nothing to say.
What cannot be read (no msgpack, no message) ends the connection; entries that cannot be read are kept (`fluent_messages`).

Weak: heartbeats over UDP are not answered (`heartbeat_type transport` or `none` at the sender); the old form in JSON is no message; a chunk id counts for a
whole listener, so two senders that choose the same one (they are random, 128 bits) would be taken for one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from services.ingest.protocols.bounded_inflate import TooLarge
from services.ingest.protocols.fluent.fluent_messages import FluentMessage, read_messages, records_of
from services.ingest.protocols.fluent.msgpack_stream import ObjectSplitter, decode_objects, pack
from services.ingest.protocols.session import Connection
from services.ingest.protocols.unfinished import Unfinished
from services.ingest.records.ack_group import AckGroup, AckOutcome, identity_of
from services.ingest.records.intake import Oddity, RefusedReason

if TYPE_CHECKING:
    from services.ingest.protocols.fluent.fluent_handshake import FluentHandshake


class FluentSession:
    """Answers by chunk."""

    __slots__ = ("_connection", "_handshake", "_is_ended", "_nobody_waits", "_splitter", "_unfinished", "unacknowledged_bytes")

    def __init__(self, connection: Connection, chance: Callable[[int], bytes] = os.urandom) -> None:
        self._connection = connection
        listener = connection.listener
        self._splitter = ObjectSplitter(listener.frame_bytes_max)
        self._nobody_waits = AckGroup(listener, connection.source)
        self._unfinished = Unfinished()
        self._is_ended = False
        self.unacknowledged_bytes = 0
        self._handshake: FluentHandshake | None = None
        if listener.shared_key:
            from services.ingest.protocols.fluent.fluent_handshake import FluentHandshake

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
            self._take_messages(whole, ends)
        if self._splitter.problem and not self._is_ended:
            self._refuse(RefusedReason.TOO_LARGE if self._splitter.problem == "too-large" else RefusedReason.MALFORMED, f"fluent-{self._splitter.problem}")

    def _take_messages(self, whole: bytes, ends: list[int]) -> None:
        start = 0
        for message, end in zip(read_messages(whole, ends), ends, strict=True):
            if message is not None:
                self._take(message, end - start)
            elif whole[start:end] != b"\xc0":
                self._refuse(RefusedReason.MALFORMED, "fluent-malformed")
            if self._is_ended:
                return
            start = end

    def _take(self, message: FluentMessage, size_bytes: int) -> None:
        connection, intake = self._connection, self._connection.intake
        chunk = message.chunk
        unit = self._nobody_waits
        if chunk is not None:
            unit = AckGroup(connection.listener, connection.source, [self._identity(chunk)], self._on_completed)
            unit.context = (chunk, size_bytes)
        try:
            for records, unparsed in records_of(message, connection.listener):
                intake.take(unit, records)
                if unparsed:
                    intake.note(connection.listener, connection.source, Oddity.UNPARSED, unparsed)
                if chunk is not None and unit.outcome is AckOutcome.REFUSED:
                    break  # all of it will come again
        except TooLarge:  # before the first record
            self._refuse(RefusedReason.TOO_LARGE, "fluent-too-large")
            return
        if chunk is not None:
            self.unacknowledged_bytes += size_bytes
            intake.close_group(unit)

    def _identity(self, chunk: Any) -> bytes:
        return identity_of(b"fluent", self._connection.listener.name.encode(), pack(chunk))

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
