"""OTLP's log requests in protobuf: records are found by hand; plain ones are decoded by hand
(`otlp_wire`), all others by protobuf's library.

Two bytes of a message can take a hundred in memory, so a request is never parsed as a whole: one
record at a time is, and no record is larger than `MESSAGE_BYTES_MAX`. A record that cannot be
parsed is stored with `parsed: false`; a request whose records cannot be separated is refused. The
first request imports the library and OpenTelemetry's schema (12 MB). Weak: what a newer schema has
beside the records (entities of a resource, profiles) is skipped.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from appliance.senders.listener import Listener
from services.ingest.protocols.document import FreeNames
from services.ingest.protocols.http.http_request import RECORDS_MAX
from services.ingest.protocols.otlp.otlp_record import (
    SLICE_RECORDS,
    BadPayload,
    OtlpRequest,
    RecordOrigin,
    Row,
    TooManyRecords,
    log_record,
    log_records,
    origin_of,
)
from services.ingest.protocols.otlp.otlp_wire import Pair, read_plain
from services.ingest.protocols.protobuf_wire import BadWire, Field, split_slowly
from services.ingest.protocols.steps import Steps, run_to_end
from services.ingest.records.agent_event import unparsed_record
from services.ingest.records.ingest_record import IngestRecord

MESSAGE_BYTES_MAX = 4 << 20
"""Limit for one record, resource or scope."""
RESOURCES_A_STEP = 64
"""Resources or scopes, which cost 10 µs each."""
_RESOURCE_LOGS = 1
_RESOURCE, _SCOPE_LOGS, _RESOURCE_SCHEMA_URL = 1, 2, 3
_SCOPE, _LOG_RECORD, _SCOPE_SCHEMA_URL = 1, 2, 3


class _Library(NamedTuple):
    log_record: Callable[[bytes], Any]
    pair: Callable[[bytes], Pair]
    value: Callable[[bytes], Any]
    resource: Callable[[bytes], Any]
    scope: Callable[[bytes], Any]
    error: type[Exception]


@lru_cache(maxsize=1)
def protobuf_library() -> _Library:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    def pair(data: bytes) -> Pair:
        read = KeyValue.FromString(data)
        return read.key, read_value(read.value)

    def value(data: bytes) -> Any:
        return read_value(AnyValue.FromString(data))

    return _Library(LogRecord.FromString, pair, value, Resource.FromString, InstrumentationScope.FromString, DecodeError)


def read_protobuf(data: bytes, listener: Listener) -> OtlpRequest:
    """Return the records of an ExportLogsServiceRequest in order. Raises `BadPayload`."""
    return run_to_end(read_protobuf_slowly(data, listener))


def read_protobuf_slowly(data: bytes, listener: Listener) -> Generator[None, None, OtlpRequest]:
    """Do the same in steps."""
    request = _Request(data)
    try:
        yield from request.read()
    except (protobuf_library().error, UnicodeDecodeError) as problem:
        raise BadPayload(f"no protobuf of OTLP: {problem}") from None
    return OtlpRequest(request.slices(listener), request.too_large)


class _Request:
    """Find the records in a request, and what the records of a scope share."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._scopes: list[tuple[RecordOrigin, list[Field]]] = []
        self._records = 0
        self._parts_left = 4 * RECORDS_MAX
        self.too_large = 0

    def read(self) -> Steps:
        for count, (number, start, end) in enumerate((yield from self._fields(0, len(self._data))), 1):
            if number == _RESOURCE_LOGS:
                yield from self._read_resource_logs(start, end)
            if not count % RESOURCES_A_STEP:
                yield

    def slices(self, listener: Listener) -> Iterator[Sequence[IngestRecord]]:
        """Records in a slice: their data is still in the processor's caches when they are stored."""
        for origin, fields in self._scopes:
            for first in range(0, len(fields), SLICE_RECORDS):
                some = fields[first : first + SLICE_RECORDS]
                rows = None if listener.raw else _read_rows(self._data, some)
                if rows is not None:
                    yield log_records(rows, origin, listener)
                else:
                    yield [_read_log_record(self._data[start:end], origin, listener) for _, start, end in some]

    def _fields(self, start: int, end: int) -> Generator[None, None, list[Field]]:
        try:
            fields, parts = yield from split_slowly(self._data, start, end, self._parts_left)
        except BadWire as problem:
            raise BadPayload(f"no protobuf of OTLP: {problem}") from None
        self._parts_left -= parts
        if not self._parts_left:
            raise TooManyRecords(f"more than {RECORDS_MAX} records in one request")
        return fields

    def _read_resource_logs(self, start: int, end: int) -> Steps:
        resource, schema_url = protobuf_library().resource(b""), ""
        fields = yield from self._fields(start, end)
        for number, field_start, field_end in fields:
            if number == _RESOURCE:
                resource = protobuf_library().resource(self._message(field_start, field_end))
            elif number == _RESOURCE_SCHEMA_URL:
                schema_url = self._data[field_start:field_end].decode()
        shared = (read_attributes(resource.attributes), resource.dropped_attributes_count, schema_url)
        for count, (number, field_start, field_end) in enumerate(fields, 1):
            if number == _SCOPE_LOGS:
                yield from self._read_scope_logs(field_start, field_end, shared)
            if not count % RESOURCES_A_STEP:
                yield

    def _read_scope_logs(self, start: int, end: int, resource: tuple[dict[str, Any], int, str]) -> Steps:
        scope, schema_url = None, ""
        log_records = []
        for field in (yield from self._fields(start, end)):
            number, field_start, field_end = field
            if number == _LOG_RECORD:
                if field_end - field_start <= MESSAGE_BYTES_MAX:
                    log_records.append(field)
                else:
                    self.too_large += 1
            elif number == _SCOPE:
                scope = protobuf_library().scope(self._message(field_start, field_end))
            elif number == _SCOPE_SCHEMA_URL:
                schema_url = self._data[field_start:field_end].decode()
        self._records += len(log_records)
        if self._records > RECORDS_MAX:
            raise TooManyRecords(f"more than {RECORDS_MAX} records in one request")
        if log_records:
            self._scopes.append((origin_of(*resource, _read_scope(scope), schema_url), log_records))

    def _message(self, start: int, end: int) -> bytes:
        if end - start > MESSAGE_BYTES_MAX:
            raise BadPayload(f"a resource or scope of {end - start} bytes; {MESSAGE_BYTES_MAX} are allowed")
        return self._data[start:end]


