"""Parked requests: acks=all produces and long polls that wait for a row to change, with their deadlines.

A waiter is woken when its row changes, when its disk's log-writer goes, or at its deadline. It then reads the
rows again, and either answers or keeps waiting. Partitions of fetch sessions sleep here too: `rows` wakes
them, and the fetch that is parked for them.

No wake-up is lost, although rows change at any time: the caller reads the rows, parks, and `RowWatch.watch`
marks it due if a row changed in between; before the process sleeps, `wake_moved` runs once more.
Owned by one acceptor. Weak spot: a waiter with many rows of its own pays for each when it parks and leaves.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from appliance.cluster.metadata_cache import LocalReplica
from services.acceptor.connection import PendingReply
from services.acceptor.row_watch import RowKey, RowWatch

STALE_DEADLINES_MAX = 1024


class Waiter(Protocol):
    """A parked request."""

    @property
    def reply(self) -> PendingReply:
        """Its place in the responses of its connection."""

    def on_row_moved(self) -> None: ...

    def on_deadline(self) -> None: ...

    def on_closed(self) -> None:
        """The connection closed: break the request's reference cycles, because nothing answers it any more."""


class DelayedRequests:
    """All parked requests of one acceptor."""

    def __init__(self) -> None:
        self.rows = RowWatch()
        self._deadlines: list[tuple[int, int]] = []
        self._waiters: dict[int, tuple[Waiter, list[RowKey]]] = {}
        self._next_ticket = 1

    def __len__(self) -> int:
        return len(self._waiters)

    def park(self, waiter: Waiter, placements: list[LocalReplica], deadline_ns: int) -> int:
        """Wait until a row changes, or until `deadline_ns`; return a ticket for `leave`."""
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        keys = [self.rows.watch(placement, ticket) for placement in placements]
        self._waiters[ticket] = (waiter, keys)
        heapq.heappush(self._deadlines, (deadline_ns, ticket))
        return ticket

    def waiter_of(self, ticket: int) -> Waiter | None:
        """Return the waiter of `ticket`, if it still waits."""
        waiting = self._waiters.get(ticket)
        return waiting[0] if waiting is not None else None

    def leave(self, ticket: int) -> None:
        """Stop waiting; without effect if it has ended already."""
        waiting = self._waiters.pop(ticket, None)
        if waiting is None:
            return
        if len(self._deadlines) > 2 * len(self._waiters) + STALE_DEADLINES_MAX:
            # Deadlines of polls that were answered early would accumulate until they pass.
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiters]
            heapq.heapify(self._deadlines)
        self.rows.leave(waiting[1], ticket)

    def wake_moved(self) -> int:
        """Wake each waiter whose row changed; return how many."""
        rows = self.rows
        rows.collect()
        if not rows.due:
            return 0
        due, rows.due = rows.due, {}
        woken = 0
        for ticket in due:
            waiting = self._waiters.get(ticket)
            if waiting is not None:
                waiting[0].on_row_moved()
                woken += 1
        return woken

    def expire(self, now_ns: int) -> int:
        """Wake each waiter whose deadline has passed; return how many."""
        expired = 0
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, ticket = heapq.heappop(self._deadlines)
            waiting = self._waiters.get(ticket)
            if waiting is not None:
                self.leave(ticket)
                waiting[0].on_deadline()
                expired += 1
        return expired

    def forget_closed(self) -> int:
        """Drop requests of closed connections: their deadline may be weeks away. Return how many."""
        gone = [(ticket, waiter) for ticket, (waiter, _) in self._waiters.items() if waiter.reply.connection.closed]
        for ticket, waiter in gone:
            self.leave(ticket)
            waiter.on_closed()
        return len(gone)

    def ms_to_next_deadline(self, now_ns: int, most_ms: int) -> int:
        """Return the time until the next deadline of a waiter, at most `most_ms`."""
        while self._deadlines and self._deadlines[0][1] not in self._waiters:
            heapq.heappop(self._deadlines)
        if not self._deadlines:
            return most_ms
        return max(0, min(most_ms, -(-(self._deadlines[0][0] - now_ns) // 1_000_000)))
