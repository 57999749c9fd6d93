"""`millrace table …`: the topics that this box keeps as tables, how far each is, and why one is not written.

Read from what the tabler shows on tmpfs: no table is opened, so a file system that hangs hangs no command. Weak spot: in a cluster it shows the
partitions that this box leads.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from appliance.base.clock import SystemClock
from appliance.command.failures import UsageProblem
from appliance.command.finding import find_running_box
from appliance.command.options import ConfigOption, DataOption, JsonOption, argument
from appliance.command.output import NOTHING, Column, count_text, duration_text, print_table, say


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Topics that the box keeps as tables.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("list")(list_tables)
    app.command("describe")(describe)
    return app


def list_tables(as_json: JsonOption = False, data: DataOption = None, config: ConfigOption = None) -> None:
    """Show each table: its state, how many records it is behind, and its last commit."""
    tables = read_tables(data, config)
    if as_json:
        print(json.dumps(tables, indent=2))
        return
    titles = (Column("topic"), Column("state"), Column("lag", True), Column("records", True), Column("lost", True), Column("last commit"), Column("directory"))
    print_table(titles, [table_row(table, SystemClock().wall_ms()) for table in tables])
    for table in tables:
        if table["problem"]:
            say(f"{table['topic']}: {table['problem']}")


def describe(name: Annotated[str, argument("TOPIC", "The topic.")], as_json: JsonOption = False, data: DataOption = None, config: ConfigOption = None) -> None:
    """Show one table: the offset up to which it has each partition, what it lacks, and its last error."""
    table = next((each for each in read_tables(data, config) if each["topic"] == name), None)
    if table is None:
        raise UsageProblem(f"topic {name} is no table on this box; see: millrace table list, millrace topic describe {name}")
    if as_json:
        print(json.dumps(table, indent=2))
        return
    print(f"{table['directory']}  {table['format']}  version {table['version']}  {table['state']}")
    counts = "  ".join(f"{name} {count_text(table[name])}" for name in ("commits", "failures", "conflicts"))
    print(f"last commit {table_row(table, SystemClock().wall_ms())[5]}  {counts}")
    print(f"records {table['records']}  not decoded {table['bad_records']}  lost {table['lost_records']}")
    if table["problem"]:
        print(f"problem: {table['problem']}")
    for lost in table["lost"]:
        print(f"lost: {lost}")
    rows = [[str(each["partition"]), *(count_text(each[key]) for key in ("log_start_offset", "offset", "end", "lag"))] for each in table["partitions"]]
    print_table([Column(title, True) for title in ("partition", "log start", "table", "end", "lag")], rows)


def read_tables(data: str | None, config: str | None) -> list[dict[str, Any]]:
    """Return what the tabler shows. Raises UsageProblem if the box has none."""
    found = find_running_box(data, config)
    try:
        with open(found.layout.tables_file, "rb") as file:
            tables: list[dict[str, Any]] = json.load(file)["tables"]
            return tables
    except FileNotFoundError:
        raise UsageProblem("this box keeps no tables: set tables.locations in its settings file, and restart it (docs/tables.md)") from None


def table_row(table: dict[str, Any], now_ms: int) -> list[str]:
    committed = table["last_commit_ms"]
    ago = f"{duration_text((now_ms - committed) / 1000)} ago" if committed else NOTHING
    counts = [count_text(table[key]) for key in ("lag", "records", "lost_records")]
    return [table["topic"], table["state"], *counts, ago, table["directory"]]
