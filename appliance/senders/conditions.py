"""What a route asks of a record, compiled to plain Python.

Pure. Conditions of one route all hold together; several values of one condition are alternatives; a record that lacks what is asked for does not
fit. Weak: `<=` compares severities alone; a field is compared by its text (true, 5), and regular expressions are not offered.
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
    """What routes and keys look at; `Record` is one. Absent is None."""

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
    """What a condition looks at; `name` is the label's or the field's path."""

    kind: str
    name: str = ""


class RouteCondition(NamedTuple):
    """`subject=value,…` or `severity<=value`. Numbers of facilities and severities; else texts, in which `*` stands for anything."""

    subject: Subject
    values: tuple[int | str, ...]
    is_at_most: bool = False


def compile_conditions(conditions: Sequence[RouteCondition]) -> Callable[[Routable], bool]:
    """Whether all hold, the listener's apart: that is known before there is a record."""
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
    """Whether a text is one of `values`, in which `*` stands for any characters, none included."""
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
    """`a.b` is the member b of a; a member that is itself called `a.b` goes before. None where there is none."""
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
    """A field as a condition or a key sees it."""
    if type(value) is str:
        return value
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    return str(value)
