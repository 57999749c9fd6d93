"""Detects changed rows of the partition tables, and wakes what waits for them.

Waiters (parked requests, named by their tickets) are woken at each change until they leave; sleepers
(partitions of fetch sessions) are woken once. A few watched rows of a disk cost 50 ns each. If many are
watched, the compact array of row sequences is compared piece by piece, about 10 µs for 10,000 rows, and only
pieces that differ are examined. Owned by one acceptor.
Weak spot: a waiter whose log-writer is gone is woken in each turn until it leaves.
"""

from __future__ import annotations

from typing import Final, Protocol

from appliance.cluster.metadata_cache import LocalReplica
from appliance.shm.mapping import WORD_BYTES
from appliance.shm.partition_table import SEQUENCE, SEQUENCES_POSITION

FEW_ROWS: Final = 64
PIECE_ROWS: Final = 64
_PIECE_BYTES: Final = PIECE_ROWS * WORD_BYTES
_SEQUENCES_WORD: Final = SEQUENCES_POSITION // WORD_BYTES

RowKey = tuple[str, int]
"""(disk, row)"""


class Sleeper(Protocol):
    """Is woken once."""

    watched: RowKey | None

    def on_row_moved(self) -> int:
        """Wake; return the ticket of a waiter to wake as well, or 0."""


class _WatchedRow:
    """One row, its sequence at the last comparison, and its waiters and sleepers."""

    __slots__ = ("row", "sequence", "sleepers", "tickets")

    def __init__(self, row: int, sequence: int) -> None:
        self.row = row
        self.sequence = sequence
        self.tickets: dict[int, None] = {}
        self.sleepers: dict[Sleeper, None] = {}


class _WatchedDisk:
    """The watched rows of one incarnation of a disk's table."""

    __slots__ = ("proxy", "rows", "seen", "table")

    def __init__(self, placement: LocalReplica) -> None:
        self.proxy = placement.proxy
        self.table = placement.table
        self.rows: dict[int, _WatchedRow] = {}
        self.seen = b""
        """the sequences of all rows at the last comparison"""

    def is_gone(self) -> bool:
        return not self.proxy.serving or self.proxy.table is not self.table

    def moved(self) -> list[_WatchedRow]:
        rows = self.rows
        if self.is_gone():
            return list(rows.values())
        words = self.table.words
        if len(rows) <= FEW_ROWS:
            found = [watched for watched in rows.values() if words[_SEQUENCES_WORD + watched.row] != watched.sequence]
        else:
            found = [watched for watched in self._suspects() if words[_SEQUENCES_WORD + watched.row] != watched.sequence]
        for watched in found:
            watched.sequence = words[_SEQUENCES_WORD + watched.row]
        return found

    def _suspects(self) -> list[_WatchedRow]:
        """Return the watched rows in pieces that changed since the last comparison."""
        before, self.seen = self.seen, self.table.sequences()
        now = self.seen
        if now == before:
            return []
        rows = self.rows
        found = []
        for start in range(0, len(now), _PIECE_BYTES):
            if now[start : start + _PIECE_BYTES] != before[start : start + _PIECE_BYTES]:
                first = start // WORD_BYTES
                found += [rows[row] for row in range(first, first + PIECE_ROWS) if row in rows]
        return found


