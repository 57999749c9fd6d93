"""`millrace config check`, `reload` and `convert`. Their work is in `config_check` and
`config_reload`, which `millrace --help` need not load.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.finding import SYSTEM_SETTINGS_FILE
from appliance.command.options import ConfigOption, DataOption, DryRunOption, JsonOption, option
from appliance.command.output import until_reader_closes


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Check and reload settings files; print the reference of all settings.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("check")(check)
    app.command("reload")(reload)
    app.command("convert")(convert)
    return app


def check(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help=f"A settings file (TOML). [default: {SYSTEM_SETTINGS_FILE}]", show_default=False)] = None,
    reference: Annotated[bool, option("--reference", help="Print the reference of all settings (Markdown) instead.")] = False,
) -> None:
    """Print everything that is wrong with a settings file, or what its tables of senders mean; exit
    code 1 if anything is wrong.

    Example: millrace config check /etc/millrace/millrace.toml
    """
    if reference:
        from appliance.command.config_check import reference_page

        with until_reader_closes():
            sys.stdout.write(reference_page())
        return
    if file is None and not os.path.exists(SYSTEM_SETTINGS_FILE):
        raise UsageProblem(f"there is no {SYSTEM_SETTINGS_FILE}; name the settings file to check, or give --reference")
    from appliance.command.config_check import print_check

    if not print_check(file or SYSTEM_SETTINGS_FILE):
        raise typer.Exit(EXIT_FAILED)


def reload(dry_run: DryRunOption = False, as_json: JsonOption = False, data: DataOption = None, config: ConfigOption = None) -> None:
    """Let the running box use its changed settings file, and name what needs a restart (exit code 3
    if anything does). If anything is wrong with the file, nothing changes (exit code 1).

    Example: millrace config reload --dry-run
    """
    from appliance.command.config_reload import print_reload

    if code := print_reload(dry_run, as_json, data, config):
        raise typer.Exit(code)


def convert(file: Annotated[str, typer.Argument(metavar="[FILE]", help="The settings file.")] = SYSTEM_SETTINGS_FILE) -> None:
    """Move the table of senders of release 0.1 (ingest.table.file) into the settings file; the old
    file is kept as NAME.converted.

    `millrace config check FILE` shows what would be written.
    """
    from appliance.command.config_check import convert_settings

    print(convert_settings(file))
