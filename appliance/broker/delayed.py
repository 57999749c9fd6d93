"""Requests that wait for a partition's row to move: acks=all produces and long polls, with their deadlines.

A waiter is woken when the row's sequence changes, when its disk's log-writer goes, or when its deadline passes; it looks at the
world again and either answers or keeps waiting. Owned by one acceptor. Weak spot: looking for moved rows costs 50 ns for each watched row
in every turn in which something rang.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from appliance.broker.box_view import Placement
from appliance.shm.atomic import WORD_BYTES
from appliance.shm.partition_table import SEQUENCES_POSITION

STALE_DEADLINES_MAX = 1024
_SEQUENCES_WORD = SEQUENCES_POSITION // WORD_BYTES


class Waiter(Protocol):
    """What is parked."""

    def on_row_moved(self) -> None: ...

    def on_deadline(self) -> None: ...


class _WatchedRow:
    """One row and who waits for it."""

    __slots__ = ("placement", "sequence", "waiters")

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.sequence = placement.table.words[_SEQUENCES_WORD + placement.row]
        self.waiters: dict[int, Waiter] = {}

    def moved(self) -> bool:
        placement = self.placement
        if not placement.proxy.serving or placement.proxy.table is not placement.table:
            return True
        sequence = placement.table.words[_SEQUENCES_WORD + placement.row]
        if sequence == self.sequence:
            return False
        self.sequence = sequence
        return True


class Delayed:
    """Everything that is parked in one acceptor."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int, int], _WatchedRow] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._waiters: dict[int, tuple[Waiter, list[tuple[str, int, int]]]] = {}
        self._next_ticket = 1

    def __len__(self) -> int:
        return len(self._waiters)

    def park(self, waiter: Waiter, placements: list[Placement], deadline_ns: int) -> int:
        """Wait for any of the rows to move, at most until `deadline_ns`; returns a ticket for `leave`.

        The caller has looked at the rows before; it looks again after this call, because a row may have moved in between.
        """
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        keys = []
        for placement in placements:
            key = (placement.disk, placement.row, placement.row_generation)
            watched = self._rows.get(key)
            if watched is None or watched.placement.table is not placement.table:
                stale = watched
                watched = self._rows[key] = _WatchedRow(placement)
                if stale is not None:
                    watched.waiters.update(stale.waiters)
            watched.waiters[ticket] = waiter
            keys.append(key)
        self._waiters[ticket] = (waiter, keys)
        heapq.heappush(self._deadlines, (deadline_ns, ticket))
        return ticket

    def leave(self, ticket: int) -> None:
        """Stop waiting; nothing happens if it has ended already."""
        waiting = self._waiters.pop(ticket, None)
        if waiting is None:
            return
        if len(self._deadlines) > 2 * len(self._waiters) + STALE_DEADLINES_MAX:
            # Polls with long deadlines that were answered early would pile up until their time.
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiters]
            heapq.heapify(self._deadlines)
        for key in waiting[1]:
            watched = self._rows.get(key)
            if watched is not None:
                watched.waiters.pop(ticket, None)
                if not watched.waiters:
                    del self._rows[key]

    def wake_moved(self) -> int:
        """Wake everyone whose row moved; returns how many were woken."""
        woken = 0
        for watched in [watched for watched in self._rows.values() if watched.moved()]:
            for waiter in list(watched.waiters.values()):
                waiter.on_row_moved()
                woken += 1
        return woken

    def expire(self, now_ns: int) -> int:
        """End what has waited long enough."""
        expired = 0
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, ticket = heapq.heappop(self._deadlines)
            waiting = self._waiters.get(ticket)
            if waiting is not None:
                self.leave(ticket)
                waiting[0].on_deadline()
                expired += 1
        return expired

    def ms_to_next_deadline(self, now_ns: int, most_ms: int) -> int:
        if not self._deadlines:
            return most_ms
        return max(0, min(most_ms, -(-(self._deadlines[0][0] - now_ns) // 1_000_000)))
