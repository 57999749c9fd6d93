"""Routes over any table and any record, against a plain reading of the rules; and the table's reader over any text."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from appliance.senders.conditions import RouteCondition, Subject, field_of, text_of
from appliance.senders.listener import Listener, ListenerTransport, Protocol
from appliance.senders.old_table import convert_table, tables_text
from appliance.senders.router import Route, Router, RouteTable
from appliance.senders.sender_tables import CONDITION_NAMES, LISTENER_KEYS, read_tables
from tests.unit.base.test_settings import make_box
from tests.unit.senders.test_router import Routed

words = st.sampled_from(["", "a", "b", "ab", "ba", "a*b", "[a]", "a?", "a\nb"])
patterns = st.sampled_from(["a", "b", "ab", "*", "a*", "*b", "*a*", "[a]", "a?", "**"])
values = st.one_of(words, st.integers(-1, 3), st.booleans(), st.none(), st.floats(allow_nan=False, width=16))
fields = st.dictionaries(
    st.sampled_from(["a", "b", "a.b", "b.a"]), st.one_of(values, st.dictionaries(st.sampled_from(["a", "b", "a.b"]), values, max_size=2)), max_size=3
)
records = st.builds(
    Routed,
    facility=st.one_of(st.none(), st.integers(0, 23)),
    severity=st.one_of(st.none(), st.integers(0, 7)),
    host=st.one_of(st.none(), words),
    app=st.one_of(st.none(), words),
    tag=st.one_of(st.none(), words),
    labels=st.one_of(st.none(), st.dictionaries(st.sampled_from(["a", "b"]), words, max_size=2)),
    fields=st.one_of(st.none(), fields),
)
texts = st.lists(patterns, min_size=1, max_size=3).map(tuple)
conditions = st.one_of(
    st.builds(RouteCondition, st.builds(Subject, st.sampled_from(["host", "app", "tag", "listener"])), texts),
    st.builds(RouteCondition, st.builds(Subject, st.just("label"), st.sampled_from(["a", "b"])), texts),
    st.builds(RouteCondition, st.builds(Subject, st.just("field"), st.sampled_from(["a", "b", "a.b", "b.a", "a.a.b"])), texts),
    st.builds(RouteCondition, st.just(Subject("facility")), st.lists(st.integers(0, 23), min_size=1, max_size=3).map(tuple)),
    st.builds(RouteCondition, st.just(Subject("severity")), st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple)),
    st.builds(RouteCondition, st.just(Subject("severity")), st.integers(0, 7).map(lambda value: (value,)), st.just(True)),
)
routes = st.builds(Route, st.lists(conditions, min_size=1, max_size=3).map(tuple), st.sampled_from([("t1",), ("t2",), ("t1", "t3")]))
LISTENERS = tuple(Listener(name, Protocol.RELP, ListenerTransport.TCP, 0) for name in ("a", "b", "ab"))


def holds(condition: RouteCondition, record: Routed, listener: str) -> bool:
    """The rule as it is documented."""
    kind, name = condition.subject
    value: Any
    if kind in ("facility", "severity"):
        value = getattr(record, kind)
        return value is not None and (value <= condition.values[0] if condition.is_at_most else value in condition.values)
    if kind == "listener":
        value = listener
    elif kind == "label":
        value = (record.labels or {}).get(name)
    elif kind == "field":
        value = field_of(record.fields, name)
    else:
        value = getattr(record, kind)
    if value is None:
        return False
    return any(fnmatchcase(text_of(value), str(pattern).replace("[", "[[]").replace("?", "[?]")) for pattern in condition.values)


@given(st.lists(routes, max_size=5), records)
def test_the_first_route_whose_conditions_all_hold_takes_the_record(table: list[Route], record: Routed) -> None:
    router = Router(LISTENERS, RouteTable(tuple(table), Route((), ("default",))))
    for listener in LISTENERS:
        first = next((route for route in table if all(holds(condition, record, listener.name) for condition in route.conditions)), None)
        found = router.of(listener).route(record)
        assert tuple(destination.topic for destination in found) == (first.topics if first else ("default",))
        constant = router.of(listener).constant
        assert constant is None or constant == found


@given(st.lists(routes, max_size=5), records, fields)
def test_what_decides_by_the_header_alone_is_not_moved_by_the_rest(table: list[Route], record: Routed, other: dict[str, Any]) -> None:
    router = Router(LISTENERS, RouteTable(tuple(table), Route((), ("default",))))
    for listener in LISTENERS:
        compiled = router.of(listener)
        if compiled.looks_at_header_only:
            assert compiled.route(record) == compiled.route(record._replace(fields=other, labels={"a": "b"}, tag="ab"))


values_of_keys = st.one_of(
    patterns, st.integers(-1, 9), st.booleans(), st.sampled_from(["relp", "syslog", "http", "tcp", "tls", "udp", "err", "kern", "yes", "[::1]"])
)
any_value = st.one_of(values_of_keys, st.lists(values_of_keys, max_size=2), st.dictionaries(patterns, values_of_keys, max_size=2))
keys = st.sampled_from([*LISTENER_KEYS, *CONDITION_NAMES, "nothing"])
any_table = st.dictionaries(keys, any_value, max_size=6)
any_tables = st.fixed_dictionaries(
    {},
    optional={
        "listener": st.lists(any_table, max_size=3),
        "route": st.lists(any_table, max_size=3),
        "default": any_table,
        "dead-letter": st.one_of(any_table, any_value),
    },
)


@given(any_tables)
def test_any_tables_are_read_with_their_mistakes_at_their_places(tables: dict[str, Any]) -> None:
    reading = read_tables(tables, "m.toml", make_box())
    for problem in reading.problems:
        file, place, words = problem.split(": ", 2)
        assert file == "m.toml" and place.strip("[]").startswith("ingest.") and len(words) > 10
    router = reading.router()
    for listener in reading.listeners:
        assert router.of(listener).route(Routed()) or reading.problems


pieces = st.sampled_from(
    ["listen", "options", "route", "default", "dead-letter", "a", "http", "relp", "syslog", "tcp", "tls", "udp", ":0", ":7", "->", "topic=x", "key=app"]
    + ["severity<=err", "app=a*", "label.x=1", "listener=a", "#", '"', "=", ",", "\\", "acks=1", "t,u", "proxy=yes", "facility=kern", "[::1]:5", "token=x"]
)
lines = st.lists(pieces, max_size=8).map(" ".join)


@given(st.one_of(st.lists(lines, max_size=6).map("\n".join), st.text(max_size=80)))
def test_any_old_table_is_converted_with_its_mistakes_at_their_lines(text: str) -> None:
    converted = convert_table(text, "t")
    reading = read_tables(converted.tables, "m.toml", make_box(), converted.places)
    count = len(text.splitlines())
    for problem in [*converted.problems, *reading.problems]:
        file, line, words = problem.split(":", 2)
        assert file == "t" and 1 <= int(line) <= count and len(words) > 10
    assert tomllib.loads(tables_text(converted.tables)).get("ingest", {}) == converted.tables
