"""`millrace config check FILE`: everything that is wrong with a settings file at once, each with its line; `--reference`: the page of all settings.

Nothing of the machine is looked at but the file, the table of senders that it names, and the names of directories; what the machine says about them is
`millrace doctor --config FILE`.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.options import option
from appliance.command.output import plural, say, until_reader_closes


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Check settings files; print the reference of all settings.", no_args_is_help=True, rich_markup_mode=markup)
    # Without a callback typer would make the only command the group itself.
    app.callback()(lambda: None)
    app.command("check")(check)
    return app


def check(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="A settings file (TOML).", show_default=False)] = None,
    reference: Annotated[bool, option("--reference", help="Print the reference of all settings (Markdown) instead.")] = False,
) -> None:
    """Say everything that is wrong with a settings file; exit code 1 if anything is.

    Example: millrace config check /etc/millrace/millrace.toml
    """
    if reference:
        from appliance.base.settings_reference import reference_page

        with until_reader_closes():
            sys.stdout.write(reference_page())
        return
    if file is None:
        raise UsageProblem("name a settings file to check, or give --reference")
    try:
        with open(file, "rb") as opened:
            text = opened.read().decode(errors="replace")
    except OSError as error:
        raise UsageProblem(f"{file}: {(error.strerror or str(error)).lower()}") from error
    problems = problems_of(file)
    if problems:
        print_problems(file, text, problems)
    of_senders = sender_problems(file)
    if of_senders:
        print("\n".join(of_senders), flush=True)
        say(f"millrace: {plural(len(of_senders), 'problem')} in the table of senders that {file} names")
    if problems or of_senders:
        raise typer.Exit(EXIT_FAILED)
    print(summary(file))


def problems_of(file: str) -> list[str]:
    """What `millrace run --config FILE` would say of the file alone."""
    from appliance.runtime.directories import shape_problems
    from appliance.runtime.run_options import RunOptions, resolve_options

    resolved, problems = resolve_options(RunOptions(config=file), os.cpu_count() or 1)
    return problems + shape_problems(resolved.data, resolved.state)


def sender_problems(file: str) -> list[str]:
    """What is wrong with the table of senders, if the file names one: FILE:LINE: words. One that is not there yet (install.sh checks settings before it writes
    the table) is only spoken of."""
    from appliance.runtime.run_options import RunOptions, resolve_options
    from appliance.senders.table_checks import FILE_SETTING, read_sender_table

    options, _ = resolve_options(RunOptions(config=file), os.cpu_count() or 1)
    path = str(options.settings[FILE_SETTING])
    if path and not os.path.exists(path):
        say(f"millrace: {path} is not there; the box does not start without it ({FILE_SETTING})")
        return []
    table = read_sender_table(options)
    return [*table.problems, *(table.certificate_check() if table.certificate_check is not None else [])]


def print_problems(file: str, text: str, problems: list[str]) -> None:
    """One problem a line, as compilers write them: FILE:LINE: words, and below it the line itself."""
    from appliance.command.config_lines import line_of_problem, lines_by_name

    lines = lines_by_name(text)
    words_of = [problem.removeprefix(f"{file}: ") for problem in problems]
    found = [(words, line_of_problem(words, lines, text)) for words in words_of]
    for words, line in sorted(found, key=lambda pair: pair[1].number if pair[1] else 0):
        if line is None:
            print(f"{file}: {words}")
        else:
            print(f"{file}:{line.number}: {words}\n{line.number:>6} | {line.text}")
    sys.stdout.flush()
    say(f"millrace: {plural(len(problems), 'problem')} in {file}")


def summary(file: str) -> str:
    from appliance.base.setting_rows import SETTING_ROWS
    from appliance.base.settings import read_settings_file

    read = read_settings_file(file)
    changed = sum(SETTING_ROWS[name].default != value for name, value in read.settings.items())
    return f"{file}: ok, {plural(len(read.box), 'option')} and {plural(len(read.settings), 'setting')}, {changed} of them not the default"
