"""How a record is shown to people: local time with its zone, host, app, severity in colour, message.

Pure. A value that is no JSON object with a message is shown as it is. Weak spot: a record whose sender has no host, app and severity
looks like its message alone.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from appliance.base.terminal_text import terminal_text

_COLOURS = {0: "1;31", 1: "1;31", 2: "1;31", 3: "31", 4: "33", 5: "36", 7: "2"}
_PLAIN = "\x1b[0m"
DEPTH_MAX = 100


def parsed_value(value: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a value, None for anything else, and for one with more than
    `DEPTH_MAX` levels, which Python's encoder may not write again."""
    if value[:1] != b"{":
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and not _is_deep(found) else None


def _is_deep(found: dict[str, Any]) -> bool:
    level: list[Any] = [found]
    for _ in range(DEPTH_MAX):
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def local_time(timestamp_ms: int) -> str:
    """`2026-11-21T14:03:11.250+01:00`; local time."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"


def record_line(timestamp_ms: int, value: bytes, is_coloured: bool) -> str:
    """Return one line without its end; nothing in it controls a terminal but the colours."""
    document = parsed_value(value)
    time = local_time(timestamp_ms)
    if document is None or not isinstance(document.get("message"), str):
        return f"{time} {terminal_text(value.decode('utf-8', 'backslashreplace'))}"
    app = str(document.get("app") or "-")
    if document.get("proc_id") is not None:
        app += f"[{document['proc_id']}]"
    severity, name = document.get("severity"), document.get("severity_name")
    level = next((str(each) for each in (name, severity) if each is not None), "-")
    words = [time, *map(terminal_text, (str(document.get("host") or "-"), app, level))]
    text = f"{' '.join(words)}: {terminal_text(document['message'])}"
    return coloured(text, severity) if is_coloured else text


def coloured(text: str, severity: object) -> str:
    """Return a text in the colour of a severity, if that has one."""
    colour = _COLOURS.get(severity) if isinstance(severity, int) else None
    return f"\x1b[{colour}m{text}{_PLAIN}" if colour else text
