"""OTLP's log requests in JSON (OTLP 1.x: names in lowerCamelCase, ids in hex, 64-bit integers as
texts or numbers; unknown names are ignored).

Pure functions. Input that may hide records is refused: a list of records that is not a list, a
parent that is not an object. A record that is not an object is stored with `parsed: false`. Weak:
any other field with a type that the schema does not allow counts as absent, or is kept as it is if
it is a value.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from appliance.senders.listener import Listener
from services.ingest.protocols.document import FreeNames, encode_document
from services.ingest.protocols.http.http_request import RECORDS_MAX
from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.otlp.otlp_record import SLICE_RECORDS, BadPayload, OtlpRequest, RecordOrigin, TooManyRecords, log_record, origin_of
from services.ingest.protocols.steps import run_to_end
from services.ingest.records.agent_event import unparsed_record
from services.ingest.records.ingest_record import IngestRecord

SCOPES_A_STEP = 64
_INTEGER_DIGITS_MAX = 20
_OTHER_NAMES = {"resourceLogs": ("resource_logs",), "scopeLogs": ("scope_logs", "instrumentationLibraryLogs"), "logRecords": ("log_records", "logs")}
"""Other names that senders give these lists. To ignore them would lose all records without
an error.
"""


def read_otlp_json(data: bytes, listener: Listener) -> OtlpRequest:
    """Return the records of a request in order. Raises `BadPayload`."""
    return run_to_end(read_otlp_json_slowly(data, listener))


def read_otlp_json_slowly(data: bytes, listener: Listener) -> Generator[None, None, OtlpRequest]:
    """Do the same in steps; the JSON text is one of them."""
    try:
        request = read_json(data)
    except ValueError as problem:
        raise BadPayload(f"no JSON: {problem}") from None
    if type(request) is not dict:
        raise BadPayload("no JSON of OTLP: the request is an object with resourceLogs")
    if request and "resourceLogs" not in request:
        raise BadPayload(f"no JSON of OTLP logs: the request has no resourceLogs, but {', '.join(map(repr, [*request][:3]))[:100]}")
    scopes: list[tuple[RecordOrigin, list[Any]]] = []
    records = 0
    for resource_logs in _parents(request, "resourceLogs"):
        resource = _object(resource_logs, "resource")
        shared = (_attributes(resource), _integer(resource, "droppedAttributesCount"), _text(resource_logs, "schemaUrl"))
        for scope_logs in _parents(resource_logs, "scopeLogs"):
            origin = origin_of(*shared, _scope(_object(scope_logs, "scope")), _text(scope_logs, "schemaUrl"))
            found = _children(scope_logs, "logRecords")
            records += len(found)
            if records > RECORDS_MAX:
                raise TooManyRecords(f"more than {RECORDS_MAX} records in one request")
            scopes.append((origin, found))
            if not len(scopes) % SCOPES_A_STEP:
                yield
    return OtlpRequest(_slices(scopes, listener))


def _slices(scopes: list[tuple[RecordOrigin, list[Any]]], listener: Listener) -> Iterator[list[IngestRecord]]:
    for origin, found in scopes:
        for first in range(0, len(found), SLICE_RECORDS):
            yield [_read_log_record(record, origin, listener) for record in found[first : first + SLICE_RECORDS]]


def _read_log_record(record: Any, origin: RecordOrigin, listener: Listener) -> IngestRecord:
    if type(record) is not dict:
        return unparsed_record(encode_document(record, True), "no LogRecord: it is no object", listener, origin.known)
    row = (
        _integer(record, "timeUnixNano"),
        _integer(record, "observedTimeUnixNano"),
        _integer(record, "severityNumber"),
        _text(record, "severityText"),
        _value(record.get("body")),
        _attributes(record),
        _text(record, "traceId").lower(),
        _text(record, "spanId").lower(),
        _text(record, "eventName"),
        _integer(record, "flags"),
        _integer(record, "droppedAttributesCount"),
    )
    return log_record(listener, origin, row, encode_document(record, True) if listener.raw else b"")


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return _pairs(_objects(holder, "attributes"))


def _pairs(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    names = FreeNames()
    for pair in pairs:
        values[names.free(values, _text(pair, "key"))] = _value(pair.get("value"))
    return values


def _value(value: Any) -> Any:
    """Convert an AnyValue; anything else is kept as it is. A nested value is three levels of JSON,
    so the JSON parser's limit comes long before Python's stack ends.
    """
    if type(value) is not dict or len(value) != 1:
        return value if value or type(value) is not dict else None
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content) if type(content) is str and _is_integer(content) else content
    if kind == "arrayValue" or kind == "kvlistValue":
        if type(content) is not dict:
            return content
        found = content.get("values", [])
        if type(found) is not list:
            return content
        if kind == "arrayValue":
            return [_value(each) for each in found]
        return _pairs([each for each in found if type(each) is dict])
    return content if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue") else value


def _scope(scope: dict[str, Any]) -> dict[str, Any]:
    parts = {
        "name": _text(scope, "name"),
        "version": _text(scope, "version"),
        "attributes": _attributes(scope),
        "dropped_attributes_count": _integer(scope, "droppedAttributesCount"),
    }
    return {name: value for name, value in parts.items() if value}


def _object(holder: dict[str, Any], name: str) -> dict[str, Any]:
    value = holder.get(name)
    return value if type(value) is dict else {}


def _objects(holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = holder.get(name)
    return [value for value in values if type(value) is dict] if type(values) is list else []


def _children(holder: dict[str, Any], name: str) -> list[Any]:
    """Raise `BadPayload` if there may be records that would not be found."""
    if name not in holder:
        for other in _OTHER_NAMES[name]:
            if other in holder:
                raise BadPayload(f"no JSON of OTLP: {other} is not known; say {name}")
    values = holder.get(name)
    if values is None:
        return []
    if type(values) is not list:
        raise BadPayload(f"no JSON of OTLP: {name} is a list")
    return values


def _parents(holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Children that have records of their own."""
    values = _children(holder, name)
    if not all(type(value) is dict for value in values):
        raise BadPayload(f"no JSON of OTLP: {name} is a list of objects")
    return values


def _text(holder: dict[str, Any], name: str) -> str:
    value = holder.get(name)
    return value if type(value) is str else ""


def _integer(holder: dict[str, Any], name: str) -> int:
    value = holder.get(name)
    if type(value) is int:
        return value
    return int(value) if type(value) is str and _is_integer(value) else 0


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) <= _INTEGER_DIGITS_MAX
