from __future__ import annotations

import io

import pytest

from appliance.command.output import Column, bytes_text, count_text, duration_text, plain_table, plural, print_table, say


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
