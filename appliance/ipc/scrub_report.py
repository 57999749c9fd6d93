"""The findings of a disk's scrubber: a file in the runtime directory, written by the log-reader.

Read by log-writer, replica-fetcher and `millrace status`. It is on tmpfs, so that no reader waits
for a disk, and replaced atomically. It survives a restart of the log-reader, not of the machine:
after a reboot a pass starts from the beginning. Weak: at most `DAMAGES_MAX` findings are kept; the
counters have their number.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout

DAMAGES_MAX = 1_000


class FoundDamage(NamedTuple):
    """One finding. `file` is a name in the partition's directory; `is_rebuildable`: an index, which
    its log-writer rebuilds. `sound_*`: see `Damage`."""

    topic: str
    partition: int
    kind: str
    file: str
    base_offset: int
    offset: int
    position: int
    words: str
    sound_offset: int
    sound_position: int
    found_ms: int
    is_rebuildable: bool


class ScrubReport(NamedTuple):
    """The state of a disk's scrubbing. `partition` and `base_offset` name the next segment; ""
    between passes."""

    passes: int
    began_ms: int
    ended_ms: int
    partition: str
    base_offset: int
    checked_bytes: int
    damages: tuple[FoundDamage, ...]


NOTHING = ScrubReport(0, 0, 0, "", 0, 0, ())


def report_file(layout: BoxLayout, disk: str) -> str:
    """Return the path of the report of a disk."""
    return f"{layout.runtime_directory}/scrub.{disk}"


def write_report(path: str, report: ScrubReport) -> None:
    """Replace the report atomically. Raises OSError."""
    document = {**report._asdict(), "damages": [damage._asdict() for damage in report.damages[:DAMAGES_MAX]]}
    temporary = f"{path}.tmp"
    with open(temporary, "w") as file:
        json.dump(document, file)
    os.rename(temporary, path)


def read_report(path: str) -> ScrubReport:
    """Return the last report; `NOTHING` if there is none, or one of another release."""
    try:
        with open(path) as file:
            document: dict[str, Any] = json.load(file)
        return ScrubReport(**{**document, "damages": tuple(FoundDamage(**damage) for damage in document["damages"])})
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return NOTHING
