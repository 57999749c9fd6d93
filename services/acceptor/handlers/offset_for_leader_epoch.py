"""OffsetForLeaderEpoch: where a leader epoch ends in our log, for followers and consumers that ask whether theirs parted from it.

The latest epoch ends at the log end, which the row says; older ones are looked up by the disk's log-reader in the leader-epoch checkpoint.
Owned by one acceptor. Weak spot: one question for each partition, up to `QUESTIONS_AHEAD_MAX` under way at once. Source: KIP-101, KIP-279, KIP-320.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import MetadataCache
from appliance.ipc.log_reader_messages import EPOCH_END, Answer
from appliance.ipc.log_reader_proxy import QUESTIONS_AHEAD_MAX, LogReaderProxy
from appliance.protocol.offset_apis import (
    EpochPartition,
    EpochPartitionResult,
    EpochTopicResult,
    OffsetForLeaderEpochRequest,
    decode_offset_for_leader_epoch,
    encode_offset_for_leader_epoch_response,
)
from appliance.protocol.request_header import RequestHeader
from appliance.shm.counters import Counters
from appliance.shm.partition_table import TornRow
from services.acceptor.connection import Connection, Reply
from services.acceptor.leadership import leadership_problem


class _PendingEpochs:
    """One request whose partitions are being looked up."""

    __slots__ = ("correlation_id", "is_looking", "questions", "reply", "request", "results", "todo", "version")

    def __init__(self, reply: Reply, request: OffsetForLeaderEpochRequest, header: RequestHeader) -> None:
        self.reply = reply
        self.request = request
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.questions = 0
        self.todo = ((topic_index, index) for topic_index, topic in enumerate(request.topics) for index in range(len(topic.partitions)))
        """(topic, partition) that nobody looked at yet, by their places in the request"""
        self.is_looking = False
        self.results: list[list[EpochPartitionResult]] = [
            [EpochPartitionResult(ErrorCode.NONE, wanted.partition) for wanted in topic.partitions] for topic in request.topics
        ]


class OffsetForLeaderEpochHandler:
    """All OffsetForLeaderEpoch requests of one acceptor."""

    def __init__(self, view: MetadataCache, readers: dict[str, LogReaderProxy], counters: Counters, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._readers = readers
        self._on_reply = on_reply
        self._requests = counters.counter("offset_for_leader_epoch.requests")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_offset_for_leader_epoch(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        pending = _PendingEpochs(connection.expect_reply(False), request, header)
        self._go_on(pending)

    def _go_on(self, pending: _PendingEpochs) -> None:
        """Look at partitions as long as not too many questions are under way; answer when there is nothing left to do."""
        if pending.is_looking or pending.reply.connection.closed:
            return  # an answer came, or its log-reader died, in the middle of a question: the look goes on anyway
        pending.is_looking = True
        for topic_index, index in pending.todo:
            topic, results = pending.request.topics[topic_index], pending.results[topic_index]
            wanted = topic.partitions[index]
            error_code = self._look(pending, results, index, topic.topic, wanted)
            if error_code:
                results[index] = EpochPartitionResult(error_code, wanted.partition)
            if pending.questions >= QUESTIONS_AHEAD_MAX:
                break
        pending.is_looking = False
        if not pending.questions:
            self._answer(pending)

    def _look(self, pending: _PendingEpochs, results: list[EpochPartitionResult], index: int, topic: str, wanted: EpochPartition) -> ErrorCode:
        """Fill in `results[index]`, now or when the log-reader answers; or say why not."""
        placement = self._view.placement(topic, wanted.partition)
        if placement is None:
            return self._view.why_absent(topic, wanted.partition)
        try:
            row = placement.read_row()
        except TornRow:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        problem = leadership_problem(row, placement.row_generation, wanted.current_leader_epoch)
        if problem is not None:
            return problem
        if wanted.leader_epoch == row.leader_epoch:
            # Whoever leads has the epoch in its cache before the row says so: it is the latest one.
            results[index] = EpochPartitionResult(ErrorCode.NONE, wanted.partition, row.leader_epoch, row.log_end_offset)
            return ErrorCode.NONE
        if not 0 <= wanted.leader_epoch < row.leader_epoch:
            return ErrorCode.NONE  # nothing can be said of it

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if answer is None:
                results[index] = EpochPartitionResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, wanted.partition)
            elif answer.error_code:
                results[index] = EpochPartitionResult(answer.error_code, wanted.partition)
            else:
                results[index] = EpochPartitionResult(ErrorCode.NONE, wanted.partition, answer.a, answer.b)
            self._answered(pending)

        reader = self._readers[placement.disk]
        if not reader.ask(EPOCH_END, topic, wanted.partition, row.segment_list_generation, wanted.leader_epoch, row.log_end_offset, on_answer):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        pending.questions += 1
        return ErrorCode.NONE

    def _answered(self, pending: _PendingEpochs) -> None:
        pending.questions -= 1
        self._go_on(pending)

    def _answer(self, pending: _PendingEpochs) -> None:
        topics = tuple(EpochTopicResult(topic.topic, tuple(results)) for topic, results in zip(pending.request.topics, pending.results, strict=True))
        reply = pending.reply
        reply.pieces = [encode_offset_for_leader_epoch_response(pending.version, pending.correlation_id, topics)]
        reply.ready = True
        self._on_reply(reply.connection)
