"""The tables of senders in the settings file: listeners beside the built-in ones, and the topics
that records go to.

    [[ingest.listener]]        a further listener, or options of a built-in one (syslog-tcp, syslog-udp, http)
    name = "dmz"
    protocol = "syslog"
    transport = "tls"
    port = 6514

    [[ingest.route]]           the first route whose conditions all match takes the record
    min-severity = "err"
    app = "sshd*"
    topic = ["errors", "all"]

    [ingest.default]           records that no route takes, from listeners without a topic
    topic = "syslog"

    [ingest.dead-letter]       records that can never be stored
    topic = "ingest-dead-letter"

Pure. The process that starts a box checks the tables and puts them into `box.json`, so every
incarnation of ingest has those that were checked. All problems are found at once: `FILE: TABLE
NUMBER: what happened: reason; what to do`. Weak: two names of one address are not recognised;
binding fails then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from appliance.base.model import topic_name_problem
from appliance.base.settings import Box
from appliance.senders.conditions import FACILITIES, FACILITY_NAMES, SEVERITIES, SEVERITY_NAMES, RouteCondition, Subject, text_of
from appliance.senders.listener import (
    KeyKind,
    KeyRule,
    Listener,
    ListenerTransport,
    Protocol,
    ProxyMode,
    Token,
    built_in_listeners,
    listener_defaults,
    parse_key,
)
from appliance.senders.router import Route, Router, RouteTable, allowed_topics

TRANSPORTS: dict[Protocol, tuple[ListenerTransport, ...]] = {
    Protocol.SYSLOG: (ListenerTransport.TCP, ListenerTransport.UDP, ListenerTransport.TLS),
    Protocol.RELP: (ListenerTransport.TCP, ListenerTransport.TLS),
    Protocol.FLUENT: (ListenerTransport.TCP, ListenerTransport.TLS),
    Protocol.LUMBERJACK: (ListenerTransport.TCP, ListenerTransport.TLS),
    Protocol.GELF: (ListenerTransport.TCP, ListenerTransport.UDP, ListenerTransport.TLS),
    Protocol.HTTP: (ListenerTransport.TCP, ListenerTransport.TLS),
}
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}\Z")
_PRINCIPAL = re.compile(r"User:[^\s*;][^\x00-\x1f;]{0,254}\Z")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,?#@]+\Z", re.IGNORECASE)
_ADDRESS = re.compile(r"([0-9a-fA-F:.]+|[0-9A-Za-z.\-]+|\*)\Z")


# -- values: each function returns what a value means, None if it is not allowed


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and _NAME.match(value) else None


def _address(value: object) -> str | None:
    return ("0.0.0.0" if value == "*" else value) if isinstance(value, str) and _ADDRESS.match(value) else None


def _key(value: object) -> KeyRule | None:
    return parse_key(value) if isinstance(value, str) else None


def _acks(value: object) -> int | None:
    return -1 if value == "all" else value if type(value) is int and value in (-1, 0, 1) else None


def _network(value: object) -> str | None:
    import ipaddress  # loaded only for tables that name networks

    try:
        return str(ipaddress.ip_network(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def _topic_pattern(value: object) -> str | None:
    return value if isinstance(value, str) and _topic(value.replace("*", "x")) is not None else None


def _token(value: object) -> Token | None:
    if isinstance(value, str):
        return Token(value) if value else None
    if not isinstance(value, dict) or value.keys() - {"value", "topics", "principal", "paths"} or not (secret := _text(value.get("value"))):
        return None
    topics = _several(_topic_pattern)(value["topics"]) if "topics" in value else ()
    principal = _principal(value["principal"]) if "principal" in value else ""
    paths = _several(_path_pattern)(value["paths"]) if "paths" in value else ()
    return None if topics is None or principal is None or paths is None else Token(secret, topics, principal, paths)


def _path_pattern(value: object) -> str | None:
    return value if isinstance(value, str) and value[:1] == "/" and not set("?# ") & set(value) else None


def _principal(value: object) -> str | None:
    return value if isinstance(value, str) and _PRINCIPAL.match(value) else None


def _origin(value: object) -> str | None:
    return value.lower() if isinstance(value, str) and (_ORIGIN.match(value) or value in ("*", "null")) else None


def _topic(value: object) -> str | None:
    return value if isinstance(value, str) and topic_name_problem(value) is None and not value.startswith("__") else None


def _pattern(value: object) -> str | None:
    return text_of(value) if isinstance(value, str | int | float) and value != "" else None


def _several(read: Callable[[Any], Any]) -> Callable[[object], tuple[Any, ...] | None]:
    """One value, or a list of at least one."""

    def read_all(value: object) -> tuple[Any, ...] | None:
        values = tuple(map(read, value if isinstance(value, list) else [value]))
        return values if values and None not in values else None

    return read_all


# -- keys of the tables


class Key(NamedTuple):
    """One key: the field that it sets, how its value is read, what is allowed, which protocols and
    transports use it (none named: all), and its meaning and default in `docs/senders.md`.
    """

    field: str
    read: Callable[[Any], Any]
    allowed: str
    protocols: tuple[Protocol, ...] = ()
    transports: tuple[ListenerTransport, ...] = ()
    meaning: str = ""
    default: str = ""

    def means(self, meaning: str, default: str = "") -> Key:
        return self._replace(meaning=meaning, default=default)


def _number_key(field: str, low: int, high: int, factor: int = 1) -> Key:
    def read(value: object) -> int | None:
        return value * factor if type(value) is int and low <= value <= high else None

    return Key(field, read, f"a whole number from {low} to {high}")


def _choice_key(field: str, choices: type[StrEnum]) -> Key:
    return Key(field, lambda value: choices(value) if value in list(choices) else None, f"one of {', '.join(choices)}")


def _code_key(field: str, names: tuple[str, ...], codes: Mapping[str, int]) -> Key:
    """Severities or facilities, by name or number."""

    def read(value: object) -> int | None:
        code = codes.get(value.lower()) if isinstance(value, str) else value
        return code if type(code) is int and 0 <= code < len(names) else None

    return Key(field, _several(read), f"names or numbers (0 to {len(names) - 1}): {', '.join(names)}")


_TEXT, _TEXTS, _FLAG = "a text in quotes", "a text in quotes, or several in [brackets]", "true or false"
_TOPIC = "letters, digits, '.', '_' and '-', not beginning with __ (those topics belong to the box)"
_PATTERNS = "a text, a number, true or false, or several in [brackets]; * matches any characters"
_KEY = Key("key", _key, "host, app, tag, none, label.NAME or field.PATH").means("the record's key; without a host, the sender's address", "`ingest.syslog.key`")
_KEY_REQUIRED = Key("is_key_required", _flag, _FLAG).means(
    'a record without its key is a dead letter (not with `key = "none"`)', "false: it goes to any partition"
)
_STREAMS, _TLS, _SYSLOG = (ListenerTransport.TCP, ListenerTransport.TLS), (ListenerTransport.TLS,), (Protocol.SYSLOG, Protocol.RELP)
_SOCKET_KEYS = {
    "protocol": _choice_key("protocol", Protocol).means("see the next table"),
    "transport": _choice_key("transport", ListenerTransport).means("see the next table"),
    "port": _number_key("port", 0, 65535).means("0 takes any free port (not under systemd); `millrace ingest status` shows which"),
    "address": Key("address", _address, "an address of this machine").means("address to listen on", "that of the box"),
}
LISTENER_KEYS: dict[str, Key] = {
    "name": Key("name", _name, "at most 32 lower-case letters, digits, '.', '_' and '-'").means("name in metrics and messages"),
    **_SOCKET_KEYS,
    "topic": Key("topic", _topic, _TOPIC).means("topic for records that match no route", "`[ingest.default]`"),
    "principal": Key("principal", _principal, "User:NAME").means(
        "with an authorizer, what must have `Write` on the topics of the records", "none: no right is needed"
    ),
    "key": _KEY,
    "key-required": _KEY_REQUIRED,
    "acks": Key("acks", _acks, '"all" (every in-sync replica has the record), 1 (the leader has it) or 0 (it was received)').means(
        "when a record is acknowledged", '`"all"`'
    ),
    "raw": Key("raw", _flag, _FLAG).means("the value is what the sender wrote, not the JSON document", "false"),
    "time-zone": Key("time_zone", _text, _TEXT, (*_SYSLOG, Protocol.GELF)).means("zone of times that name none", "`ingest.syslog.time.zone`"),
    "max-message-bytes": _number_key("message_bytes_max", 480, 8 << 20)
    ._replace(protocols=_SYSLOG)
    .means("a longer message is cut and marked", "`ingest.syslog.max.message.bytes`"),
    "max-frame-bytes": _number_key("frame_bytes_max", 1024, 256 << 20)._replace(transports=_STREAMS).means("a larger frame or request is refused", "16777216"),
    "proxy": _choice_key("proxy", ProxyMode)._replace(transports=_STREAMS).means("PROXY header that may come first; yes: v1, v2 or none", '`"no"`'),
    "proxy-from": Key("proxy_from", _several(_network), "networks as 10.1.0.0/16, or single addresses", (), _STREAMS).means(
        "networks whose PROXY headers set the sender's address", "none: headers are only recorded"
    ),
    "certificate": Key("certificate", _text, _TEXT, (), _TLS).means("PEM file; required for tls"),
    "private-key": Key("private_key", _text, _TEXT, (), _TLS).means("PEM file; required for tls"),
    "client-ca": Key("client_ca", _text, _TEXT, (), _TLS).means("senders must present a certificate of these authorities", "no certificate is requested"),
    "client-names": Key("client_names", _several(_text), _TEXTS, (), _TLS).means(
        "the certificate must contain one of these names; `*.example.com` matches one label", "any name"
    ),
    "allow-origin": Key("allow_origin", _several(_origin), 'origins as https://app.example.com, or "*" for every site', (Protocol.HTTP,)).means(
        "web pages of these origins may send; preflights are answered", "none"
    ),
    "token": Key("tokens", _several(_token), 'a text in quotes or { value = "SECRET", topics = ["TOPIC"] }, or several in [brackets]', (Protocol.HTTP,)).means(
        "requests must present one of these (bearer, Splunk, password of basic); one may have `topics` and `principal`, and open some `paths` (`/v1/*`) only",
        "none is requested",
    ),
    "topics": Key("topics", _several(_topic_pattern), "names of topics, in which * matches any characters", (Protocol.HTTP,)).means(
        "topics that a request may name, and where the routes may take its records", "those that the routes and `topic` have for this listener"
    ),
    "shared-key": Key("shared_key", _text, _TEXT, (Protocol.FLUENT,)).means("key of Fluent's forward protocol", "none is requested"),
    "sender-bytes-per-second": _number_key("sender_bytes_per_second", 0, 1 << 40).means("quota of each address; 0: none", "`ingest.sender.*`"),
    "sender-records-per-second": _number_key("sender_records_per_second", 0, 1_000_000_000).means("quota of each address; 0: none", "`ingest.sender.*`"),
    "bytes-per-second": _number_key("bytes_per_second", 0, 1 << 40).means("quota of all addresses together; 0: none", "`ingest.listener.*`"),
    "records-per-second": _number_key("records_per_second", 0, 1_000_000_000).means("quota of all addresses together; 0: none", "`ingest.listener.*`"),
    "idle-seconds": _number_key("idle_ms_max", 1, 86_400, 1000)
    ._replace(transports=_STREAMS)
    .means("how long an unfinished frame, request or handshake may make no progress", "60"),
}
SECRET_KEYS = ("token", "shared-key")
_TARGET_KEYS = {"topic": Key("topics", _several(_topic), _TOPIC), "key": _KEY, "key-required": _KEY_REQUIRED}
_CONDITION_KEYS = {
    "facility": _code_key("facility", FACILITY_NAMES, FACILITIES),
    "severity": _code_key("severity", SEVERITY_NAMES, SEVERITIES),
    "min-severity": _code_key("severity", SEVERITY_NAMES, SEVERITIES),
    **{name: Key(name, _several(_pattern), _PATTERNS) for name in ("app", "host", "tag", "listener")},
}
CONDITION_NAMES = (*_CONDITION_KEYS, "label", "field")


def listener_table() -> str:
    """Return the table of a listener's keys in `docs/senders.md`, as Markdown."""
    rows = ["| key | allowed | meaning | default | used by |", "|---|---|---|---|---|"]
    for name, key in LISTENER_KEYS.items():
        users = ", ".join((*key.protocols, *key.transports)) or "all"
        rows.append(f"| `{name}` | {key.allowed} | {key.meaning} | {key.default} | {users} |")
    return "\n".join(rows) + "\n"


