"""Build records from syslog messages; cache the start of an event's JSON.

Owned by the ingest agent. The value is one JSON object with fixed fields (null if the sender
omitted them): time, host, app, proc_id, msg_id, severity, severity_name, facility, facility_name,
structured_data ({id: {name: value, or a list of values if a name is repeated}}), message. A message
that could not be parsed also has "parsed": false, "parse_error" and "raw". Bytes that are not UTF-8
become U+FFFD in the texts, and "raw_base64" has the received bytes.

An agent's event is `{"time":…` + `,"host":…,"structured_data":{},` + `"message":…}`. The first two
pieces are cached by second and by sender for `agent_events` and `otlp_wire`; a full cache is
cleared at once.

Weak: the record's timestamp follows the sender's clock within one day ahead and ten years back. A
sender with a new process id for each record gains nothing from the cache and fills it.
"""

from __future__ import annotations

import binascii
from typing import Any, Final, NamedTuple

import orjson

from appliance.records.builder import encode_headers
from appliance.records.record import encode_varint
from appliance.senders.conditions import FACILITY_NAMES, SEVERITY_NAMES
from services.ingest.protocols.syslog.syslog_framing import CutMessage
from services.ingest.protocols.syslog.syslog_message import SyslogMessage, read_structured_data
from services.ingest.protocols.syslog.syslog_timestamp import rfc3339_text

KEYS = ("host", "app", "none")
_DAY_MS = 86_400_000
FUTURE_MS_MAX = _DAY_MS
PAST_MS_MAX = 3653 * _DAY_MS
HEADER_CACHE_ENTRIES_MAX = 4096


class EventSource(NamedTuple):
    """The origin of a message: the peer's address with port, the same without, the transport, and
    the address that a PROXY header claimed."""

    address: bytes
    host: bytes
    transport: bytes
    proxied_source: bytes | None = None


class ProducerRecord(NamedTuple):
    """A record before its append; `headers` are encoded as for `BatchBuilder.append`."""

    timestamp_ms: int
    key: bytes | None
    value: bytes
    headers: bytes


class EventBuilder:
    """Builds records of one listener; caches header sections, of which only the time of arrival
    changes for a source."""

    def __init__(self, key: str = "host", listener: bytes = b"", is_raw: bool = False) -> None:
        """`listener`: name for the headers, if any; `is_raw`: the value is what the sender wrote."""
        if key not in KEYS:
            raise ValueError(f"a syslog record's key is one of {', '.join(KEYS)}, not {key!r}")
        self.is_keyed_by_host = key == "host"
        self.is_keyed_by_app = key == "app"
        self.is_raw = is_raw
        self._listener = listener
        self._value_of = raw_of if is_raw else value_of
        self._around_arrival: dict[tuple[EventSource, bool], tuple[bytes, bytes]] = {}
        self._arrival_ms = -1
        self._arrival = b""

    def build(self, message: SyslogMessage, source: EventSource, arrival_ms: int) -> ProducerRecord:
        """Return the record of a message that arrived from `source` at `arrival_ms`."""
        timestamp_ms = arrival_ms
        if message.instant is not None:
            time_ms = message.instant[0]
            if arrival_ms - PAST_MS_MAX <= time_ms <= arrival_ms + FUTURE_MS_MAX and time_ms >= 0:
                timestamp_ms = time_ms
        if self.is_keyed_by_host:
            key = message.host or source.host  # a device that omits its name still keeps its order
        else:
            key = message.app if self.is_keyed_by_app else None  # type: ignore[assignment]
        return ProducerRecord(timestamp_ms, key, self._value_of(message), self.headers(source, arrival_ms, type(message.raw) is CutMessage))

    def headers(self, source: EventSource, arrival_ms: int, is_cut: bool) -> bytes:
        """Return the headers source, transport and arrival_ms; also truncated and proxied_source if
        they apply."""
        if arrival_ms != self._arrival_ms:
            self._arrival_ms = arrival_ms
            digits = b"%d" % arrival_ms
            self._arrival = encode_varint(len(digits)) + digits
        around = self._around_arrival.get((source, is_cut))
        if around is None:
            if len(self._around_arrival) >= HEADER_CACHE_ENTRIES_MAX:
                self._around_arrival.clear()
            around = self._around_arrival[source, is_cut] = self._headers_around_arrival(source, is_cut)
        return around[0] + self._arrival + around[1]

    def _headers_around_arrival(self, source: EventSource, is_cut: bool) -> tuple[bytes, bytes]:
        """Return the encoded headers before and after the value of arrival_ms, the only part that
        changes."""
        behind = [("truncated", b"true")] if is_cut else []
        if source.proxied_source is not None:
            behind.append(("proxied_source", source.proxied_source))
        if self._listener:
            behind.append(("listener", self._listener))
        before = [("source", source.address), ("transport", source.transport), ("arrival_ms", b"")]
        count_bytes = len(encode_varint(len(before)))
        encoded = encode_headers(before)[count_bytes : -len(encode_varint(0))]
        return encode_varint(len(before) + len(behind)) + encoded, encode_headers(behind)[len(encode_varint(len(behind))) :]


