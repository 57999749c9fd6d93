"""Judges a copy by its clients' own histories: what was lost, doubled, read though aborted; offsets that do not fit; polls that go back.

Pure. A history is what `lab/copier.py` writes: one list of events a copier, all its runs after each other. What was read is a list a partition of
(the record's number in the source, the transaction it came with), in the order in which a read_committed consumer got it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

LOST, DUPLICATE, OUT_OF_ORDER = "lost write", "duplicate", "out of order"
ABORTED_READ, INCONSISTENT_OFFSET, NON_MONOTONIC_POLL = "aborted read", "inconsistent offset", "non-monotonic poll"

MAY_SHOW: Final[Mapping[str, frozenset[str]]] = {
    "exactly-once": frozenset(),
    "at-least-once": frozenset((DUPLICATE, OUT_OF_ORDER)),
    "at-most-once": frozenset((LOST,)),
}
"""What is no fault in a mode."""

Event = Mapping[str, Any]


class Finding(NamedTuple):
    kind: str
    partition: int
    what: str


class CopiedRecord(NamedTuple):
    """`number` is its offset in the source."""

    number: int
    transaction: str


def findings(
    source_ends: Mapping[int, int], copied: Mapping[int, Sequence[CopiedRecord]], histories: Sequence[Sequence[Event]], committed: Mapping[int, int]
) -> list[Finding]:
    """All, whatever the mode. `source_ends` counts the records of each partition, `committed` is where the group stands at the end."""
    found = []
    aborted = {event["transaction"] for history in histories for event in history if event["event"] == "aborted"}
    for partition, end in source_ends.items():
        found += _in_partition(partition, end, copied.get(partition, ()), aborted)
        if committed.get(partition, 0) != end:
            found.append(Finding(INCONSISTENT_OFFSET, partition, f"the group stands at {committed.get(partition)} of {end}"))
    for history in histories:
        found += _polls(history)
    return found + assignment_findings(histories)


def faults(mode: str, found: Sequence[Finding]) -> list[Finding]:
    """Those that `mode` promises not to show."""
    return [finding for finding in found if finding.kind not in MAY_SHOW[mode]]


def _in_partition(partition: int, end: int, copied: Sequence[CopiedRecord], aborted: set[str]) -> list[Finding]:
    counts = Counter(record.number for record in copied)
    found = [Finding(LOST, partition, f"record {number}") for number in range(end) if number not in counts]
    found += [Finding(DUPLICATE, partition, f"record {number} came {count} times") for number, count in counts.items() if count > 1 or not 0 <= number < end]
    found += [Finding(ABORTED_READ, partition, f"record {record.number} of {record.transaction}") for record in copied if record.transaction in aborted]
    highest = -1
    for record in copied:
        if record.number < highest:
            found.append(Finding(OUT_OF_ORDER, partition, f"record {record.number} came after {highest}"))
        highest = max(highest, record.number)
    return found


def _polls(history: Sequence[Event]) -> list[Finding]:
    """From where an assignment or a rewind begins, every offset comes once, in order, without a gap."""
    found = []
    due: dict[int, int] = {}
    for event in history:
        if event["event"] == "start":
            due = {}
        elif event["event"] in ("assign", "rewind"):
            due = {int(partition): offset for partition, offset in event["positions"].items()}
        elif event["event"] == "poll":
            for name, offsets in event["offsets"].items():
                partition = int(name)
                for offset in offsets:
                    if offset != due.get(partition):
                        found.append(Finding(NON_MONOTONIC_POLL, partition, f"offset {offset} came where {due.get(partition)} was due"))
                    due[partition] = offset + 1
    return found


def assignment_findings(histories: Sequence[Sequence[Event]]) -> list[Finding]:
    """A copier that is assigned a partition begins no earlier than the commits known when it asked, and no later than any commit begun by then."""
    committed: dict[int, list[tuple[int, int]]] = defaultdict(list)
    attempted: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for history in histories:
        for event in history:
            if event["event"] in ("commit", "committed"):
                book = committed if event["event"] == "committed" else attempted
                for partition, end in event["ends"].items():
                    book[int(partition)].append((event["at"], end))
    found = []
    for history in histories:
        for event in history:
            if event["event"] != "assign":
                continue
            for name, offset in event["positions"].items():
                partition = int(name)
                least = max((end for at, end in committed[partition] if at < event["asked_at"]), default=0)
                most = max((end for at, end in attempted[partition] if at < event["at"]), default=0)
                if not least <= offset <= most:
                    found.append(Finding(INCONSISTENT_OFFSET, partition, f"an assignment begins at {offset}, not from {least} to {most}"))
    return found
