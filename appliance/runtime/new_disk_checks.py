"""Checks a directory before it becomes a disk of the box: a missing path, the root file system, a
shared device, other files.

`millrace disk add`, `millrace disk replace` and `install.sh --disks` use the same rules (`python -m
appliance.runtime.new_disk_checks`, with the system's Python and the standard library alone). A typo
must not create a directory on the system disk that goes online and receives partitions. Each
problem has a named reason; `--force REASON` accepts that reason only. Devices are read from the
kernel's list of mounts, so that a hanging disk of the box blocks nothing. Nothing is changed.

Weak: of stacked devices (LVM, RAID) the device is the uppermost one; two directories of one btrfs
or NFS server may look like two devices.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from appliance.runtime.directories import META_PROPERTIES

MISSING = "missing"
ROOT_FILE_SYSTEM = "root-filesystem"
SAME_DEVICE = "same-device"
OTHER_FILES = "other-files"
REASONS = (MISSING, ROOT_FILE_SYSTEM, SAME_DEVICE, OTHER_FILES)

MOUNTS = "/proc/self/mountinfo"
OF_MKFS = frozenset({"lost+found"})
"""Entries of a new file system."""
OF_LOG_WRITERS = frozenset({".millrace-probe", *(f"{name}-offset-checkpoint" for name in ("recovery-point", "log-start", "replication"))})
"""What a log-writer may have written before it noticed that its disk had been exchanged for an empty one."""
_SHOWN_FILES_MAX = 3


class NewDiskProblem(NamedTuple):
    """`reason` is one of `REASONS`; `words` state the problem and what to do."""

    reason: str
    words: str


class Directory(NamedTuple):
    """A directory that the box already uses; `name` says for what."""

    name: str
    path: str


class Mount(NamedTuple):
    device: str
    point: str


class Mounts:
    """The mounted file systems, as the kernel lists them."""

    def __init__(self, text: str, whole_device: Callable[[str], str]) -> None:
        lines = [line.split() for line in text.splitlines()]
        # of several mounts at one point, the last one is visible
        self._mounts = {_unescaped(fields[4]): fields[2] for fields in lines}
        self._whole_device = whole_device

    @classmethod
    def of_this_machine(cls) -> Mounts:
        with open(MOUNTS) as file:
            return cls(file.read(), whole_device)

    def under(self, path: str) -> Mount:
        """Return the mount of a directory at `path` (absolute, links resolved), also if it does not
        exist."""
        point = max((point for point in self._mounts if f"{path}/".startswith(f"{point.rstrip('/')}/")), key=len)
        return Mount(self._mounts[point], point)

    def share_device(self, one: Mount, other: Mount) -> bool:
        return self._whole_device(one.device) == self._whole_device(other.device)


def whole_device(device: str) -> str:
    """Return the device that a partition (MAJOR:MINOR) is part of; any other device unchanged."""
    entry = os.path.realpath(f"/sys/dev/block/{device}")
    if not os.path.exists(f"{entry}/partition"):
        return device
    with open(f"{os.path.dirname(entry)}/dev") as file:
        return file.read().strip()


def new_disk_problems(path: str, used: Iterable[Directory], mounts: Mounts) -> list[NewDiskProblem]:
    """Return all problems of `path` as a log directory beside those that the box uses."""
    real = os.path.realpath(path)
    mount = mounts.under(real)
    problems = []
    if not os.path.lexists(path):
        problems.append(
            NewDiskProblem(
                MISSING, f"{path} does not exist, and would be created on the file system of {mount.point}; mount the disk first, or correct the path"
            )
        )
    if mount.device == mounts.under("/").device:
        problems.append(
            NewDiskProblem(
                ROOT_FILE_SYSTEM,
                f"{path} is on the root file system, which records would fill; mount a disk there (findmnt shows what is mounted)",
            )
        )
    if sharing := [each for each in used if mounts.share_device(mounts.under(os.path.realpath(each.path)), mount)]:
        shown = ", ".join(f"{each.name} ({each.path})" for each in sharing)
        problems.append(
            NewDiskProblem(
                SAME_DEVICE, f"{path} is on the same device as {shown}: they fail, fill up and wait together; give each log directory a disk of its own"
            )
        )
    if files := _other_files(path):
        shown = ", ".join(files[:_SHOWN_FILES_MAX]) + (", …" if len(files) > _SHOWN_FILES_MAX else "")
        problems.append(
            NewDiskProblem(OTHER_FILES, f"{path} has other files ({shown}) and is no log directory (no {META_PROPERTIES}); empty it, or choose another")
        )
    return problems


def unforced(problems: Iterable[NewDiskProblem], force: Collection[str]) -> list[str]:
    """Return the problems whose reason is not accepted, each with the option that accepts it."""
    return [f"{problem.words}; to use it all the same: --force {problem.reason}" for problem in problems if problem.reason not in force]


def forced_reasons(values: Iterable[str]) -> frozenset[str]:
    """Return the reasons that `--force` names, each value one or several separated by commas.
    Raises ValueError for an unknown one."""
    reasons = frozenset(reason.strip() for value in values for reason in value.split(",") if reason.strip())
    if unknown := sorted(reasons.difference(REASONS)):
        raise ValueError(f"--force {unknown[0]}: there is no such reason; there are {', '.join(REASONS)}")
    return reasons


def _other_files(path: str) -> list[str]:
    """Return the other files, sorted; none if it is a log directory, whose files are its own."""
    try:
        names = sorted(set(os.listdir(path)) - OF_MKFS - OF_LOG_WRITERS)
    except OSError:
        return []  # another check reports a missing or unreadable directory
    return [] if META_PROPERTIES in names else names


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def main(arguments: list[str]) -> int:
    """Print one line per problem of the chosen directories, for install.sh. Exit code 2 for a wrong
    option."""
    parser = argparse.ArgumentParser(prog="new_disk_checks", description=__doc__)
    parser.add_argument("--state", required=True)
    parser.add_argument("--force", action="append", default=[])
    parser.add_argument("--served", action="append", default=[], help="a log directory that the box has already")
    parser.add_argument("chosen", nargs="*")
    given = parser.parse_args(arguments)
    try:
        force = forced_reasons(given.force)
    except ValueError as error:
        parser.error(str(error))
    mounts = Mounts.of_this_machine()
    used = [Directory("the state directory", given.state), *(Directory("the log directory", path) for path in given.served)]
    for path in given.chosen:
        for line in unforced(new_disk_problems(path, used, mounts), force):
            print(line)
        used.append(Directory("the log directory", path))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
