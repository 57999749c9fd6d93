"""What the users of one process sent, were promised, and saw: counts only. Each process keeps one; the master adds them up.

It crosses between processes as a plain document (msgpack), every few seconds while the load runs and four times a second when it ends. `attempted` =
`acknowledged` + `refused` + `unknown` + what is on its way. A number is written by one thread: those of `ProducerCounts` by the producer's own, all
others by the hub's. Weak spot: a worker that dies takes its last seconds with it, so the run fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from loadtest.users.offset_ranges import OffsetRange, OffsetRanges

TransportCounts = dict[str, int]


@dataclass
class Acknowledgements:
    """What a broker promised about one partition."""

    count: int = 0
    offset_max: int = -1
    """-1 where the broker returned no offset (acks=0)"""

    def add(self, offset: int) -> None:
        self.count += 1
        if offset > self.offset_max:
            self.offset_max = offset


@dataclass
class ProducerCounts:
    """The answers that one producer got."""

    refused: int = 0
    """the broker said no, or the record never left us: not stored"""
    unknown: int = 0
    """no answer in time, or the connection broke: stored or not"""
    acknowledged: dict[str, Acknowledgements] = field(default_factory=dict)


@dataclass
class ProcessLedger:
    """Counts since the test began. Partitions are keyed `topic/number`, groups by their id."""

    attempted: int = 0
    producers: list[ProducerCounts] = field(default_factory=list)
    lines_sent: TransportCounts = field(default_factory=dict)
    """given to the kernel whole, by transport"""
    lines_unknown: TransportCounts = field(default_factory=dict)
    """of a connection that broke: received or not"""
    consumed: dict[str, dict[str, OffsetRanges]] = field(default_factory=dict)
    is_quiet: bool = False
    """nothing is on its way, and nothing more will be sent"""
    is_closed: bool = False
    """all clients are closed"""

    def add_producer(self) -> ProducerCounts:
        counts = ProducerCounts()
        self.producers.append(counts)
        return counts

    def ranges_of(self, group: str, partition: str) -> OffsetRanges:
        return self.consumed.setdefault(group, {}).setdefault(partition, OffsetRanges())

    def add_lines(self, transport: str, sent: int, unknown: int = 0) -> None:
        self.lines_sent[transport] = self.lines_sent.get(transport, 0) + sent
        if unknown:
            self.lines_unknown[transport] = self.lines_unknown.get(transport, 0) + unknown

    def document(self) -> dict[str, Any]:
        return {
            "attempted": self.attempted,
            "refused": sum(counts.refused for counts in self.producers),
            "unknown": sum(counts.unknown for counts in self.producers),
            "acknowledged": [[partition, known.count, known.offset_max] for counts in self.producers for partition, known in list(counts.acknowledged.items())],
            "lines_sent": dict(self.lines_sent),
            "lines_unknown": dict(self.lines_unknown),
            "consumed": {
                group: {partition: ranges.document() for partition, ranges in list(partitions.items())} for group, partitions in list(self.consumed.items())
            },
            "is_quiet": self.is_quiet,
            "is_closed": self.is_closed,
        }


@dataclass
class Totals:
    """All processes together."""

    processes: int = 0
    attempted: int = 0
    refused: int = 0
    unknown: int = 0
    acknowledged: dict[str, Acknowledgements] = field(default_factory=dict)
    lines_sent: TransportCounts = field(default_factory=dict)
    lines_unknown: TransportCounts = field(default_factory=dict)
    consumed: dict[str, dict[str, list[OffsetRange]]] = field(default_factory=dict)
    are_quiet: bool = True
    are_closed: bool = True

    @property
    def acknowledged_count(self) -> int:
        return sum(known.count for known in self.acknowledged.values())

    @property
    def unanswered(self) -> int:
        """Records whose fate is unknown: given up, or cut off with their user."""
        return self.attempted - self.refused - self.acknowledged_count

    @property
    def consumed_count(self) -> int:
        return sum(known.end - known.first for partitions in self.consumed.values() for ranges in partitions.values() for known in ranges)

    @property
    def lines_count(self) -> int:
        return sum(self.lines_sent.values())


def add_documents(documents: Iterable[dict[str, Any]]) -> Totals:
    """Sums what the processes reported last."""
    totals = Totals()
    for document in documents:
        totals.processes += 1
        totals.attempted += document["attempted"]
        totals.refused += document["refused"]
        totals.unknown += document["unknown"]
        for partition, count, offset_max in document["acknowledged"]:
            known = totals.acknowledged.setdefault(partition, Acknowledgements())
            known.count += count
            known.offset_max = max(known.offset_max, offset_max)
        for sums, name in ((totals.lines_sent, "lines_sent"), (totals.lines_unknown, "lines_unknown")):
            for transport, count in document[name].items():
                sums[transport] = sums.get(transport, 0) + count
        for group, partitions in document["consumed"].items():
            for partition, ranges in partitions.items():
                totals.consumed.setdefault(group, {}).setdefault(partition, []).extend(OffsetRange(*known) for known in ranges)
        totals.are_quiet &= document["is_quiet"]
        totals.are_closed &= document["is_closed"]
    return totals
