"""Find out which field of a sender has which meaning: `level` is a severity, `hostname` the host,
`log` the message.

One table, first name first; `name>inner` reads a field of an object (`kubernetes>host`), whose
value stays where it is. `agent_event` checks whether the value fits. The roles of a set of names
are computed once, because senders repeat their names; sets beyond `PLAN_NAMES_MAX` or
`PLAN_BYTES_MAX` are not cached, so that no sender fills the memory.

Weak: the names are guesses. A field with a wrong role is still in the event, in one place or the
other.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

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


_plans: dict[tuple[str, ...], tuple[FieldRole, ...]] = {}


def roles_of(names: tuple[str, ...]) -> tuple[FieldRole, ...]:
    """Return the roles that fields of these names may have: part by part, the best name of each
    first."""
    try:
        return _plans[names]
    except KeyError:
        roles = tuple(role for _, role in sorted(ranked for name in names for ranked in _BY_NAME.get(name, ())))
        if len(names) <= PLAN_NAMES_MAX and sum(map(len, names)) <= PLAN_BYTES_MAX:
            if len(_plans) >= PLANS_MAX:
                _plans.clear()
            _plans[names] = roles
        return roles
