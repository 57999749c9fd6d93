"""Loki's push: each entry of a stream is a record, the labels of the stream are its `labels`,
structured metadata is `fields`.

Protobuf (snappy, with or without `Content-Encoding`), JSON, and the older JSON of `/api/prom/push`.
A push is accepted whole, or refused whole if any part cannot be read (400 with the reason; Loki's
clients drop it). The answer is 204 when it is stored. The tenant (`X-Scope-OrgID`) is the label
`__tenant_id__`, promtail's name. No entry is too old or out of order. Text label sets
(`{job="nginx"}`) are quoted as in Go: "…" with escapes, or `…` without. Weak: a push has no
identity unless the sender adds `Idempotency-Key`, so a repeated one is stored again; names of
labels are not checked, and of a repeated name the last value counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final

from appliance.senders.listener import Listener
from services.ingest.protocols.bounded_inflate import NotCompressed, TooLarge, inflate_slowly
from services.ingest.protocols.http.http_request import RECORDS_MAX, TEXT, WAITING, HttpResponse, Request, SlowResult
from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.loki.loki_messages import LokiStreams, TooManyParts, read_streams
from services.ingest.protocols.protobuf_wire import BadWire
from services.ingest.protocols.steps import PUT_RECORDS, SLICE_RECORDS
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.agent_event import agent_record
from services.ingest.records.field_roles import severity_of
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import RefusedReason

LABELS_CACHED_MAX = 1024
PARTS_MAX: Final = 4 * RECORDS_MAX
"""Limit for streams, labels and entries of one push in protobuf."""
TENANT_LABEL: Final = "__tenant_id__"
_HOST_LABELS = ("host", "hostname", "nodename", "node_name", "node", "instance")
_APP_LABELS = ("app", "service_name", "application", "service", "job", "container")
_SEVERITY_LABELS = ("level", "severity", "detected_level")
_TIME_NS_MAX = (1 << 63) - 1
_NANOSECONDS = 1_000_000_000
_PROTOBUF = (b"application/x-protobuf", b"application/protobuf")


class BadPush(ValueError):
    """The push cannot be read; nothing of it was stored."""


def push(request: Request) -> SlowResult:
    """Handle `/loki/api/v1/push` and `/api/prom/push`."""
    try:
        records = yield from _read_bounded(request)
    except BadPush as problem:
        request.intake.refuse(request.listener, request.source, RefusedReason.MALFORMED)
        return _no(str(problem))
    except TooLarge as problem:
        request.intake.refuse(request.listener, request.source, RefusedReason.TOO_LARGE)
        return _no(str(problem), 413)
    unit = request.open_unit(partial(_answer, request))
    for start in range(0, len(records), PUT_RECORDS):
        if start:
            yield
        request.intake.take(unit, request.permitted(records[start : start + PUT_RECORDS]))
    request.intake.close_group(unit)
    return WAITING


def _read_bounded(request: Request) -> Generator[None, None, list[IngestRecord]]:
    tenant = request.headers.get(b"x-scope-orgid", b"")
    records: list[IngestRecord] = []
    for record in (yield from read_push(request.body, request.media_type, request.content_encoding, tenant, request.listener, request.charge)):
        records.append(record)
        if not len(records) % SLICE_RECORDS:
            yield
            if len(records) > RECORDS_MAX:
                break
    if len(records) > RECORDS_MAX:
        raise TooLarge(f"more than {RECORDS_MAX} entries in one push; send smaller ones")
    return records


def ready(request: Request) -> HttpResponse:
    """Handle `/ready`."""
    if request.intake.blocked_by(request.listener):
        return _no("not ready: records cannot be stored now", 503)
    return HttpResponse(200, b"ready\n", TEXT)


def build_info(request: Request) -> HttpResponse:
    """Handle `/loki/api/v1/status/buildinfo`: the version of the API."""
    return HttpResponse(200, b'{"version":"3.0.0","revision":"millrace","branch":"","buildUser":"","buildDate":"","goVersion":""}')


def read_push(
    body: bytes, media_type: bytes, content_encoding: bytes, tenant: bytes, listener: Listener, charge: Callable[[int], None]
) -> Generator[None, None, Iterator[IngestRecord]]:
    """Open a push in steps; return its records in their order. Raises BadPush, and TooLarge for a
    body above the listener's limit. `charge`: `SessionConnection.charge`.
    """
    labels = _Labels(tenant.decode("utf-8", "replace"))
    if not body:
        raise BadPush("the body is empty")
    if media_type in _PROTOBUF:
        return _read_protobuf((yield from _streams(body, content_encoding, listener, charge)), labels, listener)
    return _read_json(body, labels, listener)


class _Stream:
    """What the entries of one label set share."""

    __slots__ = ("known",)

    def __init__(self, labels: dict[str, str]) -> None:
        self.known: dict[str, Any] = {"labels": labels}
        for name, candidates in (("host", _HOST_LABELS), ("app", _APP_LABELS)):
            value = next((labels[label] for label in candidates if labels.get(label)), None)
            if value is not None:
                self.known[name] = value
        severity = next((found for label in _SEVERITY_LABELS if label in labels and (found := severity_of(labels[label])) is not None), None)
        if severity is not None:
            self.known["severity"] = severity


class _Labels:
    """A cache of the label sets of one push; their texts repeat."""

    def __init__(self, tenant: str) -> None:
        self._tenant = {TENANT_LABEL: tenant} if tenant else {}
        self._known: dict[str, _Stream] = {}

    def of_text(self, text: str) -> _Stream:
        stream = self._known.get(text)
        if stream is None:
            labels = parse_labels(text)
            if labels is None:
                raise BadPush(f"cannot read the labels {text[:200]!r}")
            stream = self.of(labels)
            if len(self._known) < LABELS_CACHED_MAX:
                self._known[text] = stream
        return stream

    def of(self, labels: dict[str, str]) -> _Stream:
        return _Stream({**labels, **self._tenant})


def _streams(body: bytes, content_encoding: bytes, listener: Listener, charge: Callable[[int], None]) -> Generator[None, None, LokiStreams]:
    try:
        opened = body if content_encoding else (yield from inflate_slowly("snappy", body, listener.decompressed_bytes_max))
        charge(len(opened) - len(body))
        return (yield from read_streams(opened, PARTS_MAX))
    except NotCompressed as problem:
        raise BadPush(f"the body is not snappy: {problem}") from problem
    except BadWire as problem:
        raise BadPush(f"the body is no PushRequest: {problem}") from problem
    except TooManyParts as problem:
        raise TooLarge(str(problem)) from problem


def _read_protobuf(streams: LokiStreams, labels: _Labels, listener: Listener) -> Iterator[IngestRecord]:
    try:
        for text, entries in streams:
            known = labels.of_text(text).known
            for entry in entries:
                metadata = {pair.name: pair.value for pair in entry.structured_metadata}
                time_ns = entry.timestamp.seconds * _NANOSECONDS + entry.timestamp.nanos
                yield _record(entry.line, metadata, time_ns, known, listener)
    except BadWire as problem:
        raise BadPush(f"the body is no PushRequest: {problem}") from problem
    except TooManyParts as problem:
        raise TooLarge(str(problem)) from problem


def _read_json(body: bytes, labels: _Labels, listener: Listener) -> Iterator[IngestRecord]:
    try:
        document = read_json(body)
    except ValueError as problem:
        raise BadPush(f"the body is not JSON: {problem}") from problem
    streams = document.get("streams") if type(document) is dict else None
    if type(streams) is not list:
        raise BadPush("the body has no list `streams`")
    for stream in streams:
        if type(stream) is not dict:
            raise BadPush("a stream is an object with `stream` and `values`")
        if "entries" in stream:
            yield from _read_old_entries(stream, labels, listener)
            continue
        names = stream.get("stream", {})
        if type(names) is not dict:
            raise BadPush("`stream` is an object of labels")
        known = labels.of({name: value if type(value) is str else str(value) for name, value in names.items()}).known
        for value in _list(stream.get("values"), "values"):
            if type(value) is not list or not 2 <= len(value) <= 3 or type(value[1]) is not str:
                raise BadPush("a value is [time in nanoseconds, line], and perhaps an object of structured metadata")
            metadata = value[2] if len(value) == 3 and value[2] is not None else {}
            if type(metadata) is not dict:
                raise BadPush("structured metadata is an object")
            yield _record(value[1], metadata, _time_ns(value[0]), known, listener)


def _read_old_entries(stream: dict[str, Any], labels: _Labels, listener: Listener) -> Iterator[IngestRecord]:
    text = stream.get("labels")
    if type(text) is not str:
        raise BadPush('`labels` is a text like {job="…"}')
    known = labels.of_text(text).known
    for entry in _list(stream["entries"], "entries"):
        if type(entry) is not dict or type(entry.get("line")) is not str or type(entry.get("ts")) is not str:
            raise BadPush("an entry is an object with `ts` and `line`")
        yield agent_record({}, listener, {**known, "message": entry["line"]}, time_text=entry["ts"], raw=entry["line"].encode("utf-8", "surrogatepass"))


def _record(line: str, metadata: dict[str, Any], time_ns: int, known: dict[str, Any], listener: Listener) -> IngestRecord:
    return agent_record(metadata, listener, {**known, "message": line}, time_ns=time_ns, raw=line.encode("utf-8", "surrogatepass"))


def _time_ns(value: object) -> int:
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    if type(value) is int and 0 <= value <= _TIME_NS_MAX:
        return value
    raise BadPush("a time is a text of nanoseconds since 1970")


def _list(value: object, name: str) -> list[Any]:
    if type(value) is list:
        return value
    raise BadPush(f"`{name}` is a list")


def _answer(request: Request, unit: AckGroup) -> HttpResponse:
    if request.forbidden:
        return _no(request.forbidden_words, 403)
    if not unit.rejected:
        return HttpResponse(204)
    return _no(f"{len(unit.rejected)} of {unit.record_count} entries can never be stored, the others are; the first: {unit.rejected[0][1]}")


def _no(words: str, status: int = 400) -> HttpResponse:
    return HttpResponse(status, words.encode("utf-8", "replace") + b"\n", TEXT)


_PAIR = re.compile(r'\s*([^\s=,{}"`]+)\s*=\s*(?:"((?:[^"\\\n]|\\.)*)"|`([^`]*)`)\s*(,|\Z)')
_ESCAPE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3})|(.))""")
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'"}
_SURROGATES = range(0xD800, 0xE000)
_CODE_POINT_MAX = 0x10FFFF
_BYTE_MAX = 0xFF


