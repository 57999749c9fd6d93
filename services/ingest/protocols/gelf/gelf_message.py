"""One GELF message (1.0, 1.1) as a record: JSON, plain or compressed with zlib or gzip, recognised
by its first bytes.

Pure. `host`, `short_message`, `level` (syslog's severities) and `timestamp` (seconds) fill the
fields that syslog has. Everything else goes to `fields`, additional fields without their
underscore, unless that name is taken. What is not a JSON object is stored with `parsed: false`;
only messages that cannot be decompressed within the limit are refused.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, Final

from appliance.senders.listener import Listener
from services.ingest.protocols.bounded_inflate import inflate
from services.ingest.protocols.json_text import read_json
from services.ingest.records.agent_event import agent_record, unparsed_record
from services.ingest.records.event import EventSource
from services.ingest.records.field_roles import facility_of, severity_of
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Intake, Oddity

_GZIP: Final = b"\x1f\x8b"
_ZLIB_METHOD = 8
_ZLIB_CHECK = 31
_SECONDS_MAX = Decimal(9_000_000_000)
_NANOSECONDS = 1_000_000_000
_SYSLOG_NAMES: Final = {"level": "severity", "facility": "facility"}


def open_gelf(data: bytes, limit_bytes: int) -> bytes:
    """Decompress a message; a plain one is returned unchanged. Raises NotCompressed and TooLarge
    (`bounded_inflate`).
    """
    if data[:2] == _GZIP:
        return inflate("gzip", data, limit_bytes)
    if len(data) > 2 and data[0] & 15 == _ZLIB_METHOD and data[0] != 0x08 and int.from_bytes(data[:2], "big") % _ZLIB_CHECK == 0:
        return inflate("zlib", data, limit_bytes)
    return data


def gelf_record(text: bytes, listener: Listener, source: EventSource, intake: Intake) -> IngestRecord:
    """Return the record of one uncompressed message."""
    try:
        message = read_json(text)
    except ValueError as problem:
        intake.note(listener, source, Oddity.UNPARSED)
        return unparsed_record(text, f"not GELF: {problem}", listener)
    if type(message) is not dict:
        intake.note(listener, source, Oddity.UNPARSED)
        return unparsed_record(text, "not GELF: no JSON object", listener)
    return record_of(message, text, listener)


def record_of(message: dict[str, Any], text: bytes, listener: Listener) -> IngestRecord:
    """Return the record of one parsed message, which is changed."""
    known: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    host, short_message, time_ns = message.get("host"), message.get("short_message"), _time_ns(message.get("timestamp"))
    if type(host) is str:
        known["host"] = message.pop("host")
    if type(short_message) is str:
        known["message"] = message.pop("short_message")
    if time_ns is not None:
        del message["timestamp"]
    for name, read in (("level", severity_of), ("facility", facility_of)):
        value = message.get(name)
        number = read(value)
        if number is not None:
            known[_SYSLOG_NAMES[name]] = number
            if number == value:  # a name of a severity stays in `fields`
                del message[name]
    for name, value in message.items():
        plain = name[1:] if len(name) > 1 and name[0] == "_" else name
        fields[name if plain is not name and (plain in message or plain in fields) else plain] = value
    return agent_record(fields, listener, known, time_ns=time_ns, raw=text)


def _time_ns(value: object) -> int | None:
    """Seconds with a fraction, as a number or text; of a float, its decimal digits count."""
    if type(value) not in (int, float, str):
        return None
    try:
        seconds = Decimal(repr(value) if type(value) is float else value)  # type: ignore[arg-type]
    except (InvalidOperation, ValueError):
        return None
    if not seconds.is_finite() or not 0 < seconds < _SECONDS_MAX:
        return None
    return int(seconds * _NANOSECONDS)
