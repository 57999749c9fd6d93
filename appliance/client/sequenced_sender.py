"""Sealed batches to partitions, each exactly once in the log: stamped with a producer's id, epoch and sequences, sent again until a broker has them.

Owned by one thread. Batches of one partition keep their order. A round sends to every leader the oldest waiting batch of each partition, and waits
for all answers. The broker drops what it has already (KIP-98), so an answer that was lost costs nothing.
Weak spot: one round at a time, so throughput is a batch per partition and round trip; batches should be large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId, Offset, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.connection import ClientConnection
from appliance.client.errors import ClientFailed, is_retriable, refused
from appliance.client.messages import INIT_PRODUCER_ID, PRODUCE
from appliance.records.batch import read_batch_header, stamp_producer

ACKS_ALL = -1
PRODUCE_TIMEOUT_MS = 30_000
DELIVERY_TIMEOUT_MS = 120_000
WAITING_BYTES_MAX = 4 * 1024 * 1024
REQUEST_BYTES_MAX = 16 * 1024 * 1024
_SEQUENCE_MASK = 0x7FFFFFFF
NO_TRANSACTION_TIMEOUT_MS = 60_000

OnStored = Callable[[TopicPartition, Offset, bytearray], None]


class ProducerIdentity(NamedTuple):
    """Who sends; the name is None outside of transactions."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None


class _Waiting(NamedTuple):
    batch: bytearray
    records_count: int


