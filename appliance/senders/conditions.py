"""The conditions of a route, compiled to Python functions.

Pure. All conditions of a route must match; the values of one condition are alternatives; a record
that lacks the field does not match. Weak: only severities can be compared by order; a field is
compared as text (true, 5); there are no regular expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Any, NamedTuple, Protocol

SEVERITY_NAMES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
FACILITY_NAMES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp", "audit", "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
assert len(SEVERITY_NAMES) == 8 and len(FACILITY_NAMES) == 24

SEVERITIES = {name: number for number, name in enumerate(SEVERITY_NAMES)} | {"panic": 0, "emergency": 0, "critical": 2, "error": 3, "warn": 4}
FACILITIES = {name: number for number, name in enumerate(FACILITY_NAMES)} | {"security": 4}


class Routable(Protocol):
    """What routes and keys read of a record; `Record` is one. Absent values are None."""

    @property
    def facility(self) -> int | None: ...
    @property
    def severity(self) -> int | None: ...
    @property
    def host(self) -> str | None: ...
    @property
    def app(self) -> str | None: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def labels(self) -> Mapping[str, Any] | None: ...
    @property
    def fields(self) -> Mapping[str, Any] | None: ...


class Subject(NamedTuple):
    """What a condition reads; `name` is the label's name or the field's path."""

    kind: str
    name: str = ""


class RouteCondition(NamedTuple):
    """Values of which one must match: numbers of facilities and severities, otherwise texts in
    which `*` matches any characters. `is_at_most`: the severity must be this one or a more severe
    one.
    """

    subject: Subject
    values: tuple[int | str, ...]
    is_at_most: bool = False


def compile_conditions(conditions: Sequence[RouteCondition]) -> Callable[[Routable], bool]:
    """Return a function that is true if all conditions match; without those on the listener, which
    are known before there is a record.
    """
    tests = [_compile_condition(condition) for condition in conditions if condition.subject.kind != "listener"]
    if not tests:
        return lambda _record: True
    if len(tests) == 1:
        return tests[0]
    return lambda record: all(test(record) for test in tests)


def _compile_condition(condition: RouteCondition) -> Callable[[Routable], bool]:
    kind = condition.subject.kind
    values = condition.values
    if kind == "severity" and condition.is_at_most:
        highest = values[0]
        assert isinstance(highest, int)
        return lambda record: record.severity is not None and record.severity <= highest
    if kind == "severity":
        severities = frozenset(values)
        return lambda record: record.severity in severities
    if kind == "facility":
        facilities = frozenset(values)
        return lambda record: record.facility in facilities
    read, matches = _reader(condition.subject), matcher(values)

    def test(record: Routable) -> bool:
        value = read(record)
        return value is not None and matches(text_of(value))

    return test


def matcher(values: Sequence[int | str]) -> Callable[[str], bool]:
    """Return a function that is true for a text that equals one of `values`; `*` matches any
    characters, or none.
    """
    texts = [str(value) for value in values]
    plain = frozenset(text for text in texts if "*" not in text)
    globs = [_glob(text) for text in texts if "*" in text]
    if not globs:
        return plain.__contains__
    matches = re.compile("|".join(globs), re.DOTALL).match
    return lambda text: text in plain or matches(text) is not None


def _glob(pattern: str) -> str:
    return translate(pattern.replace("[", "[[]").replace("?", "[?]"))


def _reader(subject: Subject) -> Callable[[Routable], Any]:
    kind, name = subject
    if kind == "host":
        return lambda record: record.host
    if kind == "app":
        return lambda record: record.app
    if kind == "tag":
        return lambda record: record.tag
    if kind == "label":
        return lambda record: None if record.labels is None else record.labels.get(name)
    return lambda record: field_of(record.fields, name)


def field_of(fields: Mapping[str, Any] | None, path: str) -> Any:
    """Return the field `a.b`: a member named `a.b`, otherwise the member b of a; None if there is
    neither.
    """
    if fields is None:
        return None
    if path in fields:
        return fields[path]
    head, dot, rest = path.partition(".")
    while dot:
        inner = fields.get(head)
        if isinstance(inner, Mapping) and (value := field_of(inner, rest)) is not None:
            return value
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return None


def text_of(value: Any) -> str:
    """Return a field as the text that conditions and keys compare."""
    if type(value) is str:
        return value
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    return str(value)
