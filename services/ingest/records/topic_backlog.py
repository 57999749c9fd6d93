"""What has to wait because its topic is not there yet: records in the place of a batcher, until the number of partitions is known.

Owned by the ingest agent, one for each such topic. Weak: it holds records, not batches, so `BACKLOG_BYTES_MAX` is all that a topic gets that cannot be made.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.ingest.records.ack_group import AckGroup
from services.ingest.records.batcher import Acceptance, Batcher
from services.ingest.records.event import ProducerRecord

BACKLOG_BYTES_MAX: Final = 4 << 20
RECORD_COST_BYTES: Final = 200


class BackloggedRecord(NamedTuple):
    """One record, as it was given to `append`."""

    event: ProducerRecord
    group: AckGroup
    identity: bytes | None
    ordinal: int
    is_copy: bool
    number: int
    """Of the record in its unit; -1 where nobody will ask."""


class TopicBacklog:
    """Takes what a batcher takes."""

    slowed_by = 0
    """Who meets a full backlog waits for partition 0."""

    def __init__(self) -> None:
        self._delayed: list[BackloggedRecord] = []
        self._size_bytes = 0

    @property
    def is_blocked(self) -> bool:
        """Whether it is full."""
        return self._size_bytes >= BACKLOG_BYTES_MAX

    def __len__(self) -> int:
        return len(self._delayed)

    def append(
        self, event: ProducerRecord, now_ms: int, group: AckGroup, can_wait: bool = True, identity: bytes | None = None, ordinal: int = 0, is_copy: bool = False
    ) -> Acceptance:
        """As a batcher does it."""
        return self.delay(BackloggedRecord(event, group, identity, ordinal, is_copy, -1), can_wait)

    def delay(self, delayed: BackloggedRecord, can_wait: bool) -> Acceptance:
        """Keep a record; its unit waits for it."""
        event, group = delayed[:2]
        if self.is_blocked and not can_wait:
            return Acceptance.OVERFLOW
        self._delayed.append(delayed)
        self._size_bytes += len(event.value) + len(event.headers) + RECORD_COST_BYTES
        group.pending += 1
        return Acceptance.TAKEN_BEYOND if self.is_blocked else Acceptance.TAKEN

    def take(self) -> list[BackloggedRecord]:
        """All of it, in order; each is released from its unit when it is in a batch (`AckGroup.pending`)."""
        delayed, self._delayed = self._delayed, []
        self._size_bytes = 0
        return delayed


Collector = Batcher | TopicBacklog
