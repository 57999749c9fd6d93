"""A partition's log in memory: records, the real leader epoch cache, and what a power cut leaves of it.

A record is a batch of one. What was synced survives everything but the loss of the disk; behind it any prefix may be left. Truncations are durable at once, as
the real log syncs them. Leader epochs come back out of the records that are left, as recovery finds them. Weak spot: no segments, no
indexes, no torn batches: `tests/unit/storage` is about those.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from appliance.base.model import LeaderEpoch, Offset
from tests.support.memory_epochs import MemoryEpochs


class Record(NamedTuple):
    """`producer` -1: a plain one, which has no sequences."""

    leader_epoch: int
    producer: int
    sequence: int
    value: int


class MemoryLog:
    def __init__(self) -> None:
        self.start_offset = 0
        self.records: list[Record] = []
        self.epochs = MemoryEpochs()
        self.synced_end = 0
        self.sequences: dict[int, tuple[int, int]] = {}
        """Idempotent producer → its last sequence, and at which offset."""
        self._sequences_below: dict[int, tuple[int, int]] = {}
        """The same, of what is below the log start offset: snapshots keep them."""

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.records)

    def at(self, offset: int) -> Record:
        return self.records[offset - self.start_offset]

    def between(self, offset: int, end_offset: int) -> list[Record]:
        return self.records[offset - self.start_offset : end_offset - self.start_offset]

    def append(self, record: Record) -> int:
        offset = self.end_offset
        self.epochs.assign(LeaderEpoch(record.leader_epoch), Offset(offset))
        self.records.append(record)
        if record.producer >= 0:
            self.sequences[record.producer] = record.sequence, offset
        return offset

    def truncate_to(self, offset: int) -> None:
        """Epochs that began at the end go even where no record does, as in the real log."""
        if offset < self.start_offset:
            self.start_at(offset)
            return
        del self.records[offset - self.start_offset :]
        self.synced_end = min(self.synced_end, self.end_offset)
        self.epochs.truncate_from_end(Offset(self.end_offset))
        self._reload_sequences()

    def start_at(self, offset: int) -> None:
        self.records.clear()
        self.start_offset = self.synced_end = offset
        self.epochs.clear()
        self.sequences.clear()
        self._sequences_below.clear()

    def advance_start(self, offset: int) -> None:
        """Retention, or what the leader says of its own."""
        if offset > self.start_offset:
            for at, record in enumerate(self.between(self.start_offset, offset), self.start_offset):
                if record.producer >= 0:
                    self._sequences_below[record.producer] = record.sequence, at
            del self.records[: offset - self.start_offset]
            self.start_offset = offset
            self.synced_end = max(self.synced_end, offset)
            self.epochs.truncate_from_start(Offset(offset))

    def sync(self) -> None:
        self.synced_end = self.end_offset

    def cut_power(self, chance: random.Random) -> int:
        """The number of records that are gone."""
        before = len(self.records)
        end = chance.randint(max(self.synced_end, self.start_offset), self.end_offset)
        del self.records[end - self.start_offset :]
        self.synced_end = end
        self.epochs.truncate_from_end(Offset(end))
        self._reload_sequences()
        return before - len(self.records)

    def lose(self) -> None:
        """Another disk, empty."""
        self.start_at(0)

    def _reload_sequences(self) -> None:
        self.sequences = dict(self._sequences_below)
        for offset, record in enumerate(self.records, self.start_offset):
            if record.producer >= 0:
                self.sequences[record.producer] = record.sequence, offset
