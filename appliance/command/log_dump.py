"""`millrace log dump FILE`: what a file of a log holds, in words.

It reads the given file: the only command that reads a log disk.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from appliance.base.errors import MillraceError
from appliance.command.failures import UsageProblem
from appliance.command.options import argument, option
from appliance.command.output import printable, until_reader_closes


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Look into log files.", no_args_is_help=True, rich_markup_mode=markup)
    # Without a callback typer would make the only command the group itself, and `millrace log dump FILE` would not parse.
    app.callback()(lambda: None)
    app.command("dump")(dump)
    return app


def dump(
    file: Annotated[str, argument("FILE", "A file of a partition's directory, or a checkpoint of a log directory.")],
    records: Annotated[bool, option("--records", "-r", help="Show every record, not only the batches.")] = False,
) -> None:
    """Print what a file of a log holds: batches and records of a segment (….log), entries of an index (….index, ….timeindex, ….txnindex), producers of a
    snapshot (….snapshot), leader-epoch-checkpoint, partition.metadata, and a log directory's …-checkpoint files and meta.properties.

    What is damaged is shown as far as it holds together, with a line that says what is wrong. Nothing is changed; the box may run.

    Example: millrace log dump var/d0/syslog-0/00000000000000000000.log --records
    """
    from appliance.storage.dump import dump_file

    if os.path.isdir(file):
        raise UsageProblem(f"{file} is a directory; name a file in it, such as {file.rstrip('/')}/00000000000000000000.log")
    to_terminal = sys.stdout.isatty()
    try:
        with until_reader_closes():
            for line in dump_file(file, records):
                data = line.encode()
                sys.stdout.buffer.write((printable(data) if to_terminal else data) + b"\n")
    except ValueError as error:
        raise UsageProblem(str(error)) from error
    except FileNotFoundError as error:
        raise UsageProblem(f"{file}: {(error.strerror or str(error)).lower()}; name a file such as DIR/TOPIC-0/00000000000000000000.log") from error
    except OSError as error:
        raise MillraceError(f"could not read {file}: {(error.strerror or str(error)).lower()}") from error
