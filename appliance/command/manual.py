"""`millrace completion` and `millrace manual`: scripts for shells and pages for man, from the parser itself; and the names of topics and
groups that complete a word.

The installer puts both below /usr/local/share. Weak: a script of a shell starts the command at each TAB, 0.2 s; names of a cluster that does
not answer within `NAMES_SECONDS` complete nothing.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from appliance.command.failures import GaveUp, UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import argument

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient

SHELLS = ("bash", "zsh", "fish")
SHARE = {
    "bash": "bash-completion/completions/millrace",
    "zsh": "zsh/site-functions/_millrace",
    "fish": "fish/vendor_completions.d/millrace.fish",
}
"""Where each shell looks, below a share directory."""
PAGES = "man/man1"
NAMES_SECONDS = 3.0
NAMES_MAX = 1_000
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Shells put a completed word on the command line as it is, and any client may name a group `$(…)`."""


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


# ---- names that complete a word


def add_names(command: Any, path: tuple[str, ...] = ()) -> None:
    """Let each argument and option that is the name of a topic or group be completed by those that exist."""
    for name, each in getattr(command, "commands", {}).items():
        add_names(each, (*path, name))
    for parameter in command.params:
        if (names := _names_of(path, parameter)) is not None:
            parameter.shell_complete = names


def _names_of(path: tuple[str, ...], parameter: Any) -> Callable[[Any, str], list[Any]] | None:
    is_argument, head = parameter.param_type_name == "argument", path[:1]
    if "--topic" in parameter.opts or (is_argument and (head == ("topic",) or path[0] in ("send", "load", "stream", "table")) and path != ("topic", "create")):
        return _completion(_topic_names)
    return _completion(_group_names) if "--group" in parameter.opts or (is_argument and head == ("group",)) else None


def _completion(names: Callable[[ClusterClient], Iterable[str]]) -> Callable[[Any, str], list[Any]]:
    def complete(context: Any, incomplete: str) -> list[Any]:
        from typer._click.shell_completion import CompletionItem

        given = context.params
        with _time_limit(), suppress(Exception, GaveUp), open_cluster(given.get("bootstrap"), given.get("data"), given.get("config")) as cluster:
            found = sorted({name for name in names(cluster) if name.startswith(incomplete) and _PLAIN.fullmatch(name)})
            return [CompletionItem(name) for name in found[:NAMES_MAX]]
        return []

    return complete


@contextmanager
def _time_limit() -> Iterator[None]:
    def give_up(_number: int, _frame: Any) -> None:
        raise GaveUp("no names in time")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, NAMES_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _topic_names(cluster: ClusterClient) -> Iterable[str]:
    return (name for name, topic in cluster.metadata(None).topics.items() if not topic.is_internal)


def _group_names(cluster: ClusterClient) -> Iterable[str]:
    from appliance.client.groups import list_groups

    return (group.group_id for group in list_groups(cluster))
