"""`POST /ingest/TOPIC`: JSON documents or lines of text, into a topic that the request names.

Pure functions; records are taken in steps. `application/x-ndjson` (also `application/jsonl`, or no
type): one document a line; `application/json`: an array of documents, or one; `text/plain`: a
message a line. The sender must be allowed to name the topic (`Request.may_name`), and it must exist
or be named in the tables of senders (`Intake.has_topic`); routes are not used. A line that is not a
JSON object is stored with `parsed: false`. An invalid
array is refused, because the ends of its documents are unknown. Weak: a document is stored in the
form of all records; `raw = true` of the listener stores it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from appliance.base.model import topic_name_problem
from appliance.senders.listener import Listener
from services.ingest.protocols.document import encode_document
from services.ingest.protocols.http.http_exchange import count
from services.ingest.protocols.http.http_request import RECORDS_MAX, WAITING, HttpResponse, Request, SlowResult, refusal
from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.steps import SLICE_RECORDS, split_lines
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.agent_event import agent_record, unparsed_record
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Oddity, RefusedReason

NDJSON_TYPES = frozenset(
    (b"", b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonlines", b"application/x-www-form-urlencoded")
)
"""The last one is curl's default."""
REASONS_SHOWN_MAX = 20


def ingest_lines(request: Request) -> SlowResult:
    """Handle `POST /ingest/TOPIC`."""
    topic = request.arguments["topic"]
    if (problem := topic_name_problem(topic)) is not None:
        count(request, RefusedReason.NO_TOPIC)
        return refusal(404, problem[:300], request.path[:200], "name a topic by letters, digits, '.', '_' and '-' only")
    if not request.may_name(topic):
        count(request, RefusedReason.FORBIDDEN_TOPIC)
        do = "name it in a route, or in topics = [...] of the listener or token"
        return refusal(403, f"records may not be sent to topic {topic[:100]} here", request.path[:200], do)
    if not request.intake.has_topic(topic):
        count(request, RefusedReason.NO_TOPIC)
        shown = topic[:100]
        return refusal(404, f"there is no topic {shown} that records may be sent to", request.path[:200], f"create it: millrace topic create {shown}")
    media_type = request.media_type
    # Each line costs memory before it is parsed; half of them may be empty.
    if media_type != b"application/json" and request.body.count(b"\n") > 2 * RECORDS_MAX:
        return _too_many(request, request.body.count(b"\n"))
    if media_type == b"application/json":
        return (yield from _take_json(request, topic))
    if media_type not in NDJSON_TYPES and media_type != b"text/plain":
        count(request, RefusedReason.NO_INPUT)
        what = f"{media_type.decode('latin-1')[:60]} is not taken here"
        return refusal(415, what, "Content-Type", "send application/x-ndjson, application/json or text/plain")
    lines = [line for line in (yield from split_lines(request.body)) if line and not line.isspace()]
    if len(lines) > RECORDS_MAX:
        return _too_many(request, len(lines))
    return (yield from _take(request, topic, lines, _record_of_text if media_type == b"text/plain" else _record_of_line))


def _take_json(request: Request, topic: str) -> SlowResult:
    try:
        documents = read_json(request.body)
    except ValueError as problem:
        count(request, RefusedReason.MALFORMED)
        return refusal(400, f"the body is no JSON: {problem}", request.path, "send an array of objects, or one; documents by the line are application/x-ndjson")
    if type(documents) is not list:
        documents = [documents]
    if len(documents) > RECORDS_MAX:
        return _too_many(request, len(documents))
    return (yield from _take(request, topic, documents, _record_of_document))


def _take(request: Request, topic: str, items: Sequence[Any], record_of: Callable[[Any, Listener], IngestRecord]) -> SlowResult:
    intake, listener = request.intake, request.listener
    unparsed = 0
    unit = request.open_unit(lambda unit: _answer(unit, len(items), unparsed), topic=topic)
    for start in range(0, len(items), SLICE_RECORDS):
        if start:
            yield
        records = [record_of(item, listener) for item in items[start : start + SLICE_RECORDS]]
        some = sum(record.fields is None for record in records)
        if some:
            intake.note(listener, request.source, Oddity.UNPARSED, some)
            unparsed += some
        intake.take(unit, records)
    intake.close_group(unit)
    return WAITING


def _answer(unit: AckGroup, received: int, unparsed: int) -> HttpResponse:
    """Return 200 with counts, or 422 if no record can ever be stored."""
    number = len(unit.rejected)
    is_duplicate = unit.outcome is AckOutcome.DUPLICATE
    words: dict[str, Any] = {"received": received, "stored": 0 if is_duplicate else received - number, "rejected": number}
    if is_duplicate:
        words["duplicate"] = received
    if unparsed:
        words["unparsed"] = unparsed
    if number:
        words["reasons"] = [{"record": index, "reason": reason} for index, reason in unit.rejected[:REASONS_SHOWN_MAX]]
    return HttpResponse(422 if number and number == received else 200, orjson.dumps(words))


def _record_of_line(line: bytes, listener: Listener) -> IngestRecord:
    line = line.removesuffix(b"\r")
    try:
        document = read_json(line)
    except ValueError as problem:
        return unparsed_record(line, f"no JSON: {problem}", listener)
    return _record_of(document, line, listener)


def _record_of(document: Any, raw: bytes, listener: Listener) -> IngestRecord:
    if type(document) is not dict:
        return unparsed_record(raw or encode_document(document), "no JSON object", listener)
    return agent_record(document, listener, raw=raw)


def _record_of_document(document: Any, listener: Listener) -> IngestRecord:
    return _record_of(document, b"", listener)


def _record_of_text(line: bytes, listener: Listener) -> IngestRecord:
    line = line.removesuffix(b"\r")
    return agent_record({}, listener, {"message": line}, raw=line)


def _too_many(request: Request, number: int) -> HttpResponse:
    count(request, RefusedReason.TOO_LARGE)
    return refusal(413, f"{number} records in one request; {RECORDS_MAX} are allowed", request.path, "send smaller requests")
