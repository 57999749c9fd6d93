"""Producers: encoded batches to many partitions (`BatchProducer`), and records to one topic (`RecordProducer`).

Owned by one thread, which blocks in `poll` and `flush`. Order, sequences and retries of a partition are
decided in `partition_producer.py`; here are the connections, one per leader. Requests to different
leaders and batches of different partitions do not wait for each other. With acks=all and an identity
each batch is stored once, whatever is lost on the way; with acks 0 or 1 a retry may store it twice.
Weak spot: a leader that cannot be reached blocks the others for the connect time-out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId, Offset, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.connection import ClientConnection, await_readable
from appliance.client.coordinator import by_topic
from appliance.client.errors import ClientFailed, ReplyTimedOut, is_retriable, refused
from appliance.client.messages import INIT_PRODUCER_ID, PRODUCE, BatchToProduce, ClientProduceRequest, ClientProduceResponse, TopicToProduce
from appliance.client.partition_producer import LONGEST_PAUSE_MS, PartitionProducer
from appliance.cluster.state_log import ProducerIdentity
from appliance.protocol.transaction_apis import InitProducerIdRequest
from appliance.records.builder import NO_HEADERS, BatchBuilder
from appliance.records.compression import Codec
from appliance.records.keys import partition_of_key

ACKS_ALL = -1
ACKS_NONE = 0
BATCH_BYTES = 256 * 1024
PRODUCE_TIMEOUT_MS = 30_000
SILENCE_MS_MAX = PRODUCE_TIMEOUT_MS + 5_000
DELIVERY_TIMEOUT_MS = 120_000
WAITING_BYTES_MAX = 4 * 1024 * 1024
REQUEST_BYTES_MAX = 16 * 1024 * 1024

OnStored = Callable[[TopicPartition, Offset, bytearray], None]
Headers = bytes | Iterable[tuple[str, bytes | None]]


class _Request(NamedTuple):
    sent_ms: int
    producers: list[PartitionProducer]


class BatchProducer:
    """`append` takes batches, `flush` returns when the brokers have all. Of no more use once it raised RequestRefused or ClientFailed."""

    def __init__(self, cluster: ClusterClient, identity: ProducerIdentity | None = None, *, transactional_id: str | None = None, acks: int = ACKS_ALL,
                 delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:  # fmt: skip
        """Without `identity` batches have no sequence: the broker cannot recognise a retry."""
        self.cluster = cluster
        self.identity = identity
        self.on_stored: OnStored = lambda partition, base_offset, batch: None
        """Called for each batch as it was sent; offset -1: a duplicate of a batch older than the last five."""
        self.on_notice: Callable[[str], None] = lambda notice: None
        """Called with a sentence for the user when retries begin."""
        self.ends: dict[TopicPartition, Offset] = {}
        """The offset behind the last acknowledged record of each partition."""
        self.acknowledged = 0
        """Records that the brokers have confirmed (with acks=0: handed to the connection)."""
        self.retries = 0
        self.failed: TopicPartition | None = None
        """The partition whose batch made `append`, `poll` or `flush` raise."""
        self.connections: dict[BrokerId, ClientConnection] = {}
        self._transactional_id = transactional_id
        self._acks = acks
        self._delivery_timeout_ms = delivery_timeout_ms
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._producers: dict[TopicPartition, PartitionProducer] = {}
        self._busy: dict[TopicPartition, PartitionProducer] = {}
        """Those with batches that are not acknowledged."""
        self._requests: dict[ClientConnection, deque[_Request]] = {}
        self._leaders: dict[TopicPartition, BrokerId] = {}
        self._metadata_is_stale = True
        self._metadata_failure: Exception | None = None

    def append(self, partition: TopicPartition, batch: bytes) -> None:
        """Take one batch without a producer (as BatchBuilder makes them); blocks while more than `waiting_bytes_max` wait."""
        producer = self._producers.get(partition)
        if producer is None:
            producer = self._producers[partition] = PartitionProducer(partition)
            self._metadata_is_stale = True
        self._busy[partition] = producer
        self._waiting_bytes += producer.append(batch, self.identity, self._transactional_id is not None)
        while self._waiting_bytes > self._waiting_bytes_max:
            self.poll(self._wait_ms())

    def flush(self) -> None:
        """Return when every batch is acknowledged."""
        while self._busy:
            self.poll(self._wait_ms())

    def batches_waiting(self, partition: TopicPartition) -> int:
        producer = self._busy.get(partition)
        return 0 if producer is None else len(producer.batches)

    def close(self) -> None:
        """Close the connections; batches that were not flushed are not sent."""
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()
        self._requests.clear()

    def poll(self, wait_ms: int) -> None:
        """Send every batch that may go, then take the responses that come within `wait_ms`."""
        if self._metadata_is_stale:
            self._refresh_leaders()
        self._send_ready()
        waiting = {connection: leader for leader, connection in self.connections.items() if connection.is_open and connection.under_way}
        if not waiting:
            if wait_ms and self._busy:
                self.cluster.sleep(min(wait_ms, LONGEST_PAUSE_MS) / 1000)
            return
        readable = await_readable(waiting, wait_ms)
        for connection in readable:
            try:
                body = connection.receive().body
            except ClientFailed as error:
                self._on_connection_failed(waiting[connection], [], error)
                continue
            self._on_response(self._requests[connection].popleft().producers, body)
        now_ms = self.cluster.clock.monotonic_ms()
        for connection in waiting.keys() - set(readable):
            if now_ms - self._requests[connection][0].sent_ms > SILENCE_MS_MAX:
                self._on_connection_failed(waiting[connection], [], ReplyTimedOut(f"the broker at {connection.address} does not answer"))

    def _wait_ms(self) -> int:
        """Return the time to the next retry; if all batches are in flight, the time after which a broker counts as hung."""
        now_ms = self.cluster.clock.monotonic_ms()
        return max(1, min((producer.retry_at_ms - now_ms for producer in self._busy.values() if not producer.in_flight), default=SILENCE_MS_MAX))

    def _refresh_leaders(self) -> None:
        topics = sorted({partition.topic for partition in self._busy})
        if not topics:
            return
        try:
            found = self.cluster.metadata(topics).topics.values()
        except ClientFailed as error:
            self._metadata_failure = error  # the delivery time-out of each batch decides when to give up
            return
        self._metadata_is_stale, self._metadata_failure = False, None
        for topic in found:
            if topic.error == ErrorCode.NONE:
                self._leaders.update({TopicPartition(topic.name, each.partition): each.leader for each in topic.partitions})
            else:
                self._metadata_failure = refused(topic.error, f"write to topic {topic.name!r}")

    def _send_ready(self) -> None:
        now_ms = self.cluster.clock.monotonic_ms()
        by_leader: dict[BrokerId, list[PartitionProducer]] = {}
        sizes: dict[BrokerId, int] = {}
        for partition, producer in self._busy.items():
            if not producer.is_ready(now_ms):
                continue
            leader = self._leaders.get(partition, NO_LEADER)
            size_bytes = sizes.get(leader, 0) + len(producer.batches[0].encoded)
            if leader not in sizes or size_bytes <= REQUEST_BYTES_MAX:
                sizes[leader] = size_bytes
                by_leader.setdefault(leader, []).append(producer)
        for leader, producers in by_leader.items():
            try:
                self._send(leader, producers, now_ms)
            except (ClientFailed, RequestRefused) as error:
                self._on_connection_failed(leader, producers, error)

    def _send(self, leader: BrokerId, producers: list[PartitionProducer], now_ms: int) -> None:
        batches = [(each.partition.topic, BatchToProduce(each.partition.partition, each.begin(now_ms).encoded)) for each in producers]
        if leader == NO_LEADER:
            raise self._metadata_failure or refused(ErrorCode.LEADER_NOT_AVAILABLE, f"write to {producers[0].partition}")
        connection = self.connections.get(leader)
        if connection is None or not connection.is_open:
            connection = self.connections[leader] = self.cluster.open_connection(leader)
            self._requests[connection] = deque()
        topics = tuple(TopicToProduce(*topic) for topic in by_topic(batches))
        request = ClientProduceRequest(self._transactional_id, self._acks, PRODUCE_TIMEOUT_MS, topics)
        connection.send(PRODUCE, request, expects_response=self._acks != ACKS_NONE)
        if self._acks != ACKS_NONE:
            self._requests[connection].append(_Request(self.cluster.clock.monotonic_ms(), producers))
            return
        for producer in producers:
            self._on_acknowledged(producer, -1)

    def _on_response(self, producers: list[PartitionProducer], body: ClientProduceResponse) -> None:
        answers = {TopicPartition(topic.topic, answer.partition): answer for topic in body.topics for answer in topic.partitions}
        for producer in producers:
            answer = answers.get(producer.partition)
            if answer is None:
                self._on_failed([producer], refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"write to {producer.partition}"))
            elif answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._on_acknowledged(producer, answer.base_offset)
            else:
                self._on_failed([producer], refused(answer.error_code, f"write to {producer.partition}", answer.error_message))

    def _on_acknowledged(self, producer: PartitionProducer, base_offset: int) -> None:
        batch = producer.on_acknowledged()
        self.acknowledged += batch.records_count
        self._waiting_bytes -= len(batch.encoded)
        if not producer.batches:
            del self._busy[producer.partition]
        self.on_stored(producer.partition, Offset(base_offset), batch.encoded)
        if base_offset >= 0:
            self.ends[producer.partition] = Offset(base_offset + batch.records_count)

    def _on_connection_failed(self, leader: BrokerId, producers: list[PartitionProducer], error: Exception) -> None:
        """Whether the broker stored the batches in flight is unknown: they are sent again with the same sequences."""
        connection = self.connections.pop(leader, None)
        unanswered = list(producers)
        if connection is not None:
            unanswered += (producer for request in self._requests.pop(connection, ()) for producer in request.producers)
            connection.close()
        self._on_failed(unanswered, error)

    def _on_failed(self, producers: list[PartitionProducer], error: Exception) -> None:
        now_ms = self.cluster.clock.monotonic_ms()
        self._metadata_is_stale = True
        self.retries += len(producers)
        is_first = False
        for producer in producers:
            self.failed = producer.partition
            is_first |= producer.on_failure(error, now_ms, self._delivery_timeout_ms)
        self.failed = None
        if is_first:
            self.on_notice(f"{error}; retrying")


class RecordProducer:
    """Records to one topic, by way of `batches`: `send` takes a record, `flush` returns when all are acknowledged."""

    def __init__(self, batches: BatchProducer, topic: str, *, codec: Codec = Codec.NONE, batch_bytes: int = BATCH_BYTES,
                 allow_auto_topic_creation: bool = True) -> None:  # fmt: skip
        self.topic = topic
        self.batches = batches
        self.sent = 0
        """Records taken by `send`."""
        self._codec = codec
        self._batch_bytes = batch_bytes
        found = batches.cluster.topic(topic, allow_auto_topic_creation=allow_auto_topic_creation, complete=False)
        self._builders = [BatchBuilder(codec) for _ in found.partitions]
        self._sticky = 0

    @property
    def acknowledged(self) -> int:
        return self.batches.acknowledged

    def send(
        self, value: bytes | None, key: bytes | None = None, *, headers: Headers = NO_HEADERS, timestamp_ms: int | None = None, partition: int | None = None
    ) -> None:
        """Take one record; blocks while too much waits. Without key and partition one batch goes to one partition, the next batch to another."""
        if partition is None:
            partition = self._sticky if key is None else partition_of_key(key, len(self._builders))
        builder = self._builders[partition]
        builder.append(self.batches.cluster.clock.wall_ms() if timestamp_ms is None else timestamp_ms, key, value, headers)
        self.sent += 1
        if builder.size_bytes >= self._batch_bytes:
            self._close_batch(partition)
            self.batches.poll(0)

    def hand_over(self) -> None:
        """Send the records taken so far, without waiting for responses."""
        for partition in range(len(self._builders)):
            self._close_batch(partition)
        self.batches.poll(0)

    def flush(self) -> None:
        """Return when every record is acknowledged."""
        self.hand_over()
        self.batches.flush()

    def close(self) -> None:
        self.batches.close()

    def _close_batch(self, partition: int) -> None:
        builder = self._builders[partition]
        if not builder.count:
            return
        self._builders[partition] = BatchBuilder(self._codec)
        self.batches.append(TopicPartition(self.topic, partition), builder.build())
        if partition == self._sticky:  # the partition with the fewest batches waiting is next; among equals, the one after this
            count = len(self._builders)
            following = ((partition + step) % count for step in range(1, count + 1))
            self._sticky = min(following, key=lambda candidate: self.batches.batches_waiting(TopicPartition(self.topic, candidate)))


def new_identity(cluster: ClusterClient) -> ProducerIdentity:
    """Get the id and epoch of a producer without transactions, from any broker."""
    backoff = cluster.backoff()
    while True:
        try:
            brokers = cluster.metadata([]).brokers
            body = cluster.ask_broker(min(brokers, default=NO_LEADER), INIT_PRODUCER_ID, InitProducerIdRequest())
            if body.error_code == ErrorCode.NONE:
                return ProducerIdentity(body.producer_id, body.producer_epoch)
            raise refused(body.error_code, "get a producer id")
        except (ClientFailed, RequestRefused) as error:
            if not is_retriable(error):
                raise
            backoff.pause_or_raise(error)
