"""Parses one syslog message: RFC 5424 by splitting at spaces, everything older by `syslog_legacy`.
It never fails and never drops a byte.

Owned by one connection or socket (`SyslogParser` has caches). A message that cannot be parsed keeps
its raw bytes, with the reason in `parse_error` and the fields that were recognised.

Structured data is only delimited here and read later. `"`, `\\` and `]` inside a value are escaped
with a backslash; a backslash before anything else is itself (RFC 5424 6.3.3). A bare `]` inside
quotes is accepted, because senders forget to escape it. A name that repeats in an element (allowed:
`ip="…" ip="…"`) becomes a list.

Weak: only version 1 of RFC 5424 is known; empty fields of a header with doubled spaces count as
nil; names in structured data are not checked against the RFC's alphabet and 32 characters.
"""

from __future__ import annotations

import re
from datetime import UTC, tzinfo
from typing import NamedTuple

from services.ingest.protocols.syslog.syslog_legacy import read_legacy
from services.ingest.protocols.syslog.syslog_timestamp import Instant, TimestampReader

Element = dict[str, "str | list[str]"]

_VALUE = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NAME = rb'[^\s="\]\[\\]++'
_ELEMENTS = re.compile(rb"(?:\[" + _NAME + rb"(?: ++" + _NAME + rb"=" + _VALUE + rb")*+ *+\])++", re.DOTALL)
_ELEMENT = re.compile(r'\[([^\s="\]\[\\]++)((?: ++[^\s="\]\[\\]++="[^"\\]*+(?:\\.[^"\\]*+)*+")*+) *+\]', re.DOTALL)
_PARAMETER = re.compile(r' ++([^\s="\]\[\\]++)="([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_ESCAPE = re.compile(r'\\(["\\\]])')


def end_of_structured_data(text: bytes, position: int) -> int:
    """Return where the elements that start at `position` end (at a space or the end of `text`); -1
    if they are malformed or unterminated.
    """
    match = _ELEMENTS.match(text, position)
    if match is None:
        return -1
    end = match.end()
    return end if end == len(text) or text[end] == 0x20 else -1


def read_structured_data(text: str) -> dict[str, Element]:
    """Return `{id: {name: value}}` of what `end_of_structured_data` delimited."""
    elements: dict[str, Element] = {}
    for element in _ELEMENT.finditer(text):
        parameters = elements.setdefault(element[1], {})
        for name, escaped in _PARAMETER.findall(element[2]):
            value = _ESCAPE.sub(r"\1", escaped) if "\\" in escaped else escaped
            earlier = parameters.get(name)
            if earlier is None:
                parameters[name] = value
            elif isinstance(earlier, list):
                earlier.append(value)
            else:
                parameters[name] = [earlier, value]
    return elements


DEFAULT_FACILITY, DEFAULT_SEVERITY = 1, 5  # user.notice = 13, for a message without a priority (RFC 3164 4.3.3)
PRIORITY_MAX = 191
_TRAILERS = b"\r\n\0"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEADER_FIELDS = 7  # <PRI>1 TIMESTAMP HOSTNAME APP-NAME PROCID MSGID and the rest

EMPTY = "empty"
NO_PRIORITY = "no priority"
BAD_PRIORITY = "bad priority"
BAD_TIMESTAMP = "bad timestamp"
BAD_STRUCTURED_DATA = "bad structured data"
INCOMPLETE_HEADER = "incomplete header"


def _priorities(suffix: bytes) -> dict[bytes, tuple[int, int]]:
    """`<0>` … `<191>` with facility and severity, also zero-padded as some devices write them."""
    table = {}
    for priority in range(PRIORITY_MAX + 1):
        for form in (b"<%d>", b"<%02d>", b"<%03d>"):
            table[form % priority + suffix] = (priority >> 3, priority & 7)
    return table


_PRIORITIES = _priorities(b"")
RFC5424_STARTS = _priorities(b"1")
"""The first field of an RFC 5424 message, with facility and severity."""


class SyslogMessage(NamedTuple):
    """One parsed message; nil and absent fields are None, `raw` is what arrived."""

    facility: int
    severity: int
    instant: Instant | None
    host: bytes | None
    app: bytes | None
    proc_id: bytes | None
    msg_id: bytes | None
    structured_data: bytes
    message: bytes
    raw: bytes
    parse_error: str | None = None


class SyslogParser:
    """`parse` with its caches. `time_zone` is the zone of times that name none."""

    def __init__(self, time_zone: tzinfo = UTC) -> None:
        self.timestamps = TimestampReader(time_zone)

    def parse(self, raw: bytes, arrival_ms: int) -> SyslogMessage:
        """`raw` is one datagram or the content of one frame, with or without line ends and NULs at
        its end.
        """
        text = raw.rstrip(_TRAILERS) if raw and raw[-1] < 0x20 else raw
        fields = text.split(b" ", _HEADER_FIELDS - 1)
        priority = RFC5424_STARTS.get(fields[0])
        if priority is not None:
            if len(fields) < _HEADER_FIELDS:
                message = self._parse_incomplete(raw, fields, priority)
            else:
                message = self._parse_rfc5424(raw, fields, priority)
            if message is not None:
                return message
        return self._parse_legacy(raw, text, arrival_ms)

    def _parse_rfc5424(self, raw: bytes, fields: list[bytes], priority: tuple[int, int]) -> SyslogMessage | None:
        _, time, host, app, proc_id, msg_id, rest = fields
        instant = parse_error = None
        if time != b"-":
            instant = self.timestamps.read_rfc3339(time)
            if instant is None:
                parse_error = BAD_TIMESTAMP
        structured_data = b""
        if rest[:2] == b"- " or rest == b"-":
            message = rest[2:]
        elif (end := end_of_structured_data(rest, 0)) > 0:
            structured_data, message = rest[:end], rest[end + 1 :]
        elif parse_error:
            return None  # neither a time nor structured data: an old-style text that starts with `1 `
        else:
            message, parse_error = rest, BAD_STRUCTURED_DATA
        return SyslogMessage(
            priority[0],
            priority[1],
            instant,
            None if host == b"-" else host or None,
            None if app == b"-" else app or None,
            None if proc_id == b"-" else proc_id or None,
            None if msg_id == b"-" else msg_id or None,
            structured_data,
            _without_mark(_without_doubled_space(message)),
            raw,
            parse_error,
        )

    def _parse_incomplete(self, raw: bytes, fields: list[bytes], priority: tuple[int, int]) -> SyslogMessage | None:
        """A header that ends early: still RFC 5424 if its time is valid."""
        if len(fields) < 2 or (fields[1] != b"-" and self.timestamps.read_rfc3339(fields[1]) is None):
            return None
        padded = fields + [b"-"] * (_HEADER_FIELDS - len(fields))
        message = self._parse_rfc5424(raw, padded, priority)
        return message._replace(parse_error=INCOMPLETE_HEADER) if message else None

    def _parse_legacy(self, raw: bytes, text: bytes, arrival_ms: int) -> SyslogMessage:
        priority: tuple[int, int] | None = (DEFAULT_FACILITY, DEFAULT_SEVERITY)
        position = 0
        if text[:1] == b"<":
            position = text.find(b">", 1, 5) + 1
            priority = _PRIORITIES.get(text[:position])
        elif not text:
            return _unparsed(raw, text, EMPTY)
        if priority is None:
            return _unparsed(raw, text, BAD_PRIORITY)
        content = read_legacy(text, position, arrival_ms, self.timestamps)
        if position == 0 and content.instant is None and content.msg_id is None:
            return _unparsed(raw, text, NO_PRIORITY)
        return SyslogMessage(
            priority[0],
            priority[1],
            content.instant,
            content.host,
            content.app,
            content.proc_id or None,
            content.msg_id,
            content.structured_data,
            _without_mark(content.message),
            raw,
        )


def _unparsed(raw: bytes, text: bytes, parse_error: str) -> SyslogMessage:
    return SyslogMessage(DEFAULT_FACILITY, DEFAULT_SEVERITY, None, None, None, None, None, b"", text, raw, parse_error)


def _without_mark(message: bytes) -> bytes:
    return message[3:] if message[:3] == _BYTE_ORDER_MARK else message


def _without_doubled_space(message: bytes) -> bytes:
    """rsyslog relays an RFC 3164 text with the space after its tag. One space more than the
    separator is that one; a deeper indent is the sender's.
    """
    return message[1:] if message[:1] == b" " and message[1:2] != b" " else message
