"""Where records go: the first route that matches, its topics and its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from appliance.senders.conditions import field_of
from appliance.senders.listener import SYSLOG_TCP, KeyKind, KeyRule
from appliance.senders.router import RouteDestination, Router, direct, key_of
from appliance.senders.sender_tables import read_tables
from lab.running_box import listener
from services.ingest.records.ingest_input import KEPT_NAMES_BYTES_MAX, IngestInput
from tests.unit.base.test_settings import make_box


class Routed(NamedTuple):
    """What routes look at."""

    facility: int | None = None
    severity: int | None = None
    host: str | None = None
    app: str | None = None
    tag: str | None = None
    labels: dict[str, Any] | None = None
    fields: dict[str, Any] | None = None


def router(listener: Mapping[str, Any] | None = None, *routes: Mapping[str, Any], **others: str) -> Router:
    """`others`: the topics of `default` and `dead-letter`."""
    tables: dict[str, Any] = {name.replace("_", "-"): {"topic": topic} for name, topic in others.items()}
    reading = read_tables({**tables, "listener": [] if listener is None else [listener], "route": list(routes)}, "", make_box())
    assert reading.problems == []
    return reading.router()


def topics(made: Router, record: Routed, name: str = "http") -> list[str]:
    return [destination.topic for destination in routes_of(made, name).route(record)]


def routes_of(made: Router, name: str) -> Any:
    return made._by_listener[name]


def test_without_routes_the_destination_is_constant() -> None:
    made = router(listener("dmz", "relp", topic="dmz", key="app"), default="other")
    assert routes_of(made, "http").constant == (RouteDestination("other", KeyRule(KeyKind.HOST)),)
    assert routes_of(made, "dmz").constant == (RouteDestination("dmz", KeyRule(KeyKind.APP)),)
    assert made.topics == ("other", "dmz") and made.dead_letter == ""


def test_a_route_for_one_listener_leaves_the_others_constant() -> None:
    made = router(listener("dmz", "relp"), {"listener": "dm*", "app": "a", "topic": "x"}, {"listener": "http", "topic": "y"}, dead_letter="d")
    assert routes_of(made, "syslog-tcp").constant is not None
    assert routes_of(made, "dmz").constant is None and topics(made, Routed(app="a"), "dmz") == ["x"]
    assert topics(made, Routed(app="b"), "dmz") == ["syslog"] and topics(made, Routed()) == ["y"]
    assert made.topics == ("syslog", "x", "y", "d") and made.dead_letter == "d"


def test_topics_that_listeners_and_tokens_name_without_a_wildcard_are_named_topics_which_are_created() -> None:
    tokens = [{"value": "s3cret", "topics": ["till", "b*", "shop"]}, "plain"]
    assert router(listener("shops", "http", topics=["shop", "a*"], token=tokens)).topics == ("syslog", "shop", "till")
    tables = {"listener": [listener("shops", "http", topics=["a.b"], token=[{"value": "s3cret", "topics": ["a_b"]}])]}
    assert "a.b and a_b differ only in '.' and '_'" in read_tables(tables, "", make_box()).problems[0]


CASES: list[tuple[dict[str, Any], Routed, bool]] = [
    ({"facility": ["auth", "authpriv"]}, Routed(facility=10), True),
    ({"facility": ["auth", "authpriv"]}, Routed(facility=3), False),
    ({"facility": 4}, Routed(), False),
    ({"severity": "err"}, Routed(severity=3), True),
    ({"severity": "err"}, Routed(severity=2), False),
    ({"min-severity": "err"}, Routed(severity=2), True),
    ({"min-severity": "err"}, Routed(severity=4), False),
    ({"min-severity": "debug"}, Routed(), False),
    ({"app": "sshd*"}, Routed(app="sshd"), True),
    ({"app": "sshd*"}, Routed(app="sshd-session"), True),
    ({"app": "sshd*"}, Routed(app="xsshd"), False),
    ({"app": "*"}, Routed(app=""), True),
    ({"app": "*"}, Routed(), False),
    ({"app": "a?[b]"}, Routed(app="a?[b]"), True),
    ({"app": "a?[b]*"}, Routed(app="ax[b]"), False),
    ({"app": "a?[b]*"}, Routed(app="a?[b]\nc"), True),
    ({"host": ["*.example", "db1"]}, Routed(host="web.example"), True),
    ({"host": ["*.example", "db1"]}, Routed(host="db1"), True),
    ({"host": ["*.example", "db1"]}, Routed(host="db12"), False),
    ({"tag": "docker.*"}, Routed(tag="docker.web"), True),
    ({"label": {"job": "nginx"}}, Routed(labels={"job": "nginx"}), True),
    ({"label": {"job": "nginx"}}, Routed(labels={"jo": "nginx"}), False),
    ({"label": {"job": "nginx"}}, Routed(), False),
    ({"field": {"status": "5*"}}, Routed(fields={"status": 503}), True),
    ({"field": {"status": "5*"}}, Routed(fields={"status": "404"}), False),
    ({"field": {"a.b": "true"}}, Routed(fields={"a": {"b": True}}), True),
    ({"field": {"a.b": "1.5"}}, Routed(fields={"a.b": 1.5}), True),
    ({"field": {"a.b.c": "x"}}, Routed(fields={"a": {"b.c": "x"}}), True),
    ({"field": {"a.b.c": "x"}}, Routed(fields={"a.b": {"c": "x"}}), True),
    ({"field": {"a.b": "x"}}, Routed(fields={"a": "x"}), False),
    ({"min-severity": "err", "app": "a"}, Routed(severity=0, app="a"), True),
    ({"min-severity": "err", "app": "a"}, Routed(severity=0, app="b"), False),
]


@pytest.mark.parametrize(("condition", "record", "matches"), CASES)
def test_a_condition_takes_what_it_says(condition: dict[str, Any], record: Routed, matches: bool) -> None:
    assert topics(router(None, {**condition, "topic": "x"}), record) == (["x"] if matches else ["syslog"])


def test_the_first_route_takes_the_record_to_all_its_topics_with_its_key() -> None:
    made = router(
        listener("a", "relp", key="tag", key_required=True),
        {"app": "x", "topic": ["one", "two"]},
        {"app": "x*", "topic": "three", "key": "field.user", "key-required": True},
    )
    routes = routes_of(made, "a")
    tagged = KeyRule(KeyKind.TAG)
    assert routes.route(Routed(app="x")) == (RouteDestination("one", tagged, True), RouteDestination("two", tagged, True))
    assert routes.route(Routed(app="xy")) == (RouteDestination("three", KeyRule(KeyKind.FIELD, "user"), True),)
    assert routes_of(made, "http").route(Routed(app="x"))[0] == RouteDestination("one", KeyRule(KeyKind.HOST), False)
    assert direct("named", routes.listener) == (RouteDestination("named", tagged, True),)


def test_only_routes_that_look_into_the_record_need_more_than_its_header() -> None:
    made = router(listener("a", "relp"), {"listener": "a", "label": {"x": 1}, "topic": "x"}, {"severity": "err", "app": "b", "topic": "y"})
    assert routes_of(made, "http").looks_at_header_only and not routes_of(made, "a").looks_at_header_only


KEYS: list[tuple[KeyRule, Routed, bytes | None]] = [
    (KeyRule(KeyKind.HOST), Routed(host="h"), b"h"),
    (KeyRule(KeyKind.HOST), Routed(), b"10.0.0.1"),
    (KeyRule(KeyKind.APP), Routed(app="a"), b"a"),
    (KeyRule(KeyKind.APP), Routed(), None),
    (KeyRule(KeyKind.TAG), Routed(tag=""), None),
    (KeyRule(KeyKind.NONE), Routed(host="h"), None),
    (KeyRule(KeyKind.LABEL, "job"), Routed(labels={"job": "x"}), b"x"),
    (KeyRule(KeyKind.FIELD, "user.id"), Routed(fields={"user": {"id": 7}}), b"7"),
    (KeyRule(KeyKind.FIELD, "user.id"), Routed(fields={"user": 7}), None),
    (KeyRule(KeyKind.APP), Routed(app="\ud800"), b"?"),
]


@pytest.mark.parametrize(("rule", "record", "key"), KEYS)
def test_a_key_is_what_its_rule_names(rule: KeyRule, record: Routed, key: bytes | None) -> None:
    assert key_of(rule, record, b"10.0.0.1") == key


def test_a_field_that_is_called_by_the_whole_path_goes_before_one_inside() -> None:
    assert field_of({"a.b": 1, "a": {"b": 2}}, "a.b") == 1 and field_of({"a": {"b": {"c": 3}}}, "a.b.c") == 3 and field_of({}, "a") is None


def test_answers_for_syslog_are_remembered_by_short_names_alone() -> None:
    reading = read_tables({"route": [{"app": "sshd*", "topic": "security"}]}, "", make_box())
    made = reading.router()
    source = IngestInput(next(each for each in reading.listeners if each.name == SYSLOG_TCP), made)
    long = b"h" * KEPT_NAMES_BYTES_MAX
    for host, app, topic in ((b"h", b"sshd", "security"), (b"h", b"cron", "syslog"), (long, b"sshd2", "security"), (long, b"cron", "syslog")):
        message = source.parser.parse(b"<13>1 - %b %b - - - x" % (host, app), 0)
        for _ in range(2):
            assert [destination.topic for destination in source.route_syslog(message)] == [topic]
    assert {(host, app) for _, _, host, app in source._answers} == {(b"h", b"sshd"), (b"h", b"cron")}
