"""Lets a compacted segment take the place of those it was made from: the renames, and how an interrupted sequence of them is finished.

The log-writer does it (`Log.replace_segments`), between two appends; the files are whole and synced before. Steps, decided in `plan_swap`:

1. `.cleaned` → `.swap`, indexes first, log last: while any `.cleaned` of it is left, nothing has happened.
2. the old log of the first segment gets a second name, `.deleted`, so that replacing it frees nothing within a turn.
3. the other old segments → `.deleted`, oldest first: what is left is always a suffix, and a deletion that was newer than a value never goes before it.
4. the old indexes of the first → `.deleted`; its log is replaced by the `.swap` in one rename; the new indexes lose `.swap`.

So a reader that opens a log and then its indexes never pairs an old one with a new one: in between there is no index (`storage/reading.py`).
At load (`finish_swaps`) Kafka's rules: `.swap` beside a `.cleaned` of the same or a lower offset is dropped; else plain segments within its range of
offsets go and it becomes plain. Kafka itself finishes what we left, and we what it left. Weak spot: between 3 and 4 a reader that lists the directory
has to look again.

* The run writes and syncs `.cleaned` files, which open removes after a crash: keys of dirty
  segments mapped → for each group of segments log, indexes, `.txnindex` → file time of the last
  source. The swap: `services/log_writer/background/cleaning_rounds.py`, renames in
  `segment_swap.py`.
* Crash in the swap: some `.cleaned` left: nothing happened. All `.swap`: the new segment, beside
  old ones. Open finishes it by Kafka's rules; old segments behind that range are a suffix of the
  old ones, so nothing older than a deletion returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from appliance.base.model import FILE_START, NO_OFFSET, Offset
from appliance.storage import file_io
from appliance.storage.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SUMMARY_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_of_name,
    segment_path,
)
from appliance.storage.segment_scan import SegmentScan

RENAME = "rename"
LINK = "link"
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class SwapStep(NamedTuple):
    """One call: rename or link `source` to `target` (whole paths)."""

    kind: str
    source: str
    target: str


def plan_swap(directory: str, bases: list[Offset], exists: Callable[[str], bool]) -> tuple[list[SwapStep], list[SwapStep]]:
    """The steps that can be taken back (1), and the rest. Only `.txnindex` files may be missing."""

    def there(path: str, suffix: str) -> bool:
        return suffix != TRANSACTION_INDEX_SUFFIX or exists(path)

    first = bases[0]
    offered, replaced = [], []
    for suffix in (*_INDEXES, LOG_SUFFIX):
        name = segment_path(directory, first, suffix)
        if there(name + CLEANED_SUFFIX, suffix):
            offered.append(SwapStep(RENAME, name + CLEANED_SUFFIX, name + SWAP_SUFFIX))
    log = segment_path(directory, first, LOG_SUFFIX)
    replaced.append(SwapStep(LINK, log, log + DELETED_SUFFIX))
    for base in bases[1:]:
        for suffix in (LOG_SUFFIX, *_INDEXES):
            name = segment_path(directory, base, suffix)
            if there(name, suffix):
                replaced.append(SwapStep(RENAME, name, name + DELETED_SUFFIX))
    for suffix in _INDEXES:
        name = segment_path(directory, first, suffix)
        if there(name, suffix):
            replaced.append(SwapStep(RENAME, name, name + DELETED_SUFFIX))
    replaced += [SwapStep(RENAME, step.target, step.target.removesuffix(SWAP_SUFFIX)) for step in reversed(offered)]
    return offered, replaced


def apply_swap(directory: str, bases: list[Offset]) -> list[str]:
    """Carry a swap out; the `.deleted` paths that are to be unlinked when there is time.

    An OSError from the first steps leaves things as they were; from a later one, a swap that the
    next load finishes (`SwapBroken`).
    """
    offered, replaced = plan_swap(directory, bases, file_io.exists)
    done: list[SwapStep] = []
    try:
        for step in offered:
            file_io.rename(step.source, step.target)
            done.append(step)
        file_io.unlink_if_there(replaced[0].target)
        file_io.link(replaced[0].source, replaced[0].target)
    except OSError:
        _rename_all(SwapStep(RENAME, step.target, step.source) for step in reversed(done))
        raise
    _rename_all(replaced[1:])
    for base in bases:
        with suppress(OSError):  # it belongs to the old file and counts for nothing
            file_io.unlink_if_there(segment_path(directory, base, SUMMARY_SUFFIX))
    return [step.target for step in replaced if step.target.endswith(DELETED_SUFFIX)]


def _rename_all(steps: Iterable[SwapStep]) -> None:
    """Steps that must all be done, or the names are neither old nor new."""
    try:
        for step in steps:
            file_io.rename(step.source, step.target)
    except OSError as error:
        raise SwapBroken(error.errno, error.strerror) from error


class SwapBroken(OSError):
    """Half of the names are new: the log must be opened again."""


class SwapRepair(NamedTuple):
    """What a load does about swaps that were interrupted: unlink, then rename."""

    removals: list[str]
    renames: list[tuple[str, str]]


def plan_repair(names: Iterable[str], end_offset: Callable[[str], Offset]) -> SwapRepair:
    """`names`: of a partition directory; `end_offset` of a `.log.swap` is asked for by name (the
    offset behind its last batch).
    """
    names = list(names)
    cleaned = [offset for name in names if name.endswith(CLEANED_SUFFIX) and (offset := _leading_offset(name)) is not None]
    lowest_cleaned = min(cleaned, default=None)
    removals, swaps, ranges = [], [], []
    for name in names:
        if not name.endswith(SWAP_SUFFIX):
            continue
        offset = _leading_offset(name)
        if offset is None or (lowest_cleaned is not None and offset >= lowest_cleaned):
            removals.append(name)
            continue
        swaps.append(name)
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            ranges.append((offset, max(offset + 1, end_offset(name))))
    for suffix in SEGMENT_SUFFIXES:  # logs first: an index without a log is swept up, a log without an index is a rebuild
        for name in sorted(names):
            offset = offset_of_name(name, suffix)
            if offset is not None and any(start <= offset < end for start, end in ranges):
                removals.append(name)
    swaps.sort(key=lambda name: (not name.endswith(LOG_SUFFIX + SWAP_SUFFIX), name))
    return SwapRepair(removals, [(name, name.removesuffix(SWAP_SUFFIX)) for name in swaps])


def finish_swaps(directory: str, names: list[str]) -> list[str]:
    """Finish or drop what an interrupted swap left; the names that are in the directory then."""
    if not any(name.endswith(SWAP_SUFFIX) for name in names):
        return names
    repair = plan_repair(names, lambda name: _end_offset(f"{directory}/{name}"))
    for name in repair.removals:
        file_io.unlink_if_there(f"{directory}/{name}")
    for name, plain in repair.renames:
        file_io.rename(f"{directory}/{name}", f"{directory}/{plain}")
    file_io.fsync_directory(directory)
    return file_io.listdir(directory)


def _leading_offset(name: str) -> Offset | None:
    digits = name.split(".", 1)[0]
    return Offset(int(digits)) if digits.isascii() and digits.isdigit() else None


def _end_offset(path: str) -> Offset:
    """Offset behind the last batch of a segment that is whole; -1 for an empty one."""
    fd = file_io.open_path(path, file_io.READ_ONLY)
    try:
        end = NO_OFFSET
        for _, header in SegmentScan(fd, FILE_START, file_io.size_of(fd), verify=False):
            end = header.last_offset + 1
        return end
    finally:
        file_io.close(fd)
