"""Progress of moves of partitions to a disk: a file in the runtime directory, written by the
log-writer of the target disk.

Read by controller, acceptors and `millrace status`. It is on tmpfs, so that no reader waits for a
disk, and replaced atomically at each change of a state and about once a second during a copy. A new
incarnation of the log-writer starts without a report; the controller sends it its moves. Weak: at
most `MOVES_MAX` moves are listed, in their order; the rest is not visible.

The findings of a disk's scrubber: a file in the runtime directory, written by the log-reader.

Read by log-writer, replica-fetcher and `millrace status`. It is on tmpfs, so that no reader waits
for a disk, and replaced atomically. It survives a restart of the log-reader, not of the machine:
after a reboot a pass starts from the beginning. Weak: at most `DAMAGES_MAX` findings are kept; the
counters have their number.

The offsets that logs of a disk lack (`storage/log_damage.py`): a file in the runtime directory,
written by the log-writer, read by `millrace status`.

The topics that were searched: a file for each in a folder of the runtime directory, written by
searches, read by log-writers, which make summaries of their segments. It does not survive a reboot.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout
from appliance.base.model import FIRST_OFFSET, NO_OFFSET, Offset, Position, TopicId
from appliance.base.trusted_files import box_group

MOVES_MAX = 1_000

WAITING = "waiting"
"""Waiting for its turn (one copy at a time per target disk)."""
COPYING = "copying"
CAUGHT_UP = "caught-up"
"""It has reached the log end of the source, or is so near that the rest takes no time; it continues
to copy new records."""
COMPLETE = "complete"
"""What MOVE_FINISH requested is copied and durable; nothing is copied any more."""
FAILED = "failed"
"""It stopped for `reason`, and is retried after a while."""


class MoveProgress(NamedTuple):
    """One move. `log_end_offset` is the end of the copy (durable or not), `size_bytes` its size,
    `lag_bytes` the rest to copy; -1: not known yet."""

    topic: str
    partition: int
    topic_id: str
    source_disk: str
    target_disk: str
    state: str
    log_end_offset: Offset = NO_OFFSET
    size_bytes: int = -1
    source_log_end_offset: Offset = NO_OFFSET
    lag_bytes: int = -1
    bytes_per_second: int = 0
    reason: str = ""

    @property
    def offset_lag(self) -> int:
        """The lag in offsets for DescribeLogDirs; 0 while it is unknown."""
        return max(0, self.source_log_end_offset - max(0, self.log_end_offset))


def moves_file(layout: BoxLayout, target_disk: str) -> str:
    """Return the path of the report of a target disk."""
    return f"{layout.runtime_directory}/moves.{target_disk}"


def write_moves(path: str, moves: Iterable[MoveProgress]) -> None:
    """Replace the report atomically. Raises OSError."""
    document = [move._asdict() for move in moves][:MOVES_MAX]
    temporary = f"{path}.tmp"
    with open(temporary, "w") as file:
        file.write(json.dumps(document))
    os.rename(temporary, path)


def read_moves(path: str) -> tuple[MoveProgress, ...]:
    """Return the last report; empty if there is none, or one of another release."""
    try:
        with open(path) as file:
            document: list[dict[str, Any]] = json.load(file)
        return tuple(MoveProgress(**move) for move in document)
    except (FileNotFoundError, ValueError, TypeError):
        return ()


DAMAGES_MAX = 1_000


class FoundDamage(NamedTuple):
    """One finding. `file` is a name in the partition's directory; `is_rebuildable`: an index, which
    its log-writer rebuilds. `sound_*`: see `Damage`."""

    topic: str
    partition: int
    kind: str
    file: str
    base_offset: Offset
    offset: Offset
    position: Position
    words: str
    sound_offset: Offset
    sound_position: Position
    found_ms: int
    is_rebuildable: bool


class ScrubReport(NamedTuple):
    """The state of a disk's scrubbing. `partition` and `base_offset` name the next segment; ""
    between passes."""

    passes: int
    began_ms: int
    ended_ms: int
    partition: str
    base_offset: Offset
    checked_bytes: int
    damages: tuple[FoundDamage, ...]


NOTHING = ScrubReport(0, 0, 0, "", FIRST_OFFSET, 0, ())


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


class LostOffsets(NamedTuple):
    """Offsets [first, until) that a log lacks. `is_settled`: its leader goes on behind them; else it
    waits for a leader."""

    topic: str
    partition: int
    first: Offset
    until: Offset
    is_settled: bool


def lost_file(layout: BoxLayout, disk: str) -> str:
    """Return the path of the report of a disk."""
    return f"{layout.runtime_directory}/lost.{disk}"


def write_lost(path: str, lost: Iterable[LostOffsets]) -> None:
    """Replace the report atomically. Raises OSError."""
    temporary = f"{path}.tmp"
    with open(temporary, "w") as file:
        json.dump([each._asdict() for each in lost][:DAMAGES_MAX], file)
    os.rename(temporary, path)


def read_lost(path: str) -> tuple[LostOffsets, ...]:
    """Return the last report; empty if there is none, or one of another release."""
    try:
        with open(path) as file:
            return tuple(LostOffsets(**each) for each in json.load(file))
    except (FileNotFoundError, ValueError, TypeError):
        return ()


SEARCHED_MS = 7 * 24 * 3_600_000
"""So long a topic counts as searched."""
SEARCHED_AGAIN_MS = 3_600_000
_CHECK = b"check"


class SearchedTopic(NamedTuple):
    """When a topic was searched without its summaries, and whether one of them was torn."""

    marked_ms: int
    checks_pages: bool


def mark_searched(layout: BoxLayout, topic_id: TopicId, now_ms: int, lacks_summaries: bool, has_broken: bool) -> None:
    """Note that a topic was searched, unless that is noted and nothing is lacking; forget those of
    long ago. Raises OSError."""
    directory = layout.searched_directory
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
        os.chmod(directory, 0o700 if box_group() is None else 0o770)  # at the end of the box the supervisor empties it
    known = read_searched(layout, 0)
    for old, seen in known.items():
        if seen.marked_ms < now_ms - SEARCHED_MS:
            os.unlink(f"{directory}/{old.hex()}")
    mark = known.get(topic_id)
    if mark is None or lacks_summaries or has_broken or mark.marked_ms < now_ms - SEARCHED_AGAIN_MS:
        path = f"{directory}/{topic_id.hex()}"
        with open(path, "wb") as file:
            file.write(_CHECK if has_broken else b"")
        os.utime(path, ns=(now_ms * 1_000_000, now_ms * 1_000_000))


def read_searched(layout: BoxLayout, since_ms: int) -> dict[TopicId, SearchedTopic]:
    """Return the topics that were searched since then. Raises OSError."""
    found: dict[TopicId, SearchedTopic] = {}
    try:
        names = os.listdir(layout.searched_directory)
    except FileNotFoundError:
        return found
    for name in names:
        path = f"{layout.searched_directory}/{name}"
        try:
            topic_id, figures = TopicId(bytes.fromhex(name)), os.stat(path, follow_symlinks=False)
        except (ValueError, FileNotFoundError):
            continue
        if figures.st_mtime_ns // 1_000_000 >= since_ms:
            found[topic_id] = SearchedTopic(figures.st_mtime_ns // 1_000_000, figures.st_size > 0)
    return found
