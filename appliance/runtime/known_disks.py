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
from collections.abc import Sequence
from typing import Any, NamedTuple

KnownEnd = tuple[str, int, str, int]
"""Topic, partition, topic id as text, log end offset."""


class KnownDisk(NamedTuple):
    """`directory_id` is "" if any directory is accepted; `replaces`: ids of the directories that
    were given up for this one."""

    path: str
    directory_id: str = ""
    replaces: tuple[str, ...] = ()
    generation: str = ""
    """`services/log_writer/directory_generation.py`; "" if none was ever written."""
    next_generation: str = ""


def _file(state: str, path: str) -> str:
    return f"{state}/disks/{zlib.crc32(path.encode()):08x}.json"


def read_known_disk(state: str, path: str) -> KnownDisk:
    """Return what is remembered of `path`. An unreadable file counts as none: the directory itself
    has its id."""
    try:
        with open(_file(state, path), "rb") as file:
            loaded = json.load(file)
        known = KnownDisk(loaded["path"], loaded["directory_id"], tuple(loaded["replaces"]), loaded.get("generation", ""), loaded.get("next_generation", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return KnownDisk(path)
    return known if known.path == path else KnownDisk(path)


def write_known_disk(state: str, known: KnownDisk) -> None:
    """Replace what is remembered, synced to the state disk. Raises OSError."""
    _replace(_file(state, known.path), known._asdict())


def _replace(name: str, document: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(name), exist_ok=True)
    descriptor = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(json.dumps(document).encode() + b"\n")
    os.rename(f"{name}.new", name)


def read_known_ends(state: str, path: str) -> list[KnownEnd]:
    """Return what `write_known_ends` wrote; an unreadable file counts as none."""
    try:
        with open(f"{_file(state, path)}.ends", "rb") as file:
            loaded = json.load(file)
        return [(str(topic), int(partition), str(topic_id), int(end)) for topic, partition, topic_id, end in loaded["ends"] if loaded["path"] == path]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_known_ends(state: str, path: str, ends: Sequence[KnownEnd]) -> None:
    """Replace the log end offsets of a disk's logs, synced to the state disk. Raises OSError."""
    _replace(f"{_file(state, path)}.ends", {"path": path, "ends": ends})


def give_up(state: str, path: str) -> KnownDisk:
    """Accept any directory at `path` from now on, in place of the one that was there."""
    known = read_known_disk(state, path)
    if known.directory_id:
        known = KnownDisk(path, "", (*known.replaces, known.directory_id))
        write_known_disk(state, known)
    return known