def timestamp_of(time_ms: int, arrival_ms: int) -> int:
    """Return the record's timestamp: the sender's time if it is between ten years before and one
    day after the arrival."""
    return time_ms if arrival_ms - PAST_MS_MAX <= time_ms <= arrival_ms + FUTURE_MS_MAX and time_ms >= 0 else arrival_ms


def raw_of(message: SyslogMessage) -> bytes:
    """Return what the sender wrote."""
    return message.raw


def value_of(message: SyslogMessage) -> bytes:
    """Return the JSON of a message."""
    try:
        return orjson.dumps(_document(message, "strict"))
    except UnicodeDecodeError:
        document = _document(message, "replace")
        document["raw_base64"] = binascii.b2a_base64(message.raw, newline=False).decode()
        return orjson.dumps(document)


def _document(message: SyslogMessage, errors: str) -> dict[str, Any]:
    facility, severity, instant, host, app, proc_id, msg_id, structured_data, text, raw, parse_error = message
    document = {
        "time": instant and instant[1].decode(),
        "host": host and host.decode("utf-8", errors),
        "app": app and app.decode("utf-8", errors),
        "proc_id": proc_id and proc_id.decode("utf-8", errors),
        "msg_id": msg_id and msg_id.decode("utf-8", errors),
        "severity": severity,
        "severity_name": SEVERITY_NAMES[severity],
        "facility": facility,
        "facility_name": FACILITY_NAMES[facility],
        "structured_data": read_structured_data(structured_data.decode("utf-8", errors)) if structured_data else {},
        "message": text.decode("utf-8", errors),
    }
    if parse_error is not None:
        document["parsed"] = False
        document["parse_error"] = parse_error
        document["raw"] = raw.decode("utf-8", errors)
    return document


KEPT_MAX: Final = 4096
HEAD_BYTES_MAX: Final = 1024
"""A longer one is not cached: 4,096 long names would take too much memory."""
NO_TIME: Final = b'{"time":null'
_YEAR_10000: Final = 253_402_300_800
MILLISECONDS: Final = tuple(b'.%03dZ"' % number for number in range(1000))

seconds_written: Final[dict[int, bytes]] = {}
"""`{"time":"2026-11-22T12:00:00` by its second, for loops that cannot afford a call; `write_second`
adds to it."""
heads_written: Final[dict[tuple[Any, ...], bytes]] = {}
"""By (host, app, proc_id, msg_id, severity, facility); `write_head` adds to it."""


def write_second(seconds: int) -> bytes:
    """Return the start of an event of this second; b"" for a second without a text (before 1970,
    after 9999)."""
    if not 0 <= seconds < _YEAR_10000:
        return b""
    if len(seconds_written) >= KEPT_MAX:
        seconds_written.clear()
    begin = seconds_written[seconds] = b'{"time":"' + rfc3339_text(seconds * 1000)[:-5]
    return begin


def write_head(head: tuple[Any, ...]) -> bytes:
    """Return what is between time and message, and cache it. Raises TypeError for texts that JSON
    cannot hold."""
    written = head_json(head)
    is_plain = all(text is None or type(text) is str for text in head[:4])  # a value that is not text may equal one that is encoded differently (1 and True)
    if is_plain and len(written) <= HEAD_BYTES_MAX:
        if len(heads_written) >= KEPT_MAX:
            heads_written.clear()
        heads_written[head] = written
    return written


def head_json(head: tuple[Any, ...]) -> bytes:
    """Return the same without caching it."""
    host, app, proc_id, msg_id, severity, facility = head
    fields = {
        "host": host,
        "app": app,
        "proc_id": proc_id,
        "msg_id": msg_id,
        "severity": severity,
        "severity_name": None if severity is None else SEVERITY_NAMES[severity],
        "facility": facility,
        "facility_name": None if facility is None else FACILITY_NAMES[facility],
        "structured_data": {},
    }
    return b"," + orjson.dumps(fields)[1:-1] + b","


def address_text(address: str, port: int) -> tuple[bytes, bytes]:
    """Return (`ADDRESS:PORT`, `ADDRESS`) of a peer: IPv4 in IPv6 as IPv4, IPv6 with brackets before
    a port."""
    host = address.removeprefix("::ffff:")
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode(), host.encode()
