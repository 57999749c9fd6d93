from __future__ import annotations

import ast
import io
import re
from functools import cache

import pytest

from appliance.command.output import Column, bytes_text, count_text, duration_text, plain_table, plural, print_table, say
from lab.running_box import ROOT

LONG = "a-name-that-is-longer-than-others.of-a-box-in-frankfurt.example.com"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_plain_table_is_aligned_and_has_no_blanks_at_line_ends() -> None:
    columns = [Column("name"), Column("count", is_number=True), Column("state")]
    assert plain_table(columns, [["a", "1,000", ""], ["longer", "2", "ok"]]) == (
        "NAME    COUNT  STATE\n"
        "a       1,000\n"
        "longer      2  ok\n"
    )  # fmt: skip


def test_what_is_no_terminal_gets_no_escape_sequences_and_a_terminal_does() -> None:
    columns, rows = [Column("state")], [["serving"]]
    plain, terminal = io.StringIO(), Terminal()
    print_table(columns, rows, plain)
    print_table(columns, rows, terminal)
    assert plain.getvalue() == "STATE\nserving\n"
    assert "serving" in terminal.getvalue()
    assert terminal.getvalue() != plain.getvalue()


@cache
def tables() -> dict[str, list[Column]]:
    """The columns that functions of the commands name, by module and function."""
    found: dict[str, list[Column]] = {}
    for path in sorted((ROOT / "appliance" / "command").glob("*.py")):
        for function in [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)]:
            calls = [each for each in ast.walk(function) if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "Column" and each.args]
            columns = [Column(str(call.args[0].value), len(call.args) + len(call.keywords) > 1) for call in calls if isinstance(call.args[0], ast.Constant)]
            if columns:
                found[f"{path.stem}.{function.name}"] = columns
    return found


@pytest.mark.parametrize("name", sorted(tables()))
def test_each_table_fits_in_eighty_columns_and_no_number_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    columns = tables()[name]
    terminal = Terminal()
    print_table(columns, [["1,234,567" if column.is_number else LONG for column in columns]] * 2, terminal)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("1,234,567") for line in lines) == 2 * sum(column.is_number for column in columns)


def test_a_table_that_does_not_fit_is_printed_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    terminal = Terminal()
    columns = [Column("topic"), Column("partitions", is_number=True), Column("retained records", is_number=True), Column("why")]
    print_table(columns, [["a", "1,234,567", "7,654,321", ""], ["b" * 40, "2", "3", "no"]], terminal)
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()]
    assert lines == [
        "topic             a", "partitions        1,234,567", "retained records  7,654,321", "",
        "topic             bbbbbbbbbbbb", "                  bbbbbbbbbbbb", "                  bbbbbbbbbbbb", "                  bbbb",
        "partitions        2", "retained records  3", "why               no",
    ]  # fmt: skip


EVIL = "evil\x1b[31m\x1b]0;title\x07\nfake-group  Stable\r\t\u202edetsurt\u2028\ufeff\U000e0041\x85"
SHOWN = r"evil\x1b[31m\x1b]0;title\x07\x0afake-group  Stable\x0d\x09\u202edetsurt\u2028\ufeff\U000e0041\x85"


def test_a_name_that_a_client_chose_acts_on_no_terminal_and_forges_no_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    plain, terminal = io.StringIO(), Terminal()
    for file in (plain, terminal):
        print_table([Column("group")], [[EVIL], ["søren 日本 🙂"]], file)
    assert plain.getvalue() == f"GROUP\n{SHOWN}\nsøren 日本 🙂\n"
    assert SHOWN in terminal.getvalue() and "\x1b]" not in terminal.getvalue() and "\u202e" not in terminal.getvalue()
    say(f"group {EVIL}\nnext")
    assert capsys.readouterr().err == f"group {SHOWN.replace(chr(92) + 'x0a', chr(10)).replace(chr(92) + 'x09', chr(9))}\nnext\n"


def test_markup_in_a_cell_is_text() -> None:
    terminal = Terminal()
    print_table([Column("name")], [["[red]x[/red]"]], terminal)
    assert "[red]x[/red]" in terminal.getvalue()


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB"), (5000 << 50, "5000.0 PiB")]
)
def test_sizes_are_printed_in_the_largest_unit_that_fits(size_bytes: int | None, text: str) -> None:
    assert bytes_text(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-3, "0s"), (0.9, "0s"), (59, "59s"), (60, "1m"), (125, "2m 5s"), (3600, "1h"), (3601, "1h"), (3660, "1h 1m"), (90_061, "1d 1h")],
)
def test_durations_are_printed_in_their_two_largest_units(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_counts_are_grouped_and_nouns_agree() -> None:
    assert count_text(1234567.4) == "1,234,567"
    assert (plural(1, "record"), plural(0, "record"), plural(2000, "record")) == ("1 record", "0 records", "2,000 records")
