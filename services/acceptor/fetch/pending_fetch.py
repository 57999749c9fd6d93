"""One fetch request under way: what it requests, its reads, and what it waits for.

Created and answered by `handlers/fetch`; `fetch/partition_read` counts questions here. Owned by one acceptor.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from appliance.base.errors import ErrorCode
from appliance.base.model import LeaderEpoch, Offset, Position
from appliance.cluster.metadata_cache import LocalReplica
from appliance.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    FOLLOWER_FETCH_SINCE,
    AbortedTransaction,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
)
from services.acceptor.connection import PendingReply
from services.acceptor.fetch.cold_reads import ColdRead
from services.acceptor.fetch.fetch_session import FetchSession, SessionPartition
from services.acceptor.fetch.parked_growth import ParkedGrowth

Target: TypeAlias = int | SessionPartition
"""A partition of a fetch: its index in the request, or the session's own object."""


class FoundBatch(NamedTuple):
    """Where a batch begins, as the log-reader found it; `first_batch_bytes` 0: unknown."""

    offset: Offset
    segment_base_offset: Offset
    position: Position
    first_batch_bytes: int
    inode: int = 0
    """of the file that `position` is in; 0: of the active segment, which is never replaced"""


class AbortedFound(NamedTuple):
    """The aborted transactions among the batches from `fetch_offset` up to a position of a segment."""

    fetch_offset: Offset
    segment_base_offset: Offset
    end_position: Position
    transactions: tuple[AbortedTransaction, ...]


class SteppedRead(Protocol):
    """A `PartitionRead`, as its fetch and the fetch handler use it."""

    wanted: FetchPartition
    replica: LocalReplica
    found: FoundBatch | None
    aborted: AbortedFound | None

    def step(self, space_bytes: int, is_first: bool) -> FetchPartitionResult | None: ...


class FetchReader(Protocol):
    """Evaluates a fetch again after an event."""

    def has_grown(self, pending: PendingFetch, growth: ParkedGrowth) -> bool: ...

    def woken(self, pending: PendingFetch) -> None: ...

    def evaluate(self, pending: PendingFetch, is_due: bool) -> None: ...


class PendingFetch:
    """One fetch request under way. The counts and flags marked (*) are of the current evaluation."""

    __slots__ = (
        "cold", "correlation_id", "deadline_ns", "epoch_ends", "expected_epoch", "finished", "growth", "handler", "is_held_back",
        "is_partial", "only_leader", "progressed", "questions", "reads", "reads_to_end", "ready_ns", "received_ns", "reply",
        "request", "rounds", "session", "targets", "ticket", "unknown", "version",
    )  # fmt: skip

    def __init__(self, handler: FetchReader, reply: PendingReply, request: FetchRequest, version: int, correlation_id: int, deadline_ns: int) -> None:
        self.handler = handler
        self.reply = reply
        self.request = request
        self.version = version
        self.reads_to_end = request.replica_id != CONSUMER_REPLICA_ID
        """a follower or a debugging client reads up to the log end, a consumer up to the high watermark"""
        self.only_leader = request.replica_id >= 0 or (not self.reads_to_end and version < FOLLOWER_FETCH_SINCE)
        self.progressed: set[Target] = set()
        """partitions whose follower's offset was sent to their log-writer"""
        self.correlation_id = correlation_id
        self.deadline_ns = deadline_ns
        self.questions = 0
        """to log-readers, under way"""
        self.rounds = 0
        """evaluations that ended with questions"""
        self.unknown = 0
        """(*) partitions that need an answer"""
        self.is_held_back = False
        """(*) some questions are asked only after others were answered"""
        self.targets = 0
        """(*) partitions with records"""
        self.is_partial = False
        """(*) some partition has more, which follows with the next fetch"""
        self.growth: ParkedGrowth | None = None
        """while it is parked with many partitions: decides when to evaluate it again"""
        self.cold: ColdRead | None = None
        """its one partition that a log-reader reads"""
        self.ticket = 0
        self.session: FetchSession | None = None
        self.expected_epoch = 0
        """of the session's next request, as long as this one is its latest"""
        self.reads: dict[Target, SteppedRead] = {}
        self.epoch_ends: dict[tuple[Target, LeaderEpoch], tuple[LeaderEpoch, Offset] | ErrorCode] = {}
        """(partition, leader epoch of its row) → end of the epoch that the client fetched last"""
        self.finished = False
        self.received_ns = self.ready_ns = reply.connection.last_active_ns
        """Since when only this process delays the response: received, or woken from the last wait; 0 while parked."""

    def on_row_moved(self) -> None:
        if self.growth is None or self.handler.has_grown(self, self.growth):
            self.rounds = 0
            for read in self.reads.values():
                read.aborted = None
            self.handler.woken(self)
            self.handler.evaluate(self, False)

    def on_parked(self) -> None:
        """Forget positions: the next evaluation may be much later."""
        for read in self.reads.values():
            read.found = None
        self.cold = None
        self.rounds = 0

    def on_deadline(self) -> None:
        if self.session is not None and self.session.parked_ticket == self.ticket:
            self.session.parked_ticket = 0
        self.ticket = 0
        self.handler.woken(self)
        self.handler.evaluate(self, True)

    def on_closed(self) -> None:
        """End, now or when the last question is answered: the reads refer to this fetch."""
        self.handler.evaluate(self, False)
