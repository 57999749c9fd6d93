"""One fetch request on its way: what it wants, what was found out for it, and what it waits for.

Made and answered by `handlers/fetch`, filled by `partition_answers`. Owned by one acceptor.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from appliance.base.errors import ErrorCode
from appliance.protocol.fetch import CONSUMER_REPLICA_ID, FOLLOWER_FETCH_SINCE, AbortedTransaction, FetchRequest
from services.acceptor.connection import Reply
from services.acceptor.fetch.cold_reads import ColdRead
from services.acceptor.fetch.fetch_session import FetchSession, SessionPartition
from services.acceptor.fetch.parked_growth import ParkedGrowth

Target: TypeAlias = int | SessionPartition
"""Which partition of a fetch: its index in the request, or the session's own object."""


class Found(NamedTuple):
    """Where a batch begins, as the log-reader told; `first_batch_bytes` 0: not known."""

    offset: int
    segment_base_offset: int
    position: int
    first_batch_bytes: int
    inode: int = 0
    """of the file that `position` is in; 0: of the active segment, which nobody replaces"""


class AbortedFound(NamedTuple):
    """The aborted transactions among the batches from `fetch_offset` up to a position of a segment."""

    fetch_offset: int
    segment_base_offset: int
    end_position: int
    transactions: tuple[AbortedTransaction, ...]


class FetchReader(Protocol):
    """Whoever looks at a fetch again when something has happened to it."""

    def has_grown(self, pending: PendingFetch, growth: ParkedGrowth) -> bool: ...

    def woken(self, pending: PendingFetch) -> None: ...

    def evaluate(self, pending: PendingFetch, is_due: bool) -> None: ...


class PendingFetch:
    """One fetch request on its way."""

    __slots__ = ("aborted", "cold", "correlation_id", "deadline_ns", "epoch_ends", "expected_epoch", "finished", "found", "growth", "handler", "is_held_back",
                 "is_partial", "only_leader", "progressed", "questions", "reads_to_end", "ready_ns", "received_ns", "reply", "request", "rounds", "session",
                 "targets", "ticket", "unknown", "version")  # fmt: skip

    def __init__(self, handler: FetchReader, reply: Reply, request: FetchRequest, version: int, correlation_id: int, deadline_ns: int) -> None:
        self.handler = handler
        self.reply = reply
        self.request = request
        self.version = version
        self.reads_to_end = request.replica_id != CONSUMER_REPLICA_ID
        """a follower, or who looks for errors: up to the log end; else up to the high watermark"""
        self.only_leader = request.replica_id >= 0 or (not self.reads_to_end and version < FOLLOWER_FETCH_SINCE)
        self.progressed: set[Target] = set()
        """partitions of which a follower's fetch was told to their log-writer"""
        self.correlation_id = correlation_id
        self.deadline_ns = deadline_ns
        self.questions = 0
        self.rounds = 0
        self.unknown = 0
        """in this look: partitions that a question has to be answered for"""
        self.is_held_back = False
        """in this look: some of those questions are asked when others were answered"""
        self.targets = 0
        """in this look: partitions with something to read"""
        self.is_partial = False
        """in this look: some partition has more, but its turn comes with the next fetch"""
        self.growth: ParkedGrowth | None = None
        """while it is parked with many partitions: what of them is worth a look"""
        self.cold: ColdRead | None = None
        """its one partition that is read by a log-reader"""
        self.ticket = 0
        self.session: FetchSession | None = None
        self.expected_epoch = 0
        """of the session's next request, as long as this one is its latest"""
        self.found: dict[Target, Found | ErrorCode] = {}
        """partition → what the log-reader answered"""
        self.epoch_ends: dict[tuple[Target, int], tuple[int, int] | ErrorCode] = {}
        """(partition, leader epoch of its row) → what the log-reader said of the epoch that the client fetched last"""
        self.aborted: dict[Target, AbortedFound | ErrorCode] = {}
        """partition → what the log-reader said of aborted transactions in what is about to be sent"""
        self.finished = False
        self.received_ns = self.ready_ns = reply.connection.last_active_ns
        """Since when nothing but us delays the answer: received, or woken from the last wait; 0 while it waits."""

    def on_row_moved(self) -> None:
        if self.growth is None or self.handler.has_grown(self, self.growth):
            self.rounds = 0
            self.aborted.clear()
            self.handler.woken(self)
            self.handler.evaluate(self, False)

    def on_deadline(self) -> None:
        if self.session is not None and self.session.parked_ticket == self.ticket:
            self.session.parked_ticket = 0
        self.ticket = 0
        self.handler.woken(self)
        self.handler.evaluate(self, True)
