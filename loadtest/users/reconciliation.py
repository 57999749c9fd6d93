"""Holds what users sent and saw against what the box stored and counted: sent = stored + counted, for every way into the box and out of it. Pure.

Each row is one such equation. `missing` and `surplus` are what it leaves unexplained; they are kept apart, so that one never hides the other. What
cannot be known (a produce without an answer, a line in the buffer of a connection that broke) is neither, but it is shown. Weak spot: lines of syslog
carry no acknowledgement and nothing distinguishes them from other senders'; on a box that others use (`others_write`) a surplus proves nothing, and can
hide as many missing ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loadtest.users.ledger import Totals
from loadtest.users.offset_ranges import OffsetRange, cover


class StoredRange(NamedTuple):
    """A partition at one moment."""

    log_start_offset: int
    log_end_offset: int


Stored = Mapping[str, StoredRange]
"""By partition, `topic/number`."""


class SyslogBooks(NamedTuple):
    """The counters of all ingest processes of the box together."""

    received: Mapping[str, int]
    """by transport"""
    stored: int
    counted: Mapping[str, int]
    """by reason"""
    kernel_drops: int

    @property
    def received_count(self) -> int:
        return sum(self.received.values())

    @property
    def went_back(self) -> bool:
        """A difference below zero: the box was started anew in between, and its counters with it."""
        return min(self.stored, self.kernel_drops, *self.received.values(), *self.counted.values()) < 0

    def since(self, before: SyslogBooks) -> SyslogBooks:
        return SyslogBooks(
            _minus(self.received, before.received), self.stored - before.stored, _minus(self.counted, before.counted), self.kernel_drops - before.kernel_drops
        )


class Row(NamedTuple):
    """`given` = `arrived` + `counted` + `missing` − `surplus`, give or take what cannot be known."""

    flow: str
    given: int
    arrived: int
    counted: int
    missing: int
    surplus: int
    note: str = ""


class Look(NamedTuple):
    """The box at one moment. Without `SyslogBooks` where its counters could not be read."""

    stored: Stored
    books: SyslogBooks | None


class Expected(NamedTuple):
    """What belongs to this run. `consumed_topics` are what each group reads; `syslog_topic` is empty where no lines are sent."""

    topic: str
    syslog_topic: str
    groups: tuple[str, ...]
    consumed_topics: tuple[str, ...]
    others_write: bool = False


class Reconciliation(NamedTuple):
    rows: tuple[Row, ...]
    others_write: bool

    @property
    def balances(self) -> bool:
        return not any(row.missing or (row.surplus and not self.others_write) for row in self.rows)

    @property
    def lost(self) -> int:
        return sum(row.missing for row in self.rows)


def reconcile(expected: Expected, totals: Totals, before: Look, after: Look) -> Reconciliation:
    """Every equation of the run, in the order in which a record passes."""
    rows: list[Row] = []
    if expected.topic and totals.attempted:
        rows.append(_produced(expected.topic, totals, before.stored, after.stored))
    if expected.syslog_topic:
        rows += _syslog(expected.syslog_topic, totals, before, after)
    rows += [_consumed(group, expected.consumed_topics, totals, before.stored, after.stored) for group in expected.groups]
    return Reconciliation(tuple(rows), expected.others_write)


def _produced(topic: str, totals: Totals, before: Stored, after: Stored) -> Row:
    """Partition by partition: acknowledged ≤ stored ≤ acknowledged + unknown."""
    given = stored = missing = surplus = deleted = 0
    for partition in partitions_of(topic, after) | partitions_of(topic, totals.acknowledged):
        acknowledged = totals.acknowledged.get(partition)
        count, offset_max = (acknowledged.count, acknowledged.offset_max) if acknowledged else (0, -1)
        appended = appended_range(partition, before, after)
        gone = max(0, min(after[partition].log_start_offset, appended.end) - appended.first) if partition in after else 0
        kept = appended.end - appended.first - gone
        given += count
        stored += kept
        deleted += gone
        missing += max(count - kept, min(count, offset_max - appended.end + 1), 0)
        surplus += max(kept - count, 0)
    excused = min(surplus, totals.unanswered)
    notes = [f"{deleted:,} deleted since" if deleted else "", f"{totals.unanswered:,} without an answer" if totals.unanswered else ""]
    return Row(f"records acknowledged → {topic}", given, stored, 0, missing, surplus - excused, "; ".join(filter(None, notes)))


def _syslog(topic: str, totals: Totals, before: Look, after: Look) -> list[Row]:
    appended = [appended_range(partition, before.stored, after.stored) for partition in partitions_of(topic, after.stored)]
    in_log = sum(known.end - known.first for known in appended)
    if before.books is None or after.books is None or after.books.since(before.books).went_back:
        unknown = sum(totals.lines_unknown.values())
        why = "the box's counters could not be read" if before.books is None or after.books is None else "the box was started anew, and its counters with it"
        note = f"{why}: what it dropped or counted shows as missing"
        return [_row(f"lines sent → {topic}", totals.lines_count, in_log, 0, unknown, note)]
    books = after.books.since(before.books)
    rows = []
    for transport, sent in sorted(totals.lines_sent.items()):
        dropped = books.kernel_drops if transport == "udp" else 0
        unknown = totals.lines_unknown.get(transport, 0)
        notes = [f"{dropped:,} dropped by the kernel" if dropped else "", f"{unknown:,} on connections that broke" if unknown else ""]
        rows.append(_row(f"lines by {transport} → ingest", sent, books.received.get(transport, 0), dropped, unknown, "; ".join(filter(None, notes))))
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(books.counted.items()) if count)
    rows.append(_row("lines received → stored", books.received_count, books.stored, sum(books.counted.values()), 0, reasons))
    rows.append(_row(f"lines stored → {topic}", books.stored, in_log, 0, 0, ""))
    return rows


def _consumed(group: str, topics: tuple[str, ...], totals: Totals, before: Stored, after: Stored) -> Row:
    """Offset by offset: a group has seen every record that was appended."""
    given = seen = missing = repeated = outside = 0
    first_missing = ""
    known = totals.consumed.get(group, {})
    for partition in sorted(partition for topic in topics for partition in partitions_of(topic, after)):
        wanted = appended_range(partition, before, after)
        coverage = cover(known.get(partition, []), wanted)
        given += wanted.end - wanted.first
        seen += coverage.seen
        missing += coverage.missing
        repeated += coverage.repeated
        outside += coverage.outside
        if coverage.first_missing is not None and not first_missing:
            first_missing = f"first missing: {partition} at offset {coverage.first_missing}"
    notes = [f"{repeated:,} delivered twice" if repeated else "", f"{outside:,} from before the run" if outside else "", first_missing]
    return Row(f"records stored → {group}", given, seen, 0, missing, 0, "; ".join(filter(None, notes)))


def _row(flow: str, given: int, arrived: int, counted: int, unknown: int, note: str) -> Row:
    difference = given - arrived - counted
    return Row(flow, given, arrived, counted, max(difference, 0), max(-difference - unknown, 0), note)


def appended_range(partition: str, before: Stored, after: Stored) -> OffsetRange:
    """What was appended between two looks."""
    first = before[partition].log_end_offset if partition in before else 0
    return OffsetRange(first, max(first, after[partition].log_end_offset) if partition in after else first)


def partitions_of(topic: str, partitions: Mapping[str, object]) -> set[str]:
    return {partition for partition in partitions if partition.rpartition("/")[0] == topic}


def _minus(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}
