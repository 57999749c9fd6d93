"""Lumberjack v2 (Beats, Logstash) on one connection: events are acknowledged in order when they
meet the listener's `acks`.

Owned by one connection. The events of one window that arrive together are an ack group; its last
sequence is acknowledged (`2A`) when it and all groups before it are complete, so a long window is
acknowledged in parts. While a sender waits, the last acknowledged sequence of its window is sent
again every few seconds, because it would close the connection otherwise. What is refused for now is
not acknowledged; the connection closes, and the sender repeats it. Sequences begin again with each
connection (with Beats, with each window), so repeats are recognised by content:
`intake.open_stream` compares a new session with the end of the previous one.

Weak: a Beat with several workers may repeat events over another connection, where they are not
recognised.
"""

from __future__ import annotations

from collections import deque

from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.lumberjack.lumberjack_frames import ACK, ACK_KIND, Event, LumberjackSplitter, WindowSize
from services.ingest.protocols.session import SessionConnection, Unfinished
from services.ingest.protocols.steps import Steps
from services.ingest.records.ack_group import AckGroup, AckOutcome, digest_of
from services.ingest.records.agent_event import agent_record, unparsed_record
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Oddity, RefusedReason

KEEP_ALIVE_MS = 5_000
"""Beats close after 30 s without an answer, Logstash's output after 60."""
PART_EVENTS_MAX = 128
"""An ack group is taken in one step."""
_REASONS = {"too-large": RefusedReason.TOO_LARGE}


class _Part:
    """An ack group that waits for its answer. `window` numbers the windows of this connection."""

    __slots__ = ("last_sequence", "size_bytes", "unit", "window")

    def __init__(self, unit: AckGroup, window: int, last_sequence: int, size_bytes: int) -> None:
        self.unit = unit
        self.window = window
        self.last_sequence = last_sequence
        self.size_bytes = size_bytes


class LumberjackSession:
    """Acknowledges events in order."""

    __slots__ = (
        "_acked", "_answered_ms", "_connection", "_is_ended", "_parts", "_splitter", "_stream", "_unfinished", "_window", "unacknowledged_bytes",
    )  # fmt: skip

    def __init__(self, connection: SessionConnection) -> None:
        self._connection = connection
        listener = connection.listener
        self._splitter = LumberjackSplitter(listener.frame_bytes_max, listener.decompressed_bytes_max)
        self._stream = connection.intake.open_stream(listener, connection.source)
        self._parts: deque[_Part] = deque()
        self._window = 0
        self._acked = (0, 0)
        """Window and sequence of the last acknowledgement."""
        self._answered_ms = 0
        self._unfinished = Unfinished()
        self._is_ended = False
        self.unacknowledged_bytes = 0

    # -- in

    @property
    def buffered_bytes(self) -> int:
        return self._splitter.buffered_bytes

    def received(self, data: bytes | memoryview) -> None:
        if self._is_ended:
            return
        if not self._parts:
            self._answered_ms = self._connection.intake.monotonic_ms()
        self._connection.run(self._take_piece(bytes(data)))

    def _take_piece(self, data: bytes) -> Steps:
        events: list[Event] = []
        for count, found in enumerate((yield from self._splitter.feed(data))):
            if not count % PART_EVENTS_MAX:
                if count:
                    yield
                if self._is_ended:
                    return
                self._connection.charge(self._splitter.opened_bytes)
                self._splitter.opened_bytes = 0
            if type(found) is Event:
                events.append(found)
                if len(events) == PART_EVENTS_MAX:
                    self._take(events)
                    events = []
            elif type(found) is WindowSize:
                self._take(events)
                events = []
                self._window += 1
        self._take(events)
        if self._splitter.problem and not self._is_ended:
            self._refuse(_REASONS.get(self._splitter.problem, RefusedReason.MALFORMED), f"lumberjack-{self._splitter.problem}")

    def _take(self, events: list[Event]) -> None:
        if not events:
            return
        connection = self._connection
        payloads = [event.payload for event in events]
        unit = AckGroup(connection.listener, connection.source, [digest_of(payload) for payload in payloads], self._on_completed)
        unit.stream = self._stream
        part = _Part(unit, self._window, events[-1].sequence, sum(map(len, payloads)))
        self.unacknowledged_bytes += part.size_bytes
        self._parts.append(part)
        connection.intake.take(unit, self._records(payloads))
        connection.intake.close_group(unit)

    def _records(self, payloads: list[bytes]) -> list[IngestRecord]:
        listener = self._connection.listener
        records: list[IngestRecord] = []
        unparsed = 0
        for payload in payloads:
            try:
                fields = read_json(payload)
            except ValueError as error:
                fields, problem = None, f"no JSON: {error}"
            else:
                problem = "no JSON object"
            if type(fields) is dict:
                records.append(agent_record(fields, listener, raw=payload))
            else:
                records.append(unparsed_record(payload, problem, listener))
                unparsed += 1
        if unparsed:
            self._connection.intake.note(listener, self._connection.source, Oddity.UNPARSED, unparsed)
        return records

    def finished(self) -> None:
        if self._is_ended:
            return
        if self._splitter.buffered_bytes:
            self._connection.intake.refuse(self._connection.listener, self._connection.source, RefusedReason.INCOMPLETE)
        if not self._parts and self._connection.has_delivered and not self._splitter.buffered_bytes:
            self._stream.end(True)
        else:
            self._stream.leave()

    def left(self) -> None:
        if not self._is_ended:
            self._stream.leave()

    def lost(self) -> None:
        self._is_ended = True
        self._stream.end(False)

    def tick(self, now_ms: int) -> None:
        if self._is_ended:
            return
        if self._unfinished.is_overdue(self._splitter.frames_done, self._splitter.buffered_bytes, now_ms, self._connection.listener.idle_ms_max):
            self._refuse(RefusedReason.TIMED_OUT, "idle")
        elif self._parts and now_ms - self._answered_ms >= KEEP_ALIVE_MS:
            window, sequence = self._acked
            self._answer(sequence if window == self._parts[0].window else 0)
            self._answered_ms = now_ms

    # -- out

    def _on_completed(self, unit: AckGroup) -> None:
        acked: _Part | None = None
        parts = self._parts
        while parts and parts[0].unit.outcome is not AckOutcome.PENDING:
            part = parts.popleft()
            self.unacknowledged_bytes -= part.size_bytes
            if part.unit.outcome is AckOutcome.REFUSED:
                if not self._is_ended:
                    self._end("refused")
            elif not self._is_ended:
                acked = part
                if parts and parts[0].window != part.window:
                    self._acknowledge(part)
                    acked = None
        if acked is not None:
            self._acknowledge(acked)

    def _acknowledge(self, part: _Part) -> None:
        self._acked = (part.window, part.last_sequence)
        self._answer(part.last_sequence)
        self._answered_ms = self._connection.intake.monotonic_ms()

    def _answer(self, sequence: int) -> None:
        self._connection.send(ACK.pack(ACK_KIND, sequence))

    def _refuse(self, reason: RefusedReason, words: str) -> None:
        self._connection.intake.refuse(self._connection.listener, self._connection.source, reason)
        self._end(words)

    def _end(self, reason: str) -> None:
        """Close the connection after its answers were sent. That takes time; the sender may
        reconnect before.
        """
        self._is_ended = True
        self._stream.leave()
        self._connection.close(reason)
