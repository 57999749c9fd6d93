"""How the JSON of an event begins, written once for what senders repeat: the seconds of a time, and all that says from whom a record is.

Owned by the process; what was written is forgotten all at once when it is too much. The fields of the first table of docs/senders.md are
always there and always first, in one order, so an event is `{"time":…` + `,"host":…,"structured_data":{},` + `"message":…}`. Weak: a sender who has
a new process id for each record pays for writing and remembering it.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from appliance.senders.syslog_names import FACILITY_NAMES, SEVERITY_NAMES
from services.ingest.protocols.syslog.syslog_timestamp import rfc3339_text

KEPT_MAX: Final = 4096
HEAD_BYTES_MAX: Final = 1024
"""A longer one is not kept: 4,096 long names would be too much."""
NO_TIME: Final = b'{"time":null'
_YEAR_10000: Final = 253_402_300_800
MILLISECONDS: Final = tuple(b'.%03dZ"' % number for number in range(1000))

seconds_written: Final[dict[int, bytes]] = {}
"""`{"time":"2026-11-22T12:00:00` by its second; for loops that cannot afford a call. `write_second` has what is not in it."""
heads_written: Final[dict[tuple[Any, ...], bytes]] = {}
"""By (host, app, proc_id, msg_id, severity, facility); `write_head` has what is not in it."""


def write_second(seconds: int) -> bytes:
    """The beginning of an event of this second; b"" for one that has no text (before 1970, after 9999)."""
    if not 0 <= seconds < _YEAR_10000:
        return b""
    if len(seconds_written) >= KEPT_MAX:
        seconds_written.clear()
    begin = seconds_written[seconds] = b'{"time":"' + rfc3339_text(seconds * 1000)[:-5]
    return begin


def write_head(head: tuple[Any, ...]) -> bytes:
    """What stands between time and message, to be written again and again. Raises TypeError for texts that JSON cannot hold."""
    written = head_json(head)
    is_plain = all(text is None or type(text) is str for text in head[:4])  # what is no text may be equal to something that is written otherwise
    if is_plain and len(written) <= HEAD_BYTES_MAX:
        if len(heads_written) >= KEPT_MAX:
            heads_written.clear()
        heads_written[head] = written
    return written


def head_json(head: tuple[Any, ...]) -> bytes:
    """The same, once."""
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
