"""How commands print: rich tables on a terminal, aligned plain text elsewhere; results on stdout, everything else on stderr. A table that does
not fit on the terminal is printed row by row.

rich (25 ms, 10 MB) is imported at the first table on a terminal. Weak spot: the plain form measures characters, not cells, so wide
characters misalign it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TextIO

from appliance.base.terminal_text import terminal_text

if TYPE_CHECKING:
    from rich.table import Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NOTHING = "-"


class Column(NamedTuple):
    """A heading; numbers are set right."""

    title: str
    is_number: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], file: TextIO | None = None) -> None:
    """One table. `columns` and each row have the same length."""
    target = file or sys.stdout
    if target.isatty():
        _print_rich(columns, rows, target)
    else:
        target.write(plain_table(columns, rows))


def plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Aligned with two blanks between columns, headings in capitals, nothing else: made for grep and awk."""
    lines = [[column.title.upper() for column in columns], *([cell(text) for text in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    text = ""
    for line in lines:
        cells = (text.rjust(width) if column.is_number else text.ljust(width) for column, text, width in zip(columns, line, widths, strict=True))
        text += "  ".join(cells).rstrip() + "\n"
    return text


def _print_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]], target: TextIO) -> None:
    from rich.console import Console

    console = Console(file=target, highlight=False)
    if rows and _least_width(columns, rows) > console.width:
        for number, row in enumerate(rows):
            console.print(*([""] if number else []), _block(columns, row), sep="\n")
    else:
        console.print(rich_table(columns, rows))


def rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    """The same table for a terminal; words that say how something is have their colour. Texts are folded where it is narrow, numbers are not."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", overflow="fold", no_wrap=column.is_number)
    for row in rows:
        table.add_row(*(Text(cell(text), style=_STYLES.get(text, "")) for text in row))
    return table


NARROW_CHARACTERS = 8
"""A column of texts is not made narrower."""


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table whose texts are folded."""
    width = 2 * (len(columns) - 1)
    for index, column in enumerate(columns):
        longest = max(len(column.title), *(len(cell(row[index])) for row in rows))
        width += longest if column.is_number else min(longest, NARROW_CHARACTERS)
    return width


def _block(columns: Sequence[Column], row: Sequence[str]) -> Table:
    """One row for a terminal on which the table does not fit: a line for each column that has something."""
    from rich.table import Table
    from rich.text import Text

    block = Table.grid(padding=(0, 2))
    block.add_column(style="bold", no_wrap=True)
    block.add_column(overflow="fold")
    for column, text in zip(columns, row, strict=True):
        if text not in ("", NOTHING):
            block.add_row(column.title, Text(cell(text), style=_STYLES.get(text, "")))
    return block


_STYLES = {
    "serving": "green",
    "online": "green",
    "ok": "green",
    "starting": "yellow",
    "recovering": "yellow",
    "stopping": "yellow",
    "full": "bold red",
    "warning": "yellow",
    "problem": "bold red",
    "offline": "bold red",
    "dead": "bold red",
    "failed": "bold red",
}


@contextmanager
def until_reader_closes() -> Iterator[None]:
    """Around long output: its reader may have closed the pipe (`| head`). That is no error, and nothing more can be written."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """To the person, not into the result; may have several lines."""
    print("\n".join(terminal_text(line) for line in text.split("\n")), file=sys.stderr, flush=True)


def cell(text: str) -> str:
    """Return the text for one cell of a table, or one line: names that clients choose end neither."""
    return terminal_text(text).replace("\t", "\\x09")


def printable(data: bytes) -> bytes:
    """For a terminal: text as it is; what is no UTF-8, or would act on the terminal, as \\xNN."""
    return terminal_text(data.decode("utf-8", "backslashreplace")).encode()


def bytes_text(size_bytes: int | float | None) -> str:
    """1536 → `1.5 KiB`."""
    if size_bytes is None:
        return NOTHING
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def count_text(count: int | float | None) -> str:
    """1234567 → `1,234,567`."""
    return NOTHING if count is None else f"{count:,.0f}"


def micros_text(microseconds: float | None) -> str:
    """850 → `850 us`, 1234 → `1.2 ms`, 2500000 → `2.5 s`."""
    if microseconds is None:
        return NOTHING
    if microseconds < 1000:
        return f"{microseconds:.0f} us"
    return f"{microseconds / 1000:.1f} ms" if microseconds < 1_000_000 else f"{microseconds / 1_000_000:.1f} s"


def duration_text(seconds: float | None) -> str:
    """The two largest units: `3d 4h`, `2m 5s`, `12s`."""
    if seconds is None:
        return NOTHING
    left = max(int(seconds), 0)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0") or len(parts) == 1)


def plural(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"
