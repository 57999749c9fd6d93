"""How the command line explains itself: nothing of a sentence is lost where help is drawn, and lists of commands are whole."""

from __future__ import annotations

import pytest
from rich.text import Text
from typer.testing import CliRunner

from appliance.command import options
from appliance.command.main import build_app


@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_default_in_brackets_is_shown_whether_help_is_drawn_or_not(is_drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "IS_DRAWN", is_drawn)
    words = options.words("Where it is. [default: ./var, or [else]]")
    assert (Text.from_markup(words).plain if is_drawn else words) == "Where it is. [default: ./var, or [else]]"


@pytest.mark.parametrize("command", [[], ["topic"], ["disk"]])
def test_a_list_of_commands_says_all_of_each(command: list[str]) -> None:
    result = CliRunner().invoke(build_app(), [*command, "--help"])
    assert result.exit_code == 0 and "Commands:" in result.output and "..." not in result.output.partition("Commands:")[2]
