"""The work of `millrace config reload`: order it at the supervisor, restart what systemd has to restart, report.

The file is checked here first, as `millrace config check` does, because the supervisor checks no certificates. Weak spot: the file may change
between check and order; the supervisor then refuses what is wrong, or reads the newer one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from appliance.base.errors import MillraceError
from appliance.base.layout import DATA_VARIABLE, BoxLayout
from appliance.command.config_check import PlacedProblem, check_settings, placed_problems, print_problems
from appliance.command.disk import order_disk
from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.finding import SYSTEM_SETTINGS_FILE, find_running_box
from appliance.command.output import say
from appliance.runtime.unit_files import unit_name
from appliance.runtime.unit_process import SYSTEMD

RELOAD, DRY_RUN = "reload", "dry-run"
"""As in the order (`services/supervisor/settings_reload.py`)."""
WAITING = "waiting:"
EXIT_WAITS = 3
"""Of the file, something is used from the next start of a process on only."""


def print_reload(dry_run: bool, as_json: bool, data: str | None, config: str | None) -> int:
    """Reload the settings file of a box and report; return the exit code: `EXIT_FAILED` if the file is wrong, and nothing was changed, `EXIT_WAITS` if
    something waits for a restart. Raises UsageProblem if `config` is no file, or not that of the box; RequestRefused."""
    if config is not None:
        if not os.path.isfile(config):
            raise UsageProblem(f"--config {config}: there is no such file; leave --config out to reload the file that the box was started with")
    by_file = config or (SYSTEM_SETTINGS_FILE if not data and not os.environ.get(DATA_VARIABLE) and os.path.exists(SYSTEM_SETTINGS_FILE) else None)
    if by_file is not None and _reports_problems(by_file, dry_run, as_json):
        return EXIT_FAILED
    found = find_running_box(data, config)
    answer = _order(found.layout, DRY_RUN)
    file = answer["file"]
    if config is not None and os.path.realpath(config) != os.path.realpath(file):
        raise UsageProblem(f"--config {config}: the box was started with {file}, which alone it reloads; leave --config out, or name its box with --data")
    if _reports_problems(file, dry_run, as_json, answer):
        return EXIT_FAILED
    is_unit = found.box.get("managed_by") == SYSTEMD
    if not dry_run:
        answer = _order(found.layout, "")
        if _reports_problems(file, dry_run, as_json, answer):
            return EXIT_FAILED
        if is_unit and answer["ingests"]:
            from appliance.command.unit_installation import systemctl

            # no wait: `systemctl reload` of the supervisor, whose part this may be, has to end before
            systemctl("--no-block", "restart", *(unit_name(process) for process in _names(answer["ingests"])))
    print(_document(answer, dry_run) if as_json else _text(answer, dry_run, is_unit), end="", flush=True)
    if answer["not_applied"]:
        say(f"millrace: {answer['not_applied'].replace(' was ', ' would be ', 1) if dry_run else answer['not_applied']}")
    return EXIT_WAITS if _waiting(answer) else 0


def _reports_problems(file: str, dry_run: bool, as_json: bool, answer: Mapping[str, str] | None = None) -> bool:
    """Report what is wrong with a file, with its lines, else what the supervisor refused; False if nothing is."""
    refused = answer.get("problems", "") if answer is not None else ""
    checked = check_settings(file)
    if not checked.problems and not refused:
        return False
    if as_json:
        problems = [_problem(each) for each in placed_problems(checked, file)] or [{"text": line} for line in refused.splitlines()]
        print(json.dumps({"file": file, "dry_run": dry_run, "problems": problems}, indent=2), flush=True)
    elif checked.problems:
        print_problems(checked, file)
    else:
        print(refused, flush=True)
    say("millrace: nothing was changed")
    return True


def _problem(problem: PlacedProblem) -> dict[str, str | int]:
    return {"text": problem.words} | ({"line": problem.line.number} if problem.line is not None else {})


def _order(layout: BoxLayout, name: str) -> dict[str, str]:
    answer = order_disk(layout, RELOAD, name, "")
    if "file" not in answer:
        raise MillraceError("the supervisor of this box cannot reload settings: it is of an older release; restart the box")
    return answer


def _names(text: str) -> list[str]:
    return text.split(", ") if text else []


def _waiting(answer: dict[str, str]) -> dict[str, list[str]]:
    """Process, or `box` → what it uses from its next start on."""
    return {name.removeprefix(WAITING): _names(text) for name, text in answer.items() if name.startswith(WAITING) and text}


def _document(answer: dict[str, str], dry_run: bool) -> str:
    document = {
        "file": answer["file"],
        "dry_run": dry_run,
        "applied": _names(answer["at_once"]),
        "applied_by_restart": _names(answer["by_ingest"]),
        "restarted": _names(answer["ingests"]),
        "needs_restart": _waiting(answer),
        "not_applied": answer["not_applied"],
    }
    return json.dumps(document, indent=2) + "\n"


def _text(answer: dict[str, str], dry_run: bool, is_unit: bool) -> str:
    verb = "would apply" if dry_run else "applied"
    lines = [f"{verb}: {name}" for name in _names(answer["at_once"])]
    lines += [f"{verb}: {name} (restarts {answer['ingests']})" for name in _names(answer["by_ingest"])]
    for process, names in sorted(_waiting(answer).items()):
        command = "millrace units apply; systemctl restart millrace.target" if process == "box" else f"systemctl restart millrace-{process}"
        how = f": {command}" if is_unit else "" if process == "box" else ", or of the box"
        lines += [f"needs a restart of the {process}{how}: {name}" for name in names]
    return "\n".join(lines or [f"nothing to reload: the box runs with {answer['file']} as it is"]) + "\n"
