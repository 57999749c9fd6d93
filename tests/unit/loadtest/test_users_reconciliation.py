"""The comparison at the end of a load by users: what each kind of loss looks like, and that nothing hides it."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.users.ledger import Acknowledgements, ProcessLedger, Totals, add_documents
from loadtest.users.reconciliation import Expected, Look, Reconciliation, Row, StoredRange, SyslogBooks, reconcile

EMPTY_BOOKS = SyslogBooks({"udp": 100, "tcp": 50}, 140, {"overflow": 10}, 3)
"""What other runs have left in the counters."""
BEFORE = Look({"t/0": StoredRange(5, 10), "t/1": StoredRange(0, 0), "syslog/0": StoredRange(0, 140)}, EMPTY_BOOKS)
EXPECTED = Expected("t", "syslog", ("g",), ("t",))


def worker(**changes: Any) -> dict[str, Any]:
    """A process with three records acknowledged in t/0 (offsets 10-12), one in t/1, five lines sent each way, and all four records consumed."""
    ledger = ProcessLedger(attempted=4)
    producer = ledger.add_producer()
    for partition, offsets in {"t/0": [10, 11, 12], "t/1": [0]}.items():
        for offset in offsets:
            producer.acknowledged.setdefault(partition, Acknowledgements()).add(offset)
            ledger.ranges_of("g", partition).add(offset)
    ledger.add_lines("udp", 5)
    ledger.add_lines("tcp", 5)
    ledger.is_quiet = True
    return ledger.document() | changes


def ledgers(udp: int = 5, tcp: int = 5, stored: int = 10, overflow: int = 0, drops: int = 0) -> SyslogBooks:
    return SyslogBooks({"udp": 100 + udp, "tcp": 50 + tcp}, 140 + stored, {"overflow": 10 + overflow}, 3 + drops)


def after(t0: StoredRange | None = None, lines: int = 10, counted: SyslogBooks | None = None) -> Look:
    return Look({"t/0": t0 or StoredRange(5, 13), "t/1": StoredRange(0, 1), "syslog/0": StoredRange(0, 140 + lines)}, counted or ledgers())


def judge(totals: Totals | None = None, look: Look | None = None, expected: Expected = EXPECTED) -> Reconciliation:
    return reconcile(expected, totals or add_documents([worker()]), BEFORE, look or after())


def row(reconciliation: Reconciliation, flow: str) -> Row:
    return next(row for row in reconciliation.rows if row.flow.startswith(flow))


def test_a_run_without_loss_balances_row_by_row() -> None:
    judged = judge()
    assert judged.balances
    assert [(row.flow, row.given, row.arrived, row.counted) for row in judged.rows] == [
        ("records acknowledged → t", 4, 4, 0),
        ("lines by tcp → ingest", 5, 5, 0),
        ("lines by udp → ingest", 5, 5, 0),
        ("lines received → stored", 10, 10, 0),
        ("lines stored → syslog", 10, 10, 0),
        ("records stored → g", 4, 4, 0),
    ]


def test_the_ledgers_of_all_processes_are_added() -> None:
    other = worker(acknowledged=[["t/0", 2, 14]], attempted=2, consumed={"g": {"t/0": [[13, 15]]}}, lines_sent={"udp": 1}, is_quiet=False)
    totals = add_documents([worker(), other])
    assert (totals.processes, totals.acknowledged_count, totals.lines_count, totals.consumed_count) == (2, 6, 11, 6)
    assert totals.acknowledged["t/0"].offset_max == 14 and not totals.are_quiet
    assert judge(totals, after(StoredRange(5, 15), 11, ledgers(udp=6, stored=11))).balances


@pytest.mark.parametrize(
    ("end", "missing"),
    [pytest.param(StoredRange(5, 12), 1, id="cut_off"), pytest.param(StoredRange(12, 13), 2, id="deleted"), pytest.param(StoredRange(5, 10), 3, id="all_gone")],
)
def test_an_acknowledged_record_that_is_not_in_the_log_is_missing(end: StoredRange, missing: int) -> None:
    judged = judge(look=after(end))
    assert row(judged, "records acknowledged").missing == missing and not judged.balances and judged.lost >= missing


def test_an_offset_beyond_the_end_of_the_log_is_missing_though_the_number_of_records_is_right() -> None:
    moved = worker(acknowledged=[["t/0", 3, 20], ["t/1", 1, 0]])
    assert row(judge(add_documents([moved])), "records acknowledged").missing == 3


def test_a_record_too_many_in_one_partition_does_not_hide_one_that_is_missing_in_another() -> None:
    moved = worker(acknowledged=[["t/0", 2, 12], ["t/1", 2, 0]])
    found = row(judge(add_documents([moved])), "records acknowledged")
    assert (found.missing, found.surplus) == (1, 1)


def test_records_without_an_answer_may_be_stored_or_not_and_are_shown() -> None:
    totals = add_documents([worker(acknowledged=[["t/0", 2, 11], ["t/1", 1, 0]], unknown=1)])
    judged = judge(totals)
    assert judged.balances and "1 without an answer" in row(judged, "records acknowledged").note
    refused = add_documents([worker(acknowledged=[["t/0", 2, 11], ["t/1", 1, 0]], refused=1)])
    assert row(judge(refused), "records acknowledged").surplus == 1  # refused, and stored all the same


def test_duplicates_in_the_log_are_a_surplus_unless_others_write_there() -> None:
    look = after(StoredRange(5, 14))
    consumed = add_documents([worker(consumed={"g": {"t/0": [[10, 14]], "t/1": [[0, 1]]}})])
    assert row(judge(consumed, look), "records acknowledged").surplus == 1
    assert not judge(consumed, look).balances
    assert judge(consumed, look, EXPECTED._replace(others_write=True)).balances


def test_losses_that_the_box_counts_are_explained_and_uncounted_ones_are_missing() -> None:
    explained = judge(look=after(lines=7, counted=ledgers(udp=4, stored=7, overflow=2, drops=1)))
    assert explained.balances
    assert row(explained, "lines by udp").note == "1 dropped by the kernel" and row(explained, "lines received").note == "2 overflow"
    assert row(judge(look=after(counted=ledgers(udp=4))), "lines by udp").missing == 1
    assert row(judge(look=after(counted=ledgers(stored=9))), "lines received").missing == 1
    assert row(judge(look=after(lines=9)), "lines stored").missing == 1
    assert row(judge(look=after(counted=ledgers(tcp=6))), "lines by tcp").surplus == 1


def test_lines_of_a_broken_connection_excuse_a_surplus_and_nothing_else() -> None:
    broken = add_documents([worker(lines_sent={"udp": 5, "tcp": 3}, lines_unknown={"tcp": 2})])
    assert judge(broken).balances
    assert judge(broken, after(lines=8, counted=ledgers(tcp=3, stored=8))).balances
    assert not judge(broken, after(lines=7, counted=ledgers(tcp=2, stored=7))).balances


def test_without_the_boxes_counters_lines_are_held_against_the_log_alone() -> None:
    blind = Look(after().stored, None)
    judged = judge(look=blind)
    assert judged.balances and "could not be read" in row(judged, "lines sent").note
    assert row(judge(look=Look(after(lines=9).stored, None)), "lines sent").missing == 1


def test_counters_that_began_anew_are_not_believed() -> None:
    anew = judge(look=after(counted=SyslogBooks({"udp": 1, "tcp": 2}, 3, {}, 0)))
    assert anew.balances and "started anew" in row(anew, "lines sent").note


def test_a_group_must_see_every_offset_and_may_see_it_twice() -> None:
    def consumed(*ranges: list[int]) -> Row:
        return row(judge(add_documents([worker(consumed={"g": {"t/0": list(ranges), "t/1": [[0, 1]]}})])), "records stored")

    assert consumed([10, 13]).missing == 0
    assert (consumed([10, 12], [11, 13]).missing, consumed([10, 12], [11, 13]).note) == (0, "1 delivered twice")
    assert (consumed([10, 11], [12, 13]).missing, consumed([10, 11], [12, 13]).note) == (1, "first missing: t/0 at offset 11")
    assert (consumed([7, 13]).missing, consumed([7, 13]).note) == (0, "3 from before the run")
    assert (consumed().missing, consumed().note) == (3, "first missing: t/0 at offset 10")
