"""GELF over TCP: uncompressed messages that end with a NUL. There are no answers.

Owned by one connection. Memory is limited by the listener's frame limit: a larger message is
skipped to its end and counted. A message without progress closes the connection. The bytes after
the last NUL are a message when the sender closes, because some senders omit the last NUL.
"""

from __future__ import annotations

from services.ingest.protocols.gelf.gelf_message import gelf_record
from services.ingest.protocols.session import SessionConnection, Unfinished
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.intake import RefusedReason

_END = b"\0"


class GelfSession:
    """The stream of one sender."""

    unacknowledged_bytes = 0

    def __init__(self, connection: SessionConnection) -> None:
        self._connection = connection
        self._unit = AckGroup(connection.listener, connection.source)
        self._tail = bytearray()
        self._is_skipping = False
        self._messages_done = 0
        self._unfinished = Unfinished()

    @property
    def buffered_bytes(self) -> int:
        return len(self._tail)

    def received(self, data: bytes | memoryview) -> None:
        first, *more = bytes(data).split(_END)
        if not more:
            self._keep(first)
            return
        messages = [*self._end(first), *more[:-1]]
        limit_bytes = self._connection.listener.frame_bytes_max
        self._messages_done += len(more)
        self._keep(more[-1])
        self._take([message for message in messages if message.strip() and self._fits(message, limit_bytes)])

    def finished(self) -> None:
        if not self._is_skipping and self._tail.strip():
            self._take([bytes(self._tail)])
        self._tail.clear()

    def lost(self) -> None:
        if self._tail.strip():
            self._connection.intake.refuse(self._connection.listener, self._connection.source, RefusedReason.INCOMPLETE)
        self._tail.clear()
        self._is_skipping = False

    def tick(self, now_ms: int) -> None:
        begun_bytes = len(self._tail) + self._is_skipping
        if self._unfinished.is_overdue(self._messages_done, begun_bytes, now_ms, self._connection.listener.idle_ms_max):
            self._connection.close("idle")

    def _end(self, piece: bytes) -> list[bytes]:
        """Return the message that `piece` completes; none if it was too large."""
        if self._is_skipping:
            self._is_skipping = False
            return []
        if not self._tail:
            return [piece]
        self._tail += piece
        message = bytes(self._tail)
        self._tail.clear()
        return [message]

    def _keep(self, piece: bytes) -> None:
        if self._is_skipping:
            return
        self._tail += piece
        if len(self._tail) > self._connection.listener.frame_bytes_max:
            self._refuse_large()
            self._tail.clear()
            self._is_skipping = True

    def _fits(self, message: bytes, limit_bytes: int) -> bool:
        if len(message) <= limit_bytes:
            return True
        self._refuse_large()
        return False

    def _refuse_large(self) -> None:
        connection = self._connection
        connection.intake.refuse(connection.listener, connection.source, RefusedReason.TOO_LARGE)

    def _take(self, messages: list[bytes]) -> None:
        if messages:
            connection = self._connection
            records = [gelf_record(message, connection.listener, connection.source, connection.intake) for message in messages]
            connection.intake.take(self._unit, records)
