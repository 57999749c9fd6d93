"""Remembers which log directory was at which path, in `STATE/disks`, to tell a missing disk from a
new one.

An empty directory in place of a known one is a disk that is not mounted or was swapped. Nothing is
written to it until an operator gives the old one up (`millrace disk replace`). The log-writer
writes the file after it opened a directory with another id, the supervisor when a disk is given up;
both replace it atomically. Weak: files are named by a checksum of the path; of two paths with the
same checksum, the later is remembered.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import NamedTuple


class KnownDisk(NamedTuple):
    """`directory_id` is "" if any directory is accepted; `replaces`: ids of the directories that
    were given up for this one."""

    path: str
    directory_id: str = ""
    replaces: tuple[str, ...] = ()


def _file(state: str, path: str) -> str:
    return f"{state}/disks/{zlib.crc32(path.encode()):08x}.json"


def read_known_disk(state: str, path: str) -> KnownDisk:
    """Return what is remembered of `path`. An unreadable file counts as none: the directory itself
    has its id."""
    try:
        with open(_file(state, path), "rb") as file:
            loaded = json.load(file)
        known = KnownDisk(loaded["path"], loaded["directory_id"], tuple(loaded["replaces"]))
    except (OSError, ValueError, KeyError, TypeError):
        return KnownDisk(path)
    return known if known.path == path else KnownDisk(path)


def write_known_disk(state: str, known: KnownDisk) -> None:
    """Replace what is remembered, synced to the state disk. Raises OSError."""
    name = _file(state, known.path)
    os.makedirs(os.path.dirname(name), exist_ok=True)
    descriptor = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(known._asdict()).encode() + b"\n")
    finally:
        os.close(descriptor)
    os.rename(f"{name}.new", name)


def give_up(state: str, path: str) -> KnownDisk:
    """Accept any directory at `path` from now on, in place of the one that was there."""
    known = read_known_disk(state, path)
    if known.directory_id:
        known = KnownDisk(path, "", (*known.replaces, known.directory_id))
        write_known_disk(state, known)
    return known
