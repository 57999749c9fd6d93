"""How the command line explains itself: nothing of a sentence is lost where help is drawn, and lists of commands are whole."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from rich.text import Text
from typer.testing import CliRunner

from appliance import __version__
from appliance.command import options
from appliance.command.main import COMMANDS, GROUPS, NEED_ALL, build_app, build_parser


@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_default_in_brackets_is_shown_whether_help_is_drawn_or_not(is_drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "IS_DRAWN", is_drawn)
    words = options.words("Where it is. [default: ./var, or [else]]")
    assert (Text.from_markup(words).plain if is_drawn else words) == "Where it is. [default: ./var, or [else]]"


@pytest.mark.parametrize("command", [[], ["topic"], ["disk"]])
def test_a_list_of_commands_says_all_of_each(command: list[str]) -> None:
    result = CliRunner().invoke(build_app(), [*command, "--help"])
    assert result.exit_code == 0 and "Commands:" in result.output and "..." not in result.output.partition("Commands:")[2]


@pytest.mark.slow
def test_a_command_that_is_built_alone_has_the_same_help_and_the_same_options() -> None:
    whole = build_parser()
    assert list(whole.commands) == [*COMMANDS, *GROUPS]
    for name in {*COMMANDS, *GROUPS} - NEED_ALL:
        alone = build_parser(name)
        assert list(alone.commands) == [name]
        assert _said(alone.commands[name]) == _said(whole.commands[name]), name


def _said(command: Any) -> list[object]:
    """What a command and those below it say of themselves."""
    said: list[object] = [command.name, command.help, command.short_help, [(each.opts, each.help) for each in command.params if hasattr(each, "help")]]
    return said + [part for inner in getattr(command, "commands", {}).values() for part in _said(inner)]


def test_the_version_is_shown() -> None:
    result = CliRunner().invoke(build_app(), ["--version"])
    assert (result.exit_code, result.output) == (0, f"millrace {__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    """As the shell asks by the script of `millrace --show-completion`."""
    words = {"COMP_WORDS": "millrace transa", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "millrace transa", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'millrace'; from appliance.command.main import main; main()"]
    variables = {**os.environ, **words, "_MILLRACE_COMPLETE": f"complete_{shell}"}
    shown = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    assert "transaction" in shown and "topic" not in shown
