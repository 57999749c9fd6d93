"""Decides disk orders (`millrace disk add | remove | replace`), and keeps their result in
`STATE/disks.json` for the next start.

A disk keeps its name when its path changes: processes and counters are named after it. Orders are
kept as long as the box is started with the same directories (--data, [box] data); if those change,
the orders are dropped. The supervisor never touches a log disk: the command has checked the
directory. Weak: the directory may change after that check; its log-writer then reports it.
"""

from __future__ import annotations

import json
import os

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import Disk
from appliance.base.trusted_files import read_file
from appliance.runtime.run_options import ResolvedOptions

ADD, REMOVE, REPLACE = "add", "remove", "replace"
_FILE_BYTES_MAX = 1 << 20


def changed_disks(disks: list[Disk], verb: str, name: str, path: str) -> tuple[list[Disk], Disk]:
    """Return the disks after the order, and the disk that it is about. Raises RequestRefused."""
    if verb == ADD:
        if any(disk.path == path for disk in disks):
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{path} is a disk of this box already")
        added = Disk(free_name(disks, path), path)
        return [*disks, added], added
    found = next((disk for disk in disks if disk.name == name), None)
    if found is None:
        raise RequestRefused(ErrorCode.LOG_DIR_NOT_FOUND, f"there is no disk {name}; there are {', '.join(disk.name for disk in disks)}")
    if verb == REMOVE:
        if len(disks) == 1:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{name} is the box's only disk")
        return [disk for disk in disks if disk is not found], found
    if verb != REPLACE:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"there is no order {verb!r}")
    replaced = Disk(name, path or found.path, found.replacements + 1)
    if any(disk.path == replaced.path for disk in disks if disk is not found):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{path} is another disk of this box")
    return [replaced if disk is found else disk for disk in disks], replaced


def disk_processes(disk: str) -> tuple[str, str]:
    """Return the names of the two processes of a disk."""
    return f"log-writer@{disk}", f"log-reader@{disk}"


def free_name(disks: list[Disk], path: str) -> str:
    """Return the last component of the path, with a number if another disk has that name."""
    taken = {disk.name for disk in disks}
    stem = os.path.basename(path.rstrip("/")) or "root"
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def _file(state: str) -> str:
    return f"{state}/disks.json"


def keep_disks(state: str, given: list[str], disks: list[Disk]) -> None:
    """Store the disks of the box and the directories it was started with. Raises OSError."""
    document = {"given": given, "disks": [disk._asdict() for disk in disks]}
    descriptor = os.open(f"{_file(state)}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(document, indent=1).encode() + b"\n")
    finally:
        os.close(descriptor)
    os.rename(f"{_file(state)}.new", _file(state))


def kept_disks(state: str, given: list[str]) -> list[Disk] | None:
    """Return the ordered disks if the box was started with `given` both then and now. Root also
    reads this file of the box's user."""
    try:
        document = json.loads(read_file(_file(state), _FILE_BYTES_MAX))
        disks = [Disk(**disk) for disk in document["disks"]] if document["given"] == given else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return disks if all(isinstance(disk.name, str) and isinstance(disk.path, str) for disk in disks or []) else None


def with_kept_disks(options: ResolvedOptions) -> tuple[ResolvedOptions, list[Disk] | None]:
    """Return the options with the directories of the ordered disks, and those disks; None if
    nothing was ordered."""
    disks = kept_disks(options.state, options.data)
    return (options, None) if disks is None else (options._replace(data=[disk.path for disk in disks]), disks)
