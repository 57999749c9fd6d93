"""`millrace`: puts the commands together and turns what they raise into one line on stderr and an exit code.

Weak spot: typer costs 100 ms at every start but that of `status --json`; other commands, rich and the client are imported by the command that needs
them.
"""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from appliance.command.failures import EXIT_CODES_HELP, run_app

if TYPE_CHECKING:
    import typer

FINDING_HELP = (
    "A command finds its box by --data DIR (any one of its data directories), else the environment variable MILLRACE_DATA, else the settings file, else ./var."
)
EPILOG = f"{FINDING_HELP}\n\n{EXIT_CODES_HELP}"


COMMANDS = {
    **{name: (name, name) for name in ("run", "status", "top", "doctor", "logs", "search", "query", "send", "load", "stream")},
    "completion": ("manual", "completion"),
    "manual": ("manual", "manual"),
}
"""Command → the module below `appliance.command` and its function there."""
GROUPS = {
    **{
        name: name
        for name in ("topic", "table", "box", "cluster", "group", "acl", "user", "quota", "mirror", "transaction", "disk", "ingest", "config", "units")
    },
    "log": "log_dump",
}
"""Group of commands → its module."""
NEED_ALL = frozenset({"completion", "manual"})
"""Commands that describe the others."""


def build_app(only: str = "") -> typer.Typer:
    """The command tree; or of it only one command or group, which is imported in half of the time."""
    import typer

    from appliance.command.options import IS_DRAWN, options_of_millrace

    markup: Literal["rich"] | None = "rich" if IS_DRAWN else None
    context = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(name="millrace", help="A log appliance that speaks Kafka.", epilog=EPILOG, no_args_is_help=True,
                      rich_markup_mode=markup, pretty_exceptions_enable=False, context_settings=context)  # fmt: skip
    app.callback()(options_of_millrace)
    for name, (module, function) in COMMANDS.items():
        if only in ("", name):
            app.command(name)(getattr(import_module(f"appliance.command.{module}"), function))
    for name, module in GROUPS.items():
        if only in ("", name):
            app.add_typer(import_module(f"appliance.command.{module}").build_app(markup), name=name)
    _list_whole(app)
    return app


def build_parser(only: str = "") -> Any:
    """The parser of the command tree, or of one command or group of it, as it is run."""
    import typer

    from appliance.command.manual import add_names
    from appliance.command.options import add_connection_options

    parser = typer.main.get_command(build_app(only))
    add_connection_options(parser)
    add_names(parser)
    return parser


def _list_whole(app: typer.Typer) -> None:
    """Lists of commands have the first paragraph of each, which typer would cut at the end of a line."""
    for command in app.registered_commands:
        command.short_help = inspect.cleandoc(command.callback.__doc__ or "").partition("\n\n")[0].replace("\n", " ") if command.callback else None
    for registered in app.registered_groups:
        if registered.typer_instance is not None:
            registered.short_help = registered.typer_instance.info.help
            _list_whole(registered.typer_instance)


def print_status_document(arguments: list[str]) -> bool:
    """`status --json` without typer and the other commands, which take more time on a busy machine than the answer itself. False for any other arguments.

    Raises MillraceError.
    """
    if arguments[:1] != ["status"] or arguments.count("--json") != 1:
        return False
    rest = [argument for argument in arguments[1:] if argument != "--json"]
    chosen = dict(zip(rest[::2], rest[1::2]))
    if len(rest) != 2 * len(chosen) or not chosen.keys() <= {"--data", "--config"}:
        return False
    import json
    import os
    from contextlib import suppress

    with suppress(OSError):  # only root may: 0.2 s of CPU time, which would take seconds behind a load of 24
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    from appliance.command.box_status import measure
    from appliance.command.finding import find_running_box

    found = find_running_box(chosen.get("--data"), chosen.get("--config"))
    sys.stdout.write(json.dumps(measure(found.layout, found.box).document(), indent=2) + "\n")
    return True


def run_command() -> None:
    """Run the command that the arguments name."""
    if print_status_document(sys.argv[1:]):
        return
    from appliance.command.usage_errors import run_parser

    named = sys.argv[1] if len(sys.argv) > 1 else ""
    sys.exit(run_parser(build_parser(named if named in {*COMMANDS, *GROUPS} - NEED_ALL else "")))


def main() -> None:
    """Entry point of the console script."""
    if "_MILLRACE_COMPLETE" in os.environ:
        os.environ["COLUMNS"] = "1000"  # fish takes each line of a help text for a choice
    run_app(run_command)


if __name__ == "__main__":
    main()
