"""Judges what a cluster made of its clients' records: what was lost, doubled, out of order, read though given up; offsets whose meaning changed.

Pure. Values are `PRODUCER:NUMBER`, numbers of one producer rise from 0 in the order in which it produced them, whatever the partition. A `Sent` is the
producer's book of one record, a `Seen` is what a reader got: partition → [(offset, value)] in the order in which it came. Weak spot: a record whose fate its
producer does not know (a delivery that timed out, a commit without an answer) may be there or not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

LOST, DUPLICATE, OUT_OF_ORDER = "lost write", "duplicate", "out of order"
ABORTED_READ, TORN = "aborted read", "torn transaction"
INCONSISTENT_OFFSET, NON_MONOTONIC_POLL, INVENTED = "inconsistent offset", "non-monotonic poll", "invented record"

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
