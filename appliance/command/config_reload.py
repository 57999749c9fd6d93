"""The work of `millrace config reload`: order it at the supervisor, restart what systemd has to restart, report.

The file is checked here first, as `millrace config check` does, because the supervisor checks no certificates. Weak spot: the file may change
between check and order; the supervisor then refuses what is wrong, or reads the newer one.
"""

from __future__ import annotations

import json

from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.command.config_check import check_settings, print_problems
from appliance.command.disk import order_disk
from appliance.command.finding import find_running_box
from appliance.command.output import say
from appliance.runtime.unit_files import unit_name
from appliance.runtime.unit_process import SYSTEMD

RELOAD, DRY_RUN = "reload", "dry-run"
"""As in the order (`services/supervisor/settings_reload.py`)."""
WAITING = "waiting:"


def print_reload(dry_run: bool, as_json: bool, data: str | None, config: str | None) -> bool:
    """Reload the settings file of a box and report; False if the file is wrong, and nothing was changed. Raises RequestRefused."""
    found = find_running_box(data, config)
    answer = _order(found.layout, DRY_RUN)
    file = answer["file"]
    checked = check_settings(file)
    if checked.problems:
        with open(file, "rb") as opened:
            print_problems(checked, file, opened.read().decode(errors="replace"))
        say("millrace: nothing was changed")
        return False
    is_unit = found.box.get("managed_by") == SYSTEMD
    if not dry_run:
        answer = _order(found.layout, "")
        if is_unit and answer["ingests"]:
            from appliance.command.unit_installation import systemctl

            # no wait: `systemctl reload` of the supervisor, whose part this may be, has to end before
            systemctl("--no-block", "restart", *(unit_name(process) for process in _names(answer["ingests"])))
    print(_document(answer, dry_run) if as_json else _text(answer, dry_run, is_unit), end="")
    return True


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
