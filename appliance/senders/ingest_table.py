"""The table of the ingestion endpoint: its listeners beside the built-in ones, and where records go, from one file of lines.

    # listen NAME PROTOCOL TRANSPORT [ADDRESS]:PORT option=value …
    listen dmz syslog tls :6514 topic=dmz certificate=/etc/millrace/box.pem private-key=/etc/millrace/box.key
    options http token=secret                      what a built-in listener (syslog-tcp, syslog-udp, http) does otherwise
    route severity<=err app=sshd* -> errors key=app  the first that matches takes the record
    default -> syslog
    dead-letter -> ingest-dead-letter

Pure: the file is read by who starts the box, and its text is in `box.json`, so that every life of ingest has the table that was checked.
All problems are found at once, as `FILE:LINE: what, what to do`. Weak: whether two addresses are the same machine's is not known here; binding them says it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.base.settings import Box
from appliance.senders.conditions import Condition
from appliance.senders.listen_line import read_listen, read_options
from appliance.senders.listener import Listener, built_in_listeners, listener_defaults
from appliance.senders.route_line import read_route, read_target
from appliance.senders.router import Route, Router, RouteTable
from appliance.senders.table_words import nearest, words_of


class TableReading(NamedTuple):
    """What a table says; `lines` are those of its listeners, by name."""

    listeners: tuple[Listener, ...]
    routes: RouteTable
    problems: list[str]
    lines: dict[str, int]

    def router(self) -> Router:
        return Router(self.listeners, self.routes)


def read_table(text: str, file_name: str, box: Box) -> TableReading:
    """Everything that a table says, and everything that is wrong with it; `box` has the settings and the ports of the built-in listeners."""
    reader = _Reader(box)
    for number, line in enumerate(text.splitlines(), 1):
        reader.read(number, line)
    reader.look_at_whole()
    problems = [f"{file_name}:{number}: {problem}" for number, problem in sorted(reader.problems, key=lambda found: found[0])]
    return TableReading(tuple(reader.listeners.values()), reader.routes(), problems, reader.lines)


def table_of(box: Box) -> TableReading:
    """The table that the box was started with; it was found right then."""
    return read_table(box.ingest_table, box.text("ingest.table.file"), box)


class _Reader:
    """One reading: what was found so far."""

    def __init__(self, box: Box) -> None:
        self._listen = box.listen
        self._defaults = listener_defaults(box)
        self._own_default = Route((), (box.text("ingest.syslog.topic"),))
        self.listeners = {listener.name: listener for listener in built_in_listeners(box)}
        self._built_in = tuple(self.listeners)
        self.lines: dict[str, int] = {}
        self.problems: list[tuple[int, str]] = []
        self._routes: list[tuple[int, Route]] = []
        self._single: dict[str, tuple[int, Route | None]] = {}
        self._optioned: dict[str, int] = {}
        self._topics: dict[str, str] = {}
        """Named so far, by what Kafka's metric names make of them."""
        self._read_line: dict[str, Callable[[int, list[str]], list[str]]] = {
            "listen": self._read_listen,
            "options": self._read_options,
            "route": self._read_route,
            "default": lambda number, words: self._read_single("default", number, words),
            "dead-letter": lambda number, words: self._read_single("dead-letter", number, words),
        }

    def read(self, number: int, line: str) -> None:
        words = words_of(line)
        if words is None:
            self.problems.append((number, "a quote has no end; close it, or put a backslash before one that is meant as such"))
        elif words:
            read = self._read_line.get(words[0])
            found = self._strange_line(words[0]) if read is None else [*read(number, words[1:]), *self._colliding_topics(words)]
            self.problems += [(number, problem) for problem in found]

    def _strange_line(self, word: str) -> list[str]:
        kinds = list(self._read_line)
        return [f"a line cannot begin with {word!r}; it begins with {', '.join(kinds)}{nearest(word, kinds)}"]

    def _colliding_topics(self, words: list[str]) -> list[str]:
        named = [word.removeprefix("topic=") for word in words if word.startswith("topic=")]
        if "->" in words[:-1]:
            named += words[words.index("->") + 1].split(",")
        pairs = [(self._topics.setdefault(name.replace(".", "_"), name), name) for name in named]
        words_of_pair = "topics {} and {} differ in '.' and '_' alone, and Kafka cannot have both; choose another name"
        return [words_of_pair.format(*pair) for pair in pairs if pair[0] != pair[1]]

    def _read_listen(self, number: int, words: list[str]) -> list[str]:
        listener, problems = read_listen(words, self._defaults)
        if listener is None:
            return problems
        if listener.name in self._built_in:
            return [*problems, f"{listener.name} is a built-in listener; give yours another name, or change that one by `options {listener.name} …`"]
        if listener.name in self.lines:
            return [*problems, f"listener {listener.name} is on line {self.lines[listener.name]} already; give it another name"]
        for other in self.listeners.values():
            if self._collide(listener, other):
                where = f"is on line {self.lines[other.name]}" if other.name in self.lines else "is built in"
                problems.append(f"port {listener.port} is taken by listener {other.name}, which {where}; choose another")
        self.listeners[listener.name] = listener
        self.lines[listener.name] = number
        return problems

    def _read_options(self, number: int, words: list[str]) -> list[str]:
        name = words[0] if words else ""
        if name not in self._built_in:
            return [f"options are for a built-in listener ({', '.join(self._built_in)}), not for {name!r}; those of others stand on their own line"]
        if name in self._optioned:
            return [f"options of {name} are on line {self._optioned[name]} already; write them there"]
        self._optioned[name] = number
        self.listeners[name], problems = read_options(words[1:], self.listeners[name])
        return problems

    def _read_route(self, number: int, words: list[str]) -> list[str]:
        route, problems = read_route(words)
        if route is not None:
            self._routes.append((number, route))
        return problems

    def _read_single(self, kind: str, number: int, words: list[str]) -> list[str]:
        if kind in self._single:
            return [f"{kind} is on line {self._single[kind][0]} already; there is one"]
        route, problems = read_target(words[1:]) if words and words[0] == "->" else (None, [f"{kind} needs a topic; write: {kind} -> TOPIC"])
        if kind == "dead-letter" and route is not None and (len(route.topics) > 1 or route.key is not None):
            problems.append("dead letters go to one topic, without a key; name that alone")
        self._single[kind] = (number, route)
        return problems

    def look_at_whole(self) -> None:
        """What is wrong between lines."""
        for index, (number, route) in enumerate(self._routes):
            for condition in route.conditions:
                if condition.subject.kind == "listener":
                    self.problems += [(number, problem) for problem in self._unknown_listeners(condition)]
            earlier = next((line for line, other in self._routes[:index] if set(other.conditions) <= set(route.conditions)), None)
            if earlier is not None:
                self.problems.append((number, f"no record comes here, line {earlier} takes all of them; put this line before it"))

    def _unknown_listeners(self, condition: Condition) -> list[str]:
        names = list(self.listeners)
        unknown = [value for value in map(str, condition.values) if "*" not in value and value not in names]
        return [f"there is no listener {value!r}; there are {', '.join(names)}{nearest(value, names)}" for value in unknown]

    def routes(self) -> RouteTable:
        default = self._single.get("default", (0, None))[1] or self._own_default
        dead_letter = self._single.get("dead-letter", (0, None))[1]
        return RouteTable(tuple(route for _, route in self._routes), default, dead_letter.topics[0] if dead_letter else "")

    def _collide(self, one: Listener, other: Listener) -> bool:
        if not one.port or one.port != other.port or one.is_datagram != other.is_datagram:
            return False
        addresses = {one.address or self._listen, other.address or self._listen}
        return len(addresses) == 1 or not addresses.isdisjoint(("0.0.0.0", "::"))
