"""One rule for the options of all commands, which the real parser is walked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.command.main import build_parser
from appliance.command.options import WITHOUT_TIMEOUT

REPORTS_ONE_LINE = "prints one line about what it did"
WITHOUT_JSON = {
    "run": "becomes the box",
    "send": REPORTS_ONE_LINE,
    "stream": "runs until it is stopped; what it does is in its log",
    **dict.fromkeys(("topic create", "topic alter", "topic reassign", "topic elect", "topic delete", "topic trim"), REPORTS_ONE_LINE),
    **dict.fromkeys(("box add", "box drain", "box remove"), REPORTS_ONE_LINE),
    **dict.fromkeys(
        ("group alter", "group reset-offsets", "group delete", "user add", "user delete", "transaction abort", "quota set", "quota remove"), REPORTS_ONE_LINE
    ),
    **dict.fromkeys(("disk add", "disk drain", "disk remove", "disk replace"), REPORTS_ONE_LINE),
    **dict.fromkeys(("cluster secret new", "cluster secret show", "cluster secret set", "cluster secret consumer"), "prints the secret alone"),
    **dict.fromkeys(("cluster certificate init", "cluster certificate issue", "cluster certificate renew"), REPORTS_ONE_LINE),
    **dict.fromkeys(("cluster certificate rotate", "config convert", "units apply", "units remove"), REPORTS_ONE_LINE),
    "cluster certificate show": "`millrace status --json` and the metrics have the days that certificates last",
    "mirror run": "runs until it is stopped",
    "mirror check": "its lines are for the person who wrote the file",
    "ingest check": "is a command of release 0.1 that names its successor",
    "config check": "writes FILE:LINE: words, as compilers do",
    "units list": "prints names of units, one a line",
    "completion": "prints a script",
    "manual": REPORTS_ONE_LINE,
    "log dump": "prints one line a batch",
}
DESTROYING = {
    *("topic delete", "topic trim", "topic elect", "group delete", "group reset-offsets", "acl remove", "user delete"),
    *("transaction abort", "box remove", "disk orphans"),
}
CONFIRMED_OTHERWISE = {"disk replace": "--accept-data-loss", "disk remove": "refuses a disk that holds anything", "cluster secret new": "--replace"}


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    command = build_parser() if command is None else command
    for name, each in getattr(command, "commands", {}).items():
        if hasattr(each, "commands"):
            yield from commands(each, (*path, name))
        else:
            yield " ".join((*path, name)), each


ALL = dict(commands())


def options_of(name: str) -> dict[str, Any]:
    return {spelling: each for each in ALL[name].params for spelling in each.opts if spelling.startswith("-")}


def test_each_command_writes_json_or_there_is_a_reason_why_not() -> None:
    assert {name for name in ALL if "--json" not in options_of(name)} == set(WITHOUT_JSON)


def test_what_destroys_asks_and_yes_answers() -> None:
    assert {name for name in ALL if "--yes" in options_of(name)} == DESTROYING
    assert CONFIRMED_OTHERWISE.keys() <= ALL.keys()


@pytest.mark.parametrize("name", sorted(ALL))
def test_one_meaning_has_one_name(name: str) -> None:
    options = options_of(name)
    assert not {"--preview", "--simulate", "--no-act", "--force-yes", "--quiet-yes", "--broker", "--brokers", "--file"} & options.keys()
    for retired, kept in {"--plan": "--dry-run", "--execute": "--yes", "-y": "--yes", "--settings": "--config"}.items():
        assert retired not in options or options[retired] is options.get(kept), f"{retired} is another spelling of {kept}"
    if "--bootstrap" in options:
        assert {"--data", "--config", "--command-config"} <= options.keys(), "all find their box in the same way"
        assert ("--timeout" in options) == (name.split()[-1] not in WITHOUT_TIMEOUT)


def test_an_option_of_one_name_takes_a_value_everywhere_or_nowhere_and_has_one_short_form() -> None:
    takes_value: dict[str, set[bool]] = {}
    short_forms: dict[str, set[str]] = {}
    for name in ALL:
        for spelling, each in options_of(name).items():
            if spelling.startswith("--"):
                takes_value.setdefault(spelling, set()).add(not each.is_flag)
                short_forms.setdefault(spelling, set()).update(other for other in each.opts if not other.startswith("--"))
    mixed = {spelling for spelling, found in takes_value.items() if len(found) > 1}
    assert mixed == {"--hanging"}, "`transaction list` has it for all topics, `transaction abort` for one"
    assert {spelling: found for spelling, found in short_forms.items() if len(found) > 1} == {}
