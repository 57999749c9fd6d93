"""`millrace query`: SQL over the topics that the box keeps as tables, by DuckDB in this process.

The tabler's file on tmpfs says where the tables are; they are read as this user. Weak: a query sees what was committed, which lags
behind the topic by `millrace.table.interval.ms`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from appliance.base.terminal_text import terminal_json
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.options import ConfigOption, DataOption, argument, option
from appliance.command.output import NOTHING, Column, cell, plural, print_table, say, until_reader_closes
from appliance.command.pipeline_extra import pipeline_extra
from appliance.command.table import read_tables

if TYPE_CHECKING:
    from appliance.pipeline.table_query import ResultColumn, TableQuery

Row = Sequence[str | None]
Result = TypeVar("Result")
COLUMN_WIDTH = 8
"""On a terminal that has less for each column, a row is a block of lines."""
EXPLAINED = ["explain_key", "explain_value"]
JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
CSV_QUOTED = frozenset('",\r\n')
NAMED_MAX = 20
SUGGESTED = re.compile(r'^Did you mean "[^\n]*\n?', re.MULTILINE)
"""DuckDB's own tables, such as `pg_enum`."""
INTERRUPT_SECONDS = 0.1
"""An interrupt before DuckDB begins has no effect, so it is repeated."""


def query(
    sql: Annotated[str, argument("SQL", 'One query. Topics are tables, in quotes if need be: "my.topic". - reads it from standard input.')],
    as_json: Annotated[bool, option("--json", help="One JSON object a row.")] = False,
    as_csv: Annotated[bool, option("--csv", help="Comma-separated values with a heading.")] = False,
    limit: Annotated[int, option("--max", metavar="N", min=1, help="Rows to show; --json and --csv show all. [default: 1000]")] = 1_000,
    memory: Annotated[int, option("--memory", metavar="MIB", min=64, help="Memory of the query; one that needs more fails. [default: 1024]")] = 1_024,
    threads: Annotated[int, option("--threads", metavar="N", min=1, max=256, help="Threads of the query. [default: 2]")] = 2,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Query the tables of the box by SQL (DuckDB's), read only.

    Example: millrace query 'select host, count(*) from syslog where severity < 4 group by 1'
    """
    if as_json and as_csv:
        raise UsageProblem("--json and --csv exclude each other")
    tables = read_tables(data, config)
    topics = {str(table["topic"]): table for table in tables}
    directories = {topic: metadata_of(table, 0) or str(table["directory"]) for topic, table in topics.items()}
    directories |= {f"{topic}/_bad": metadata_of(table, 1) or f"{table['directory']}/_bad" for topic, table in topics.items()}
    text = sys.stdin.read() if sql == "-" else sql
    with pipeline_extra(fetches=False):  # Spark would come with it
        from appliance.pipeline.table_query import QueryFailed, QueryRefused, TableQuery
    try:
        with RunningQuery(TableQuery(directories, memory << 20, threads)) as running, until_reader_closes():
            running.start(text)
            if as_json or as_csv:
                print_lines(running, json_line if as_json else csv_line, as_csv)
            else:
                print_rows(running, limit)
    except KeyboardInterrupt:
        raise PartlyDone("the query was interrupted by Ctrl-C") from None
    except QueryRefused as refused:
        raise UsageProblem(str(refused)) from refused
    except QueryFailed as failed:
        if str(failed).startswith("Out of Memory"):
            raise QueryFailed(f"{failed}\n\nIt has {memory} MiB: more with --memory MIB") from failed
        for topic, table in topics.items():
            path = directories[topic]
            log = path if metadata_of(table, 0) else f"{path}/_delta_log"
            if f"could not open the table {path}:" in str(failed) and "://" not in path and not os.path.exists(log):
                why = "its directory is gone; mount it, or bring it back" if table.get("last_commit_ms") else "it has no commit yet"
                raise QueryFailed(f"could not open the table {table['directory']}: {why} (millrace table list)") from failed
        if "Table with name" not in str(failed):
            raise
        known = ", ".join(sorted(topics)[:NAMED_MAX]) or "none"
        raise QueryFailed(f"{SUGGESTED.sub('', str(failed))}\n\nTables of this box: {known} (millrace table list)") from failed


def metadata_of(table: dict[str, Any], number: int) -> str:
    """Return the file by which an Iceberg table, or that of its bad records, is read; "" if there is none."""
    found = table.get("metadata") or ("", "")
    return str(found[number])


class RunningQuery:
    """A query in a thread, which the end of the `with` interrupts: in the main thread, DuckDB would not notice Ctrl-C."""

    def __init__(self, query: TableQuery) -> None:
        self._query = query
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(lambda: None).result()  # Ctrl-C while a thread starts makes the pool start another
        self.columns: list[ResultColumn] = []
        self._batches: Iterator[list[tuple[str | None, ...]]] = iter(())

    def __enter__(self) -> RunningQuery:
        return self

    def __exit__(self, *_exception: object) -> None:
        last = self._thread.submit(lambda: None)
        while not wait((last,), INTERRUPT_SECONDS).done:
            self._query.interrupt()
        self._thread.shutdown()

    def start(self, sql: str) -> None:
        self.columns, self._batches = self._await(lambda: self._query.start(sql))

    def rows(self) -> Iterator[Row]:
        while batch := self._await(lambda: next(self._batches, None)):
            yield from batch

    def _await(self, work: Callable[[], Result]) -> Result:
        future = self._thread.submit(work)
        while not wait((future,), INTERRUPT_SECONDS).done:
            pass  # a signal that comes just before the wait does not end it
        return future.result()


def print_lines(running: RunningQuery, line: Callable[[Sequence[ResultColumn], Row], str], with_heading: bool) -> None:
    """Print a row a line, as they come."""
    if with_heading:
        print(",".join(csv_value(column.title) for column in running.columns))
    for row in running.rows():
        print(line(running.columns, row))


def print_rows(running: RunningQuery, limit: int) -> None:
    """Print a table; a row is a block of lines where a terminal is too narrow."""
    columns, rows = running.columns, list(islice(running.rows(), limit + 1))
    if [column.title for column in columns] == EXPLAINED:
        print("\n".join(cell(line) for row in rows for line in (row[1] or "").splitlines()))
        return
    shown = [[NOTHING if value is None else value for value in row] for row in rows[:limit]]
    if sys.stdout.isatty() and len(columns) * COLUMN_WIDTH > shutil.get_terminal_size().columns:
        for row in shown:
            print_table([Column("column"), Column("value")], [[column.title, value] for column, value in zip(columns, row)])
    else:
        print_table([Column(cell(column.title), column.is_number) for column in columns], shown)
    if len(rows) > limit:
        say(f"the first {plural(limit, 'row')}: --max N shows more, --json and --csv all")


def json_line(columns: Sequence[ResultColumn], row: Row) -> str:
    """Return a row as a JSON object."""
    return "{" + ", ".join(f"{terminal_json(column.title)}: {_json_value(column, value)}" for column, value in zip(columns, row)) + "}"


def _json_value(column: ResultColumn, value: str | None) -> str:
    if value is None:
        return "null"
    if column.is_boolean or (column.is_number and JSON_NUMBER.fullmatch(value)):
        return value
    if column.is_nested:
        with suppress(ValueError):  # NaN is in it, which JSON does not have
            return terminal_json(json.loads(value, parse_constant=_refuse_constant))
    return terminal_json(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def csv_line(_columns: Sequence[ResultColumn], row: Row) -> str:
    """Return a row as RFC 4180 has it, without the end of the line."""
    return ",".join("" if value is None else csv_value(value) for value in row)


def csv_value(value: str) -> str:
    """Quote what needs it, and what is empty, as null is not quoted."""
    text = cell(value) if sys.stdout.isatty() else value
    return '"' + text.replace('"', '""') + '"' if not text or not CSV_QUOTED.isdisjoint(text) else text
