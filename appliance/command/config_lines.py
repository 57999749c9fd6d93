"""Where in a settings file a name stands, so that a problem can be shown with its line. Pure.

Reads TOML by its lines, not by its grammar: tables, plain, quoted and dotted keys. Weak spot: a key inside a multi-line value is taken for one of the
file's; then a line is shown that is not the culprit.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+)""")
_AT_LINE = re.compile(r"\(at line (\d+)")


class ConfigLine(NamedTuple):
    number: int
    text: str


def lines_by_name(text: str) -> dict[str, ConfigLine]:
    """Dotted name, as `read_settings_file` makes it → the line that sets it; options of `[box]` begin with `box.`."""
    found: dict[str, ConfigLine] = {}
    headings: dict[str, ConfigLine] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _TABLE.match(line):
            table = _dotted(heading.group(1)) + "."
            headings[table] = ConfigLine(number, line.strip())
        elif key := _KEY.match(line):
            found.setdefault(table + _dotted(key.group(1)), ConfigLine(number, line.strip()))
    for table, line_of_table in headings.items():  # an empty table has no other line
        if not any(name.startswith(table) for name in found):
            found.setdefault(table.removesuffix("."), line_of_table)
    return found


def _dotted(key: str) -> str:
    return ".".join(next(filter(None, part), "") for part in _PART.findall(key))


def line_of_problem(problem: str, lines: dict[str, ConfigLine], text: str) -> ConfigLine | None:
    """The line that a problem is about: of the names in it that the file sets, the one that comes first; else the line that TOML complained of."""
    if at := _AT_LINE.search(problem):
        number = int(at.group(1))
        rows = text.splitlines()
        return ConfigLine(number, rows[number - 1].strip()) if number <= len(rows) else None
    places = []
    for name, line in lines.items():
        for spelling in _spellings(name):
            if (place := re.search(rf"(?<![\w.-]){re.escape(spelling)}(?![\w.-]*\w)", problem)) is not None:
                places.append((place.start(), line))
    return min(places)[1] if places else None


def _spellings(name: str) -> list[str]:
    """As problems name it: an option of `[box]` is `[box] kafka-port` or `--kafka-port` there."""
    if not name.startswith("box."):
        return [name]
    option = name.removeprefix("box.")
    return [f"[box] {option}", f"[box] has no option {option}", f"--{option.replace('_', '-')}"]