def _read_rows(data: bytes, fields: list[Field]) -> list[Row] | None:
    """Decode some records; None if one of them is not a record."""
    library = protobuf_library()
    rows: list[Row] = []
    try:
        for _, start, end in fields:
            rows.append(read_plain(data, start, end, library.pair, library.value) or row_of(library.log_record(data[start:end])))
    except library.error:
        return None
    return rows


def row_of(message: Any) -> Row:
    attributes = message.attributes
    return (
        message.time_unix_nano,
        message.observed_time_unix_nano,
        message.severity_number,
        message.severity_text,
        read_value(message.body),
        read_attributes(attributes) if attributes else {},
        message.trace_id.hex(),
        message.span_id.hex(),
        message.event_name,
        message.flags,
        message.dropped_attributes_count,
    )


def _read_log_record(data: bytes, origin: RecordOrigin, listener: Listener) -> IngestRecord:
    library = protobuf_library()
    try:
        message = library.log_record(data)
    except library.error as problem:
        return unparsed_record(data, f"no LogRecord: {problem}", listener, origin.known)
    return log_record(listener, origin, row_of(message), _raw(message) if listener.raw else b"")


def read_attributes(attributes: Any) -> dict[str, Any]:
    """Convert a list of KeyValue to a dictionary; a repeated key (not allowed) gets `#2`."""
    values = {}
    for pair in attributes:
        value = pair.value
        values[pair.key] = value.string_value if value.WhichOneof("value") == "string_value" else read_value(value)
    return values if len(values) == len(attributes) else _with_repeated_keys(attributes)


def _with_repeated_keys(attributes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    names = FreeNames()
    for pair in attributes:
        values[names.free(values, pair.key)] = read_value(pair.value)
    return values


def read_value(value: Any) -> Any:
    """Convert an AnyValue: text, boolean, integer, float (NaN and infinities as texts), list,
    dictionary; bytes in base64; None for an empty one.
    """
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value
    if kind == "int_value":
        return value.int_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "double_value":
        return plain_double(value.double_value)
    if kind == "kvlist_value":
        return read_attributes(value.kvlist_value.values)
    if kind == "array_value":
        return [read_value(each) for each in value.array_value.values]
    if kind == "bytes_value":
        return binascii.b2a_base64(value.bytes_value, newline=False).decode()
    return None if kind is None else getattr(value, kind)


def plain_double(value: float) -> float | str:
    """JSON has no NaN and no infinities."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read_scope(scope: Any) -> dict[str, Any]:
    if scope is None:
        return {}
    parts = {
        "name": scope.name,
        "version": scope.version,
        "attributes": read_attributes(scope.attributes),
        "dropped_attributes_count": scope.dropped_attributes_count,
    }
    return {name: value for name, value in parts.items() if value}


def _raw(message: Any) -> bytes:
    """Return the record in OTLP's JSON, whose ids are in hex."""
    from google.protobuf.json_format import MessageToDict

    document = MessageToDict(message)
    for name, value in (("traceId", message.trace_id), ("spanId", message.span_id)):
        if value:
            document[name] = value.hex()
    return orjson.dumps(document)
