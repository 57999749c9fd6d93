"""Translate severities and facilities of agents to those of syslog: words, letters, numbers of
several conventions.

Pure functions. 0-7 are syslog's numbers; 10, 20, … 60 are those of bunyan and pino (trace to
fatal). OpenTelemetry and Python have functions of their own, because they use the same numbers with
other meanings.

Weak: a number does not name its convention. If the guess is wrong, the original is still in the
event's fields.
"""

from __future__ import annotations

from appliance.senders.syslog_names import FACILITIES, SEVERITIES

_WORDS = SEVERITIES | {
    **dict.fromkeys(("emergency", "emerg", "panic"), 0),
    **dict.fromkeys(("alert",), 1),
    **dict.fromkeys(("critical", "crit", "fatal", "f", "c"), 2),
    **dict.fromkeys(("error", "err", "severe", "failure", "e"), 3),
    **dict.fromkeys(("warning", "warn", "w"), 4),
    **dict.fromkeys(("notice", "n"), 5),
    **dict.fromkeys(("informational", "information", "info", "log", "i"), 6),
    **dict.fromkeys(("debug", "trace", "verbose", "fine", "finer", "finest", "dbg", "d", "t", "v"), 7),
}
_TENS = {10: 7, 20: 7, 30: 6, 40: 4, 50: 3, 60: 2}
_PYTHON = (7, 7, 6, 4, 3, 2)
_OTEL = (7, 7, 7, 7, 7, 7, 7, 7, 6, 5, 5, 5, 4, 4, 4, 4, 3, 2, 1, 1, 0, 0, 0, 0)
"""By number - 1, the reverse of appendix B of its log data model: INFO2 is notice, ERROR2 critical,
ERROR3 alert, FATAL emergency."""
assert len(_OTEL) == 24

_seen: dict[str, int | None] = {}
_SEEN_MAX = 1024


def severity_of(value: object) -> int | None:
    """Return 0-7; None for a value that is no severity."""
    if type(value) is str:
        try:
            return _seen[value]
        except KeyError:
            severity = _severity_of_text(value)
            if len(_seen) < _SEEN_MAX and len(value) < 32:
                _seen[value] = severity
            return severity
    if type(value) is bytes:
        return _severity_of_text(value.decode("utf-8", "replace"))
    if type(value) is int or (type(value) is float and value.is_integer()):
        return int(value) if 0 <= value <= 7 else _TENS.get(int(value))
    return None


def _severity_of_text(text: str) -> int | None:
    text = text.strip().lower()
    if text.isdecimal() and len(text) < 4:
        return severity_of(int(text))
    return _WORDS.get(text)


def severity_of_otel(number: int) -> int | None:
    """Translate OpenTelemetry's SeverityNumber; None for 0 (unspecified) and for numbers out of
    range."""
    return _OTEL[number - 1] if 1 <= number <= len(_OTEL) else None


def severity_of_python(value: object) -> int | None:
    """Translate `levelno` of Python's logging: 10 debug, 20 info, 30 warning, 40 error, 50
    critical, and those between."""
    return _PYTHON[min(max(value, 0), 50) // 10] if type(value) is int else None


def facility_of(value: object) -> int | None:
    """Return 0-23; None for a value that is no facility."""
    if type(value) is str:
        text = value.strip().lower()
        return facility_of(int(text)) if text.isdecimal() and len(text) < 3 else FACILITIES.get(text)
    return value if type(value) is int and 0 <= value < 24 else None
