"""How far moves of partitions to a disk are: a file in the runtime directory, written by the log-writer of the target disk, read by controller,
acceptors and `millrace status`.

On tmpfs, so that nobody waits for a disk to read it; replaced whole, when a state changes and about once a second while something is copied. A life of
the log-writer begins with no report, and hears of its moves from the controller. Weak spot: at most `MOVES_MAX` moves are told, in the order of
their turn; the rest waits unseen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout

MOVES_MAX = 1_000

WAITING = "waiting"
"""Its turn has not come (one copy at a time for a target disk)."""
COPYING = "copying"
CAUGHT_UP = "caught-up"
"""It has met the source's log end, or was so near it that the rest takes no time; goes on copying what is appended."""
COMPLETE = "complete"
"""What MOVE_FINISH asked for is copied and durable; nothing is copied any more."""
FAILED = "failed"
"""It stopped for `reason`, and is tried again by itself after a while."""


class MoveProgress(NamedTuple):
    """One move. `log_end_offset` is the end of what was copied (durable or not), `size_bytes` the size of the copy, `lag_bytes` what is still to be copied.
    -1: not known yet."""

    topic: str
    partition: int
    topic_id: str
    source_disk: str
    target_disk: str
    state: str
    log_end_offset: int = -1
    size_bytes: int = -1
    source_log_end_offset: int = -1
    lag_bytes: int = -1
    bytes_per_second: int = 0
    reason: str = ""

    @property
    def offset_lag(self) -> int:
        """For DescribeLogDirs; 0 while it is not known."""
        return max(0, self.source_log_end_offset - max(0, self.log_end_offset))


def moves_file(layout: BoxLayout, target_disk: str) -> str:
    return f"{layout.runtime_directory}/moves.{target_disk}"


def write_moves(path: str, moves: Iterable[MoveProgress]) -> None:
    document = [move._asdict() for move in moves][:MOVES_MAX]
    temporary = f"{path}.tmp"
    with open(temporary, "w") as file:
        file.write(json.dumps(document))
    os.rename(temporary, path)


def read_moves(path: str) -> tuple[MoveProgress, ...]:
    """What was written last; nothing if nothing was, or by another release."""
    try:
        with open(path) as file:
            document: list[dict[str, Any]] = json.load(file)
        return tuple(MoveProgress(**move) for move in document)
    except (FileNotFoundError, ValueError, TypeError):
        return ()
