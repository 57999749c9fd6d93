"""The meaning of a sender's fields and of its words for severity and facility.

One table of names, first name first; `name>inner` reads a field of an object (`kubernetes>host`),
whose value stays where it is. `agent_event` checks whether the value fits. The roles of a set of
names are computed once, because senders repeat their names; sets beyond `PLAN_NAMES_MAX` or
`PLAN_BYTES_MAX` are not cached, so that no sender fills the memory.

Severities: 0-7 are syslog's numbers; 10, 20, … 60 are those of bunyan and pino (trace to fatal).
OpenTelemetry and Python have functions of their own, because they use the same numbers with other
meanings.

Weak: names and numbers are guesses. A field with a wrong role is still in the event, in one place
or the other.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from appliance.senders.conditions import FACILITIES, SEVERITIES

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "message": ("message", "msg", "log", "MESSAGE", "@message", "short_message", "text", "body", "event", "line"),
    "host": ("host", "hostname", "HOSTNAME", "_HOSTNAME", "host.name", "logsource", "host>name", "host>hostname", "agent>hostname", "kubernetes>host"),
    "app": (
        *("app", "app_name", "appname", "application", "program", "ident", "SYSLOG_IDENTIFIER", "service", "service.name", "service>name"),
        *("container_name", "kubernetes>container_name", "process.name", "process>name"),
    ),
    "proc_id": ("pid", "proc_id", "procid", "process_id", "_PID", "SYSLOG_PID", "process.pid", "process>pid"),
    "msg_id": ("msg_id", "msgid", "MESSAGE_ID"),
    "severity": (
        *("severity", "level", "log.level", "log>level", "loglevel", "log_level", "levelname", "severity_text", "lvl"),
        *("PRIORITY", "priority", "syslog_severity", "syslog_severity_code", "levelno"),
    ),
    "facility": ("facility", "syslog_facility", "SYSLOG_FACILITY", "syslog_facility_code"),
    "trace_id": ("trace_id", "traceId", "traceid", "trace.id", "trace>id"),
    "span_id": ("span_id", "spanId", "spanid", "span.id", "span>id"),
    "time": ("@timestamp", "timestamp", "time", "ts", "datetime", "date"),
}
PLANS_MAX = 4096
PLAN_NAMES_MAX, PLAN_BYTES_MAX = 256, 4096


class FieldKind(IntEnum):
    """How a value becomes a part of the event."""

    TEXT = 0
    SEVERITY = 1
    PYTHON_SEVERITY = 2
    FACILITY = 3
    TIME = 4
    NUMBER_OR_TEXT = 5


class FieldRole(NamedTuple):
    """`fields[name]` or `fields[name][inner]` may be the event's `part`."""

    kind: FieldKind
    part: str
    name: str
    inner: str


_KINDS = {"severity": FieldKind.SEVERITY, "facility": FieldKind.FACILITY, "time": FieldKind.TIME, "proc_id": FieldKind.NUMBER_OR_TEXT}
_KIND_OF_NAME = {"levelno": FieldKind.PYTHON_SEVERITY}


_BY_NAME: dict[str, list[tuple[int, FieldRole]]] = {}
for _rank, (_part, _text) in enumerate((_part, _text) for _part, _texts in NAMES.items() for _text in _texts):
    _name, _, _inner = _text.partition(">")
    _BY_NAME.setdefault(_name, []).append((_rank, FieldRole(_KIND_OF_NAME.get(_name) or _KINDS.get(_part, FieldKind.TEXT), _part, _name, _inner)))


kept_plans: dict[tuple[str, ...], tuple[FieldRole, ...]] = {}


def roles_of(names: tuple[str, ...]) -> tuple[FieldRole, ...]:
    """Return the roles that fields of these names may have: part by part, the best name of each
    first."""
    try:
        return kept_plans[names]
    except KeyError:
        roles = tuple(role for _, role in sorted(ranked for name in names for ranked in _BY_NAME.get(name, ())))
        if len(names) <= PLAN_NAMES_MAX and sum(map(len, names)) <= PLAN_BYTES_MAX:
            if len(kept_plans) >= PLANS_MAX:
                kept_plans.clear()
            kept_plans[names] = roles
        return roles


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
