"""Write what a box's settings mean for its systemd units, and read unit states. For commands only, never for a service.

`appliance/runtime/unit_files.py` decides what is written. Weak spots: an unmounted disk is known by /etc/fstab or by what was
written for it before; without either it counts as a directory of the root file system. If systemctl cannot run or does not
answer in time, states come from the counters alone, which do not know failed units.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from appliance.base.errors import ConfigurationProblems, MillraceError
from appliance.base.layout import Disk, box_name, name_disks
from appliance.base.settings import Box, read_settings_file
from appliance.runtime.directories import shape_problems
from appliance.runtime.disk_orders import with_kept_disks
from appliance.runtime.run_options import RunOptions, resolve_options
from appliance.runtime.unit_files import COMMON_DROP_IN, DROP_IN, HEAD, UnitPlan, plan_units, planned_box, unit_name, unit_problems
from appliance.runtime.unit_process import SYSTEMD
from appliance.senders.table_checks import read_sender_table

PROPERTIES = ("Id", "ActiveState", "SubState", "Result", "MainPID", "StatusText", "ExecMainStatus", "AssertResult")
ANSWER_S = 3.0
_OTHER_RELEASE = "78"


def with_unit_states(box: dict[str, Any], supervised: list[dict[str, Any]] | None, timeout_s: float = ANSWER_S) -> list[dict[str, Any]] | None:
    """Processes as `supervisor.sock` describes them, with what systemd knows; None as before where neither knows anything."""
    if box.get("managed_by") != SYSTEMD:
        return supervised
    try:
        names = ["supervisor", *Box.from_document(box).process_names()]
        units = read_units([unit_name(name) for name in names], timeout_s)
    except (MillraceError, TypeError, KeyError):
        return supervised
    known = {process["name"]: process for process in supervised or []}
    return [merged({"name": name, "since": None, "restarts": None} | known.get(name, {}), units.get(unit_name(name), {})) for name in names]


def read_units(units: list[str], timeout_s: float = ANSWER_S) -> dict[str, dict[str, str]]:
    """Properties by unit. Raises MillraceError."""
    answer = systemctl("show", f"--property={','.join(PROPERTIES)}", "--", *units, timeout_s=timeout_s)
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


UNIT_DIRECTORY = "etc/systemd/system"
_MOUNT_ASSERTION = "AssertPathIsMountPoint="


def plan_of_settings(settings_file: str, root: str = "/") -> tuple[Box, UnitPlan]:
    """The box that a settings file describes, as far as its units go. Raises ConfigurationProblems.

    The settings file is root's. Which disks were ordered stands in `STATE/disks.json`, which the box's user writes: it is checked like the rest."""
    given, problems = resolve_options(RunOptions(config=settings_file), os.cpu_count() or 1)
    options, ordered = with_kept_disks(given)
    disks = ordered if ordered is not None else name_disks(list(dict.fromkeys(options.data)))
    named = {} if (read := read_settings_file(settings_file)).problems else read.box
    problems += unit_problems(options, named, disks) + shape_problems(options.data, options.state)
    senders = read_sender_table(options)
    problems += senders.problems
    problems += [f"{sender.where}: port 0 is any free one; a box that systemd runs has fixed ports" for sender in senders.sockets if not sender.port]
    if problems:
        raise ConfigurationProblems(list(dict.fromkeys(problems)))
    box = planned_box(options, box_name(options.state), disks, senders)
    points = _known_mount_points(box.disks, root)
    load = "\n".join(_lines(os.path.join(root, "etc/millrace/load.conf")))
    return box, plan_units(box, {disk.path: mount_point_of(disk.path, points) for disk in box.disks}, load)


def _known_mount_points(disks: list[Disk], root: str) -> set[str]:
    """What is mounted, what shall be, and what the units that are there are bound to."""
    points = {"/"}
    for line in _lines("/proc/self/mountinfo"):
        points.add(_unescaped(line.split()[4]))
    for line in _lines(os.path.join(root, "etc/fstab")):
        fields = line.split()
        if len(fields) >= 3 and not line.startswith("#") and fields[1].startswith("/"):
            points.add(_unescaped(fields[1]).rstrip("/") or "/")
    for disk in disks:
        for line in _lines(os.path.join(root, UNIT_DIRECTORY, f"millrace-log-writer@{disk.name}.service.d", DROP_IN)):
            if line.startswith(_MOUNT_ASSERTION):
                points.add(line[len(_MOUNT_ASSERTION) :].strip())
    return points


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _unescaped(path: str) -> str:
    """The kernel and fstab write a blank as \\040."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def mount_point_of(path: str, points: Iterable[str]) -> str:
    """The deepest of these that the path is at or below."""
    return max((point for point in points if point == "/" or path == point or path.startswith(point + "/")), key=len)


def install_units(plan: UnitPlan, root: str = "/") -> list[str]:
    """Make the drop-ins as planned, and remove those of before; what was done, a line each. Raises MillraceError."""
    directory = Path(root) / UNIT_DIRECTORY
    done = []
    try:
        for name, text in plan.drop_ins.items():
            path = directory / name
            if not path.is_file() or path.read_text(errors="replace") != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                new = path.with_name(f".{path.name}.new")
                new.write_text(text)
                new.chmod(0o644)
                new.rename(path)
                done.append(f"wrote {path}")
        return done + _remove([path for path in _written(directory) if str(path.relative_to(directory)) not in plan.drop_ins])
    except OSError as error:
        raise MillraceError(f"could not write {error.filename}: {error.strerror}; `millrace units` needs root") from error


def remove_units(root: str = "/") -> list[str]:
    """Remove every drop-in that was written; what was done."""
    return _remove(_written(Path(root) / UNIT_DIRECTORY))


def _written(directory: Path) -> list[Path]:
    mounts = [path for path in directory.glob(f"*.mount.d/{DROP_IN}") if "Wants=millrace-log-writer@" in path.read_text(errors="replace")]
    sockets = [
        path
        for path in (*directory.glob("millrace-ingest-*.socket"), *directory.glob("millrace-kafka-*.socket"))
        if path.read_text(errors="replace").startswith(HEAD)
    ]
    return sorted([*directory.glob(f"millrace*.d/{DROP_IN}"), *directory.glob(COMMON_DROP_IN), *mounts, *sockets])


def _remove(paths: list[Path]) -> list[str]:
    for path in paths:
        path.unlink()
        if path.suffix != ".socket":
            try:
                path.parent.rmdir()
            except OSError:
                pass  # it has files of an administrator
    return [f"removed {path}" for path in paths]


def systemctl(*arguments: str, timeout_s: float | None = None) -> str:
    """What systemctl says. Raises MillraceError with what went wrong."""
    command = ["systemctl", *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MillraceError(f"could not run {' '.join(command)}: {error}") from error
    if answer.returncode:
        raise MillraceError(f"{' '.join(command)}: {answer.stderr.strip() or f'exit code {answer.returncode}'}")
    return answer.stdout
