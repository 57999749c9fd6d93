"""GELF over HTTP: `POST /gelf` with one message, or one on each line. 202 when the records are
stored (Graylog answers 202 when they are queued).

Weak: a message has no identity unless the sender adds `Idempotency-Key`.
"""

from __future__ import annotations

from functools import partial

from services.ingest.protocols.gelf.gelf_message import gelf_record, record_of
from services.ingest.protocols.http.http_request import RECORDS_MAX, WAITING, HttpResponse, Request, SlowResult, refusal
from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.steps import SLICE_RECORDS, split_lines
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.intake import RefusedReason


def gelf(request: Request) -> SlowResult:
    """Handle the messages of one request."""
    body, intake, listener = request.body.strip(), request.intake, request.listener
    if not body:
        intake.refuse(listener, request.source, RefusedReason.MALFORMED)
        return refusal(400, "the body is empty", request.path, "send a GELF message, or one on each line")
    try:
        whole = read_json(body)
    except ValueError:
        whole = None
    if type(whole) is dict:
        unit = request.open_unit(partial(_answer, request))
        intake.take(unit, request.permitted([record_of(whole, body, listener)]))
    else:
        if body.count(b"\n") >= RECORDS_MAX:
            intake.refuse(listener, request.source, RefusedReason.TOO_LARGE)
            return refusal(413, f"more than {RECORDS_MAX} messages in one request", request.path, "send smaller requests")
        lines = [line for line in (yield from split_lines(body)) if line.strip()]
        unit = request.open_unit(partial(_answer, request))
        for start in range(0, len(lines), SLICE_RECORDS):
            if start:
                yield
            records = [gelf_record(line, listener, request.source, intake) for line in lines[start : start + SLICE_RECORDS]]
            intake.take(unit, request.permitted(records))
    intake.close_group(unit)
    return WAITING


def _answer(request: Request, unit: AckGroup) -> HttpResponse:
    if request.forbidden:
        return refusal(403, request.forbidden_words, request.path, "name the topic in topics = [...] of the listener or token")
    if not unit.rejected:
        return HttpResponse(202)
    numbers = ", ".join(f"{number}: {reason}" if number >= 0 else reason for number, reason in unit.rejected[:20])
    return refusal(400, f"{len(unit.rejected)} of {unit.record_count} messages can never be stored, the others are", numbers)
