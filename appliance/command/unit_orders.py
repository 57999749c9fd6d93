"""After an order about a disk, where systemd runs the box: its units are written, started and stopped by the command that gave the order, as root.

The supervisor has changed `STATE/disks.json` by then; it may not start units, and need not. Root believes nothing else of what the box's user wrote: units
are planned from the settings file, as by `millrace units apply`, and only the name of a disk comes from the running box. Weak spot: if this is cut off
half way, the box has a disk without units (or units without a disk, which end by themselves): `millrace units apply` and `systemctl start
millrace.target` bring both together.
"""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.base.settings import read_settings_file
from appliance.base.trusted_files import SYSTEM_USER
from appliance.command.failures import UsageProblem
from appliance.command.finding import SYSTEM_SETTINGS_FILE
from appliance.command.unit_installation import install_units, plan_of_settings, systemctl
from appliance.runtime.disk_orders import REMOVE, REPLACE, disk_processes
from appliance.runtime.unit_files import UnitPlan, disk_problems, unit_name, unit_name_problem

RUNTIME_UNITS = "/run/systemd/system"
GIVEN_UP_DROP_IN = "90-given-up.conf"
_IMPATIENT = "[Service]\nTimeoutStopSec=1s\n"
_OF_MKFS = frozenset({"lost+found"})
"""What a new file system has in it."""


def check_disk_for_units(path: str, name: str) -> None:
    """Whether a unit can be called after the disk. Raises UsageProblem."""
    if problems := disk_problems(path, name):
        raise UsageProblem("\n".join(problems))


def hand_over_directory(path: str, user: str = SYSTEM_USER) -> None:
    """Give an empty directory, or a new file system, that root made to the user of the installed box. Raises UsageProblem for one that holds files: which of
    them are given up is the administrator's decision."""
    if os.geteuid():
        return
    try:
        owner = pwd.getpwnam(user)
    except KeyError:
        raise UsageProblem(f"there is no user {user}, whose the disks of an installed box are; run install.sh") from None
    descriptor = _open_without_links(path)
    try:
        if os.fstat(descriptor).st_uid == owner.pw_uid:
            return
        if found := set(os.listdir(descriptor)) - _OF_MKFS:
            raise UsageProblem(f"{path} is not empty ({min(found)}) and is not {user}'s; empty it, or give it away: chown -R {user}:{user} {path}")
        os.fchown(descriptor, owner.pw_uid, owner.pw_gid)
        os.fchmod(descriptor, 0o750)
    finally:
        os.close(descriptor)


def _open_without_links(path: str) -> int:
    """A descriptor of the directory; a link on the way could be another user's, and lead elsewhere. Raises UsageProblem."""
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in filter(None, path.split("/")):
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError as error:
            is_link = error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.realpath(path) != path
            words = f"is reached through a link; give the real path: {os.path.realpath(path)}" if is_link else f"cannot be opened: {error.strerror}"
            raise UsageProblem(f"{path} {words}") from error
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def check_named_by_root(name: str, path: str, config: str | None) -> None:
    """Before root gives a directory away that only the running box names: the settings file must name it, too. Raises UsageProblem."""
    settings_file = config or SYSTEM_SETTINGS_FILE
    data = read_settings_file(settings_file).box.get("data")
    if not os.geteuid() and path not in ([data] if isinstance(data, str) else data if isinstance(data, list) else []):
        raise UsageProblem(f"{settings_file} does not name the path of disk {name}; give it: millrace disk replace {name} PATH (it is {path!r} now)")


def carry_out(layout: BoxLayout, verb: str, disk: str, config: str | None) -> None:
    """Have systemd do what was ordered, as root. `config`: the settings file, if it is not the installed one."""
    if (problem := unit_name_problem(disk)) is not None:
        raise UsageProblem(f"the supervisor named a disk of which {problem}")
    units = [unit_name(process) for process in disk_processes(disk)]
    plan = plan_for(layout, verb, disk, config)
    if verb == REMOVE:
        systemctl("stop", "--", *units)
    install_units(plan)
    systemctl("daemon-reload")
    if verb == REPLACE:
        _kill(units)
    if verb != REMOVE:
        systemctl("start", "--", *units)


def plan_for(layout: BoxLayout, verb: str, disk: str, config: str | None) -> UnitPlan:
    """What the units are to be after the order. Raises UsageProblem if the order changed another box than the one of the settings file, or nothing."""
    settings_file = config or SYSTEM_SETTINGS_FILE
    box, plan = plan_of_settings(settings_file)
    if box.box != layout.box:
        raise UsageProblem(f"the order went to the box {layout.box}, but {settings_file} describes {box.box}; name its settings file with --config")
    if (disk in {each.name for each in box.disks}) == (verb == REMOVE):
        raise UsageProblem(f"{box.state_directory}/disks.json does not say what was ordered of disk {disk}; see: millrace disk list")
    return plan


def _kill(units: list[str]) -> None:
    """End processes that may wait for their disk; the signal takes effect when the disk answers. systemd does not wait for them."""
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
