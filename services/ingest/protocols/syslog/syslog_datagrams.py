"""Syslog over UDP (RFC 5426): a datagram is a message.

Owned by one listener; remembers nothing. Weak: a datagram that its sender cut looks whole.
"""

from __future__ import annotations

from appliance.senders.listener import Listener
from services.ingest.protocols.syslog.syslog_framing import cut_message, unframe_datagram
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.intake import Intake, Oddity

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
