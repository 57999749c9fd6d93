"""Parses what follows the priority of an RFC 3164 message, in the forms that senders use.

Values only; the caches belong to the `TimestampReader` that is passed in. RFC 3164 describes what
was common in 2001 and requires next to nothing, so this is a list of habits: BSD time with or
without year, ISO time instead (rsyslog, loggen), host or none (glibc's syslog()), `tag:`,
`tag[pid]:` or no tag, AIX's `Message forwarded from host:`, and Cisco's `sequence: host: *time
zone: %FACILITY-SEVERITY-MNEMONIC: text`, also with the ISO times of IOS XR, and Meraki's seconds.
JSON and `name=value` are text, without host and tag.

Weak: without a tag or colon, the first word after the time is the host, as every receiver assumes.
Cisco's zone names other than UTC and GMT are ambiguous and ignored, so such times are in the time
zone of the setting.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from services.ingest.protocols.syslog.syslog_timestamp import BSD_TIME_SIZE, Instant, TimestampReader, rfc3339_text

_TAG = re.compile(rb' ?([^\s:\[\]"{}=@][^\s:\[\]"{}=]{0,127}+)(?:\[([^\]\s]{0,128})\](?::|(?=\s)|\Z)|:(?![/:\d\\])) ?')
_NO_HOST = re.compile(rb'[\["(<{=]')
_FORWARDED = re.compile(rb"Message forwarded from (\S{1,255}?):? ")
_MERAKI = re.compile(rb"1 (\d{10})\.(\d{3})\d{0,6} ([\w.\-]{1,255}) ")
_REPEATED = b"last message repeated "
_ISO_TIME = re.compile(rb"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:[Zz]|[+-]\d\d:?\d\d)?)(?=[ :]|\Z)")
_YEAR_BEHIND = re.compile(rb"(?:(?:19|20)\d\d(?= |:(?: |\Z)|\Z)|(?:UTC|GMT)(?=[ :]|\Z))")
_CISCO_MNEMONIC = re.compile(rb"%([A-Z][A-Z0-9_]*(?:-[A-Za-z0-9_]+)*-[0-7]-[A-Z0-9_]+) ?:")
_CISCO_SEARCH_BYTES = 256
_CISCO_HOST = rb"[A-Za-z][\w.\-]*|\d+\.\d+\.\d+\.\d+"
_CISCO_PRELUDE = re.compile(
    rb"(?:: ?)?(?:(?P<host>" + _CISCO_HOST + rb"): )?(?:(?P<sequence>\d+): )?(?:(?P<relay>" + _CISCO_HOST + rb"): )?(?:(?P<service>\d+): )?"
    rb"(?:(?:\d+[ywdh]){1,4}: |\d\d:\d\d:\d\d: )?[*.;]?"
)
_CISCO_BEHIND_TIME = re.compile(rb"(?: [A-Z]{2,5}(?=:))?(?: (" + _CISCO_HOST + rb"))?[ :]*")
_IOS_XR_PRELUDE = re.compile(rb"(?:(?P<sequence>\d+): )?(?:(?P<host>" + _CISCO_HOST + rb") )?(?P<node>\w{1,8}(?:/\w{1,8}){2,3}):")
_IOS_XR_BEHIND_TIME = re.compile(rb"(?: [A-Z]{2,5})? ?: ([\w.\-]{1,64})\[(\d+)\]: ")
_COLON, _CLOSING_BRACKET = 0x3A, 0x5D


class LegacyContent(NamedTuple):
    """The fields found after the priority; absent ones are None."""

    instant: Instant | None
    host: bytes | None
    app: bytes | None
    proc_id: bytes | None
    msg_id: bytes | None
    structured_data: bytes
    message: bytes


def read_legacy(text: bytes, position: int, arrival_ms: int, timestamps: TimestampReader) -> LegacyContent:
    """Parse `text` from `position` (after the priority) on. It never fails: at worst all of it is
    the message.
    """
    if text[position + 4 : position + 5] == b"-":
        space = text.find(b" ", position)
        if space > 0 and (instant := timestamps.read_rfc3339(text[position:space])):
            if content := _read_cisco(text, position, arrival_ms, timestamps):
                return content
            return _read_host_and_tag(text, space + 1, instant)
    instant = timestamps.read_bsd(text[position : position + BSD_TIME_SIZE], arrival_ms)
    behind = position + BSD_TIME_SIZE + 1
    if instant is None or text[behind - 1 : behind] != b" " or _YEAR_BEHIND.match(text, behind):
        return _read_uncommon(text, position, arrival_ms, timestamps)
    if content := _read_cisco(text, position, arrival_ms, timestamps):
        return content
    return _read_host_and_tag(text, behind, instant)


def _read_uncommon(text: bytes, position: int, arrival_ms: int, timestamps: TimestampReader) -> LegacyContent:
    if content := _read_cisco(text, position, arrival_ms, timestamps) or _read_ios_xr(text, position, arrival_ms, timestamps):
        return content
    if text[position : position + 1] == b" ":
        indented = read_legacy(text, len(text) - len(text[position:].lstrip(b" ")), arrival_ms, timestamps)
        if indented.instant is not None:
            return indented
    if match := _MERAKI.match(text, position):
        time_ms = int(match[1] + match[2])
        return LegacyContent(Instant(time_ms, rfc3339_text(time_ms)), match[3], None, None, None, b"", text[match.end() :])
    if match := _ISO_TIME.match(text, position):
        instant, end = timestamps.read_rfc3339(match[1]), match.end()
    elif found := timestamps.find_bsd(text, position, arrival_ms):
        instant, end = found
    else:
        instant, end = None, position
    if instant is not None and text[end : end + 1] in (b" ", b":", b""):
        if text[end : end + 1] == b":":
            end += 1
        return _read_host_and_tag(text, end + 1 if text[end : end + 1] == b" " else end, instant)
    tag = _TAG.match(text, position)
    if tag is None:
        return LegacyContent(None, None, None, None, None, b"", text[position:])
    return LegacyContent(None, None, tag[1], tag[2], None, b"", text[tag.end() :])


def _read_host_and_tag(text: bytes, position: int, instant: Instant) -> LegacyContent:
    space = text.find(b" ", position)
    host_end = space if space >= 0 else len(text)
    host = None
    if host_end > position and text[host_end - 1] not in (_COLON, _CLOSING_BRACKET):
        word = text[position:host_end]
        if word == b"Message" and (forwarded := _FORWARDED.match(text, position)):
            host, position = forwarded[1], forwarded.end()
        elif not _NO_HOST.search(word) and not (word == b"last" and text.startswith(_REPEATED, position)):
            host, position = word, min(host_end + 1, len(text))
    tag = _TAG.match(text, position)
    if tag is None:
        return LegacyContent(instant, host, None, None, None, b"", text[position:])
    return LegacyContent(instant, host, tag[1], tag[2], None, b"", text[tag.end() :])


def _read_cisco(text: bytes, position: int, arrival_ms: int, timestamps: TimestampReader) -> LegacyContent | None:
    """IOS, NX-OS and ASA; the message keeps its `%…:` start, for which people search."""
    if text.find(b"%", position, position + _CISCO_SEARCH_BYTES) < 0:
        return None
    mnemonic = _CISCO_MNEMONIC.search(text, position, position + _CISCO_SEARCH_BYTES)
    prelude = _CISCO_PRELUDE.match(text, position)
    if mnemonic is None or prelude is None:
        return None
    found = _find_time(text, prelude.end(), arrival_ms, timestamps)
    behind = _CISCO_BEHIND_TIME.match(text, found[1] if found else prelude.end())
    if behind is None or behind.end() != mnemonic.start():
        return None
    host = prelude["host"] or prelude["relay"] or behind[1]
    name = mnemonic[1]
    meta = _sequence_ids(prelude["sequence"], prelude["service"])
    return LegacyContent(found[0] if found else None, host, name.partition(b"-")[0], None, name, meta, text[mnemonic.start() :])


def _read_ios_xr(text: bytes, position: int, arrival_ms: int, timestamps: TimestampReader) -> LegacyContent | None:
    """`sequence: host node:time zone: process[pid]: %…: text`; the node is a part of the router."""
    prelude = _IOS_XR_PRELUDE.match(text, position)
    found = _find_time(text, prelude.end(), arrival_ms, timestamps) if prelude else None
    behind = _IOS_XR_BEHIND_TIME.match(text, found[1]) if found else None
    mnemonic = _CISCO_MNEMONIC.match(text, behind.end()) if behind else None
    if prelude is None or found is None or behind is None or mnemonic is None:
        return None
    data = _sequence_ids(prelude["sequence"], None) + b'[cisco node="%b"]' % prelude["node"]
    return LegacyContent(found[0], prelude["host"], behind[1], behind[2], mnemonic[1], data, text[mnemonic.start() :])


def _find_time(text: bytes, position: int, arrival_ms: int, timestamps: TimestampReader) -> tuple[Instant, int] | None:
    """Return a time at `position`, BSD or ISO, and where it ends."""
    if found := timestamps.find_bsd(text, position, arrival_ms):
        return found
    match = _ISO_TIME.match(text, position)
    instant = timestamps.read_rfc3339(match[1]) if match else None
    return (instant, match.end()) if match and instant else None


def _sequence_ids(*numbers: bytes | None) -> bytes:
    """Return message counters, and the numbers of `service sequence-numbers`, as structured data."""
    said = b"".join(b' sequenceId="%b"' % number for number in numbers if number)
    return b"[meta%b]" % said if said else b""
