"""Allow-lists that only shrink: today's violations of a new rule, counted per file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]


class RaisedCount(Exception):
    """The new list would allow more than the old one."""


def shrunk(allowed: Mapping[str, int], found: Mapping[str, int], root: Path = ROOT) -> dict[str, int]:
    """Return `found` as the new list, sorted by file.

    A file that moved may keep its violations: what deleted files of the list were allowed is available to files that are new in it.

    Raises `RaisedCount` if a file has more violations than it is allowed.
    """
    available = sum(count for file, count in allowed.items() if file not in found and not (root / file).exists())
    raised = [f"{file}: {count}, allowed {allowed[file]}" for file, count in found.items() if file in allowed and count > allowed[file]]
    added = {file: count for file, count in found.items() if file not in allowed}
    if sum(added.values()) > available:
        raised += [f"{file}: {count}, allowed 0" for file, count in added.items()]
    if raised:
        raise RaisedCount("\n".join(sorted(raised)))
    return dict(sorted(found.items()))
