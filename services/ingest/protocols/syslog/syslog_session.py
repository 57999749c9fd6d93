"""Plain syslog: over a stream (TCP or TLS), and over UDP (RFC 5426), where a datagram is a message.
There are no answers.

A session is owned by one connection and has one ack group for all of it. The last line of a closing
connection is accepted without its trailer. So is a line without progress for `idle_ms_max`; then
the connection is closed, because a sender of one byte a minute would occupy it. The handler of
datagrams keeps no state. Weak: what is in the kernel's receive buffer when the process is killed is
lost, because plain syslog has no acknowledgement; a datagram that its sender cut looks complete.
"""

from __future__ import annotations

from appliance.senders.listener import Listener
from services.ingest.protocols.session import SessionConnection, Unfinished
from services.ingest.protocols.syslog.syslog_framing import SyslogSplitter, cut_message, unframe_datagram
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.intake import Intake, Oddity


class SyslogSession:
    """Both framings of RFC 6587 (and RFC 5425), recognised for each frame."""

    __slots__ = ("_connection", "_cut_messages", "_resynchronisations", "_splitter", "_take", "_taken", "_unfinished", "_unit")

    unacknowledged_bytes = 0
    """No sender waits for an acknowledgement; back-pressure on its partitions slows it down."""

    def __init__(self, connection: SessionConnection) -> None:
        self._connection = connection
        self._splitter = SyslogSplitter(connection.listener.message_bytes_max)
        self._unit = AckGroup(connection.listener, connection.source)
        self._take = connection.intake.take_syslog
        self._taken = 0
        self._unfinished = Unfinished()
        self._cut_messages = 0
        self._resynchronisations = 0

    @property
    def buffered_bytes(self) -> int:
        return self._splitter.buffered_bytes

    def received(self, data: bytes | memoryview) -> None:
        self._hand_over(self._splitter.feed(bytes(data)))

    def finished(self) -> None:
        self._hand_over(self._splitter.finish())

    def lost(self) -> None:
        pass

    def tick(self, now_ms: int) -> None:
        if self._unfinished.is_overdue(self._taken, self._splitter.buffered_bytes, now_ms, self._connection.listener.idle_ms_max):
            self.finished()
            self._connection.close("idle")

    def _hand_over(self, messages: list[bytes]) -> None:
        if messages:
            self._taken += len(messages)
            self._take(self._unit, messages)
        splitter = self._splitter
        if splitter.cut_messages != self._cut_messages:
            self._note(Oddity.TRUNCATED, splitter.cut_messages - self._cut_messages)
            self._cut_messages = splitter.cut_messages
        if splitter.resynchronisations != self._resynchronisations:
            self._note(Oddity.FRAMING_RESYNCHRONISED, splitter.resynchronisations - self._resynchronisations)
            self._resynchronisations = splitter.resynchronisations

    def _note(self, oddity: Oddity, count: int) -> None:
        self._connection.intake.note(self._connection.listener, self._connection.source, oddity, count)


_DIGIT_ONE, _DIGIT_NINE = 0x31, 0x39


class SyslogDatagrams:
    """Removes an octet count that some senders put first, and cuts what is too long."""

    def __init__(self, listener: Listener, intake: Intake) -> None:
        self._listener = listener
        self._intake = intake

    def received(self, unit: AckGroup, datagrams: list[bytes]) -> int:
        size_bytes_max = self._listener.message_bytes_max
        for index, message in enumerate(datagrams):
            if _DIGIT_ONE <= message[0] <= _DIGIT_NINE:
                message = datagrams[index] = unframe_datagram(message)
            if len(message) > size_bytes_max:
                datagrams[index] = cut_message(message, size_bytes_max)
                self._intake.note(self._listener, unit.source, Oddity.TRUNCATED)
        self._intake.take_syslog(unit, datagrams)
        return 0

    def tick(self, now_ms: int) -> None:
        pass
