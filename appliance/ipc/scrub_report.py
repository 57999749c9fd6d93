"""What the scrubber of a disk has found: a file in the runtime directory, written by the log-reader, read by log-writer,
replica-fetcher and `millrace status`.

On tmpfs, so that nobody waits for a disk to read it; replaced whole. It survives the log-reader's restart, not the machine's: after a
reboot a pass begins anew. Weak spot: at most `DAMAGES_MAX` findings are kept, the counters tell how many there were.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout

DAMAGES_MAX = 1_000


class FoundDamage(NamedTuple):
    """One finding. `file` is a name in the partition's directory; `is_rebuildable`: an index, which its log-writer makes anew. `sound_*`: see `Damage`."""

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
    """The state of a disk's scrubbing. `partition` and `base_offset`: the segment that comes next, "" between passes."""

    passes: int
    began_ms: int
    ended_ms: int
    partition: str
    base_offset: int
    checked_bytes: int
    damages: tuple[FoundDamage, ...]


NOTHING = ScrubReport(0, 0, 0, "", 0, 0, ())


def report_file(layout: BoxLayout, disk: str) -> str:
    return f"{layout.runtime_directory}/scrub.{disk}"


def write_report(path: str, report: ScrubReport) -> None:
    document = {**report._asdict(), "damages": [damage._asdict() for damage in report.damages[:DAMAGES_MAX]]}
    temporary = f"{path}.tmp"
    with open(temporary, "w") as file:
        json.dump(document, file)
    os.rename(temporary, path)


def read_report(path: str) -> ScrubReport:
    """What was written last; `NOTHING` if nothing was, or by another release."""
    try:
        with open(path) as file:
            document: dict[str, Any] = json.load(file)
        return ScrubReport(**{**document, "damages": tuple(FoundDamage(**damage) for damage in document["damages"])})
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return NOTHING
