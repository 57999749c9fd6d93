"""Which log directory lies behind which path: a small file for each path in `STATE/disks`, so that a disk that is missing is told from a new one.

An empty directory where a known one was is a disk that is not mounted, or was swapped; nothing is written to it until somebody says so (`millrace disk
replace`). Written by the log-writer of the path when it has opened a directory of another id, and by the supervisor when a disk is given up; both replace the
file whole. Weak spot: files are told apart by a checksum of the path; of two paths with the same one, the later is remembered.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import NamedTuple


class KnownDisk(NamedTuple):
    """`directory_id` is "" when any directory is welcome; `replaces` are ids of directories that were given up for this one."""

    path: str
    directory_id: str = ""
    replaces: tuple[str, ...] = ()


def _file(state: str, path: str) -> str:
    return f"{state}/disks/{zlib.crc32(path.encode()):08x}.json"


def read_known_disk(state: str, path: str) -> KnownDisk:
    """What is remembered of `path`. A file that cannot be understood counts as none: the directory itself says what it is."""
    try:
        with open(_file(state, path), "rb") as file:
            loaded = json.load(file)
        known = KnownDisk(loaded["path"], loaded["directory_id"], tuple(loaded["replaces"]))
    except (OSError, ValueError, KeyError, TypeError):
        return KnownDisk(path)
    return known if known.path == path else KnownDisk(path)


def write_known_disk(state: str, known: KnownDisk) -> None:
    """Replace what is remembered, through to the state directory's disk. Raises OSError."""
    name = _file(state, known.path)
    os.makedirs(os.path.dirname(name), exist_ok=True)
    descriptor = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(known._asdict()).encode() + b"\n")
    finally:
        os.close(descriptor)
    os.rename(f"{name}.new", name)


def give_up(state: str, path: str) -> KnownDisk:
    """From now on any directory is welcome at `path`, and stands for the one that was there."""
    known = read_known_disk(state, path)
    if known.directory_id:
        known = KnownDisk(path, "", (*known.replaces, known.directory_id))
        write_known_disk(state, known)
    return known
