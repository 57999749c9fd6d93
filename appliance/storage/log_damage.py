"""Ranges of offsets that a log lacks because its files were changed beside the log-writer.

Owned by its log and kept in the partition's `lost-offsets`: one line `FIRST UNTIL STATE` for each
range [first, until). A range is *open* until the log leads or follows. A leader fills it with
batches without records, so that its offsets are never given to other records (*settled*, which
stays on record until the log start offset has passed it). A follower of a live leader is cut where
its first open range begins, and fetches the rest again; not if it lacks only what the leader's
retention has removed as well. So a hole in a log that is not compacted is
always on record. Weak spot: of a compacted log, a hole is found only after a clean stop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from appliance.base.model import NO_OFFSET, Offset
from appliance.storage import file_io

LOST_OFFSETS = "lost-offsets"
_OPEN, _SETTLED = "open", "settled"


class LostRange(NamedTuple):
    """Offsets [first, until) without records."""

    first: Offset
    until: Offset
    is_settled: bool = False


class LogDamage:
    """Methods that change something raise `StorageFailed`, `DiskFull`, and then nothing has changed."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{LOST_OFFSETS}"
        self.ranges = self._read()
        """Ascending."""
        self.noted: tuple[LostRange, ...] = ()
        """Found while the log is open, whose files are gone: on record, and open from the next start on,
        which knows what files there are."""

    def _read(self) -> tuple[LostRange, ...]:
        """An unreadable file counts as none: what it says was in the journal."""
        try:
            lines = [line.split() for line in file_io.read_file(self._path).decode().splitlines()]
            return tuple(LostRange(Offset(int(first)), Offset(int(until)), state == _SETTLED) for first, until, state in lines)
        except (OSError, ValueError):
            return ()

    @property
    def open(self) -> tuple[LostRange, ...]:
        """Ranges that no leader has filled, and no leader has been asked for."""
        return tuple(each for each in self.ranges if not each.is_settled)

    @property
    def open_until(self) -> Offset:
        """The end of the last open range, -1 without one."""
        return max((each.until for each in self.open), default=NO_OFFSET)

    def remember(self, found: Iterable[LostRange]) -> None:
        """Add ranges; those that are on record already change nothing."""
        known = {(each.first, each.until) for each in self.ranges}
        new = [each for each in found if (each.first, each.until) not in known]
        if new:
            self._write((*self.ranges, *new))

    def note(self, found: Iterable[LostRange]) -> tuple[LostRange, ...]:
        """Let `noted` be these ranges; return those that are new. One that grew is not."""
        found = tuple(found)
        known = {each.first for each in self.noted}
        new = tuple(each for each in found if each.first not in known)
        if found != self.noted:
            self._write(self.ranges, found)
        return new

    def settle(self) -> None:
        """The log leads: what it lacks is filled."""
        if self.open:
            self._write(tuple(each._replace(is_settled=True) for each in self.ranges))

    def forget_open(self) -> None:
        """The log follows a leader that has what it lacks."""
        if self.open:
            self._write(tuple(each for each in self.ranges if each.is_settled))

    def forget_below(self, log_start_offset: Offset) -> None:
        """Forget settled ranges that retention has passed."""
        kept = tuple(each for each in self.ranges if not each.is_settled or each.until > log_start_offset)
        if kept != self.ranges:
            self._write(kept)

    def _write(self, ranges: tuple[LostRange, ...], noted: tuple[LostRange, ...] | None = None) -> None:
        ranges = tuple(sorted(ranges))
        noted = self.noted if noted is None else noted
        try:
            if ranges or noted:
                text = "".join(f"{each.first} {each.until} {_SETTLED if each.is_settled else _OPEN}\n" for each in sorted((*ranges, *noted)))
                file_io.replace_file(self._path, text.encode())
            else:
                file_io.unlink_if_there(self._path)
        except OSError as error:
            raise file_io.storage_failure(f"write {self._path}", error) from error
        self.ranges, self.noted = ranges, noted
