"""After an order about a disk, where systemd runs the box: its units are written, started and stopped by the command that gave the order, if root gave it.

The supervisor has changed box.json by then; it may not start units, and need not. Weak spot: when this is cut off half way, the box has a disk without units
(or units without a disk, which end by themselves): `millrace units apply` and `systemctl start millrace.target` bring both together.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.base.settings import load_box
from appliance.command.failures import UsageProblem
from appliance.command.output import say
from appliance.command.unit_installation import install_units, plan_of_box, systemctl
from appliance.runtime.disk_orders import ADD, REMOVE, REPLACE, disk_processes
from appliance.runtime.unit_files import disk_problems, numeric_address, unit_name

RUNTIME_UNITS = "/run/systemd/system"
GIVEN_UP_DROP_IN = "90-given-up.conf"
_ACTIONS = {ADD: "start", REMOVE: "stop", REPLACE: "restart"}
_IMPATIENT = "[Service]\nTimeoutStopSec=1s\n"
_OF_MKFS = frozenset({"lost+found"})
"""What a new file system has in it."""


def check_disk_for_units(path: str, name: str) -> None:
    """Whether a unit can be called after the disk. Raises UsageProblem."""
    if problems := disk_problems(path, name):
        raise UsageProblem("\n".join(problems))


def hand_over_directory(layout: BoxLayout, path: str) -> None:
    """An empty directory, or a new file system, that root has made for a box whose processes are not root's. Raises UsageProblem for one that holds
    somebody's files: which of them are to be given away is not ours to say."""
    owner = os.stat(layout.runtime_directory)
    if os.geteuid() or os.stat(path).st_uid == owner.st_uid:
        return
    if found := set(os.listdir(path)) - _OF_MKFS:
        user = pwd.getpwuid(owner.st_uid).pw_name
        raise UsageProblem(f"{path} is not empty ({min(found)}) and is not {user}'s; empty it, or give it away: chown -R {user}:{user} {path}")
    os.chown(path, owner.st_uid, owner.st_gid)
    os.chmod(path, 0o750)


def carry_out(layout: BoxLayout, verb: str, disk: str) -> None:
    """Have systemd do what was ordered, or say what to run."""
    units = [unit_name(process) for process in disk_processes(disk)]
    if os.geteuid():
        apply = "" if verb == REMOVE else "millrace units apply; "
        say(f"run as root: {apply}systemctl {_ACTIONS[verb]} {' '.join(units)}")
        return
    if verb == REMOVE:
        systemctl("stop", "--", *units)
    box = load_box(layout)
    install_units(plan_of_box(box._replace(listen=numeric_address(box.listen))))
    systemctl("daemon-reload")
    if verb == REPLACE:
        _kill(units)
    if verb != REMOVE:
        systemctl("start", "--", *units)


def _kill(units: list[str]) -> None:
    """End processes that their disk may hold: they take note when it lets them go. systemd, which would wait for them, is told not to."""
    drop_ins = [Path(RUNTIME_UNITS) / f"{unit}.d" / GIVEN_UP_DROP_IN for unit in units]
    for drop_in in drop_ins:
        drop_in.parent.mkdir(parents=True, exist_ok=True)
        drop_in.write_text(_IMPATIENT)
    systemctl("daemon-reload")
    for unit in units:
        try:
            systemctl("kill", "--signal=KILL", "--", unit)
        except MillraceError:
            pass  # it does not run
    systemctl("stop", "--", *units)
    for drop_in in drop_ins:
        drop_in.unlink()
    systemctl("daemon-reload")
