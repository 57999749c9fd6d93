"""What systemd knows of a box's units, put beside what the processes' own counters say. Asked by commands only, with one call of systemctl.

Weak spot: where systemctl cannot be run, or does not answer in time, the counters alone speak; they know neither a unit that failed nor why.
"""

from __future__ import annotations

from typing import Any

from appliance.base.errors import MillraceError
from appliance.base.settings import Box
from appliance.command.unit_installation import systemctl
from appliance.runtime.unit_files import unit_name
from appliance.runtime.unit_mode import SYSTEMD

PROPERTIES = ("Id", "ActiveState", "SubState", "Result", "MainPID", "StatusText", "ExecMainStatus", "AssertResult")
ANSWER_S = 3.0
_OTHER_RELEASE = "78"


def with_unit_states(box: dict[str, Any], supervised: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Processes as `supervisor.sock` describes them, with what systemd knows; None as before where neither knows anything."""
    if box.get("managed_by") != SYSTEMD:
        return supervised
    try:
        names = ["supervisor", *Box.from_document(box).process_names()]
        units = read_units([unit_name(name) for name in names])
    except (MillraceError, TypeError, KeyError):
        return supervised
    known = {process["name"]: process for process in supervised or []}
    return [merged({"name": name, "since": None, "restarts": None} | known.get(name, {}), units.get(unit_name(name), {})) for name in names]


def read_units(units: list[str]) -> dict[str, dict[str, str]]:
    """Properties by unit. Raises MillraceError."""
    answer = systemctl("show", f"--property={','.join(PROPERTIES)}", "--", *units, timeout_s=ANSWER_S)
    read = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in answer.split("\n\n")]
    return {properties["Id"]: properties for properties in read if "Id" in properties}


def merged(process: dict[str, Any], unit: dict[str, str]) -> dict[str, Any]:
    """The counters' word while the process runs, systemd's where it does not."""
    active, sub = unit.get("ActiveState", ""), unit.get("SubState", "")
    runs = active == "active" or (active == "activating" and sub == "start")
    words = {"status": unit["StatusText"]} if unit.get("StatusText") and active != "inactive" else {}
    if runs or not active:
        state = process.get("state") or ("serving" if active == "active" else "starting")
        if state in ("down", "not started") and active == "activating":
            state = "starting"
        return process | words | {"state": state, "pid": process.get("pid") or int(unit.get("MainPID") or 0) or None}
    return process | words | {"state": _state_without_process(active, sub, unit), "pid": None}


def _state_without_process(active: str, sub: str, unit: dict[str, str]) -> str:
    if active == "deactivating":
        return "stopping"
    if active == "activating":
        return "restarting" if sub == "auto-restart" else "starting"
    if unit.get("AssertResult") == "no":
        return "not mounted"
    if active == "failed":
        return "failed: another release" if unit.get("ExecMainStatus") == _OTHER_RELEASE else f"failed: {unit.get('Result') or 'see its log'}"
    return "stopped"
