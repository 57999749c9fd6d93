"""Judges what a cluster made of its clients' records: what was lost, doubled, out of order, read though given up; offsets whose meaning changed.

Pure. Values are `PRODUCER:NUMBER`, numbers of one producer rise from 0 in the order in which it produced them, whatever the partition. A `Sent` is the
producer's book of one record, a `Seen` is what a reader got: partition → [(offset, value)] in the order in which it came. Events of group members are those
of `copy_history`. Times are of one monotonic clock. The kinds are those of the public Jepsen reports on Kafka, Redpanda and Bufstream. Weak spot: a record
whose fate its producer does not know (a delivery that timed out, a commit without an answer) may be there or not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from lab.copy_history import assignment_findings

LOST, DUPLICATE, OUT_OF_ORDER = "lost write", "duplicate", "out of order"
ABORTED_READ, TORN = "aborted read", "torn transaction"
INCONSISTENT_OFFSET, NON_MONOTONIC_POLL, INVENTED = "inconsistent offset", "non-monotonic poll", "invented record"
INTERMEDIATE_READ, SKIPPED_POLL = "intermediate read", "skipped poll"
LOST_COMMIT, END_WENT_BACK, STALE_END = "lost or invented commit", "end offset went back", "stale end offset"

ACKNOWLEDGED, REFUSED = "acknowledged", "refused"
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"

Seen = Mapping[int, Sequence[tuple[int, str]]]


class Sent(NamedTuple):
    """`offset` is -1 where none was reported; `transaction` is its number, -1 outside of one."""

    value: str
    partition: int
    fate: str
    offset: int = -1
    transaction: int = -1


class Finding(NamedTuple):
    kind: str
    partition: int
    what: str


def number_of(value: str) -> int:
    return int(value.rpartition(":")[2])


def acknowledged_findings(sent: Iterable[Sent], final: Seen, may_double: bool) -> list[Finding]:
    """Producers outside of transactions: what was acknowledged is where it was acknowledged, once, in order. A plain one `may_double`, and disorder."""
    found, places = [], {partition: dict(records) for partition, records in final.items()}
    counts = Counter((partition, value) for partition, records in final.items() for _, value in records)
    known = set()
    for record in sent:
        known.add((record.partition, record.value))
        count = counts[record.partition, record.value]
        if record.fate == ACKNOWLEDGED and count == 0:
            found.append(Finding(LOST, record.partition, f"{record.value}, acknowledged at {record.offset}"))
        elif record.fate == ACKNOWLEDGED and record.offset >= 0 and places.get(record.partition, {}).get(record.offset) != record.value:
            at = places.get(record.partition, {}).get(record.offset)
            found.append(Finding(INCONSISTENT_OFFSET, record.partition, f"{record.value} was acknowledged at {record.offset}, where {at} is"))
        if count > 1 and not may_double:
            found.append(Finding(DUPLICATE, record.partition, f"{record.value} is there {count} times"))
    found += [Finding(INVENTED, partition, value) for partition, value in counts if (partition, value) not in known]
    return found if may_double else found + _disorder(final)


def transaction_findings(sent: Iterable[Sent], fates: Mapping[int, str], committed: Seen) -> list[Finding]:
    """A transactional producer, by what a read_committed reader has: each committed record once, in order, nothing aborted, all or nothing of the rest."""
    found = []
    counts = Counter((partition, value) for partition, records in committed.items() for _, value in records)
    by_transaction: dict[int, list[Sent]] = defaultdict(list)
    known = set()
    for record in sent:
        by_transaction[record.transaction].append(record)
        known.add((record.partition, record.value))
    for transaction, records in by_transaction.items():
        fate = fates[transaction]
        missing = [record for record in records if not counts[record.partition, record.value]]
        if fate == COMMITTED:
            found += [Finding(LOST, record.partition, f"{record.value} of committed transaction {transaction}") for record in missing]
        elif fate == ABORTED:
            found += [Finding(ABORTED_READ, r.partition, f"{r.value} of {transaction}") for r in records if counts[r.partition, r.value]]
        elif missing and len(missing) < len(records):
            found.append(Finding(TORN, -1, f"{len(missing)} of {len(records)} records of transaction {transaction} are missing"))
        found += [
            Finding(DUPLICATE, r.partition, f"{r.value} is there {counts[r.partition, r.value]} times") for r in records if counts[r.partition, r.value] > 1
        ]
    found += [Finding(INVENTED, partition, value) for partition, value in counts if (partition, value) not in known]
    return found + _disorder(committed)


def _disorder(seen: Seen) -> list[Finding]:
    """Records of one producer come in the order in which it produced them, in each partition."""
    found = []
    for partition, records in seen.items():
        highest: dict[str, int] = {}
        for offset, value in records:
            producer, number = value.rpartition(":")[0], number_of(value)
            if number < highest.get(producer, -1):
                found.append(Finding(OUT_OF_ORDER, partition, f"{value} at {offset} came after {highest[producer]}"))
            highest[producer] = max(number, highest.get(producer, -1))
    return found


def reader_findings(readers: Iterable[Seen]) -> list[Finding]:
    """Every reader of an offset gets the same record, and every reader's offsets rise."""
    found = []
    meaning: dict[tuple[int, int], str] = {}
    for seen in readers:
        for partition, records in seen.items():
            last = -1
            for offset, value in records:
                if offset <= last:
                    found.append(Finding(NON_MONOTONIC_POLL, partition, f"offset {offset} came after {last}"))
                last = offset
                if meaning.setdefault((partition, offset), value) != value:
                    found.append(Finding(INCONSISTENT_OFFSET, partition, f"offset {offset} was {meaning[partition, offset]} to one, {value} to another"))
    return found


