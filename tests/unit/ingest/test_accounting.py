"""Received = stored + counted, over the life and the death of a process."""

from __future__ import annotations

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.ingest.accounting import CrashBooking, Ledger, LossReason, add_ledgers, plan_crash_booking, read_ledger

COUNTERS = {
    'ingest.received{transport="udp"}': 70,
    'ingest.received{transport="tcp"}': 30,
    "ingest.received_elsewhere": 12345,
    "ingest.stored": 80,
    'ingest.counted{reason="overflow"}': 5,
    'ingest.counted{reason="crash"}': 2,
    "ingest.resent": 40,
    "ingest.kernel_drops": 1000,
}


def test_the_ledger_adds_transports_and_reasons_and_nothing_else() -> None:
    ledger = read_ledger(COUNTERS)
    assert ledger == Ledger(received=100, stored=80, counted=7, resent=40)
    assert ledger.in_flight == 13
    assert not ledger.balances


def test_a_new_process_has_an_empty_ledger_that_balances() -> None:
    assert read_ledger({}) == Ledger(0, 0, 0, 0)
    assert read_ledger({}).balances


def test_the_next_life_books_unseen_completions_as_stored_and_the_rest_as_crash() -> None:
    ledger = read_ledger(COUNTERS)
    assert plan_crash_booking(ledger, 10) == CrashBooking(stored=10, crash=3)
    assert plan_crash_booking(ledger, 0) == CrashBooking(stored=0, crash=13)
    booking = plan_crash_booking(ledger, 13)
    assert ledger._replace(stored=ledger.stored + booking.stored, counted=ledger.counted + booking.crash).balances


def test_nothing_is_booked_twice() -> None:
    ledger = read_ledger(COUNTERS)
    booking = plan_crash_booking(ledger, 10)
    after = ledger._replace(stored=ledger.stored + booking.stored, counted=ledger.counted + booking.crash)
    assert plan_crash_booking(after, 0) == CrashBooking(0, 0)


def test_more_completions_than_lines_in_flight_cannot_unbalance_the_ledger() -> None:
    assert plan_crash_booking(Ledger(10, 8, 0), 5) == CrashBooking(2, 0)
    assert plan_crash_booking(Ledger(10, 12, 0), 5) == CrashBooking(0, 0)
    with pytest.raises(InvariantViolation):
        plan_crash_booking(Ledger(10, 8, 0), -1)


def test_several_processes_have_one_ledger() -> None:
    assert add_ledgers([Ledger(1, 2, 3, 4), Ledger(10, 20, 30, 40)]) == Ledger(11, 22, 33, 44)
    assert add_ledgers([]) == Ledger(0, 0, 0, 0)


def test_reasons_are_counter_labels() -> None:
    assert all(reason.value.isidentifier() for reason in LossReason)
