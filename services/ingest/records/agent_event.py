"""Build the stored event of an agent's record (Fluent, OTLP, `_bulk`, Loki).

Pure functions, for all protocols. The document always has the fields of a syslog event first (null
if unknown), then those that exist of `tag`, `labels`, `resource`, `scope` …, `fields` (the sender's
own, nested as received), `trace_id`, `span_id`, `event_time_ns`. A field that becomes one of the
first is removed from `fields`; one that was translated (`level: "warn"`) stays there, too.
docs/senders.md has the table.

Weak: the cost of a record grows with its number of fields. Nothing is shortened here; the topic's
limit refuses what is too large.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from appliance.senders.conditions import FACILITY_NAMES, SEVERITY_NAMES
from appliance.senders.listener import Listener
from services.ingest.protocols.document import deep_text, encode_document
from services.ingest.protocols.syslog.syslog_timestamp import TimestampReader, rfc3339_text
from services.ingest.records.field_roles import FieldKind, facility_of, roles_of, severity_of, severity_of_python
from services.ingest.records.ingest_record import IngestRecord

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_NS_A_MS: Final = 1_000_000
_YEAR_10000: Final = 253_402_300_800
_MILLISECONDS: Final = tuple(f".{number:03d}Z" for number in range(1000))
_EMPTY: Final[dict[str, Any]] = {
    **dict.fromkeys(("time", "host", "app", "proc_id", "msg_id", "severity", "severity_name", "facility", "facility_name")),
    "structured_data": {},
    "message": None,
}
_TEXT, _SEVERITY, _TIME = FieldKind.TEXT, FieldKind.SEVERITY, FieldKind.TIME  # reading an enum member costs 60 ns
_FACILITY, _NUMBER_OR_TEXT = FieldKind.FACILITY, FieldKind.NUMBER_OR_TEXT


def agent_record(
    fields: Mapping[str, Any],
    listener: Listener,
    known: Mapping[str, Any] = NOTHING,
    time_ns: int | None = None,
    time_text: str = "",
    raw: bytes = b"",
    is_cut: bool = False,
    careful: bool = False,
) -> IngestRecord:
    """Return the record of one event.

    `fields`: the sender's, as received; names that are not text were made text
    (`document.key_text`).

    `known`: what the protocol itself defines, by the document's names. A part that is in it, even
    as None, is not looked up in `fields`; other names (tag, labels, resource …) follow the syslog
    fields. A message that is not text becomes its JSON.

    `time_ns`, `time_text`: the protocol's own time; without one, `fields` are searched. A text that
    is not a time is kept as `time_text`.

    `raw`: the sender's own bytes, the value if the listener has `raw=yes`; "" stands for the JSON
    of `fields`.

    `careful`: a value may be NaN or infinite.
    """
    document = _EMPTY.copy()
    document.update(known)
    rest: Mapping[str, Any] = fields
    moved: list[str] = []
    time_ms = None
    if time_ns is not None:
        time_ms = _put_time(document, time_ns)
    elif time_text:
        time_ms = _put_time_text(document, time_text, listener)
    for kind, part, name, inner in roles_of(tuple(fields)):
        if document.get(part) is not None or part in known:
            continue
        value = fields[name]
        if inner:
            value = value.get(inner) if type(value) is dict else None
        if kind is _TEXT:
            if type(value) is bytes:
                value = value.decode("utf-8", "surrogateescape")
            if type(value) is not str or not value:
                continue
            document[part] = value
        elif kind is _SEVERITY:
            document[part] = severity_of(value)
            continue  # a translated value stays in `fields`
        elif kind is _TIME:
            if time_ns is not None:
                continue
            time_ms, is_moved = _find_time(document, value, listener)
            if not is_moved:
                continue
        elif kind is _NUMBER_OR_TEXT:
            if type(value) is not str and type(value) is not int:
                continue
            document[part] = str(value)
        else:
            document[part] = facility_of(value) if kind is _FACILITY else severity_of_python(value)
            continue
        if not inner:
            moved.append(name)
    if moved:
        rest = left = {**fields}
        for name in moved:
            del left[name]
    severity, facility, message = document["severity"], document["facility"], document["message"]
    if severity is not None:
        document["severity_name"] = SEVERITY_NAMES[severity]
    if facility is not None:
        document["facility_name"] = FACILITY_NAMES[facility]
    if message is not None and type(message) is not str:
        document["message"] = message.decode("utf-8", "surrogateescape") if type(message) is bytes else deep_text(message)
    if rest:
        document["fields"] = rest
    if listener.raw:
        value = raw or encode_document(fields, careful)
    else:
        value = encode_document(document, careful)
    labels = document.get("labels") or document.get("resource")
    return IngestRecord(
        value, time_ms, document["host"], document["app"], document.get("tag"), severity, facility, labels, fields, is_cut
    )  # fmt: skip


def unparsed_record(raw: bytes, problem: str, listener: Listener, known: Mapping[str, Any] = NOTHING) -> IngestRecord:
    """Return the record of bytes that are no event of their protocol; they are kept as text."""
    if listener.raw:
        value = raw
    else:
        value = encode_document({**_EMPTY, **known, "parsed": False, "parse_error": problem, "raw": raw})
    return IngestRecord(value, None, known.get("host"), known.get("app"), known.get("tag"), None, None, known.get("labels"), None)


def _put_time(document: dict[str, Any], time_ns: int) -> int | None:
    seconds, beyond_ns = divmod(time_ns, 1_000_000_000)
    if not 0 <= seconds < _YEAR_10000:
        document["event_time_ns"] = time_ns
        return None
    beyond_ms = beyond_ns // _NS_A_MS
    document["time"] = _second_text(seconds) + _MILLISECONDS[beyond_ms]
    if beyond_ns % _NS_A_MS:
        document["event_time_ns"] = time_ns
    return seconds * 1000 + beyond_ms


@lru_cache(maxsize=256)
def _second_text(seconds: int) -> str:
    return rfc3339_text(seconds * 1000)[:-5].decode()


def _put_time_text(document: dict[str, Any], text: str, listener: Listener) -> int | None:
    time_ms, _ = _find_time(document, text, listener)
    if time_ms is None:
        document["time_text"] = text
    return time_ms


def _find_time(document: dict[str, Any], value: object, listener: Listener) -> tuple[int | None, bool]:
    """Return (milliseconds, True if the text equals the document's own form) of a value that may be
    a time."""
    if type(value) is str:
        data = value.encode("utf-8", "replace")
        instant = time_reader(listener.time_zone).read_rfc3339(data) if data else None
        if instant is None:
            return None, False
        document["time"] = instant[1].decode()
        return instant[0], instant[1] == data
    if type(value) is int or type(value) is float:
        time_ns = epoch_ns(value)
        if time_ns is not None:
            return _put_time(document, time_ns), False
    return None, False


def epoch_ns(value: float) -> int | None:
    """Return the nanoseconds of a time in seconds or, by its size, in milli-, micro- or
    nanoseconds; None for no time."""
    if not 0 < value < 1 << 63:  # also excludes NaN
        return None
    scale = 1_000_000_000 if value < 1e11 else 1_000_000 if value < 1e14 else 1_000 if value < 1e17 else 1
    if type(value) is int:
        return value * scale
    return round(value * 1_000_000) * (scale // 1_000_000) if scale >= 1_000_000 else round(value * scale)


@lru_cache(maxsize=64)
def time_reader(time_zone: str) -> TimestampReader:
    """Return the reader of time texts, one for each zone."""
    if time_zone == "UTC":
        return TimestampReader(UTC)
    import zoneinfo  # imported on demand: 1 MB

    return TimestampReader(zoneinfo.ZoneInfo(time_zone))
