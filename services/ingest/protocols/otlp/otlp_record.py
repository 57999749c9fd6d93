"""The record of an OTLP LogRecord in either encoding; and the records of a request.

Values only; `agent_event` writes the document. Beside syslog's fields OTLP has `resource`, `scope`,
`trace_id`, `span_id`, `body` (if it is not a text) and `otlp` (severity_number, severity_text,
event_name, observed_time, flags, counts of dropped attributes, schema URLs), each if present.
Attributes are `fields`. Weak: host and app are read from OpenTelemetry's conventional names;
senders with other conventions have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from appliance.senders.listener import Listener
from services.ingest.protocols.document import deep_text
from services.ingest.protocols.syslog.syslog_timestamp import rfc3339_text
from services.ingest.records.agent_event import agent_record
from services.ingest.records.agent_events import Common, agent_records, common_of
from services.ingest.records.field_roles import severity_of, severity_of_otel
from services.ingest.records.ingest_record import IngestRecord

SLICE_RECORDS = 128


class BadPayload(ValueError):
    """The content is invalid; the text has the reason."""


class TooManyRecords(BadPayload):
    """There are more than `RECORDS_MAX`."""


class OtlpRequest(NamedTuple):
    """The records of a request in order, in slices that are parsed when they are read, once; and
    how many are too large ever to be stored.
    """

    slices: Iterator[Sequence[IngestRecord]]
    too_large: int = 0


HOST_NAMES = ("host.name", "k8s.node.name", "k8s.pod.name")
APP_NAMES = ("service.name", "k8s.container.name", "container.name")
MESSAGE_NAMES = ("message", "msg")
_NS_A_MS = 1_000_000
_YEAR_10000_NS = 253_402_300_800 * 10**9


Row = tuple[int, int, int, str, Any, dict[str, Any], str, str, str, int, int]
"""Of a record: time_ns, observed_ns, severity_number, severity_text, body, attributes, trace_id,
span_id, event_name, flags, dropped attributes.
"""


class RecordOrigin(NamedTuple):
    """What the records of one scope share: the beginning of `known`, and of the field `otlp`."""

    known: dict[str, Any]
    otlp: dict[str, Any]
    common: Common
    """`known`, for many records."""


def origin_of(resource: dict[str, Any], resource_dropped: int, resource_schema: str, scope: dict[str, Any], scope_schema: str) -> RecordOrigin:
    """Return the shared values for the attributes of a resource, and a scope as the document has
    it.
    """
    known: dict[str, Any] = {}
    for part, names in (("host", HOST_NAMES), ("app", APP_NAMES)):
        name = next((resource[name] for name in names if resource.get(name)), None)
        if name is not None:
            known[part] = name if type(name) is str else deep_text(name)
    process = resource.get("process.pid")
    if process is not None:
        known["proc_id"] = process if type(process) is str else deep_text(process)
    if resource:
        known["resource"] = resource
    if scope:
        known["scope"] = scope
    otlp: dict[str, Any] = {}
    if resource_dropped:
        otlp["resource_dropped_attributes_count"] = resource_dropped
    if resource_schema:
        otlp["resource_schema_url"] = resource_schema
    if scope_schema:
        otlp["scope_schema_url"] = scope_schema
    return RecordOrigin(known, otlp, common_of(known))


def log_record(listener: Listener, origin: RecordOrigin, row: Row, raw: bytes = b"") -> IngestRecord:
    """Return the record of a row; zeros and empty texts mean absent. Its attributes become part of
    the record.
    """
    time_ns, observed_ns, severity_number, severity_text, body, attributes, trace_id, span_id, event_name, flags, dropped = row
    known = origin.known.copy()
    otlp = origin.otlp.copy()
    if severity_number:
        known["severity"] = severity_of_otel(severity_number)
        otlp["severity_number"] = severity_number
    elif severity_text:
        known["severity"] = severity_of(severity_text)
    if severity_text:
        otlp["severity_text"] = severity_text
    if type(body) is str:
        known["message"] = body
    elif body is not None:
        known["body"] = body
        known["message"] = _message_of(body)
    if event_name:
        known["msg_id"] = otlp["event_name"] = event_name
    if trace_id:
        known["trace_id"] = trace_id
    if span_id:
        known["span_id"] = span_id
    if observed_ns:
        otlp["observed_time"] = rfc3339_text(observed_ns // 1_000_000).decode() if 0 < observed_ns < _YEAR_10000_NS else observed_ns
    if flags:
        otlp["flags"] = flags
    if dropped:
        otlp["dropped_attributes_count"] = dropped
    if otlp:
        known["otlp"] = otlp
    return agent_record(attributes, listener, known, time_ns or observed_ns or None, "", raw)


def log_records(rows: Sequence[Row], origin: RecordOrigin, listener: Listener) -> Sequence[IngestRecord]:
    """Return many records of one scope, none of them raw; equal to `log_record` for each."""
    times_ns, observed_ns, numbers, texts, bodies, attributes, trace_ids, span_ids, event_names, flags, dropped = zip(*rows, strict=True)
    severities = {said: _severity_of(*said) for said in set(zip(numbers, texts, strict=True))}
    if any(severity is None and (number or text) for (number, text), severity in severities.items()):
        return [log_record(listener, origin, row) for row in rows]  # a severity that is invalid is not looked for in attributes
    observed = {time_ns // _NS_A_MS: "" for time_ns in observed_ns if 0 < time_ns < _YEAR_10000_NS}
    for time_ms in observed:
        observed[time_ms] = rfc3339_text(time_ms).decode()
    begins = {said: {**origin.otlp, **_said_severity(*said)} for said in severities}
    rest = zip(numbers, texts, observed_ns, event_names, flags, dropped, strict=True)
    are_texts = set(map(type, bodies)) == {str}
    said: dict[str, Sequence[Any]] = {
        "severity": [severities[row] for row in zip(numbers, texts, strict=True)],
        "body": () if are_texts else [None if type(body) is str else body for body in bodies],
        "message": bodies if are_texts else [_text_of(body) for body in bodies],
        "msg_id": [name or None for name in event_names],
        "trace_id": [text or None for text in trace_ids],
        "span_id": [text or None for text in span_ids],
        "otlp": [_otlp(begins[row[:2]], observed, *row[2:]) for row in rest],
    }
    if are_texts:
        del said["body"]
    times = [time_ns or seen_ns or None for time_ns, seen_ns in zip(times_ns, observed_ns, strict=True)]
    return agent_records(attributes, listener, origin.common, times, said)


def _severity_of(number: int, text: str) -> int | None:
    return severity_of_otel(number) if number else severity_of(text) if text else None


def _said_severity(number: int, text: str) -> dict[str, Any]:
    said: dict[str, Any] = {"severity_number": number} if number else {}
    if text:
        said["severity_text"] = text
    return said


def _otlp(begin: dict[str, Any], observed: Mapping[int, str], observed_ns: int, event_name: str, flags: int, dropped: int) -> dict[str, Any] | None:
    """Return the field `otlp` of a record; None if it is empty."""
    said: dict[str, Any] = {**begin, "event_name": event_name} if event_name else begin.copy()
    if observed_ns:
        said["observed_time"] = observed.get(observed_ns // _NS_A_MS, observed_ns)
    if flags:
        said["flags"] = flags
    if dropped:
        said["dropped_attributes_count"] = dropped
    return said or None


def _text_of(body: Any) -> str | None:
    if body is None or type(body) is str:
        return body
    message = _message_of(body)
    return message if type(message) is str else deep_text(message)


def _message_of(body: Any) -> Any:
    if type(body) is dict:
        for name in MESSAGE_NAMES:
            if type(body.get(name)) is str:
                return body[name]
    return body
