"""`millrace ingest status`: what senders sent, and what was stored, lost and refused. `ingest tap`:
what they send now.

The status is read from shared memory and tmpfs, so it costs the box nothing.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Annotated, Literal

import typer

from appliance.base.clock import SystemClock
from appliance.base.settings import Box
from appliance.command.failures import UsageProblem
from appliance.command.finding import FoundBox, find_running_box
from appliance.command.options import ConfigOption, DataOption, JsonOption, argument, option
from appliance.command.output import until_reader_closes

WATCH_SECONDS = 1.0
_CLEAR = "\x1b[H\x1b[2J"
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)\Z")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="What senders brought, and where it goes.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("status")(status)
    app.command("tap")(tap)
    app.command("check", hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(check)
    return app


def status(
    senders: Annotated[bool, option("--senders", help="One row for each sender as well.")] = False,
    silent: Annotated[
        str | None, option("--silent", metavar="TIME", help="Senders without a record for so long (10m, 1h) are silent. [default: the setting]")
    ] = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, option("--watch", help="Again every second, with lines a second; Ctrl-C ends it.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what each listener received, stored, recognised as repeated, lost and refused; and which
    senders are silent.

        For each listener: received = stored + duplicate + lost + in flight. Refused and dropped records were never received.
    """
    silent_ms = None if silent is None else duration_ms(silent)
    found = find_running_box(data, config)
    try:
        _show(found, silent_ms, senders, as_json, watch)
    except KeyboardInterrupt:
        pass  # Ctrl-C is the ordinary end of --watch


def tap(
    name: Annotated[str | None, argument("[LISTENER|SENDER]", "A listener, or the address of a sender. [default: all]")] = None,
    count: Annotated[int | None, option("--max", "-n", metavar="N", min=1, help="End after N lines.")] = None,
    as_json: Annotated[bool, option("--json", help="One JSON object a line: time_ms, listener, sender, topic, value; or what, count.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the lines that pass ingest now, as records with their fields, and why lines are refused,
    lost or recognised as repeated; Ctrl-C ends it.

    At most 500 a second are shown. Example: millrace ingest tap 10.0.0.7
    """
    from appliance.command.ingest_tap import watch_tap

    watch_tap(find_running_box(data, config), name, count, as_json)


def _show(found: FoundBox, silent_ms: int | None, with_senders: bool, as_json: bool, watch: bool) -> None:
    from appliance.command.ingest_view import status_text
    from appliance.senders.ingest_figures import document_of, gather

    clock = SystemClock()
    box = Box.from_document({**found.box})
    before = None
    while True:
        figures = gather(found.layout, box, silent_ms, clock.wall_ms())
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


def check() -> None:
    """Removed: the table of senders is part of the settings file."""
    raise UsageProblem("`millrace ingest check` was removed: listeners and routes are tables of the settings file; use `millrace config check FILE`")
