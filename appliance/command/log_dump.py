"""`millrace log dump FILE`: what a segment or an index holds, in words.

It reads the file itself: the one command that touches a log disk, because it is told to.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from appliance.base.errors import MillraceError
from appliance.command.failures import UsageProblem
from appliance.command.options import argument, option
from appliance.command.output import printable, while_somebody_reads


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Look into log files.", no_args_is_help=True, rich_markup_mode=markup)
    # Without a callback typer would make the only command the group itself, and `millrace log dump FILE` would not parse.
    app.callback()(lambda: None)
    app.command("dump")(dump)
    return app


def dump(
    file: Annotated[str, argument("FILE", "A segment (….log) or an index (….index, ….timeindex).")],
    records: Annotated[bool, option("--records", "-r", help="Show every record, not only the batches.")] = False,
) -> None:
    """Print what a segment or an index holds."""
    from appliance.storage.dump import dump_file

    to_terminal = sys.stdout.isatty()
    try:
        with while_somebody_reads():
            for line in dump_file(file, records):
                data = line.encode()
                sys.stdout.buffer.write((printable(data) if to_terminal else data) + b"\n")
    except ValueError as error:
        raise UsageProblem(str(error)) from error
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageProblem(f"{file}: {(error.strerror or str(error)).lower()}; name a file such as DIR/TOPIC-0/00000000000000000000.log") from error
    except OSError as error:
        raise MillraceError(f"could not read {file}: {(error.strerror or str(error)).lower()}") from error
