"""Parked requests (`services/acceptor/delayed.py`): how long an acceptor may sleep for them."""

from __future__ import annotations

from typing import Any, cast

from services.acceptor.delayed import DelayedRequests

MS = 1_000_000


class Parked:
    """Counts its wake-ups."""

    reply = cast(Any, None)
    ended = 0

    def on_row_moved(self) -> None: ...

    def on_deadline(self) -> None:
        self.ended += 1

    def on_closed(self) -> None: ...


def test_an_acceptor_sleeps_until_the_next_deadline() -> None:
    delayed, parked = DelayedRequests(), Parked()
    delayed.park(parked, [], 50 * MS)
    delayed.park(parked, [], 20 * MS)
    assert delayed.ms_to_next_deadline(0, 100) == 20
    assert delayed.expire(20 * MS) == 1 and parked.ended == 1
    assert delayed.ms_to_next_deadline(20 * MS, 100) == 30


def test_deadlines_of_removed_requests_wake_no_turn() -> None:
    """A client that goes with its long poll open: past that poll's deadline an idle acceptor would not sleep any more."""
    delayed, parked = DelayedRequests(), Parked()
    gone = [delayed.park(parked, [], 10 * MS), delayed.park(parked, [], 15 * MS)]
    stays = delayed.park(parked, [], 40 * MS)
    for ticket in gone:
        delayed.leave(ticket)
    assert delayed.ms_to_next_deadline(20 * MS, 100) == 20
    delayed.leave(stays)
    assert delayed.ms_to_next_deadline(50 * MS, 100) == 100
    assert len(delayed) == 0 and delayed.expire(60 * MS) == 0 and parked.ended == 0
