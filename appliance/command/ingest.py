"""`millrace ingest …`: what senders brought and what became of it; what a table of listeners and routes means, and what is wrong with it.

Everything is read from shared memory and tmpfs, so asking costs the box nothing.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from appliance.base.clock import SystemClock
from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.finding import SYSTEM_SETTINGS_FILE, FoundBox, find_running_box
from appliance.command.options import ConfigOption, DataOption, argument, option
from appliance.command.output import Column, plural, print_table, say, until_reader_closes

if TYPE_CHECKING:
    from appliance.senders.ingest_table import TableReading

WATCH_SECONDS = 1.0
_CLEAR = "\x1b[H\x1b[2J"
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)\Z")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="What senders brought, and where it goes.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("status")(status)
    app.command("check")(check)
    return app


def status(
    senders: Annotated[bool, option("--senders", help="One row for each sender as well.")] = False,
    silent: Annotated[str | None, option("--silent", metavar="TIME", help="Who was not heard for so long (10m, 1h) is silent. [default: the setting]")] = None,
    as_json: Annotated[bool, option("--json", help="For programs.")] = False,
    watch: Annotated[bool, option("--watch", help="Again every second, with lines a second; Ctrl-C ends it.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what each listener received, stored, found stored before, lost and refused; and which senders fell silent.

    For each listener: received = stored + duplicate + lost + in flight. Refused and dropped were never received.
    """
    silent_ms = None if silent is None else duration_ms(silent)
    found = find_running_box(data, config)
    try:
        _show(found, silent_ms, senders, as_json, watch)
    except KeyboardInterrupt:
        pass  # the ordinary end of watching something


def _show(found: FoundBox, silent_ms: int | None, with_senders: bool, as_json: bool, watch: bool) -> None:
    from appliance.command.ingest_figures import document_of, gather
    from appliance.command.ingest_view import status_text

    clock = SystemClock()
    before = None
    while True:
        figures = gather(found, silent_ms, clock.wall_ms())
        text = json.dumps(document_of(figures, with_senders)) + "\n" if as_json else status_text(figures, before, with_senders, WATCH_SECONDS)
        with until_reader_closes():
            sys.stdout.write(_CLEAR + text if watch and not as_json and sys.stdout.isatty() else text)
        if not watch:
            return
        before = figures
        time.sleep(WATCH_SECONDS)


def duration_ms(text: str) -> int:
    """`10m`, `90s`, `1h`; UsageProblem for anything else."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise UsageProblem(f"--silent is {text!r}; write a number and a unit: 90s, 10m, 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


def check(
    file: Annotated[str, argument("FILE", "A table of listeners and routes, as the setting ingest.table.file names one.")],
    config: ConfigOption = None,
) -> None:
    """Say everything that is wrong with a table, each with its line, or print it as it is understood; exit code 1 if anything is wrong.

    Example: millrace ingest check /etc/millrace/ingest.table
    """
    from appliance.runtime.run_options import RunOptions, resolve_options
    from appliance.senders.ingest_table import read_table
    from appliance.senders.listener import Transport
    from appliance.senders.table_checks import all_problems, box_of, certificate_problems, own_listeners, read_file

    config = config or (SYSTEM_SETTINGS_FILE if os.path.exists(SYSTEM_SETTINGS_FILE) else None)
    options, problems = resolve_options(RunOptions(config=config), os.cpu_count() or 1)
    text, unreadable = read_file(file)
    if unreadable is not None:
        raise UsageProblem(f"{file}: {unreadable}")
    reading = read_table(text, file, box_of(options))
    problems += all_problems(reading, file)
    if not problems:
        secured = [(f"{file}:{reading.lines[listener.name]}", listener) for listener in own_listeners(reading) if listener.transport is Transport.TLS]
        problems = certificate_problems(secured)
    if problems:
        for problem in problems:
            print(problem)
        sys.stdout.flush()
        say(f"millrace: {plural(len(problems), 'problem')} in {file}")
        raise typer.Exit(EXIT_FAILED)
    print_reading(reading)


def print_reading(reading: TableReading) -> None:
    """The table as it is understood."""
    acks = {-1: "all", 1: "1", 0: "0"}
    columns = [Column("listener"), Column("protocol"), Column("listens at"), Column("topic"), Column("key"), Column("acks"), Column("options")]
    default = ",".join(reading.routes.default.topics)
    rows = []
    for listener in reading.listeners:
        place = f"{listener.address or '(box)'}:{listener.port}"
        said = {"raw": listener.raw, "key required": listener.is_key_required, "client certificates": listener.client_ca}
        said |= {"tokens": listener.tokens, "shared key": listener.shared_key, f"proxy {listener.proxy}": listener.proxy != "no"}
        words = [name for name, value in said.items() if value]
        protocol = f"{listener.protocol} {listener.transport}"
        rows.append([listener.name, protocol, place, listener.topic or default, listener.key.text, acks[listener.acks], ", ".join(words) or "-"])
    print_table(columns, rows)
    print()
    for number, route in enumerate(reading.routes.routes, 1):
        conditions = " ".join(condition_text(condition) for condition in route.conditions)
        key = "" if route.key is None else f", key {route.key.text}" + (" (required)" if route.is_key_required else "")
        print(f"{number}. {conditions} -> {','.join(route.topics)}{key}")
    print(f"default -> {default}" + (f"; dead letters -> {reading.routes.dead_letter}" if reading.routes.dead_letter else "; dead letters are counted alone"))


def condition_text(condition: object) -> str:
    """As it would be written."""
    from appliance.senders.conditions import Condition
    from appliance.senders.syslog_names import FACILITY_NAMES, SEVERITY_NAMES

    assert isinstance(condition, Condition)
    names = {"severity": SEVERITY_NAMES, "facility": FACILITY_NAMES}.get(condition.subject.kind)
    values = [str(value) if names is None or isinstance(value, str) else names[value] for value in condition.values]
    return ".".join(filter(None, condition.subject)) + ("<=" if condition.is_at_most else "=") + ",".join(values)
