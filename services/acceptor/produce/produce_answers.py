"""A produce on its way, and how the results of its partitions become one answer.

acks=1 is answered when the last partition has its result; acks=all when the high watermarks have passed, too, under the leader epochs of the appends: the
log-writer says so, or the rows do, later. A row that says nothing of it any more (its partition was given to another disk) takes nothing back. acks=0 has
no answer, but an error closes the connection. Owned by one acceptor.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.protocol.leader_hints import NodeEndpoint
from appliance.protocol.produce import LEADER_HINTS_SINCE, ProduceRequest, ProduceResult, encode_produce_response
from appliance.shm.counters import Counters
from appliance.shm.mapping import signed
from appliance.shm.partition_table import HIGH_WATERMARK, ISR_AND_CONFIG, TornRow
from services.acceptor.connection import Connection, Reply
from services.acceptor.delayed import Delayed


class PendingProduce:
    """One request whose partitions are under way."""

    __slots__ = (
        "acks", "answers", "correlation_id", "deadline_ns", "is_finished", "partitions", "received_ns", "remaining", "reply", "results", "ticket",
        "transactional_id", "unreplicated", "version",
    )  # fmt: skip

    def __init__(self, answers: ProduceAnswers, reply: Reply, version: int, correlation_id: int, request: ProduceRequest, deadline_ns: int) -> None:
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
        self.unreplicated: list[tuple[int, LocalReplica, int, int]] = []
        """(index, placement, leader epoch, end offset) of partitions whose high watermark has to pass."""
        self.ticket = 0
        self.received_ns = reply.connection.last_active_ns
        """Its last byte came in; what runs behind it on the connection is not read before that is looked at."""

    def on_row_moved(self) -> None:
        self.answers.look_at_watermarks(self)

    def on_deadline(self) -> None:
        self.answers.give_up_waiting(self)

    def on_too_late(self) -> None:
        self.answers.give_up_log_writer(self)


class ProduceAnswers:
    """All produces of one acceptor that wait for an answer."""

    def __init__(self, view: MetadataCache, delayed: Delayed, clock: Clock, counters: Counters, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._delayed = delayed
        self._clock = clock
        self._on_reply = on_reply
        self._too_late = counters.counter("produce.timed_out_in_log_writer")
        self._latency = counters.histogram("produce.latency_us")

    def settle(self, pending: PendingProduce, index: int, result: ProduceResult) -> None:
        """One of its partitions has a result; the last one ends the request, or has it wait for high watermarks."""
        pending.results[index] = result
        pending.remaining -= 1
        if not pending.remaining:
            if pending.unreplicated:
                self.look_at_watermarks(pending)
            else:
                self.finish(pending)

    def look_at_watermarks(self, pending: PendingProduce) -> None:
        """Finish an acks=all request whose high watermarks have passed; park it otherwise."""
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
                self.look_at_watermarks(pending)  # a row may have moved before it was watched
            return
        if pending.ticket:
            self._delayed.leave(pending.ticket)
        self.finish(pending)

    def give_up_waiting(self, pending: PendingProduce) -> None:
        for index, placement, _, _ in pending.unreplicated:
            pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.REQUEST_TIMED_OUT)
        pending.unreplicated = []
        self.finish(pending)

    def give_up_log_writer(self, pending: PendingProduce) -> None:
        """Its log-writer hangs. The client is answered, so that what stands behind it on the connection goes on; the batch's memory stays in
        quarantine until the completion comes or the process is proven dead."""
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
                endpoints = self._add_hints(results)
            reply.pieces = [encode_produce_response(pending.version, pending.correlation_id, results, 0, endpoints)]
        self._latency.record(self._clock.monotonic_ns() - pending.received_ns)
        self._on_reply(reply.connection)

    def _add_hints(self, results: list[ProduceResult]) -> list[NodeEndpoint]:
        """Who leads what we do not, for a client that came to the wrong box (KIP-951); and how those leaders are reached."""
        leaders = []
        for index, result in enumerate(results):
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leaders.append(leader := self._view.leader_hint(result.topic, result.partition))
                results[index] = result._replace(current_leader=leader)
        return self._view.endpoints(leaders)
