"""A box that leads partitions, played by the test: it takes Produce requests of an ingest, and judges sequences as a log does.

Batches are checked like any producer's, and `ProducerState` says which are next, which are known, which are out of order. Weak spot: no high watermark; what it
appends it acknowledges, when the test lets it answer.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.base.model import FIRST_OFFSET, Offset
from appliance.protocol import offset_apis, transaction_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.produce import ProduceResult, decode_produce, encode_produce_response
from appliance.records.batch import batch_problem, read_batch_header
from appliance.records.record import Record, iterate_records
from appliance.storage.producer_state import DuplicateBatch, ProducerState
from tests.support.scripted_peer import PeerRequest, ScriptedPeer, answer_frame


class ProduceLeader:
    """`work` takes and answers everything that has come."""

    def __init__(self, turn: Callable[[], object]) -> None:
        self.peer = ScriptedPeer(turn)
        self._questions = ScriptedPeer(turn)
        """The connection by which what was stored is asked for."""
        self._questions.listening.close()
        self._questions.listening = self.peer.listening
        self.logs: dict[int, list[Record]] = {}
        self.error = ErrorCode.NONE
        """For every batch, until it is taken back."""
        self.answers = True
        self.postponed: list[tuple[ScriptedPeer, PeerRequest]] | None = None
        """Questions about producers that wait for their answers; None: none has to. `answer_postponed` ends that."""
        self.duplicates = 0
        self.epochs: list[int] = []
        """Of the batches that were appended."""
        self.acks: set[int] = set()
        self._producers: dict[int, ProducerState] = {}

    def work(self) -> None:
        if self.peer.listening.fileno() < 0:
            return  # it is away
        self._questions.listening = self.peer.listening
        for peer in (self.peer, self._questions):
            if peer.sock is None and not peer.poll_accept():
                continue
            while (request := peer.poll_request()) is not None:
                if self.postponed is not None and request.api_key != ApiKey.PRODUCE:
                    self.postponed.append((peer, request))
                    continue
                answer = self._produce(request) if request.api_key == ApiKey.PRODUCE else answer_frame(request, self._describe(request))
                if self.answers:
                    peer.send(answer)

    def answer_postponed(self) -> None:
        for peer, request in self.postponed or ():
            peer.send(answer_frame(request, self._describe(request)))
        self.postponed = None

    def _describe(self, request: PeerRequest) -> bytes:
        """What it knows of producers; committed is all."""
        if request.api_key == ApiKey.DESCRIBE_PRODUCERS:
            (topic,) = transaction_apis.DESCRIBE_PRODUCERS_REQUEST.decode(request.body, 0, len(request.body), request.version).topics
            (number,) = topic.partitions
            state = self._producers.setdefault(number, ProducerState())
            known = [(producer_id, epoch, state.entry(producer_id)) for producer_id, epoch, _ in state.last_batches()]
            producers = tuple(transaction_apis.ActiveProducer(producer_id, epoch, entry.last_sequence) for producer_id, epoch, entry in known if entry)
            partition = transaction_apis.ProducersOfPartition(number, producers=producers)
            described = transaction_apis.DescribeProducersResponse(0, (transaction_apis.ProducersOfTopic(topic.topic, (partition,)),))
            return transaction_apis.DESCRIBE_PRODUCERS_RESPONSE.encode(request.version, described)
        if request.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            (asked,) = offset_apis.OFFSET_FOR_LEADER_EPOCH_REQUEST.decode(request.body, 0, len(request.body), request.version).topics
            number = asked.partitions[0].partition
            end = offset_apis.EpochPartitionResult(0, number, asked.partitions[0].leader_epoch, len(self.logs.get(number, ())))
            body = offset_apis.OffsetForLeaderEpochResponse(0, (offset_apis.EpochTopicResult(asked.topic, (end,)),))
            return offset_apis.OFFSET_FOR_LEADER_EPOCH_RESPONSE.encode(request.version, body)
        (wanted,) = offset_apis.LIST_OFFSETS_REQUEST.decode(request.body, 0, len(request.body), request.version).topics
        number = wanted.partitions[0].partition
        found = offset_apis.ListOffsetsPartitionResult(number, 0, offset=len(self.logs.get(number, ())))
        return offset_apis.LIST_OFFSETS_RESPONSE.encode(
            request.version, offset_apis.ListOffsetsResponse(0, (offset_apis.ListOffsetsTopicResult(wanted.topic, (found,)),))
        )

    def _produce(self, request: PeerRequest) -> bytes:
        produce = decode_produce(request.body, 0, len(request.body), request.version)
        self.acks.add(produce.acks)
        results = []
        for topic, partition, position, size_bytes in produce.partitions:
            batch = request.body[position : position + size_bytes]
            assert batch_problem(batch, 0, len(batch), 1 << 20) is None
            code = self.error or self._append(partition, batch)
            results.append(ProduceResult(topic, partition, code, Offset(len(self.logs.get(partition, ())))))
        return encode_produce_response(request.version, request.correlation_id, results)

    def _append(self, partition: int, batch: bytes) -> ErrorCode:
        log = self.logs.setdefault(partition, [])
        state = self._producers.setdefault(partition, ProducerState())
        header = read_batch_header(batch)
        staging = state.stage()
        end = len(log) + header.records_count
        answer = staging.admit(header.producer_id, header.producer_epoch, header.base_sequence, Offset(len(log)), Offset(end - 1), header.max_timestamp)
        if isinstance(answer, DuplicateBatch):
            self.duplicates += 1
            return ErrorCode.NONE
        if answer is not None:
            return answer
        state.apply(staging)
        self.epochs.append(header.producer_epoch)
        log += iterate_records(batch, 1 << 24)
        return ErrorCode.NONE

    def lose_all(self, partition: int) -> None:
        """As if a replica had been elected that has nothing of it, but knows the producer from long ago."""
        state = self._producers[partition]
        (producer_id,) = [producer_id for producer_id, _, _ in state.last_batches()]
        self.logs[partition] = []
        fresh = self._producers[partition] = ProducerState()
        staging = fresh.stage()
        assert staging.admit(producer_id, 0, 0, FIRST_OFFSET, FIRST_OFFSET, 0) is None
        fresh.apply(staging)

    def forget_all_but_the_last(self, partition: int) -> None:
        """As a log-writer that was killed right after it had rolled a segment."""
        state = self._producers[partition]
        snapshot = state.encode()
        fresh = self._producers[partition] = ProducerState()
        fresh.decode(snapshot)

    def die(self) -> None:
        """It is away, until its peer comes back; it keeps what it has."""
        self._questions.hang_up()
        self.peer.die()

    def close(self) -> None:
        self.die()
