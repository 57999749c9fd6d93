"""Messages between a log-writer and its cleaning run: the job, and reports as lines of JSON.

Both sides import this, so it stays light. A run reports each segment as soon as its files are whole
and synced, and the log-writer swaps it in while the run continues: so a run never needs more space
than its largest segment. Weak spot: a log with tens of thousands of live producers makes a job of a
few MB.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

DIRECTORY_FD = 3
"""The run's descriptor of the log's directory."""
MAPPED = "mapped"
GROUP = "group"
DONE = "done"
FAILED = "failed"


class CleaningJob(NamedTuple):
    """Everything the run needs to know of a log. `segments` are [base offset, end offset], ascending, all sealed and below the first uncleanable offset;
    `producers` are [producer id, producer epoch, last data offset or -1]."""

    directory: str
    segments: list[tuple[int, int]]
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    buffer_bytes: int
    producers: list[tuple[int, int, int]]

    def encode(self) -> bytes:
        return orjson.dumps(self._asdict())

    @classmethod
    def decode(cls, document: bytes) -> CleaningJob:
        return cls(**orjson.loads(document))


class CleanedGroup(NamedTuple):
    """Segments that became one: `.cleaned` files of `bases[0]` are whole, synced, and `size_bytes` long. Unchanged: no file was left."""

    bases: list[int]
    size_bytes: int
    is_changed: bool


class RunFigures(NamedTuple):
    """What a run did, for counters."""

    read_bytes: int = 0
    written_bytes: int = 0
    records_read: int = 0
    records_kept: int = 0


class RunReport(NamedTuple):
    """One line of a run."""

    kind: str
    group: CleanedGroup | None = None
    end_offset: int = -1
    """MAPPED, DONE: below it the log is clean once every group is swapped in."""
    reason: str = ""
    is_full: bool = False
    """FAILED for want of space: nothing is wrong with the log."""
    figures: RunFigures = RunFigures()

    def encode(self) -> bytes:
        return orjson.dumps(self._asdict() | {"group": self.group and self.group._asdict(), "figures": self.figures._asdict()}) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> RunReport:
        fields: dict[str, Any] = orjson.loads(line)
        group = fields["group"]
        return cls(**fields | {"group": CleanedGroup(**group) if group else None, "figures": RunFigures(**fields["figures"])})
