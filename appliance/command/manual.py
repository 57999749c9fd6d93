"""`millrace completion` and `millrace manual`: scripts for shells and pages for man, from the parser itself.

The installer puts both below /usr/local/share. Weak: a script of a shell starts the command at each TAB, 0.2 s.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from appliance.command.failures import UsageProblem
from appliance.command.options import argument

SHELLS = ("bash", "zsh", "fish")
SHARE = {
    "bash": "bash-completion/completions/millrace",
    "zsh": "zsh/site-functions/_millrace",
    "fish": "fish/vendor_completions.d/millrace.fish",
}
"""Where each shell looks, below a share directory."""
PAGES = "man/man1"


def completion(shell: Annotated[str, argument("SHELL", "bash, zsh or fish.")]) -> None:
    """Print the script by which a shell completes commands and options at TAB.

    Example: millrace completion bash > /etc/bash_completion.d/millrace
    """
    sys.stdout.write(script(shell))


def script(shell: str) -> str:
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise UsageProblem(f"there is no script for {shell!r}; there are {', '.join(SHELLS)}")
    return get_completion_script(prog_name="millrace", complete_var="_MILLRACE_COMPLETE", shell=shell) + "\n"


def manual(context: typer.Context, directory: Annotated[str, argument("DIRECTORY", "A share directory, such as /usr/local/share.")]) -> None:
    """Write pages for man, and the scripts of all shells, below a directory."""
    count = write_manual(context.find_root().command, directory)
    print(f"wrote {count} files below {directory}")


def write_manual(root: Any, directory: str) -> int:
    """Write all files, each as a whole; return how many. Raises UsageProblem."""
    written = {SHARE[shell]: script(shell) for shell in SHELLS}
    written |= {f"{PAGES}/{name}.1": text for name, text in pages(root)}
    try:
        for name, text in written.items():
            path = os.path.join(directory, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(f"{path}.part", 0o644)
            os.replace(f"{path}.part", path)
    except OSError as error:
        raise UsageProblem(f"could not write {error.filename}: {error.strerror}") from error
    return len(written)


def pages(root: Any) -> Iterator[tuple[str, str]]:
    """Return name and roff text of a page for each command, and for each list of commands."""
    from typer.core import TyperGroup

    pending = [(root, typer.Context(root, info_name="millrace"))]
    while pending:
        command, context = pending.pop()
        inner = {name: each for name, each in command.commands.items() if not each.hidden} if isinstance(command, TyperGroup) else {}
        yield context.command_path.replace(" ", "-"), _page(command, context, inner)
        pending += [(each, typer.Context(each, info_name=name, parent=context)) for name, each in inner.items()]


def _page(command: Any, context: Any, inner: dict[str, Any]) -> str:
    from appliance import __version__

    path = context.command_path
    summary, _, more = inspect.cleandoc(command.help or "").partition("\n\n")
    lines = [f'.TH "{path.replace(" ", "-").upper()}" 1 "" "Millrace {__version__}"', ".SH NAME", _text(f"{path.replace(' ', '-')} - {_joined(summary)}")]
    lines += [".SH SYNOPSIS", f".B {_text(path)}", _text(" ".join(command.collect_usage_pieces(context)))]
    if more:
        lines += [".SH DESCRIPTION", *_paragraphs(more)]
    records = [record for each in command.params if (record := each.get_help_record(context)) is not None]
    if records:
        lines.append(".SH OPTIONS")
    for name, words in records:
        lines += [".TP", f".B {_text(name)}", _text(_joined(words))]
    if inner:
        lines.append(".SH COMMANDS")
    for name, each in sorted(inner.items()):
        lines += [".TP", f".B {_text(name)}", _text(_joined(each.get_short_help_str(1_000)))]
    if command.epilog:
        lines += [".SH NOTES", *_paragraphs(command.epilog)]
    lines += [".SH EXIT STATUS", _text("0: done. 1: tried and failed, or a check found problems. 2: wrong usage or no box found; nothing was tried.")]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield from (".PP", _text(_joined(paragraph)))


def _joined(text: str) -> str:
    return " ".join(text.replace("\\[", "[").split())


def _text(text: str) -> str:
    """Return one line of roff: no character of it is a request or an escape."""
    escaped = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in text.replace("\\", "\\e").replace("-", "\\-"))
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
