"""Produces under way, and how the results of their partitions become one response.

acks=1 is answered when the last partition has its result. acks=all also waits until the high watermarks have
passed the appends under their leader epochs: the completion says so, or later the rows do. A row that has
become another partition's (the partition moved to another disk) changes no result. acks=0 has no response, but
an error closes the connection. Owned by one acceptor.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import LeaderEpoch, Offset
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.protocol.leader_hints import NodeEndpoint
from appliance.protocol.produce import LEADER_HINTS_SINCE, ProduceRequest, ProduceResult, encode_produce_response
from appliance.shm.counters import Counters
from appliance.shm.mapping import signed
from appliance.shm.partition_table import HIGH_WATERMARK, ISR_AND_CONFIG, TornRow
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.delayed import DelayedRequests


class PendingProduce:
    """One request whose partitions are under way."""

    __slots__ = (
        "acks", "answers", "correlation_id", "deadline_ns", "is_finished", "partitions", "received_ns", "remaining", "reply", "results", "ticket",
        "transactional_id", "unreplicated", "version",
    )  # fmt: skip

    def __init__(self, answers: ProduceAnswers, reply: PendingReply, version: int, correlation_id: int, request: ProduceRequest, deadline_ns: int) -> None:
        partitions = request.partitions
        self.answers = answers
        self.reply = reply
        self.version = version
        self.correlation_id = correlation_id
        self.acks = request.acks
        self.transactional_id = request.transactional_id
        self.deadline_ns = deadline_ns
        self.partitions = partitions
        self.remaining = len(partitions)
        self.results: list[ProduceResult | None] = [None] * len(partitions)
        self.is_finished = False
        reply.awaited = self
        self.unreplicated: list[tuple[int, LocalReplica, LeaderEpoch, Offset]] = []
        """(index, placement, leader epoch, end offset) of partitions whose high watermark has to pass."""
        self.ticket = 0
        self.received_ns = reply.connection.last_active_ns
        """When its last byte was received; later requests of the connection are read after that."""

    def on_row_moved(self) -> None:
        self.answers.check_high_watermarks(self)

    def on_deadline(self) -> None:
        self.answers.time_out_replication(self)

    def on_closed(self) -> None:
        self.reply.awaited = None

    def on_too_late(self) -> None:
        self.answers.time_out_log_writer(self)


class ProduceAnswers:
    """All produces of one acceptor that wait for their response."""

    def __init__(self, view: MetadataCache, delayed: DelayedRequests, clock: Clock, counters: Counters, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._delayed = delayed
        self._clock = clock
        self._on_reply = on_reply
        self._too_late = counters.counter("produce.timed_out_in_log_writer")
        self._latency = counters.histogram("produce.latency_us")

    def settle(self, pending: PendingProduce, index: int, result: ProduceResult) -> None:
        """A partition has its result. The last one ends the request, or starts the wait for high watermarks."""
        pending.results[index] = result
        pending.remaining -= 1
        if not pending.remaining:
            if pending.unreplicated:
                self.check_high_watermarks(pending)
            else:
                self.finish(pending)

    def check_high_watermarks(self, pending: PendingProduce) -> None:
        """Finish an acks=all request whose high watermarks have passed; otherwise park it.

        A partition fails if its log-writer or its leadership has changed: the log may have been truncated.
        """
        waiting = []
        for index, placement, leader_epoch, end_offset in pending.unreplicated:
            if not placement.proxy.serving or placement.proxy.table is not placement.table:
                pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            try:
                words = placement.read_words()
            except TornRow:
                waiting.append((index, placement, leader_epoch, end_offset))
                continue
            if not placement.leads_on(leader_epoch, words):
                pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif signed(words[HIGH_WATERMARK]) < end_offset:
                waiting.append((index, placement, leader_epoch, end_offset))
            elif words[ISR_AND_CONFIG] >> 48 < words[ISR_AND_CONFIG] >> 32 & 0xFFFF:
                pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        pending.unreplicated = waiting
        if waiting:
            if not pending.ticket:
                pending.ticket = self._delayed.park(pending, [placement for _, placement, _, _ in waiting], pending.deadline_ns)
                self.check_high_watermarks(pending)  # a row may have changed before it was watched
            return
        if pending.ticket:
            self._delayed.leave(pending.ticket)
        self.finish(pending)

    def time_out_replication(self, pending: PendingProduce) -> None:
        for index, placement, _, _ in pending.unreplicated:
            pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.REQUEST_TIMED_OUT)
        pending.unreplicated = []
        self.finish(pending)

    def time_out_log_writer(self, pending: PendingProduce) -> None:
        """The log-writer is too slow: answer, so that later requests of the connection can continue.

        The slots stay taken until the completions come or the process is dead.
        """
        self._too_late.add()
        for index, partition in enumerate(pending.partitions):
            if pending.results[index] is None:
                pending.results[index] = ProduceResult(partition.topic, partition.partition, ErrorCode.REQUEST_TIMED_OUT)
        pending.unreplicated = []
        if pending.ticket:
            self._delayed.leave(pending.ticket)
        self.finish(pending)

    def finish(self, pending: PendingProduce) -> None:
        reply = pending.reply
        pending.is_finished = True
        reply.awaited = None
        reply.ready = True
        results = [result for result in pending.results if result is not None]
        if pending.acks == 0:
            reply.closes = any(result.error_code for result in results)
        else:
            endpoints: list[NodeEndpoint] = []
            if pending.version >= LEADER_HINTS_SINCE and any(result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER for result in results):
                endpoints = self._add_hints(results, reply.connection.listener)
            reply.pieces = [encode_produce_response(pending.version, pending.correlation_id, results, 0, endpoints)]
        self._latency.record(self._clock.monotonic_ns() - pending.received_ns)
        self._on_reply(reply.connection)

    def _add_hints(self, results: list[ProduceResult], listener: str) -> list[NodeEndpoint]:
        """Add the current leader to results that another broker leads (KIP-951); return the leaders' endpoints."""
        leaders = []
        for index, result in enumerate(results):
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leaders.append(leader := self._view.leader_hint(result.topic, result.partition))
                results[index] = result._replace(current_leader=leader)
        return self._view.endpoints(leaders, listener)