class SequencedSender:
    """`append` takes batches, `flush` returns when all in-sync replicas have all. Of no more use once it raised RequestRefused or ClientFailed."""

    def __init__(self, cluster: ClusterClient, identity: ProducerIdentity, *, delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
                 waiting_bytes_max: int = WAITING_BYTES_MAX, on_stored: OnStored | None = None) -> None:  # fmt: skip
        """`on_stored` is told where each batch lies, as it was sent; -1 for a duplicate that is no longer among the broker's last five."""
        self.identity = identity
        self.ends: dict[TopicPartition, Offset] = {}
        """Behind the last acknowledged record of each partition."""
        self._on_stored = on_stored or (lambda partition, base_offset, batch: None)
        self._cluster = cluster
        self._backoff = cluster.backoff(delivery_timeout_ms)
        self._waiting: dict[TopicPartition, deque[_Waiting]] = {}
        self._waiting_bytes = 0
        self._waiting_bytes_max = waiting_bytes_max
        self._sequences: dict[TopicPartition, int] = {}
        self._leaders: dict[TopicPartition, BrokerId] = {}
        self._connections: dict[BrokerId, ClientConnection] = {}

    def append(self, partition: TopicPartition, batch: bytes) -> None:
        """Take one batch without a producer (as BatchBuilder makes them); blocks while more than `waiting_bytes_max` wait."""
        stamped = bytearray(batch)
        records_count = read_batch_header(stamped).records_count
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + records_count) & _SEQUENCE_MASK
        stamp_producer(stamped, self.identity.producer_id, self.identity.producer_epoch, sequence, self.identity.transactional_id is not None)
        self._waiting.setdefault(partition, deque()).append(_Waiting(stamped, records_count))
        self._waiting_bytes += len(stamped)
        while self._waiting_bytes > self._waiting_bytes_max:
            self._round()

    def flush(self) -> None:
        while self._waiting:
            self._round()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- one round

    def _round(self) -> None:
        trouble: Exception | None = None
        asked: list[tuple[BrokerId, list[TopicPartition]]] = []
        try:
            by_leader = self._by_leader()
        except (ClientFailed, RequestRefused) as error:
            by_leader, trouble = {}, self._on_trouble(NO_LEADER, error)
        for leader, partitions in by_leader.items():
            try:
                self._send(leader, partitions)
                asked.append((leader, partitions))
            except (ClientFailed, RequestRefused) as error:
                trouble = self._on_trouble(leader, error)
        for leader, partitions in asked:
            try:
                body = self._connections[leader].receive(PRODUCE_TIMEOUT_MS + 5_000).body
            except ClientFailed as error:
                trouble = self._on_trouble(leader, error)
                continue
            trouble = self._on_response(partitions, body) or trouble
        if trouble is not None:
            self._leaders.clear()
            self._backoff.pause_or_raise(trouble)
        else:
            self._backoff.succeeded()

    def _by_leader(self) -> dict[BrokerId, list[TopicPartition]]:
        """Who gets what this round; a leader's share ends at 16 MiB."""
        self._find_leaders({partition.topic for partition in self._waiting if partition not in self._leaders})
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        sizes: dict[BrokerId, int] = {}
        for partition, batches in self._waiting.items():
            leader = self._leaders.get(partition, NO_LEADER)
            size_bytes = sizes.get(leader, 0) + len(batches[0].batch)
            if leader not in sizes or size_bytes <= REQUEST_BYTES_MAX:
                sizes[leader] = size_bytes
                by_leader.setdefault(leader, []).append(partition)
        return by_leader

    def _find_leaders(self, topics: set[str]) -> None:
        for topic in sorted(topics):
            found = self._cluster.topic(topic, complete=False)
            self._leaders.update({TopicPartition(topic, each.partition): each.leader for each in found.partitions})

    def _send(self, leader: BrokerId, partitions: list[TopicPartition]) -> None:
        if leader == NO_LEADER:
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, f"write to {partitions[0]}")
        connection = self._connections.get(leader)
        if connection is None or not connection.is_open:
            connection = self._connections[leader] = self._cluster.open_connection(leader)
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for partition in partitions:
            by_topic.setdefault(partition.topic, []).append({"index": partition.partition, "records": bytes(self._waiting[partition][0].batch)})
        data = [{"name": topic, "partition_data": each} for topic, each in by_topic.items()]
        connection.send(PRODUCE, {"transactional_id": self.identity.transactional_id, "acks": ACKS_ALL, "timeout": PRODUCE_TIMEOUT_MS, "topic_data": data})

    def _on_trouble(self, leader: BrokerId, error: Exception) -> Exception:
        """What was on its way to `leader` goes again, with the same sequences."""
        connection = self._connections.pop(leader, None)
        if connection is not None:
            connection.close()
        if not is_retriable(error):
            raise error
        return error

    def _on_response(self, partitions: list[TopicPartition], body: Any) -> Exception | None:
        answers = {TopicPartition(str(topic.name), int(answer.index)): answer for topic in body.responses for answer in topic.partition_responses}
        trouble: Exception | None = None
        for partition in partitions:
            answer = answers.get(partition)
            number = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else int(answer.error_code)
            if number not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                trouble = refused(number, f"write to {partition}", getattr(answer, "error_message", None))
                if not is_retriable(trouble) or number == ErrorCode.CORRUPT_MESSAGE:
                    raise trouble
                continue
            self._on_acknowledged(partition, int(getattr(answer, "base_offset", -1)))
        return trouble

    def _on_acknowledged(self, partition: TopicPartition, base_offset: int) -> None:
        batches = self._waiting[partition]
        done = batches.popleft()
        self._waiting_bytes -= len(done.batch)
        if not batches:
            del self._waiting[partition]
        self._on_stored(partition, Offset(base_offset), done.batch)
        if base_offset >= 0:
            self.ends[partition] = Offset(base_offset + done.records_count)


def new_identity(cluster: ClusterClient) -> ProducerIdentity:
    """A producer outside of transactions; any broker names him."""
    values = {"transactional_id": None, "transaction_timeout": NO_TRANSACTION_TIMEOUT_MS}
    backoff = cluster.backoff()
    while True:
        try:
            brokers = cluster.metadata([]).brokers
            body = cluster.ask_broker(min(brokers), INIT_PRODUCER_ID, values)
            if body.error_code == ErrorCode.NONE:
                return ProducerIdentity(int(body.producer_id), int(body.producer_epoch))
            raise refused(int(body.error_code), "get a producer id")
        except (ClientFailed, RequestRefused) as error:
            if not is_retriable(error):
                raise
            backoff.pause_or_raise(error)
