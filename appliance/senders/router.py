"""Where a record goes: the routes, compiled once for each listener; the first that matches takes
the record.

Pure, owned by one ingest. A session holds `Router.of(listener)`. If no route can match a record of
that listener, `constant` is the answer for all of them. Rejected: a language with expressions,
which cannot be checked at the start. Weak: routes are tried one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from appliance.senders.conditions import Routable, RouteCondition, compile_conditions, field_of, matcher, text_of
from appliance.senders.listener import KeyKind, KeyRule, Listener

ANSWERS_KEPT_MAX = 4096


class RouteDestination(NamedTuple):
    """One topic that a record goes to, and its key there."""

    topic: str
    key: KeyRule
    is_key_required: bool = False


class Route(NamedTuple):
    """A table of a route. `key` None: the key of the listener."""

    conditions: tuple[RouteCondition, ...]
    topics: tuple[str, ...]
    key: KeyRule | None = None
    is_key_required: bool = False


class RouteTable(NamedTuple):
    """All routes in their order. `dead_letter` empty: dead letters are only counted."""

    routes: tuple[Route, ...] = ()
    default: Route = Route((), ("syslog",))
    dead_letter: str = ""


Destinations = tuple[RouteDestination, ...]
"""Never empty. The record counts as stored in the first; the others are copies."""


class ListenerRoutes:
    """The routes that can match records of one listener."""

    def __init__(self, listener: Listener, table: RouteTable) -> None:
        self.listener = listener
        reachable = [route for route in table.routes if _may_take(route, listener)]
        self._routes = tuple((compile_conditions(route.conditions), _destinations(route, listener)) for route in reachable)
        own = Route((), (listener.topic,)) if listener.topic else table.default
        self.fallback = _destinations(own, listener)
        self.constant: Destinations | None = None if self._routes else self.fallback
        """The destinations of every record, if they are the same for all."""
        self.topics = frozenset(each.topic for destinations in (self.fallback, *(to for _, to in self._routes)) for each in destinations)
        """Every topic that a record of this listener may go to."""
        self.looks_at_header_only = not any(_looks_deeper(route) for route in reachable)
        """Whether facility, severity, host and app alone decide, so that results can be cached by
        these four.
        """

    def route(self, record: Routable) -> Destinations:
        """Return the destinations of a record."""
        for takes, destinations in self._routes:
            if takes(record):
                return destinations
        return self.fallback


class Router:
    """The routes of all listeners."""

    def __init__(self, listeners: Sequence[Listener], table: RouteTable) -> None:
        self.table = table
        self._by_listener = {listener.name: ListenerRoutes(listener, table) for listener in listeners}
        self.dead_letter = table.dead_letter
        self.topics = _topics(listeners, table)
        """Every topic that is named, the default one first."""

    def of(self, listener: Listener) -> ListenerRoutes:
        return self._by_listener[listener.name]

    def route(self, record: Routable, listener: Listener) -> Destinations:
        return self._by_listener[listener.name].route(record)


def direct(topic: str, listener: Listener) -> Destinations:
    """Return the destination for a sender that names the topic itself (`POST /ingest/TOPIC`)."""
    return (RouteDestination(topic, listener.key, listener.is_key_required),)


def key_of(rule: KeyRule, record: Routable, source_host: bytes) -> bytes | None:
    """Return a record's key; None if it has none. Without a host, the sender's address is the key,
    so its records stay in order.
    """
    kind = rule.kind
    if kind is KeyKind.NONE:
        return None
    if kind is KeyKind.HOST:
        return record.host.encode("utf-8", "replace") if record.host else source_host
    value = record.app if kind is KeyKind.APP else record.tag if kind is KeyKind.TAG else _named(rule, record)
    return None if value is None or value == "" else text_of(value).encode("utf-8", "replace")


def _named(rule: KeyRule, record: Routable) -> Any:
    if rule.kind is KeyKind.FIELD:
        return field_of(record.fields, rule.name)
    return None if record.labels is None else record.labels.get(rule.name)


def _topics(listeners: Sequence[Listener], table: RouteTable) -> tuple[str, ...]:
    named = [*table.default.topics, *(listener.topic for listener in listeners), *(topic for route in table.routes for topic in route.topics)]
    by_sender = [topic for listener in listeners for topic in allowed_topics(listener)]
    return tuple(dict.fromkeys(topic for topic in [*named, table.dead_letter, *by_sender] if topic))


def allowed_topics(listener: Listener) -> list[str]:
    """Return the topics that `topics` of a listener and of its tokens name without a wildcard."""
    return [topic for topics in (listener.topics, *(token.topics for token in listener.tokens)) for topic in topics if "*" not in topic]


def _destinations(route: Route, listener: Listener) -> Destinations:
    key, is_required = (listener.key, listener.is_key_required) if route.key is None else (route.key, route.is_key_required)
    return tuple(RouteDestination(topic, key, is_required or route.is_key_required) for topic in route.topics)


def _may_take(route: Route, listener: Listener) -> bool:
    return all(matcher(condition.values)(listener.name) for condition in route.conditions if condition.subject.kind == "listener")


def _looks_deeper(route: Route) -> bool:
    return any(condition.subject.kind in ("tag", "label", "field") for condition in route.conditions)
