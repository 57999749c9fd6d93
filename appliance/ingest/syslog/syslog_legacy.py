"""Reads what follows the priority of an RFC 3164 message, in the forms that senders really use.

Values only; the caches belong to the `TimestampReader` that is passed in. RFC 3164 describes what was seen in 2001 and requires
next to nothing, so this is a list of habits: BSD time with or without year, ISO time in its place (rsyslog, loggen), host or none
(glibc's syslog()), `tag:`, `tag[pid]:` or no tag, and Cisco's `sequence: host: *time zone: %FACILITY-SEVERITY-MNEMONIC: text`.

Weak: where neither tag nor colon says otherwise, the first word behind the time is the host, as every receiver assumes. Cisco's
zone names other than UTC and GMT are ignored (they are ambiguous), so such times are read in the time zone of the setting.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from appliance.ingest.syslog.syslog_timestamp import BSD_TIME_SIZE, Instant, TimestampReader

_TAG = re.compile(rb"([^\s:\[\]]{1,128})(?:\[([^\]\s]{0,128})\](?::|(?=\s)|\Z)|:(?![/:\d\\])) ?")
_ISO_TIME = re.compile(rb"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:[Zz]|[+-]\d\d:?\d\d)?)(?=[ :]|\Z)")
_YEAR_BEHIND = re.compile(rb"(?:(?:19|20)\d\d|UTC|GMT)(?=[ :]|\Z)")
_CISCO_MNEMONIC = re.compile(rb"%([A-Z][A-Z0-9_]*(?:-[A-Z0-9_]+)*-[0-7]-[A-Z0-9_]+) ?:")
_CISCO_SEARCH_BYTES = 256
_CISCO_HOST = rb"[A-Za-z][\w.\-]*|\d+\.\d+\.\d+\.\d+"
_CISCO_PRELUDE = re.compile(
    rb"(?:: ?)?(?:(?P<host>" + _CISCO_HOST + rb"): )?(?:(?P<sequence>\d+): )?(?:(?P<relay>" + _CISCO_HOST + rb"): )?"
    rb"(?:(?:\d+[ywdh]){1,4}: |\d\d:\d\d:\d\d: )?[*.;]?"
)
_CISCO_BEHIND_TIME = re.compile(rb"(?: [A-Z]{2,5}(?=:))?(?: (" + _CISCO_HOST + rb"))?[ :]*")
_COLON, _CLOSING_BRACKET = 0x3A, 0x5D


class LegacyContent(NamedTuple):
    """What was made out of the bytes behind the priority; fields that are not there are None."""

    instant: Instant | None
    host: bytes | None
    app: bytes | None
    proc_id: bytes | None
    msg_id: bytes | None
    sequence_id: bytes | None
    message: bytes


def read_legacy(text: bytes, position: int, arrival_ms: int, timestamps: TimestampReader) -> LegacyContent:
    """Read `text` from `position` (behind the priority) on. Never fails: at worst all of it is the message."""
    if text[position + 4 : position + 5] == b"-":
        space = text.find(b" ", position)
        if space > 0 and (instant := timestamps.read_rfc3339(text[position:space])):
            return _read_host_and_tag(text, space + 1, instant)
    instant = timestamps.read_bsd(text[position : position + BSD_TIME_SIZE], arrival_ms)
    behind = position + BSD_TIME_SIZE + 1
    if instant is None or text[behind - 1 : behind] != b" " or _YEAR_BEHIND.match(text, behind):
        return _read_uncommon(text, position, arrival_ms, timestamps)
    if content := _read_cisco(text, position, arrival_ms, timestamps):
        return content
    return _read_host_and_tag(text, behind, instant)


def _read_uncommon(text: bytes, position: int, arrival_ms: int, timestamps: TimestampReader) -> LegacyContent:
    if content := _read_cisco(text, position, arrival_ms, timestamps):
        return content
    if match := _ISO_TIME.match(text, position):
        instant, end = timestamps.read_rfc3339(match[1]), match.end()
    elif found := timestamps.find_bsd(text, position, arrival_ms):
        instant, end = found
    else:
        instant, end = None, position
    if instant is not None and text[end : end + 1] in (b" ", b":", b""):
        if text[end : end + 1] == b":":
            end += 1
        return _read_host_and_tag(text, end + 1, instant)
    tag = _TAG.match(text, position)
    if tag is None:
        return LegacyContent(None, None, None, None, None, None, text[position:])
    return LegacyContent(None, None, tag[1], tag[2], None, None, text[tag.end() :])


def _read_host_and_tag(text: bytes, position: int, instant: Instant) -> LegacyContent:
    space = text.find(b" ", position)
    host_end = space if space >= 0 else len(text)
    host = None
    if host_end > position and text[host_end - 1] not in (_COLON, _CLOSING_BRACKET):
        host, position = text[position:host_end], min(host_end + 1, len(text))
    tag = _TAG.match(text, position)
    if tag is None:
        return LegacyContent(instant, host, None, None, None, None, text[position:])
    return LegacyContent(instant, host, tag[1], tag[2], None, None, text[tag.end() :])


def _read_cisco(text: bytes, position: int, arrival_ms: int, timestamps: TimestampReader) -> LegacyContent | None:
    """IOS, NX-OS and ASA; the message keeps its `%…:` start, which is what people search for."""
    if text.find(b"%", position, position + _CISCO_SEARCH_BYTES) < 0:
        return None
    mnemonic = _CISCO_MNEMONIC.search(text, position, position + _CISCO_SEARCH_BYTES)
    prelude = _CISCO_PRELUDE.match(text, position)
    if mnemonic is None or prelude is None:
        return None
    found = timestamps.find_bsd(text, prelude.end(), arrival_ms)
    behind = _CISCO_BEHIND_TIME.match(text, found[1] if found else prelude.end())
    if behind is None or behind.end() != mnemonic.start():
        return None
    host = prelude["host"] or prelude["relay"] or behind[1]
    name = mnemonic[1]
    return LegacyContent(found[0] if found else None, host, name.partition(b"-")[0], None, name, prelude["sequence"], text[mnemonic.start() :])
