"""OTLP logs over HTTP (`POST /v1/logs`, OTLP 1.x), and what gRPC has in common with it: reading a request, and the words of the answer.

Pure functions. Records that can never be stored are told as `partial_success`; a request without any is a success. Failures carry a google.rpc.Status
in the encoding of the request, as OTLP asks for. Traces and metrics have no path. Weak: a request is one unit, so all of it comes again when some of it
has to; the header `Idempotency-Key` keeps that from doing harm.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from appliance.senders.listener import Listener
from services.ingest.protocols.http.http_exchange import count
from services.ingest.protocols.http.http_request import BUSY_SECONDS, JSON, WAITING, Headers, HttpResponse, PendingResponse, Request, refusal
from services.ingest.protocols.otlp.otlp_protobuf import read_protobuf
from services.ingest.protocols.otlp.otlp_record import BadPayload, OtlpRequest, TooManyRecords
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.ingest_record import ColumnarRecords
from services.ingest.records.intake import Intake, Oddity, RefusedReason

PROTOBUF = b"application/x-protobuf"
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE = 3, 8, 14
BUSY_WORDS = "the records cannot be stored now: disks are behind, or a leader is away"
TOO_LARGE_WORDS = "too large to be stored"


def export_logs(request: Request) -> HttpResponse | PendingResponse:
    """`POST /v1/logs`."""
    media_type = request.media_type
    read: Callable[[bytes, Listener], OtlpRequest]
    if media_type == PROTOBUF or media_type == b"application/protobuf":
        read, success = read_protobuf, encode_success
    elif media_type == JSON:
        from services.ingest.protocols.otlp.otlp_json import read_otlp_json

        read, success = read_otlp_json, json_success
    else:
        count(request, RefusedReason.NO_INPUT)
        return refusal(415, "OTLP is protobuf or JSON", "Content-Type", "send application/x-protobuf or application/json")
    try:
        reading = read(request.body, request.listener)
    except BadPayload as problem:
        is_too_much = isinstance(problem, TooManyRecords)
        count(request, RefusedReason.TOO_LARGE if is_too_much else RefusedReason.MALFORMED)
        return _failure(request, 413 if is_too_much else 400, INVALID_ARGUMENT, str(problem))
    unit = request.open_unit(lambda unit: HttpResponse(200, success(*rejected(unit, reading)), request.media_type))
    take(request.intake, unit, reading)
    return WAITING


def take(intake: Intake, unit: AckGroup, reading: OtlpRequest) -> None:
    """Give a request's records to the intake."""
    if reading.too_large:
        intake.refuse(unit.listener, unit.source, RefusedReason.TOO_LARGE, reading.too_large)
    for records in reading.slices:
        unparsed = 0 if isinstance(records, ColumnarRecords) else sum(record.fields is None for record in records)
        if unparsed:
            intake.note(unit.listener, unit.source, Oddity.UNPARSED, unparsed)
        intake.take(unit, records)
    intake.close_group(unit)


def rejected(unit: AckGroup, reading: OtlpRequest) -> tuple[int, str]:
    """How many records can never be stored, and why the first cannot."""
    number = len(unit.rejected) + reading.too_large
    return number, (unit.rejected[0][1] if unit.rejected else TOO_LARGE_WORDS) if number else ""


def busy(request: Request) -> HttpResponse:
    """503, with a delay."""
    return _failure(request, 503, UNAVAILABLE, BUSY_WORDS, ((b"Retry-After", b"%d" % BUSY_SECONDS),))


def _failure(request: Request, status: int, code: int, words: str, headers: Headers = ()) -> HttpResponse:
    if request.media_type == JSON:
        return HttpResponse(status, json_status(code, words), JSON, headers)
    return HttpResponse(status, encode_status(code, words), PROTOBUF, headers)


def encode_success(rejected_records: int, words: str) -> bytes:
    """An ExportLogsServiceResponse; nothing of it is there when no record was rejected."""
    return _field(1, b"\x08" + _varint(rejected_records) + _field(2, words.encode())) if rejected_records else b""


def json_success(rejected_records: int, words: str) -> bytes:
    """The same in JSON."""
    if not rejected_records:
        return b"{}"
    return orjson.dumps({"partialSuccess": {"rejectedLogRecords": str(rejected_records), "errorMessage": words}})


def encode_status(code: int, words: str, details: bytes = b"") -> bytes:
    """A google.rpc.Status. `details`: one Any, encoded."""
    return b"\x08" + _varint(code) + _field(2, words.encode()) + (_field(3, details) if details else b"")


def json_status(code: int, words: str) -> bytes:
    """The same in JSON."""
    return orjson.dumps({"code": code, "message": words})


def retry_info(seconds: int) -> bytes:
    """A google.rpc.RetryInfo."""
    return _field(1, b"\x08" + _varint(seconds))


def as_any(type_name: str, message: bytes) -> bytes:
    """`message` as a google.protobuf.Any."""
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
