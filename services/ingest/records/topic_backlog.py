"""Records that wait for the creation of their topic: a backlog takes the place of the batcher until
the number of partitions is known.

Owned by the ingest agent, one for each such topic. Weak: it holds records, not batches, so a topic
that cannot be created gets `BACKLOG_BYTES_MAX` at most.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.ingest.records.ack_group import AckGroup
from services.ingest.records.batcher import Acceptance, Batcher
from services.ingest.records.event import ProducerRecord

BACKLOG_BYTES_MAX: Final = 4 << 20
RECORD_COST_BYTES: Final = 200


class BackloggedRecord(NamedTuple):
    """One record, as it was passed to `append`."""

    event: ProducerRecord
    group: AckGroup
    identity: bytes | None
    ordinal: int
    is_copy: bool
    number: int
    """The record's number in its group; -1 if it is not needed."""


class TopicBacklog:
    """Takes what a batcher takes."""

    blocked_partition = 0
    """A sender that is stopped by a full backlog waits for partition 0."""

    def __init__(self) -> None:
        self._records: list[BackloggedRecord] = []
        self._size_bytes = 0

    @property
    def is_blocked(self) -> bool:
        """True if it is full."""
        return self._size_bytes >= BACKLOG_BYTES_MAX

    def __len__(self) -> int:
        return len(self._records)

    def append(
        self, event: ProducerRecord, now_ms: int, group: AckGroup, can_wait: bool = True, identity: bytes | None = None, ordinal: int = 0, is_copy: bool = False
    ) -> Acceptance:
        """Same as `Batcher.append`."""
        return self.delay(BackloggedRecord(event, group, identity, ordinal, is_copy, -1), can_wait)

    def delay(self, record: BackloggedRecord, can_wait: bool) -> Acceptance:
        """Keep a record; its group waits for it."""
        event, group = record[:2]
        if self.is_blocked and not can_wait:
            return Acceptance.OVERFLOW
        self._records.append(record)
        self._size_bytes += len(event.value) + len(event.headers) + RECORD_COST_BYTES
        group.pending += 1
        return Acceptance.TAKEN_BUT_BLOCKED if self.is_blocked else Acceptance.TAKEN

    def take(self) -> list[BackloggedRecord]:
        """Take all records, in order. Each is released from its group when it is in a batch
        (`AckGroup.pending`)."""
        record, self._records = self._records, []
        self._size_bytes = 0
        return record


Collector = Batcher | TopicBacklog