class TableReading(NamedTuple):
    """What the tables mean.

    `places`: the table of each listener that has one, as problems name it.
    """

    listeners: tuple[Listener, ...]
    routes: RouteTable
    problems: list[str]
    places: dict[str, str]

    def router(self) -> Router:
        return Router(self.listeners, self.routes)

    def own_listeners(self) -> list[Listener]:
        """Those that are not built in."""
        return [listener for listener in self.listeners if not listener.is_built_in]


def read_tables(tables: Mapping[str, Any], file: str, box: Box, places: Mapping[str, str] | None = None) -> TableReading:
    """Read the tables of a settings file.

    `tables` has the keys `settings.SENDER_TABLES`, as tomllib reads them; `box` the settings and
    the ports of the built-in listeners. `places` overrides how problems name a table
    (`[[ingest.listener]] 2`): tables converted from another file have lines there.
    """
    reader = _Reader(box, lambda name: (places or {}).get(name, f"{file}: {name}"))
    reader.read(tables)
    return TableReading(tuple(reader.listeners.values()), reader.routes(), reader.problems, reader.places)


def tables_of(box: Box) -> TableReading:
    """The tables that the box was started with; they were checked then."""
    return read_tables(box.sender_tables, "", box)


class _Reader:
    """One reading of all tables."""

    def __init__(self, box: Box, place_of: Callable[[str], str]) -> None:
        self._box = box
        self._place_of = place_of
        self._defaults = listener_defaults(box)
        self.listeners = {listener.name: listener for listener in built_in_listeners(box)}
        self.places: dict[str, str] = {}
        self.problems: list[str] = []
        self._routes: list[tuple[str, Route]] = []
        self._default = Route((), (box.text("ingest.syslog.topic"),))
        self._dead_letter = ""
        self._topics: dict[str, str] = {}
        """The topics named so far, by what Kafka's metric names make of them."""

    def read(self, tables: Mapping[str, Any]) -> None:
        for place, table in self._tables(tables, "listener"):
            self._read_listener(place, table)
        for place, table in self._tables(tables, "route"):
            self._read_route(place, table)
        for place, table in self._tables(tables, "default"):
            default = self._target(place, table)
            self._default = default if default.topics else self._default
        for place, table in self._tables(tables, "dead-letter"):
            topics = self._target(place, table).topics
            self._dead_letter = topics[0] if topics else ""
            if len(topics) > 1 or table.keys() - {"topic"}:
                self._report(place, "dead letters go to one topic without a key; write only topic")

    def routes(self) -> RouteTable:
        return RouteTable(tuple(route for _, route in self._routes), self._default, self._dead_letter)

    def _report(self, place: str, problem: str) -> None:
        self.problems.append(f"{place}: {problem}")

    def _tables(self, tables: Mapping[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The tables of a name, each with its place: an array of listeners or routes, or a single
        table.
        """
        is_array = name in ("listener", "route")
        heading = f"[[ingest.{name}]]" if is_array else f"[ingest.{name}]"
        found = tables.get(name, []) if is_array else [tables[name]] if name in tables else []
        if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
            self._report(self._place_of(f"ingest.{name}"), f"this has not the form of a table; write {heading} above its keys")
            return
        for number, table in enumerate(found, 1):
            yield self._place_of(f"{heading} {number}" if is_array else heading), table

    def _fields(self, place: str, table: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
        """The fields that the keys of a table set."""
        fields = {}
        for name, value in table.items():
            if name not in keys:
                self._report(place, f"{name} is not a key of this table; the keys are {', '.join(keys)}{nearest(name, keys)}")
            elif (meaning := keys[name].read(value)) is None:
                self._report_value(place, name, value, keys[name].allowed)
            else:
                fields[keys[name].field] = meaning
        return fields

    def _report_value(self, place: str, name: str, value: object, allowed: str) -> None:
        """Report a value that is not allowed; secrets are not shown."""
        shown = "not allowed" if name in SECRET_KEYS else json.dumps(value, default=str, ensure_ascii=False)
        words = re.findall(r"[\w-]+", allowed) if isinstance(value, str) else []
        self._report(place, f"{name} is {shown}; write {allowed}{nearest(str(value), words)}")

    # -- listeners

    def _read_listener(self, place: str, table: Mapping[str, Any]) -> None:
        fields = self._fields(place, table, LISTENER_KEYS)
        name = str(fields.get("name", ""))
        base = self.listeners.get(name, self._defaults) if name not in self.places else self._defaults
        listener = base._replace(**fields)
        if listener.is_built_in:
            for key in (key for key in _SOCKET_KEYS if key in table):
                self._report(place, f"{key}: {name} is built in, and [box] says where it listens; leave {key} out, or choose another name")
        else:
            missing = [key for key in ("name", "protocol", "transport", "port") if key not in table]
            if missing:
                self._report(place, f"{', '.join(missing)} missing: a listener needs a name, a protocol, a transport and a port; add what is missing")
        if listener.is_built_in or {"protocol", "transport"} <= fields.keys():
            self._check_use(place, listener, table)
        self._check_relations(place, listener, table)
        if name in self.places:
            self._report(place, f"name: listener {name} is in {self.places[name]} already; choose another name")
        elif name:
            self._check_port(place, listener)
            self._name_topics(place, [listener.topic] if "topic" in fields else [])
            for topic in dict.fromkeys(allowed_topics(listener)):
                self._name_topics(place, [topic])
            self.places[name], self.listeners[name] = place, listener

    def _check_use(self, place: str, listener: Listener, table: Mapping[str, Any]) -> None:
        """Report keys that this protocol or transport does not use."""
        if listener.transport not in TRANSPORTS[listener.protocol]:
            self._report(
                place, f"transport: {listener.protocol} does not run over {listener.transport}; choose one of {', '.join(TRANSPORTS[listener.protocol])}"
            )
        for name, key in LISTENER_KEYS.items():
            for users, own in ((key.protocols, listener.protocol), (key.transports, listener.transport)):
                if name in table and users and own not in users:
                    self._report(place, f"{name} is for {' and '.join(users)}, and this listener is {own}; leave it out")

    def _check_relations(self, place: str, listener: Listener, table: Mapping[str, Any]) -> None:
        if listener.transport is ListenerTransport.TLS and not {"certificate", "private-key"} <= table.keys():
            self._report(place, "transport: TLS needs a certificate; add certificate and private-key")
        if "client-names" in table and "client-ca" not in table:
            self._report(place, "client-names: certificates of senders are checked by client-ca; add it")
        if listener.proxy_from and listener.proxy is ProxyMode.NO:
            self._report(place, 'proxy-from: no PROXY header is read here; add proxy = "yes" or proxy = "required"')
        self._check_key(place, listener.key, listener.is_key_required)

    def _check_key(self, place: str, key: KeyRule | None, is_required: bool) -> None:
        if is_required and key is not None and key.kind is KeyKind.NONE:
            self._report(place, 'key-required: with key = "none" every record would be a dead letter; name a key, or leave key-required out')

    def _check_port(self, place: str, listener: Listener) -> None:
        for other in self.listeners.values():
            if listener.port and other.name != listener.name and (other.port, other.is_datagram) == (listener.port, listener.is_datagram):
                addresses = {listener.address or self._box.listen, other.address or self._box.listen}
                if len(addresses) == 1 or not addresses.isdisjoint(("0.0.0.0", "::")):
                    where = self.places.get(other.name, "built in")
                    self._report(place, f"port: {listener.port} is taken by listener {other.name} ({where}); choose another")
        if not listener.port or listener.is_datagram:
            return
        others = [("the console ([box] http-port)", self._box.listen, self._box.http_port)]
        others += [(f"Kafka's listener {each.name}", each.address, each.port) for each in self._box.listeners]
        others += [] if self._box.listeners else [("Kafka's clients ([box] kafka-port)", self._box.listen, self._box.kafka_port)]
        for name, address, port in others:
            addresses = {listener.address or self._box.listen, address}
            if port == listener.port and (len(addresses) == 1 or not addresses.isdisjoint(("0.0.0.0", "::"))):
                self._report(place, f"port: {listener.port} is taken by {name}; choose another")

    # -- routes

    def _read_route(self, place: str, table: Mapping[str, Any]) -> None:
        problem_count = len(self.problems)
        target = self._target(place, {name: value for name, value in table.items() if name in _TARGET_KEYS})
        conditions = tuple(self._conditions(place, {name: value for name, value in table.items() if name not in _TARGET_KEYS}))
        if not conditions and len(self.problems) == problem_count:
            self._report(place, "a route without a condition would take every record; write it as [ingest.default]")
        for condition in conditions:
            if condition.subject.kind == "listener":
                self._check_listeners(place, condition)
        if len(self.problems) > problem_count:
            return
        earlier = next((other_place for other_place, other in self._routes if set(other.conditions) <= set(conditions)), None)
        if earlier is not None:
            self._report(place, f"no record comes here: {earlier} takes all of them; move this table before it")
        self._routes.append((place, target._replace(conditions=conditions)))

    def _conditions(self, place: str, table: Mapping[str, Any]) -> Iterator[RouteCondition]:
        for name, value in table.items():
            if name in ("label", "field"):
                for path, inner in _flattened(value):
                    if not path or (values := _several(_pattern)(inner)) is None:
                        self._report_value(place, f"{name}.{path}".rstrip("."), inner, _PATTERNS if path else f"{name}.NAME = …")
                    else:
                        yield RouteCondition(Subject(name, path), values)
            elif name not in _CONDITION_KEYS:
                allowed = f"{', '.join(CONDITION_NAMES)}{nearest(name, [*CONDITION_NAMES, *_TARGET_KEYS])}"
                self._report(place, f"{name} is not a condition; the conditions are {allowed}")
            else:
                for values in self._fields(place, {name: value}, _CONDITION_KEYS).values():
                    if name == "min-severity" and len(values) > 1:
                        self._report(place, "min-severity has several values; write only the least severe one")
                    yield RouteCondition(Subject(_CONDITION_KEYS[name].field), values, name == "min-severity")
        if {"severity", "min-severity"} <= table.keys():
            self._report(place, "severity and min-severity would both have to match; keep one of them")

    def _check_listeners(self, place: str, condition: RouteCondition) -> None:
        names = list(self.listeners)
        for value in map(str, condition.values):
            if "*" not in value and value not in names:
                self._report(place, f"listener: there is no listener {value!r}; there are {', '.join(names)}{nearest(value, names)}")

    def _target(self, place: str, table: Mapping[str, Any]) -> Route:
        """Where the records of a route go."""
        fields = self._fields(place, table, _TARGET_KEYS)
        if "topic" not in table:
            self._report(place, "topic is missing; name one, or several in [brackets]")
        route = Route((), **{"topics": (), **fields})
        self._check_key(place, route.key, route.is_key_required)
        self._name_topics(place, route.topics)
        return route

    def _name_topics(self, place: str, topics: list[str] | tuple[str, ...]) -> None:
        for topic in topics:
            if topics.count(topic) > 1:
                self._report(place, f"topic: {topic} is there twice; write it once")
                return
            other = self._topics.setdefault(topic.replace(".", "_"), topic)
            if other != topic:
                self._report(place, f"topic: {other} and {topic} differ only in '.' and '_', and Kafka cannot have both; choose another name")


def _flattened(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """`a.b = 1` is a table in a table for TOML, and the path `a.b` of a field."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from _flattened(inner, f"{path}.{name}" if path else name)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` if a known word is similar."""
    import difflib  # loaded only to report a problem

    found = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {found[0]}?" if found else ""


if __name__ == "__main__":
    print(listener_table(), end="")
