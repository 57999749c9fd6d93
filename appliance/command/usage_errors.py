"""What a wrong command line is answered by: the whole usage of the command, and behind it what is wrong, in our words.

Weak: a message of the parser that is not known here is shown as it is.
"""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from typing import Any

from appliance.base.terminal_text import terminal_text
from appliance.command.failures import EXIT_FAILED, EXIT_USAGE

WIDTH = 80

_WORDS = (
    (re.compile(r"No such command '(.*)'\."), "there is no command {0}"),
    (re.compile(r"No such option: (\S+)"), "there is no option {0}"),
    (re.compile(r"Option '(\S+)' requires an argument\."), "{0} needs a value"),
    (re.compile(r"Option '(\S+)' does not take a value\."), "{0} takes no value"),
    (re.compile(r"Got unexpected extra arguments? ?(?:\(s\) )?\((.*)\)"), "{0}: that is more than the command takes"),
    (re.compile(r"Missing command\."), "name one of its commands"),
    (re.compile(r"Input should be a valid integer"), "that is no whole number"),
    (re.compile(r"Input should be a valid number"), "that is no number"),
    (re.compile(r"Input should be greater than or equal to (\S+)"), "the least is {0}"),
    (re.compile(r"Input should be less than or equal to (\S+)"), "the most is {0}"),
)


def run_parser(parser: Any) -> int:
    """Run the command of this process's arguments; return its exit code."""
    from typer import Abort
    from typer._click.exceptions import UsageError

    try:
        code = parser(prog_name="millrace", standalone_mode=False)
    except UsageError as error:
        sys.stdout.flush()
        print(usage_error_text(error, parser, sys.argv[1:]), file=sys.stderr)
        return EXIT_USAGE
    except Abort:
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def usage_error_text(error: Any, parser: Any, arguments: list[str]) -> str:
    """Return the usage of the command that the error is about, its options and commands, and what is wrong."""
    context = error.ctx or _context_of(parser, arguments)
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.message)
    formatter = context.make_formatter()
    formatter.width = WIDTH
    context.command.format_usage(context, formatter)
    records = [record for each in context.command.params if (record := each.get_help_record(context)) is not None]
    inner = getattr(context.command, "commands", {})
    listed = [(name, each.get_short_help_str(1_000)) for name, each in inner.items() if not each.hidden]
    for title, rows in (("Options", records), ("Commands", listed)):
        if rows:
            with formatter.section(title):
                formatter.write_dl([(name, help.replace("\\[", "[")) for name, help in rows])
    return f"{formatter.getvalue()}\n{context.command_path}: {own_words(error, context)}"


def _context_of(parser: Any, arguments: list[str]) -> Any:
    """Return the context of the command that the arguments name: some errors of the parser have none."""
    from typer import Context

    context = Context(parser, info_name="millrace")
    for word in arguments:
        inner = getattr(context.command, "commands", {}).get(word)
        if inner is None:
            break
        context = Context(inner, info_name=word, parent=context)
    return context


def own_words(error: Any, context: Any) -> str:
    """Return what is wrong, and what was probably meant."""
    parameter, kind, message = getattr(error, "param", None), type(error).__name__, str(error.message)
    subject = ""
    if parameter is not None:
        subject = max(parameter.opts, key=len) if parameter.param_type_name == "option" else str(parameter.metavar or parameter.name).upper()
    if kind == "MissingParameter":
        return f"{subject} is missing"
    words = next((form.format(*found.groups()) for pattern, form in _WORDS if (found := pattern.match(message))), message)
    known: list[str] = []
    if kind == "NoSuchOption":
        known = get_close_matches(error.option_name, [spelling for each in context.command.params for spelling in each.opts], 2)
    elif wrong := re.match(r"No such command '([^']*)'", message):
        known = get_close_matches(wrong[1], context.command.commands, 2)
    meant = f"; did you mean {' or '.join(known)}?" if known else ""
    if kind == "NoSuchOption" and not error.option_name.startswith("--") and any(each.param_type_name == "argument" for each in context.command.params):
        meant += "; arguments that begin with - come behind --"
    return terminal_text(f"{subject}: {words}{meant}" if subject else f"{words}{meant}")
