"""What a settings file means, and what is wrong with it, line by line; and the conversion of the
table of senders of release 0.1.

Only the file, the table of senders that it names, and the names of directories are read; `millrace
doctor --config FILE` checks the machine. Lines are found without TOML's grammar: tables, plain,
quoted and dotted keys. Weak: a key inside a value of several lines is taken for one of the file's;
then the wrong line is shown.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from typing import NamedTuple

from appliance.base.errors import MillraceError
from appliance.base.setting_row import SettingRow
from appliance.base.setting_rows import GROUPS, SETTING_ROWS
from appliance.base.settings import OLD_TABLE_SETTING, read_settings_file
from appliance.base.zookeeper_access import tls_file_problems
from appliance.command.failures import UsageProblem
from appliance.command.ingest_view import senders_view
from appliance.command.output import plural, say
from appliance.runtime.directories import shape_problems
from appliance.runtime.run_options import ResolvedOptions, RunOptions, SenderTable, resolve_options
from appliance.security.tls_contexts import file_problems
from appliance.senders.old_table import converted_settings, tables_text
from appliance.senders.sender_tables import read_tables
from appliance.senders.table_checks import box_of, exposed_secrets, read_sender_table

_TABLE = re.compile(r"\s*(\[\[|\[)([^\[\]]+)\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+)""")
_AT_LINE = re.compile(r"\(at line (\d+)")


def print_check(file: str) -> bool:
    """Print what is wrong with a settings file, or what it means; False if anything is wrong.
    Raises UsageProblem if it cannot be read.
    """
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise UsageProblem(f"{file}: {(error.strerror or str(error)).lower()}") from error
    checked = check_settings(file)
    if checked.problems:
        print_problems(checked, file)
        return False
    print(summary(file))
    print_senders(checked)
    return True


class CheckedSettings(NamedTuple):
    """A settings file as the start of a box would see it. `problems`: all of them, those of the
    tables of senders included.
    """

    options: ResolvedOptions
    senders: SenderTable
    problems: list[str]


def check_settings(file: str) -> CheckedSettings:
    """What `millrace run --config FILE` would take from the file, and report about it."""
    options, problems = resolve_options(RunOptions(config=file), os.cpu_count() or 1)
    problems += shape_problems(options.data, options.state)
    senders = read_sender_table(options)
    problems += [*senders.problems, *(senders.certificate_check() if senders.certificate_check is not None else [])]
    problems += [*file_problems(options.listeners, options.settings), *tls_file_problems(options.settings)]
    return CheckedSettings(options, senders, problems)


def print_senders(checked: CheckedSettings) -> None:
    """The tables of senders as they are understood; an old table also as it would be converted."""
    options, tables = checked.options, checked.senders.tables
    if tables:
        reading = read_tables(tables, options.settings_file, box_of(options))
        print("\n" + senders_view(reading), end="")
        for sentence in exposed_secrets(reading, [options.old_table or options.settings_file]):
            say(f"warning: {sentence}")
    if options.old_table:
        print(f"\n{options.old_table} is a table of release 0.1. `millrace config convert {options.settings_file}` would replace it by:\n")
        print(tables_text(tables), end="")


def convert_settings(file: str) -> str:
    """Convert, and return one line that reports it. Raises MillraceError; then the box starts with
    the old table as before.
    """
    options, senders, problems = check_settings(file)
    if problems:
        raise MillraceError(f"{file} was not converted: {problems[0]}; `millrace config check {file}` reports everything that is wrong")
    if not options.old_table:
        return f"{file}: nothing to convert, {OLD_TABLE_SETTING} is not set"
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            text = converted_settings(opened.read(), senders.tables, options.old_table)
        if text is None:
            by_hand = f"add the tables that `millrace config check {file}` prints, and remove {OLD_TABLE_SETTING}"
            raise MillraceError(f"{file} was not converted: {OLD_TABLE_SETTING} is not on a line of its own; {by_hand}")
        _replace(file, text, os.stat(options.old_table))
        os.rename(options.old_table, f"{options.old_table}.converted")
    except OSError as error:
        raise MillraceError(f"{file} was not converted: {error.filename or file}: {(error.strerror or str(error)).lower()}") from error
    return f"moved the table of senders {options.old_table} into {file}; the old file is {options.old_table}.converted"


def _replace(file: str, text: str, old_table: os.stat_result) -> None:
    """Replace the settings file as a whole. It may contain secrets now: users who could not read
    the old table cannot read it either.
    """
    now = os.stat(file)
    mode = now.st_mode & old_table.st_mode & 0o777 | 0o600
    new = f"{file}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as opened:
            opened.write(text.encode())
        if os.geteuid() == 0:
            os.chown(new, now.st_uid, now.st_gid if mode & 0o004 else old_table.st_gid)
        os.chmod(new, mode)
        os.rename(new, file)
    except BaseException:
        os.unlink(new)
        raise


class PlacedProblem(NamedTuple):
    """A problem and the line that it is about. `file`: that of the line; None if the words name it."""

    words: str
    line: ConfigLine | None
    file: str | None

    def text(self) -> str:
        """As compilers write it: FILE:LINE: words, and below it the line itself."""
        if self.file is None:
            return self.words
        return f"{self.file}: {self.words}" if self.line is None else f"{self.file}:{self.line.number}: {self.words}\n{self.line.number:>6} | {self.line.text}"


