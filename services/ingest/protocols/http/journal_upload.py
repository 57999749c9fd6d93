"""`POST /upload` of systemd-journal-upload: journal entries in export format, in a body that
continues as long as there are entries.

Owned by one request. Each piece that arrives is an ack group of its own, so memory does not grow
with the body; the answer (202) is sent when the body has ended and all groups are stored. An
entry's cursor is its identity: the sender begins again after the last body that was answered, and
repeated entries are not stored again. Weak: an entry without a cursor has no identity; zstd bodies
are decompressed at their end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import groupby

from appliance.senders.listener import Listener
from services.ingest.protocols.bounded_inflate import CODINGS, Inflater, NotCompressed, TooLarge
from services.ingest.protocols.http.http_exchange import BodyStream, count
from services.ingest.protocols.http.http_request import HttpResponse, Request, refusal
from services.ingest.protocols.http.journal_export import BadExport, Entry, JournalExportReader, Value
from services.ingest.protocols.steps import SLICE_RECORDS, Steps
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.agent_event import agent_record
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import RefusedReason

EXPORT_TYPE = b"application/vnd.fdo.journal"
_CURSOR, _REALTIME = b"__CURSOR", b"__REALTIME_TIMESTAMP"
_ENDLESS = 1 << 62
PIECE_ENTRIES_MAX = 200_000
"""Limit for the entries of one piece of the body, or of a whole zstd body: four bytes of
decompressed content can be an entry, which costs hundreds of bytes here.
"""
READ_BYTES = 1 << 15
"""Decompressed bytes that are parsed in one step."""


def upload(request: Request) -> BodyStream | HttpResponse:
    """The endpoint; it consumes the body as it arrives."""
    if request.media_type != EXPORT_TYPE:
        count(request, RefusedReason.NO_INPUT)
        return refusal(415, "a journal is sent in export format", "Content-Type", f"send {EXPORT_TYPE.decode()}")
    coding = request.headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
    if coding not in CODINGS:
        count(request, RefusedReason.NO_INPUT)
        return refusal(415, f"content encoding {coding[:40]} is not known", "Content-Encoding", f"use one of {', '.join(sorted(CODINGS))}")
    return JournalUpload(request, coding)


class JournalUpload:
    """One body."""

    def __init__(self, request: Request, coding: str) -> None:
        self._request = request
        self._inflater = Inflater(coding, request.listener.decompressed_bytes_max if coding == "zstd" else _ENDLESS) if coding != "identity" else None
        self._reader = JournalExportReader(request.listener.frame_bytes_max)
        self._units = 0
        self._is_refused = False
        self._problem: HttpResponse | None = None
        self._has_ended = False
        self.unacknowledged_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        return self._reader.buffered_bytes + (self._inflater.kept_bytes if self._inflater is not None else 0)

    def received(self, data: bytes) -> None:
        if self._problem is not None or self._is_refused:
            return
        if self._inflater is None:
            self._request.run(self._take_pieces((data,)))
        else:
            self._request.run(self._take_pieces(self._inflater.pieces(data)))

    def finished(self) -> None:
        self._request.run(self._finish())

    def _finish(self) -> Steps:
        if self._problem is None and self._inflater is not None and not self._is_refused:
            yield from self._take_pieces(_last_piece(self._inflater))
        if self._problem is None and not self._is_refused and self._reader.is_inside_entry:
            count(self._request, RefusedReason.INCOMPLETE)
            self._problem = refusal(400, "the body ends inside an entry", self._request.path, "end every entry with an empty line")
        self._has_ended = True
        self._maybe_answer()

    def lost(self) -> None:
        """Complete entries are stored; the sender begins again after the last answered body."""

    def _take_pieces(self, opened: Iterable[bytes]) -> Steps:
        """Store the entries in a piece of the body, in steps."""
        try:
            left = PIECE_ENTRIES_MAX
            for data in opened:
                if self._inflater is not None:
                    self._request.charge(len(data))
                for start in range(0, len(data), READ_BYTES):
                    if self._problem is not None or self._is_refused:
                        return
                    left -= yield from self._take(data[start : start + READ_BYTES])
                    if left < 0:
                        raise TooLarge(f"a piece of the body holds more than {PIECE_ENTRIES_MAX} entries")
                yield
        except TooLarge as problem:
            self._give_up(RefusedReason.TOO_LARGE, 413, str(problem), "send less at a time")
        except (BadExport, NotCompressed) as problem:
            self._give_up(RefusedReason.MALFORMED, 400, str(problem), "send the journal in export format")

    def _take(self, data: bytes) -> Generator[None, None, int]:
        """Return how many entries end in it."""
        entries = self._reader.feed(data)
        too_large = entries.count(None)
        if too_large:
            self._request.intake.refuse(self._request.listener, self._request.source, RefusedReason.TOO_LARGE, too_large)
        whole = [entry for entry in entries if entry is not None]
        for has_cursor, group in groupby(whole, lambda entry: type(entry.get(_CURSOR)) is bytes):
            some = list(group)
            for start in range(0, len(some), SLICE_RECORDS):
                self._take_entries(some[start : start + SLICE_RECORDS], has_cursor, len(data) // max(1, len(whole)))
                yield
        return len(entries)

    def _take_entries(self, entries: list[Entry], have_cursors: bool, entry_bytes: int) -> None:
        request = self._request
        records = [journal_record(entry, request.listener) for entry in entries]
        positions = request.permitted_positions(records)
        if not positions:
            return
        if len(positions) < len(records):
            records, entries = [records[position] for position in positions], [entries[position] for position in positions]
        identities = [request.identity(entry[_CURSOR]) for entry in entries] if have_cursors else None  # type: ignore[arg-type]
        unit = AckGroup(request.listener, request.source, identities, self._on_completed)
        unit.context = entry_bytes * len(entries)
        self.unacknowledged_bytes += unit.context
        self._units += 1
        request.intake.take(unit, records)
        request.intake.close_group(unit)

    def _on_completed(self, unit: AckGroup) -> None:
        self._units -= 1
        self.unacknowledged_bytes -= unit.context
        if unit.outcome is AckOutcome.REFUSED:
            self._is_refused = self._has_ended = True  # what follows must not overtake it
        self._maybe_answer()

    def _give_up(self, reason: RefusedReason, status: int, words: str, do: str) -> None:
        """Answer now: nothing after this can be read, or is wanted."""
        count(self._request, reason)
        self._problem = refusal(status, words, self._request.path, do)
        self._has_ended = True
        self._maybe_answer()

    def _maybe_answer(self) -> None:
        request = self._request
        if not self._has_ended or self._units or request.is_answered:
            return
        if self._is_refused:
            request.answer(request.busy(request))
        elif self._problem is None and request.forbidden:
            request.answer(refusal(403, request.forbidden_words, request.path, "name the topic in topics = [...] of the listener or token"))
        else:
            request.answer(self._problem or HttpResponse(202, b"OK.\n", b"text/plain"))


def _last_piece(inflater: Inflater) -> Iterator[bytes]:
    yield inflater.finish()


def journal_record(entry: Entry, listener: Listener) -> IngestRecord:
    """Return the record of an entry: all of it is in `fields` as texts; what is not UTF-8 is kept
    as bytes.
    """
    realtime = entry.get(_REALTIME, b"")
    time_ns = int(realtime) * 1000 if type(realtime) is bytes and realtime.isdigit() and len(realtime) < 20 else None
    fields = {name.decode("utf-8", "replace"): _plain(value) for name, value in entry.items()}
    return agent_record(fields, listener, time_ns=time_ns)


def _plain(value: Value) -> str | bytes | list[str | bytes]:
    if isinstance(value, list):
        return [_text(each) for each in value]
    return _text(value)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
