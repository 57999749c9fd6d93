"""Plain syslog over a stream, TCP or TLS: splits it into messages and hands them over; nobody is answered.

Owned by one connection. One unit serves the whole connection. A closing connection's last line is taken without its trailer, and so is one that does not
go on for `idle_ms_max` (then the connection is closed: whoever sends a byte a minute holds a place). Weak: what a sender has in our kernel's receive
buffer when the process is killed is lost; plain syslog has no acknowledgement.
"""

from __future__ import annotations

from appliance.senders.listener import Listener
from services.ingest.protocols.session import SessionConnection, Unfinished
from services.ingest.protocols.syslog.syslog_framing import SyslogSplitter, cut_message, unframe_datagram
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.intake import Intake, Oddity


class SyslogSession:
    """Both framings of RFC 6587 (and so RFC 5425), told apart frame by frame."""

    __slots__ = ("_connection", "_cut_messages", "_resynchronisations", "_splitter", "_take", "_taken", "_unfinished", "_unit")

    unacknowledged_bytes = 0
    """Nobody waits for an acknowledgement; a sender is slowed down by what its lines meet."""

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
    """Takes off an octet count that some senders put in front, and cuts what is too long."""

    def __init__(self, listener: Listener, intake: Intake) -> None:
        self._listener = listener
        self._intake = intake

    def received(self, unit: AckGroup, datagrams: list[bytes]) -> None:
        size_bytes_max = self._listener.message_bytes_max
        for index, message in enumerate(datagrams):
            if _DIGIT_ONE <= message[0] <= _DIGIT_NINE:
                message = datagrams[index] = unframe_datagram(message)
            if len(message) > size_bytes_max:
                datagrams[index] = cut_message(message, size_bytes_max)
                self._intake.note(self._listener, unit.source, Oddity.TRUNCATED)
        self._intake.take_syslog(unit, datagrams)

    def tick(self, now_ms: int) -> None:
        pass
