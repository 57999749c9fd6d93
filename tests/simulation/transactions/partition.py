"""A partition and its log-writer: the shipped producer state and verification guards, over a log in memory.

A death of the log-writer drops what lies in its rings and the guards. The log and what it says of producers stay, as after a restart on the same boot.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import Offset, ProducerId
from appliance.records.control_batch import EndTransactionMarker
from appliance.storage.producer_state import DuplicateBatch, ProducerState
from appliance.storage.verification import NeedsVerification, Offer, Verifications
from services.coordinator.transactions.transaction import Marker

GUARDS_A_LIFE = 1_000_000
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Batch(NamedTuple):
    """One record of one transaction. `value` is its number in the run."""

    producer_id: int
    producer_epoch: int
    sequence: int
    value: int


class Partition:
    """The leader's log: batches and markers by offset."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.producers = ProducerState()
        self.verifications = Verifications()
        self.log: list[Batch | Marker] = []
        self.incarnation = 0
        self.is_up = True

    def die(self) -> None:
        self.incarnation += 1
        self.is_up = False
        self.verifications = Verifications(first_guard=self.incarnation * GUARDS_A_LIFE)

    def produce(self, batch: Batch, guard: int, adds_partition: bool, now_ms: int) -> NeedsVerification | ErrorCode:
        offset = Offset(len(self.log))
        staging = self.producers.stage(self.verifications)
        who = (ProducerId(batch.producer_id), batch.producer_epoch, batch.sequence)
        answer = staging.admit_transactional(*who, offset, offset, now_ms, Offer(guard, adds_partition), now_ms)
        if answer is None:
            self.log.append(batch)
            self.producers.apply(staging)
            return ErrorCode.NONE
        return ErrorCode.NONE if isinstance(answer, DuplicateBatch) else answer

    def end(self, marker: Marker, now_ms: int) -> ErrorCode:
        staging = self.producers.stage(self.verifications)
        ended = EndTransactionMarker(marker.is_commit, marker.coordinator_epoch)
        answer = staging.end_transaction(marker.producer_id, marker.producer_epoch, Offset(len(self.log)), now_ms, ended, marker.raises_epoch)
        if answer is None:
            self.log.append(marker)
            self.producers.apply(staging)
            return ErrorCode.NONE
        return ErrorCode.NONE if isinstance(answer, DuplicateBatch) else answer

    def outcomes(self) -> list[tuple[Batch, str]]:
        """What a read_committed consumer makes of each batch, in the order of the log."""
        outcomes: list[tuple[Batch, str]] = []
        by_producer: dict[int, list[int]] = {}
        for entry in self.log:
            if isinstance(entry, Batch):
                by_producer.setdefault(entry.producer_id, []).append(len(outcomes))
                outcomes.append((entry, OPEN))
            else:
                for index in by_producer.pop(entry.producer_id, []):
                    outcomes[index] = (outcomes[index][0], COMMITTED if entry.is_commit else ABORTED)
        return outcomes