def placed_problems(checked: CheckedSettings, file: str) -> list[PlacedProblem]:
    """The problems in the order of their lines. Those of an old table come last and have its lines."""
    try:
        with open(file, "rb") as opened:
            text = opened.read().decode(errors="replace")
    except OSError:
        text = ""
    lines = lines_by_name(text)
    of_table = [problem for problem in checked.problems if checked.options.old_table and problem.startswith(f"{checked.options.old_table}:")]
    words_of = [problem.removeprefix(f"{file}: ") for problem in checked.problems if problem not in of_table]
    found = [PlacedProblem(words, line_of_problem(words, lines, text), file) for words in words_of]
    found.sort(key=lambda problem: problem.line.number if problem.line else 0)
    return [*found, *(PlacedProblem(problem, None, None) for problem in of_table)]


def print_problems(checked: CheckedSettings, file: str) -> None:
    problems = placed_problems(checked, file)
    for problem in problems:
        print(problem.text())
    sys.stdout.flush()
    other = f" and {checked.options.old_table}" if any(problem.file is None for problem in problems) else ""
    say(f"millrace: {plural(len(problems), 'problem')} in {file}{other}")


def summary(file: str) -> str:
    read = read_settings_file(file)
    rows = ((SETTING_ROWS.get(name), value) for name, value in read.settings.items())  # `listener.name.*` has no row
    changed = sum(row is None or row.default != value for row, value in rows)
    return f"{file}: ok, {plural(len(read.box), 'option')} and {plural(len(read.settings), 'setting')}, {changed} of them not the default"


class ConfigLine(NamedTuple):
    number: int
    text: str


def lines_by_name(text: str) -> dict[str, ConfigLine]:
    """The line of each name in a settings file.

    Names are dotted, as `read_settings_file` makes them; options of `[box]` begin with `box.`.
    Tables of senders and their keys have the names that problems use: `[[ingest.listener]] 2`,
    `[[ingest.listener]] 2: port`.
    """
    found: dict[str, ConfigLine] = {}
    headings: dict[str, ConfigLine] = {}
    counts: Counter[str] = Counter()
    table, place = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _TABLE.match(line):
            name = _dotted(heading.group(2))
            counts[name] += 1
            table, place = f"{name}.", f"[[{name}]] {counts[name]}" if heading.group(1) == "[[" else f"[{name}]"
            headings[table] = ConfigLine(number, line.strip())
            if name.startswith("ingest."):
                found[place] = headings[table]
        elif key := _KEY.match(line):
            found.setdefault(table + _dotted(key.group(1)), ConfigLine(number, line.strip()))
            found.setdefault(f"{place}: {_dotted(key.group(1))}", ConfigLine(number, line.strip()))
    for table, line_of_table in headings.items():  # an empty table has no other line
        if not any(name.startswith(table) for name in found):
            found.setdefault(table.removesuffix("."), line_of_table)
    return found


def _dotted(key: str) -> str:
    return ".".join(next(filter(None, part), "") for part in _PART.findall(key))


def line_of_problem(problem: str, lines: dict[str, ConfigLine], text: str) -> ConfigLine | None:
    """The line that a problem is about: of the names in it that the file sets, the one that comes
    first; else the line that TOML complained of.
    """
    if at := _AT_LINE.search(problem):
        number = int(at.group(1))
        rows = text.splitlines()
        return ConfigLine(number, rows[number - 1].strip()) if number <= len(rows) else None
    places = []
    for name, line in lines.items():
        for spelling in _spellings(name):
            if (place := re.search(rf"(?<![\w.-]){re.escape(spelling)}(?![\w.-]*\w)", problem)) is not None:
                places.append((place.start(), -len(spelling), line))
    return min(places)[2] if places else None


def _spellings(name: str) -> list[str]:
    """As problems name it: an option of `[box]` is `[box] kafka-port` or `--kafka-port` there."""
    if not name.startswith("box."):
        return [name]
    option = name.removeprefix("box.")
    return [f"[box] {option}", f"[box] has no option {option}", f"--{option.replace('_', '-')}"]


_HEAD = """\
# Settings

Written by `millrace config check --reference` from
[setting_rows.py](../appliance/base/setting_rows.py); change that, not this page.

A settings file is TOML and is given with `--config FILE`; an installed box uses
`/etc/millrace/millrace.toml`. `millrace config check FILE` reports everything that is wrong with
one. Names are Kafka's if Kafka has the setting. A changed file is used from the next start of the
box on, or, as far as it goes, after `millrace config reload`. The options in `[box]` are explained
in [Install and upgrade](install.md#try-it-without-installing), the tables `[[ingest.listener]]` and
`[[ingest.route]]` in the [senders' reference](senders.md#the-tables-of-senders).

```
"log.segment.bytes" = 268435456   # settings by their names, in quotes or as log.segment.bytes = …

[box]                             # options of `millrace run` by their names
data = ["/srv/d0", "/srv/d1"]
listen = "0.0.0.0"
advertise = "logs.example.org"
```
"""


def reference_page() -> str:
    """Return the page as Markdown, with a table for each group of rows."""
    return _HEAD + "".join(_group(title, rows) for title, rows in GROUPS.items())


def _group(title: str, rows: tuple[SettingRow, ...]) -> str:
    lines = [f"\n## {title}\n", "| setting | default | allowed | meaning | a larger value costs |", "|---|---|---|---|---|"]
    lines += [f"| `{row.name}` | {_value(row)} | {_allowed(row)} | {row.meaning} | {row.larger_costs} |" for row in rows]
    return "\n".join(lines) + "\n"


def _value(row: SettingRow) -> str:
    if isinstance(row.default, bool):
        return "true" if row.default else "false"
    return f"{row.default} {row.unit}".rstrip()


def _allowed(row: SettingRow) -> str:
    if isinstance(row.default, int) and not isinstance(row.default, bool):
        return f"{row.low} to {row.high}"
    return row.allowed
