"""A leader box played by the test: it has logs in memory, and answers fetches with our own codec when the test lets it.

Sessions are kept by the rules of KIP-227 in twenty lines, so that a follower that forgets to name something is found out. Offsets and epochs are what
the test says; what is damaged is damaged by the test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import LeaderEpoch, Offset, TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.fetch import EpochEndOffset, FetchPartition, FetchPartitionResult, FetchRequest, decode_fetch, encode_fetch_response
from appliance.protocol.offset_apis import (
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResult,
    ListOffsetsTopicResult,
    decode_list_offsets,
    encode_list_offsets_response,
)
from appliance.records.batch import stamp_batch
from appliance.records.builder import BatchBuilder
from tests.support.scripted_peer import PeerRequest, ScriptedPeer

Key = tuple[TopicId, int]


def made_batch(base_offset: int, leader_epoch: int, records: int = 1, value: bytes = b"x" * 20) -> bytes:
    """A batch as a leader's log has it."""
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(1_700_000_000_000, None, value)
    batch = bytearray(builder.build())
    stamp_batch(batch, 0, Offset(base_offset), LeaderEpoch(leader_epoch))
    return bytes(batch)


class Stored(NamedTuple):
    """One batch of the leader's log."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    batch: bytes


class LedLog:
    """One partition that the leader has."""

    def __init__(self, leader_epoch: int = 0) -> None:
        self.leader_epoch = leader_epoch
        self.log_start_offset = 0
        self.high_watermark = 0
        self.batches: list[Stored] = []
        self.error = ErrorCode.NONE
        self.positions: list[int] = []
        """Where the follower said that it is, fetch by fetch."""

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.log_start_offset

    def append(self, records: int = 1, value: bytes = b"x" * 20) -> bytes:
        base = self.log_end_offset
        batch = made_batch(base, self.leader_epoch, records, value)
        self.batches.append(Stored(base, base + records, self.leader_epoch, batch))
        return batch

    def content(self) -> bytes:
        return b"".join(stored.batch for stored in self.batches)

    def answer(self, wanted: FetchPartition) -> FetchPartitionResult:
        refused = partial(FetchPartitionResult, "", wanted.topic_id, wanted.partition)
        answered = partial(refused, high_watermark=self.high_watermark, log_start_offset=self.log_start_offset)
        if self.error:
            return refused(self.error)
        if wanted.current_leader_epoch != self.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH if wanted.current_leader_epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
            return refused(code)
        if not self.log_start_offset <= wanted.fetch_offset <= self.log_end_offset:
            diverging = self._diverging(wanted)
            if diverging is None:
                return refused(ErrorCode.OFFSET_OUT_OF_RANGE)
            return answered(diverging_epoch=diverging)
        if (diverging := self._diverging(wanted)) is not None:
            return answered(diverging_epoch=diverging)
        self.positions.append(wanted.fetch_offset)
        records = b""
        for stored in self.batches:
            if stored.end_offset > wanted.fetch_offset and (not records or len(records) + len(stored.batch) <= wanted.max_bytes):
                records += stored.batch
        return answered(records=records)

    def _diverging(self, wanted: FetchPartition) -> EpochEndOffset | None:
        if wanted.last_fetched_epoch < 0 or wanted.fetch_offset < self.log_start_offset:
            return None
        known = [stored for stored in self.batches if stored.leader_epoch <= wanted.last_fetched_epoch]
        if not known:
            return None
        found = EpochEndOffset(LeaderEpoch(known[-1].leader_epoch), Offset(known[-1].end_offset))
        if wanted.last_fetched_epoch == self.leader_epoch:
            found = EpochEndOffset(LeaderEpoch(self.leader_epoch), Offset(self.log_end_offset))
        return found if found.leader_epoch < wanted.last_fetched_epoch or found.end_offset < wanted.fetch_offset else None


class ScriptedLeader:
    """Its logs, and the one session that it keeps."""

    def __init__(self, turn: Callable[[], object]) -> None:
        self.peer = ScriptedPeer(turn)
        self.logs: dict[Key, LedLog] = {}
        self.session: dict[Key, FetchPartition] = {}
        self.session_id = 0
        self.session_epoch = 0
        self.gives_sessions = True
        self.requests: list[FetchRequest] = []
        self.sessions_begun = 0

    def next_fetch(self) -> tuple[PeerRequest, FetchRequest]:
        """The next fetch; questions for offsets are answered on the way."""
        while True:
            request = self.peer.next_request()
            if request.api_key == ApiKey.FETCH:
                fetch = decode_fetch(request.body, 0, len(request.body), request.version)
                self.requests.append(fetch)
                return request, fetch
            assert request.api_key == ApiKey.LIST_OFFSETS
            self._answer_offsets(request)

    def _answer_offsets(self, request: PeerRequest) -> None:
        asked = decode_list_offsets(request.body, 0, len(request.body), request.version)
        topics = []
        for topic in asked.topics:
            results = []
            for wanted in topic.partitions:
                log = next(log for (_, partition), log in self.logs.items() if partition == wanted.partition)
                offset = log.log_end_offset if wanted.timestamp == LATEST_TIMESTAMP else log.log_start_offset
                results.append(ListOffsetsPartitionResult(wanted.partition, 0, -1, offset, log.leader_epoch))
            topics.append(ListOffsetsTopicResult(topic.topic, tuple(results)))
        self.peer.send(encode_list_offsets_response(request.version, request.correlation_id, tuple(topics)))

    def wanted(self, fetch: FetchRequest) -> list[FetchPartition]:
        """What the fetch asks for, by the session's rules."""
        if fetch.session_epoch <= 0:
            self.session = {}
            self.session_id = self.session_id % 1000 + 1 if self.gives_sessions and fetch.session_epoch == 0 else 0
            self.session_epoch = 0
            self.sessions_begun += 1
        else:
            assert (fetch.session_id, fetch.session_epoch) == (self.session_id, self.session_epoch), "the follower lost count"
        self.session_epoch += 1
        for gone in fetch.forgotten:
            del self.session[gone.topic_id, gone.partition]
        for wanted in fetch.partitions:
            self.session[wanted.topic_id, wanted.partition] = wanted
        return list(self.session.values())

    def serve(self) -> FetchRequest:
        """Take the next fetch and answer it from the logs."""
        request, fetch = self.next_fetch()
        self.answer(request, [self.logs[wanted.topic_id, wanted.partition].answer(wanted) for wanted in self.wanted(fetch)])
        return fetch

    def answer(self, request: PeerRequest, results: list[FetchPartitionResult], error: int = 0) -> None:
        self.peer.send(self.packed(request, results, error))

    def packed(self, request: PeerRequest, results: list[FetchPartitionResult], error: int = 0) -> bytes:
        """An answer, for those who send several at once."""
        session_id = 0 if error else self.session_id
        pieces = encode_fetch_response(request.version, request.correlation_id, error, session_id, results)
        return b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]