def skipped_findings(final: Seen, seen: Seen) -> list[Finding]:
    """A reader that began at the beginning has every record of the log up to the last one that it has."""
    found = []
    for partition, records in seen.items():
        offsets = {offset for offset, _ in records}
        last = max(offsets, default=-1)
        skipped = [offset for offset, _ in final.get(partition, ()) if offset < last and offset not in offsets]
        if skipped:
            found.append(Finding(SKIPPED_POLL, partition, f"offset {skipped[0]} and {len(skipped) - 1} more were skipped before {last}"))
    return found


class TimedRead(NamedTuple):
    """A record that a read_committed reader got, and when."""

    partition: int
    value: str
    at: float


def premature_findings(sent: Iterable[Sent], fates: Mapping[int, str], commit_asked_at: Mapping[int, float], reads: Iterable[TimedRead]) -> list[Finding]:
    """No reader of committed records gets one of an aborted transaction, of one whose commit was never asked for, or before it was asked for."""
    transactions = {record.value: record.transaction for record in sent}
    found = []
    for partition, value, at in reads:
        transaction = transactions.get(value)
        if transaction is None:
            found.append(Finding(INVENTED, partition, value))
        elif fates[transaction] == ABORTED or transaction not in commit_asked_at:
            found.append(Finding(ABORTED_READ, partition, f"{value} of transaction {transaction}"))
        elif at < commit_asked_at[transaction]:
            found.append(Finding(INTERMEDIATE_READ, partition, f"{value} came {commit_asked_at[transaction] - at:.3f} s before its commit was asked for"))
    return found


def group_findings(final: Seen, histories: Sequence[Sequence[Mapping[str, Any]]]) -> list[Finding]:
    """A member reads from where its assignment begins, each record once, none skipped; an assignment begins where the group has committed; what the group
    has committed, some member has read."""
    found = [Finding(LOST_COMMIT, finding.partition, finding.what) for finding in assignment_findings(histories)]
    offsets = {partition: [offset for offset, _ in records] for partition, records in final.items()}
    read: dict[int, set[int]] = defaultdict(set)
    committed: dict[int, int] = defaultdict(int)
    for history in histories:
        found += _member_findings(offsets, history, read)
        for event in history:
            if event["event"] == "committed":
                for partition, end in event["ends"].items():
                    committed[int(partition)] = max(committed[int(partition)], end)
    for partition, end in committed.items():
        unread = [offset for offset in offsets.get(partition, ()) if offset < end and offset not in read[partition]]
        if unread:
            found.append(Finding(SKIPPED_POLL, partition, f"the group has committed {end}, and no member read {unread[0]} and {len(unread) - 1} more"))
    return found


def _member_findings(offsets: Mapping[int, Sequence[int]], history: Sequence[Mapping[str, Any]], read: dict[int, set[int]]) -> list[Finding]:
    found = []
    position: dict[int, int] = {}
    for event in history:
        if event["event"] in ("start", "revoke"):
            position = {}
        elif event["event"] == "assign":
            position = {int(partition): offset for partition, offset in event["positions"].items()}
        elif event["event"] == "poll":
            for partition, polled in event["offsets"].items():
                log = offsets.get(partition, ())
                for offset in polled:
                    due = position.get(partition, -1)
                    index = bisect_left(log, due)
                    if due < 0 or offset < due:
                        found.append(Finding(NON_MONOTONIC_POLL, partition, f"offset {offset} came where {due} was due"))
                    elif index < len(log) and log[index] < offset:
                        found.append(Finding(SKIPPED_POLL, partition, f"offset {offset} came where {log[index]} was due"))
                    position[partition] = offset + 1
                    read[partition].add(offset)
    return found


class EndAnswer(NamedTuple):
    """What ListOffsets said of the end of a partition; `asked_at` is the moment before the request."""

    partition: int
    asked_at: float
    end: int


def end_findings(acknowledged: Mapping[int, Sequence[tuple[float, int]]], answers: Iterable[EndAnswer], judged_from: float) -> list[Finding]:
    """From `judged_from` on one client's answers never go back, and none is below what was acknowledged when it was asked for; before, a leader that the
    others have replaced may answer, which knows no newer records. `acknowledged`: partition → (moment, offset)."""
    found = []
    by_partition: dict[int, list[EndAnswer]] = defaultdict(list)
    for answer in answers:
        by_partition[answer.partition].append(answer)
    for partition, told in by_partition.items():
        for before, after in pairwise(told):
            if after.end < before.end and after.asked_at >= judged_from:
                found.append(Finding(END_WENT_BACK, partition, f"the end was {before.end}, then {after.end}"))
        book = sorted(acknowledged.get(partition, ()))
        times, highest = [at for at, _ in book], list(accumulate((offset for _, offset in book), max))
        for answer in told:
            index = bisect_left(times, answer.asked_at)
            if answer.asked_at >= judged_from and index and answer.end <= highest[index - 1]:
                found.append(Finding(STALE_END, partition, f"the end was said to be {answer.end}, and offset {highest[index - 1]} acknowledged before"))
    return found
