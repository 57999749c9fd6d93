"""Received = stored + duplicate + counted, while a process runs and after it dies."""

from __future__ import annotations

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.senders.accounting import (
    ACKNOWLEDGED_COUNTER,
    COPIES_COUNTER,
    COUNTED_COUNTER,
    DUPLICATE_COUNTER,
    KERNEL_DROPS_COUNTER,
    RECEIVED_COUNTER,
    REFUSED_COUNTER,
    RESENT_COUNTER,
    STORED_COUNTER,
    CrashAccounting,
    Ledger,
    LossReason,
    add_ledgers,
    labels_of,
    listeners_of,
    plan_crash_accounting,
    plan_crash_accountings,
    read_ledger,
)

COUNTERS = {
    RECEIVED_COUNTER.format(listener="syslog-udp"): 70,
    RECEIVED_COUNTER.format(listener="relp"): 30,
    "ingest.received_elsewhere": 12345,
    STORED_COUNTER.format(listener="syslog-udp"): 60,
    STORED_COUNTER.format(listener="relp"): 15,
    DUPLICATE_COUNTER.format(listener="relp"): 5,
    COUNTED_COUNTER.format(listener="syslog-udp", reason="overflow"): 5,
    COUNTED_COUNTER.format(listener="syslog-udp", reason="crash"): 2,
    RESENT_COUNTER: 40,
    KERNEL_DROPS_COUNTER.format(listener="syslog-udp"): 1000,
    COPIES_COUNTER.format(listener="relp"): 1000,
    REFUSED_COUNTER.format(listener="relp", reason="busy"): 1000,
    ACKNOWLEDGED_COUNTER.format(listener="relp"): 1000,
}


def test_the_ledger_adds_listeners_and_reasons_and_nothing_else() -> None:
    ledger = read_ledger(COUNTERS)
    assert ledger == Ledger(received=100, stored=75, counted=7, resent=40, duplicate=5)
    assert ledger.in_flight == 13
    assert not ledger.balances


def test_every_listener_has_a_ledger_of_its_own_and_their_sum_is_that_of_all() -> None:
    assert listeners_of(COUNTERS) == ["relp", "syslog-udp"]
    ledgers = {listener: read_ledger(COUNTERS, listener) for listener in listeners_of(COUNTERS)}
    assert ledgers == {"relp": Ledger(30, 15, 0, duplicate=5), "syslog-udp": Ledger(70, 60, 7)}
    assert add_ledgers(ledgers.values()) == read_ledger(COUNTERS)._replace(resent=0)
    assert labels_of('ingest.counted{listener="a",reason="b"}') == ("ingest.counted", {"listener": "a", "reason": "b"})


def test_a_crash_is_booked_by_listener_and_what_waits_in_the_spool_is_not_lost() -> None:
    ledgers = {"relp": Ledger(30, 15, 0), "udp": Ledger(70, 60, 0), "idle": Ledger(5, 5, 0)}
    bookings = plan_crash_accountings(ledgers, 18, {"relp": 4}, {})
    assert plan_crash_accountings(ledgers, 15, {"relp": 4}, {"udp": 3}) == bookings, "what was appended is stored"
    assert bookings == {"relp": CrashAccounting(11, 0), "udp": CrashAccounting(7, 3), "idle": CrashAccounting(0, 0)}
    left = {name: ledger.in_flight - bookings[name].stored - bookings[name].crash for name, ledger in ledgers.items()}
    assert left == {"relp": 4, "udp": 0, "idle": 0}


def test_a_new_process_has_an_empty_ledger_that_balances() -> None:
    assert read_ledger({}) == Ledger(0, 0, 0, 0)
    assert read_ledger({}).balances


def test_the_next_incarnation_counts_unread_completions_as_stored_and_the_rest_as_crash() -> None:
    ledger = read_ledger(COUNTERS)
    assert plan_crash_accounting(ledger, 10) == CrashAccounting(stored=10, crash=3)
    assert plan_crash_accounting(ledger, 0) == CrashAccounting(stored=0, crash=13)
    booking = plan_crash_accounting(ledger, 13)
    assert ledger._replace(stored=ledger.stored + booking.stored, counted=ledger.counted + booking.crash).balances


def test_nothing_is_booked_twice() -> None:
    ledger = read_ledger(COUNTERS)
    booking = plan_crash_accounting(ledger, 10)
    after = ledger._replace(stored=ledger.stored + booking.stored, counted=ledger.counted + booking.crash)
    assert plan_crash_accounting(after, 0) == CrashAccounting(0, 0)


def test_more_completions_than_lines_in_flight_cannot_unbalance_the_ledger() -> None:
    assert plan_crash_accounting(Ledger(10, 8, 0), 5) == CrashAccounting(2, 0)
    assert plan_crash_accounting(Ledger(10, 12, 0), 5) == CrashAccounting(0, 0)
    with pytest.raises(InvariantViolation):
        plan_crash_accounting(Ledger(10, 8, 0), -1)


def test_several_processes_have_one_ledger() -> None:
    assert add_ledgers([Ledger(1, 2, 3, 4), Ledger(10, 20, 30, 40)]) == Ledger(11, 22, 33, 44)
    assert add_ledgers([]) == Ledger(0, 0, 0, 0)


def test_reasons_are_counter_labels() -> None:
    assert all(reason.value.isidentifier() for reason in LossReason)
