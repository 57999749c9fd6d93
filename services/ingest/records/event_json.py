"""Cache the start of an event's JSON: the second of its time, and the fields that identify the
sender.

Owned by the process; a full cache is cleared at once. The fields of the first table of
docs/senders.md are always there and in one order, so an event is `{"time":…` +
`,"host":…,"structured_data":{},` + `"message":…}`.

Weak: a sender with a new process id for each record gains nothing and fills the cache.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from appliance.senders.syslog_names import FACILITY_NAMES, SEVERITY_NAMES
from services.ingest.protocols.syslog.syslog_timestamp import rfc3339_text

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
    words = {
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
    return b"," + orjson.dumps(words)[1:-1] + b","