class RowWatch:
    """All watched rows of one acceptor. `due` has the tickets of waiters to wake."""

    def __init__(self) -> None:
        self._disks: dict[str, _WatchedDisk] = {}
        self._orphans: dict[int, None] = {}
        self.moved: dict[int, dict[RowKey, None] | None] = {}
        """ticket → its rows that changed; None: any may have"""
        self.due: dict[int, None] = {}

    def watch(self, placement: LocalReplica, ticket: int) -> RowKey:
        """Wake a waiter at each change after the row was last read through `placement`, even if it has changed already."""
        sequence = placement.table.words[_SEQUENCES_WORD + placement.row]
        if sequence != placement.seen[SEQUENCE]:
            self.due[ticket] = None
        watched = self._row(placement, sequence)
        watched.tickets[ticket] = None
        return (placement.disk, placement.row)

    def sleep(self, placement: LocalReplica, sleeper: Sleeper) -> bool:
        """Wake `sleeper` at the first change after the row was last read through `placement`.

        Return False, and register nothing, if it has changed already. A sleeper that is registered stays so.
        """
        if sleeper.watched is not None:
            return True
        sequence = placement.table.words[_SEQUENCES_WORD + placement.row]
        if sequence != placement.seen[SEQUENCE]:
            return False
        self._row(placement, sequence).sleepers[sleeper] = None
        sleeper.watched = (placement.disk, placement.row)
        return True

    def _row(self, placement: LocalReplica, sequence: int) -> _WatchedRow:
        disk = self._disks.get(placement.disk)
        if disk is None or disk.table is not placement.table:
            if disk is not None:
                self._abandon(disk)
            disk = self._disks[placement.disk] = _WatchedDisk(placement)
        watched = disk.rows.get(placement.row)
        if watched is None:
            watched = disk.rows[placement.row] = _WatchedRow(placement.row, sequence)
        return watched

    def _abandon(self, disk: _WatchedDisk) -> None:
        """The table has a new incarnation: waiters of the old one are woken in each turn until they leave."""
        for watched in disk.rows.values():
            self._orphans.update(watched.tickets)
            self.moved.update(dict.fromkeys(self.moved.keys() & watched.tickets.keys()))
            self._wake(watched)

    def _wake(self, watched: _WatchedRow) -> None:
        sleepers, watched.sleepers = watched.sleepers, {}
        for sleeper in sleepers:
            sleeper.watched = None
            ticket = sleeper.on_row_moved()
            if ticket:
                self.due[ticket] = None

    def record_changes(self, ticket: int) -> None:
        """Record which rows of a waiter change, until it leaves."""
        self.moved[ticket] = {}

    def take_changes(self, ticket: int) -> dict[RowKey, None] | None:
        """Return the rows of a waiter that changed since the last call; None: unknown, any may have."""
        moved = self.moved.get(ticket)
        if moved is not None:
            self.moved[ticket] = {}
        return moved

    def collect(self) -> None:
        """Compare all watched rows: wake sleepers, add waiters to `due`."""
        due = self.due
        for disk in self._disks.values():
            if not disk.rows:
                continue
            for watched in disk.moved():
                due.update(watched.tickets)
                if self.moved:
                    self._note_moved(disk, watched)
                if watched.sleepers:
                    self._wake(watched)
                    if not watched.tickets:
                        del disk.rows[watched.row]
        if self._orphans:
            due.update(self._orphans)

    def _note_moved(self, disk: _WatchedDisk, watched: _WatchedRow) -> None:
        key = (disk.proxy.disk, watched.row)
        for ticket in self.moved.keys() & watched.tickets.keys():
            moved = self.moved[ticket]
            if moved is not None:
                moved[key] = None

    def leave(self, keys: list[RowKey], ticket: int) -> None:
        """Remove a waiter."""
        self._orphans.pop(ticket, None)
        self.due.pop(ticket, None)
        self.moved.pop(ticket, None)
        for key in keys:
            watched = self._watched(key)
            if watched is not None:
                watched.tickets.pop(ticket, None)
                self._maybe_drop(key, watched)

    def remove_sleeper(self, sleeper: Sleeper) -> None:
        """Remove a sleeper: it is gone, or awake for another reason."""
        key, sleeper.watched = sleeper.watched, None
        if key is None:
            return
        watched = self._watched(key)
        if watched is not None:
            watched.sleepers.pop(sleeper, None)
            self._maybe_drop(key, watched)

    def _watched(self, key: RowKey) -> _WatchedRow | None:
        disk = self._disks.get(key[0])
        return disk.rows.get(key[1]) if disk is not None else None

    def _maybe_drop(self, key: RowKey, watched: _WatchedRow) -> None:
        if not watched.tickets and not watched.sleepers:
            del self._disks[key[0]].rows[key[1]]

    def __len__(self) -> int:
        return sum(len(disk.rows) for disk in self._disks.values())
