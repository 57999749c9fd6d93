"""GELF over UDP: a message in a datagram, or in up to 128 of them.

Owned by one listener. Nobody is answered: what is not whole after five seconds, or cannot be opened, is counted as refused.
"""

from __future__ import annotations

from appliance.senders.listener import Listener
from services.ingest.protocols.bounded_inflate import NotCompressed, TooLarge
from services.ingest.protocols.gelf.gelf_chunks import ChunkAssembly, LossReason
from services.ingest.protocols.gelf.gelf_message import gelf_record, open_gelf
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.event import EventSource
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Intake, RefusedReason

_REASONS = {LossReason.BROKEN: RefusedReason.MALFORMED}


class GelfDatagrams:
    """The handler of one listener, for all its senders."""

    def __init__(self, listener: Listener, intake: Intake) -> None:
        self._listener = listener
        self._intake = intake
        self._assembly = ChunkAssembly()

    def received(self, unit: AckGroup, datagrams: list[bytes]) -> None:
        records: list[IngestRecord] = []
        now_ms = self._intake.monotonic_ms()
        source: EventSource = unit.source
        for datagram in datagrams:
            message = self._assembly.take(datagram, source.host, now_ms)
            if message is None:
                continue
            try:
                text = open_gelf(message, self._listener.decompressed_bytes_max)
            except NotCompressed:
                self._intake.refuse(self._listener, source, RefusedReason.MALFORMED)
            except TooLarge:
                self._intake.refuse(self._listener, source, RefusedReason.TOO_LARGE)
            else:
                if text:
                    records.append(gelf_record(text, self._listener, source, self._intake))
        self._count_lost()
        if records:
            self._intake.take(unit, records)

    def tick(self, now_ms: int) -> None:
        self._assembly.expire(now_ms)
        self._count_lost()

    def _count_lost(self) -> None:
        for host, reason in self._assembly.take_lost():
            refused = _REASONS.get(reason, RefusedReason.INCOMPLETE)
            self._intake.refuse(self._listener, EventSource(host, host, b"gelf"), refused)
