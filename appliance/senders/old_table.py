"""Converts the table of release 0.1, one line for each listener and route, to the tables of the
settings file. Pure.

    listen NAME PROTOCOL TRANSPORT [ADDRESS]:PORT option=value …     →  [[ingest.listener]]
    options NAME option=value …                                      →  [[ingest.listener]]
    route CONDITION … -> TOPIC[,TOPIC] [key=…]                       →  [[ingest.route]]
    default -> TOPIC[,TOPIC] [key=…]                                 →  [ingest.default]
    dead-letter -> TOPIC                                             →  [ingest.dead-letter]

A word ends at a blank; double quotes hold blanks and `#`; `#` at the start of a word begins a
comment. Values are converted, not checked: `read_tables` checks them, and names lines of this file
in its problems. Weak: comments are not converted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from appliance.base.settings import OLD_TABLE_SETTING, SENDER_TABLES

_WORD = re.compile(r'\s*((?:[^\s"]|"(?:[^"\\]|\\.)*")+)')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_LISTS = ("client-names", "token", "proxy-from")
_FLAGS = ("raw", "key-required")
_NUMBERS = ("acks", "max-message-bytes", "max-frame-bytes", "idle-seconds", "facility", "severity", "min-severity")
_SOCKET_KEYS = ("name", "protocol", "transport", "port", "address")
_USAGE = {
    "listen": "listen NAME PROTOCOL TRANSPORT [ADDRESS]:PORT option=value …",
    "options": "options NAME option=value …",
    "route": "route CONDITION … -> TOPIC[,TOPIC] [key=…]",
    "default": "default -> TOPIC[,TOPIC] [key=…]",
    "dead-letter": "dead-letter -> TOPIC",
}


class ConvertedTable(NamedTuple):
    """`tables` as tomllib would read them; `places`: the line in the old file of each, by its name
    there (`[[ingest.route]] 2`).
    """

    tables: dict[str, Any]
    places: dict[str, str]
    problems: list[str]


class _BadLine(Exception):
    """Why a line cannot be converted."""


def convert_table(text: str, file: str) -> ConvertedTable:
    """Convert the text of an old table; problems are FILE:LINE: what happened; what to do."""
    tables: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        place = f"{file}:{number}"
        try:
            if not (words := _words(line)):
                continue
            name, table = _table_of(words)
            if name in ("listener", "route"):
                tables.setdefault(name, []).append(table)
                places[f"[[ingest.{name}]] {len(tables[name])}"] = place
            elif name in tables:
                raise _BadLine(f"{name} is on an earlier line already; remove one")
            else:
                tables[name], places[f"[ingest.{name}]"] = table, place
        except _BadLine as error:
            problems.append(f"{place}: {error}")
    return ConvertedTable({name: tables[name] for name in SENDER_TABLES if name in tables}, places, problems)


def _words(line: str) -> list[str]:
    words = []
    position = 0
    while line[position:].strip():
        match = _WORD.match(line, position)
        if match is None or line[match.end() : match.end() + 1] == '"':
            raise _BadLine("a quote has no end; close it, or write \\ before a quote inside a text")
        if match[1].startswith("#"):
            break
        words.append(_QUOTED.sub(lambda quoted: re.sub(r"\\(.)", r"\1", quoted[1]), match[1]))
        position = match.end()
    return words


def _table_of(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The kind of table that a line becomes, and its content. Raises _BadLine."""
    kind, rest = words[0], words[1:]
    if kind == "listen" and len(rest) >= 4:
        address, _, port = rest[3].rpartition(":")
        table: dict[str, Any] = {"name": rest[0], "protocol": rest[1], "transport": rest[2], "port": _number(port)}
        return "listener", table | ({"address": address.strip("[]")} if address else {}) | _options(rest[4:])
    if kind == "options" and rest:
        return "listener", {"name": rest[0]} | _options(rest[1:])
    arrow = rest.index("->") if "->" in rest[:-1] else -1
    if (kind == "route" and arrow >= 0) or (kind in ("default", "dead-letter") and arrow == 0):
        target = {"topic": _one_or_list(rest[arrow + 1].split(","))} | _options(rest[arrow + 2 :])
        return kind, _conditions(rest[:arrow]) | target
    usage = f"write {_USAGE[kind]}" if kind in _USAGE else f"lines begin with {', '.join(_USAGE)}"
    raise _BadLine(f"this line cannot be converted; {usage}")


def _options(words: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name in options or name in _SOCKET_KEYS:
            raise _BadLine(f"{word!r} is not an option, or is there twice; write option=value, in quotes if the value contains blanks")
        if name in _LISTS:
            options[name] = _one_or_list(text.split(","))
        elif name in _FLAGS:
            options[name] = {"yes": True, "no": False}.get(text, text)
        else:
            options[name] = _number(text) if name in _NUMBERS else text
    return options


def _conditions(words: list[str]) -> dict[str, Any]:
    conditions: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        kind, dot, path = name.partition(".")
        if kind in ("label", "field") and dot:
            where, key = conditions.setdefault(kind, {}), path
        else:
            where, key = conditions, "min-severity" if name == "severity<" else name
        if not equals or key in where or key in ("label", "field", "topic", "key", "key-required"):
            raise _BadLine(f"{word!r} is not a condition, or is there twice; write NAME=value,value")
        values = text.split(",")
        where[key] = _one_or_list([_number(value) for value in values] if key in _NUMBERS else values)
    return conditions


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _one_or_list(values: Sequence[int | str]) -> object:
    return list(values) if len(values) > 1 else values[0]


# -- TOML


def tables_text(tables: Mapping[str, Any]) -> str:
    """The tables as TOML."""
    parts = []
    for name, value in tables.items():
        heading = f"[[ingest.{name}]]" if isinstance(value, list) else f"[ingest.{name}]"
        for table in value if isinstance(value, list) else [value]:
            parts.append("\n".join([heading, *_lines(table)]) + "\n")
    return "\n".join(parts)


def _lines(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        key = prefix + (name if _BARE_KEY.match(name) else _toml(name))
        if isinstance(value, dict):
            yield from _lines(value, f"{key}.")
        else:
            yield f"{key} = {_toml(value)}"


def _toml(value: object) -> str:
    """Texts, numbers, flags and lists of them are written as in JSON, but for one control
    character.
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def converted_settings(text: str, tables: Mapping[str, Any], old_table: str) -> str | None:
    """A settings file's text with the converted tables, and without the line that names the old
    one; None if no single line does.

    TOML has several ways to write a key, so the line is found by its effect.
    """
    import tomllib

    wanted = _without(tomllib.loads(text), OLD_TABLE_SETTING)
    if tables:
        wanted["ingest"] = {**wanted.get("ingest", {}), **tables}
    lines = text.splitlines()
    ending = f"\n# Converted from {old_table}.\n\n{tables_text(tables)}" if tables else ""
    for number, line in enumerate(lines):
        if "=" in line and not line.lstrip().startswith("#"):
            made = "\n".join([*lines[:number], *lines[number + 1 :]]) + "\n" + ending
            try:
                if tomllib.loads(made) == wanted:
                    return made
            except tomllib.TOMLDecodeError:
                pass  # the line is part of a value of several lines
    return None


def _without(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A document without the key `a.b.c`, however it is nested, and without tables that are empty
    then.
    """
    left = {}
    for key, value in document.items():
        if isinstance(value, dict) and name.startswith(f"{key}."):
            value = _without(value, name.removeprefix(f"{key}."))
            if not value:
                continue
        if key != name:
            left[key] = value
    return left
