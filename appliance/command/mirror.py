"""`millrace mirror …`: copy topics of other clusters into one. Each command becomes `services.mirror`, which needs no library of the command."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal, NoReturn

import typer

from appliance.command.options import JsonOption, argument
from appliance.runtime.run_options import python_arguments

DIRECTORY = "/etc/millrace/mirror"
"""Where the unit `millrace-mirror@NAME` has NAME.toml."""

FileArgument = Annotated[str, argument("FILE", f"The mirror's file (TOML), or NAME for {DIRECTORY}/NAME.toml. See docs/mirroring.md.")]


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Copy topics of other clusters into one, each record once.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("run")(run)
    app.command("check")(check)
    app.command("status")(status)
    return app


def run(file: FileArgument) -> None:
    """Copy until Ctrl-C. Killed at any moment and started again, it goes on where it was."""
    _become("run", file)


def check(file: FileArgument) -> None:
    """Report everything that is wrong in the file; then connect to each cluster, and name the rights that are missing there."""
    _become("check", file)


def status(file: FileArgument, json: JsonOption = False) -> None:
    """Show how far each partition is. Exit code 1: something needs attention."""
    _become("status", file, *(["--json"] if json else []))


def _become(verb: str, file: str, *flags: str) -> NoReturn:
    path = file if "/" in file or file.endswith(".toml") else f"{DIRECTORY}/{file}.toml"
    environment = dict(os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *python_arguments("services.mirror", environment), verb, path, *flags], environment)
