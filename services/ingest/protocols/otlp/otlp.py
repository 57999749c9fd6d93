"""OTLP logs over HTTP (`POST /v1/logs`, OTLP 1.x), and what gRPC shares with it: reading a request,
and encoding the answer.

Pure functions. Records that can never be stored are reported as `partial_success`; otherwise the
answer is a success. An error is a google.rpc.Status in the encoding of the request, as OTLP
requires. Answers are a few bytes, so they are encoded by hand. There are no paths for traces and
metrics. Weak: a request is one ack group, so it is repeated as a whole; the header
`Idempotency-Key` prevents duplicates then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import orjson

from appliance.senders.listener import Listener
from services.ingest.protocols.http.http_exchange import count
from services.ingest.protocols.http.http_request import BUSY_SECONDS, JSON, WAITING, Headers, HttpResponse, Request, SlowResult, refusal
from services.ingest.protocols.otlp.otlp_protobuf import read_protobuf_slowly
from services.ingest.protocols.otlp.otlp_record import SLICE_RECORDS, BadPayload, OtlpRequest, TooManyRecords
from services.ingest.protocols.steps import Steps
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.ingest_record import ColumnarRecords
from services.ingest.records.intake import Oddity, RefusedReason

PROTOBUF = b"application/x-protobuf"
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE = 3, 8, 14
BUSY_WORDS = "the records cannot be stored now: disks are behind, or a leader is away"
TOO_LARGE_WORDS = "too large to be stored"


def export_logs(request: Request) -> SlowResult:
    """Handle `POST /v1/logs`."""
    media_type = request.media_type
    read: Callable[[bytes, Listener], Generator[None, None, OtlpRequest]]
    if media_type == PROTOBUF or media_type == b"application/protobuf":
        read, success = read_protobuf_slowly, encode_success
    elif media_type == JSON:
        from services.ingest.protocols.otlp.otlp_json import read_otlp_json_slowly

        read, success = read_otlp_json_slowly, json_success
    else:
        count(request, RefusedReason.NO_INPUT)
        return refusal(415, "OTLP is protobuf or JSON", "Content-Type", "send application/x-protobuf or application/json")
    try:
        reading = yield from read(request.body, request.listener)
    except BadPayload as problem:
        is_too_much = isinstance(problem, TooManyRecords)
        count(request, RefusedReason.TOO_LARGE if is_too_much else RefusedReason.MALFORMED)
        return _failure(request, 413 if is_too_much else 400, INVALID_ARGUMENT, str(problem))
    unit = request.open_unit(lambda unit: HttpResponse(200, success(*rejected(request, unit, reading)), request.media_type))
    yield from take(request, unit, reading)
    return WAITING


def take(request: Request, unit: AckGroup, reading: OtlpRequest) -> Steps:
    """Pass the records of a request to the intake."""
    intake = request.intake
    if reading.too_large:
        intake.refuse(unit.listener, unit.source, RefusedReason.TOO_LARGE, reading.too_large)
    taken = 0
    for records in reading.slices:
        unparsed = 0 if isinstance(records, ColumnarRecords) else sum(record.fields is None for record in records)
        if unparsed:
            intake.note(unit.listener, unit.source, Oddity.UNPARSED, unparsed)
        intake.take(unit, request.permitted(records))
        taken += len(records)
        if taken >= SLICE_RECORDS:
            taken = 0
            yield
    intake.close_group(unit)


def rejected(request: Request, unit: AckGroup, reading: OtlpRequest) -> tuple[int, str]:
    """Return how many records can never be stored, and the reason of the first."""
    number = len(unit.rejected) + reading.too_large + len(request.forbidden)
    if request.forbidden:
        return number, request.forbidden_words
    return number, (unit.rejected[0][1] if unit.rejected else TOO_LARGE_WORDS) if number else ""


def busy(request: Request) -> HttpResponse:
    """Return 503 with `Retry-After`."""
    return _failure(request, 503, UNAVAILABLE, BUSY_WORDS, ((b"Retry-After", b"%d" % BUSY_SECONDS),))


def _failure(request: Request, status: int, code: int, words: str, headers: Headers = ()) -> HttpResponse:
    if request.media_type == JSON:
        return HttpResponse(status, json_status(code, words), JSON, headers)
    return HttpResponse(status, encode_status(code, words), PROTOBUF, headers)


def encode_success(rejected_records: int, words: str) -> bytes:
    """Encode an ExportLogsServiceResponse; it is empty if no record was rejected."""
    return _field(1, b"\x08" + _varint(rejected_records) + _field(2, words.encode())) if rejected_records else b""


def json_success(rejected_records: int, words: str) -> bytes:
    """Return the same in JSON."""
    if not rejected_records:
        return b"{}"
    return orjson.dumps({"partialSuccess": {"rejectedLogRecords": str(rejected_records), "errorMessage": words}})


def encode_status(code: int, words: str, details: bytes = b"") -> bytes:
    """Encode a google.rpc.Status. `details`: one encoded Any."""
    return b"\x08" + _varint(code) + _field(2, words.encode()) + (_field(3, details) if details else b"")


def json_status(code: int, words: str) -> bytes:
    """Return the same in JSON."""
    return orjson.dumps({"code": code, "message": words})


def retry_info(seconds: int) -> bytes:
    """Encode a google.rpc.RetryInfo."""
    return _field(1, b"\x08" + _varint(seconds))


def as_any(type_name: str, message: bytes) -> bytes:
    """Encode `message` as a google.protobuf.Any."""
    return _field(1, f"type.googleapis.com/{type_name}".encode()) + _field(2, message)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