def parse_labels(text: str) -> dict[str, str] | None:
    """Parse a label set; None if the text is not one. `{}` has no labels."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) < 2:
        return None
    inner = text[1:-1].rstrip()
    labels: dict[str, str] = {}
    position = 0
    while position < len(inner):
        match = _PAIR.match(inner, position)
        if match is None:
            return None
        name, quoted, plain, _ = match.groups()
        value = plain if quoted is None else _unquote(quoted)
        if value is None:
            return None
        labels[name] = value
        position = match.end()
    return labels


def _unquote(text: str) -> str | None:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    position = 0
    octets = bytearray()  # \x and \NNN are bytes of a UTF-8 text, not characters

    def flush() -> None:
        if octets:
            pieces.append(octets.decode("utf-8", "replace"))
            octets.clear()

    for match in _ESCAPE.finditer(text):
        if match.start() > position:
            flush()
            pieces.append(text[position : match.start()])
        position = match.end()
        hexadecimal, short, long, octal, letter = match.groups()
        if hexadecimal or octal:
            octet = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
            if octet > _BYTE_MAX:
                return None
            octets.append(octet)
            continue
        flush()
        if letter is not None:
            if letter not in _LETTERS:
                return None
            pieces.append(_LETTERS[letter])
            continue
        code_point = int(short or long, 16)
        if code_point > _CODE_POINT_MAX or code_point in _SURROGATES:
            return None
        pieces.append(chr(code_point))
    flush()
    pieces.append(text[position:])
    return "".join(pieces)
