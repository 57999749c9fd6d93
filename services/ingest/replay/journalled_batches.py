"""Ask leaders which batches of previous incarnations are stored.

Owned by one ingest while there are such batches. The leader is asked at its Kafka port, also when
it is this box: DescribeProducers; for the batches that it has, the log end offset
(OffsetForLeaderEpoch); then the high watermark until it has reached that offset (ListOffsets),
because only committed batches are stored. A batch is stored if its last sequence is not above the
producer's last sequence. A batch of an older epoch is not: before a producer went to the next
epoch, the journal recorded what was stored of the older one. What is not known to be stored is
stored again when its sender repeats it.

On several boxes a batch that a leader lacks is asked for again until `GRACE_MS` has passed:
requests of the dead process may still be on their way. While a partition has no leader, its batches
stay unresolved and repeats of their records wait.

Weak: a request that arrives after that grace is stored twice. So are batches whose log has
forgotten the producer (`producer.id.expiration.ms`, by the records' times).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from appliance.base.model import NO_LEADER, NO_LEADER_EPOCH
from appliance.cluster.metadata_image import MetadataImage, PartitionImage
from appliance.protocol import offset_apis, transaction_apis
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.storage.producer_state import LARGEST_SEQUENCE, advance_sequence
from services.ingest.replay.journal_records import JournalledBatch

GRACE_MS: Final = 2_000
ABSENT_MS: Final = 5_000
"""A topic that is missing from the image for so long is gone."""
RETRY_MS: Final = 100
TIMEOUT_MS: Final = 5_000
IN_FLIGHT_MAX: Final = 32
CONSUMER: Final = -1

OnResolved = Callable[[JournalledBatch, bool], None]


class SequenceRequester(Protocol):
    """`client.peers.Peers`, as far as it is needed."""

    def ask(
        self,
        broker_id: int,
        question: Message[Any],
        reply: Message[Any],
        body: Any,
        on_answer: Callable[[Any], None],
        timeout_ms: int,
        *,
        version_min: int | None = None,
        channel: int = 0,
    ) -> None: ...


class _Partition:
    """One partition's unresolved batches. `leader` and `leader_epoch` are those that are asked now."""

    __slots__ = ("batches", "end_offset", "held", "is_asking", "leader", "leader_epoch", "number", "retry_at_ms", "topic", "topic_id")

    def __init__(self, batch: JournalledBatch) -> None:
        self.topic, self.topic_id, self.number = batch.topic, batch.topic_id, batch.partition
        self.batches: list[JournalledBatch] = []
        self.is_asking = False
        self.retry_at_ms = 0
        self.leader: int = NO_LEADER
        self.leader_epoch = NO_LEADER_EPOCH
        self.held: list[JournalledBatch] = []
        """Batches that the leader has, committed or not."""
        self.end_offset = -1


class JournalledBatches:
    """`add` them, then `turn` each turn until `is_empty`."""

    def __init__(self, peers: SequenceRequester, on_resolved: OnResolved, now_ms: int) -> None:
        self._peers = peers
        self._on_resolved = on_resolved
        self._began_ms = now_ms
        self._now_ms = now_ms
        self._partitions: dict[tuple[bytes, int], _Partition] = {}
        self._identities: Counter[bytes] = Counter()

    @property
    def is_empty(self) -> bool:
        return not self._partitions

    def batches(self) -> Iterator[JournalledBatch]:
        """Yield the unresolved batches."""
        for partition in self._partitions.values():
            yield from partition.batches

    def has(self, identity: bytes) -> bool:
        """True if one of them has records of this identity."""
        return identity in self._identities

    def add(self, batch: JournalledBatch) -> None:
        partition = self._partitions.setdefault((batch.topic_id, batch.partition), _Partition(batch))
        partition.batches.append(batch)
        self._identities.update(part[0] for part in batch.parts)

    def turn(self, now_ms: int, image: MetadataImage) -> int:
        """Send the requests that are due. Answers arrive in the peers' turn."""
        self._now_ms = now_ms
        asked = 0
        free = IN_FLIGHT_MAX - sum(partition.is_asking for partition in self._partitions.values())
        for partition in list(self._partitions.values()):
            if free <= asked:
                break
            if partition.is_asking or now_ms < partition.retry_at_ms:
                continue
            place = _place_of(partition, image)
            if place is None:
                if image.generation and now_ms - self._began_ms >= ABSENT_MS:
                    self._resolve(partition, lambda _batch: False)
                continue
            if place.leader != NO_LEADER:
                asked += 1
                partition.is_asking = True
                partition.leader, partition.leader_epoch = place.leader, place.leader_epoch
                self._ask_producers(partition, has_others=len(image.brokers) > 1)
        return asked

    # -- the three requests

    def _ask(self, partition: _Partition, question: Message[Any], reply: Message[Any], body: Any, on_answer: Callable[[Any], None]) -> None:
        self._peers.ask(partition.leader, question, reply, body, on_answer, TIMEOUT_MS, channel=1)

    def _ask_producers(self, partition: _Partition, has_others: bool) -> None:
        def answered(response: transaction_apis.DescribeProducersResponse | None) -> None:
            result = _only(response)
            if result is None or result.error_code:
                self._again(partition)
                return
            last = {producer.producer_id: (producer.producer_epoch, producer.last_sequence) for producer in result.producers}
            partition.held = [batch for batch in partition.batches if _has(last, batch)]
            if partition.held:
                self._ask_end(partition)
            elif has_others and self._now_ms - self._began_ms < GRACE_MS:
                self._again(partition)
            else:
                self._resolve(partition, lambda _batch: False)

        body = transaction_apis.DescribeProducersRequest((TopicPartitions(partition.topic, (partition.number,)),))
        self._ask(partition, transaction_apis.DESCRIBE_PRODUCERS_REQUEST, transaction_apis.DESCRIBE_PRODUCERS_RESPONSE, body, answered)

    def _ask_end(self, partition: _Partition) -> None:
        def answered(response: offset_apis.OffsetForLeaderEpochResponse | None) -> None:
            result = _only(response)
            if result is None or result.error_code or result.leader_epoch != partition.leader_epoch or result.end_offset < 0:
                self._again(partition)
                return
            partition.end_offset = result.end_offset
            self._ask_high_watermark(partition)

        wanted = offset_apis.EpochPartition(partition.number, partition.leader_epoch, partition.leader_epoch)
        body = offset_apis.OffsetForLeaderEpochRequest(CONSUMER, (offset_apis.EpochTopic(partition.topic, (wanted,)),))
        self._ask(partition, offset_apis.OFFSET_FOR_LEADER_EPOCH_REQUEST, offset_apis.OFFSET_FOR_LEADER_EPOCH_RESPONSE, body, answered)

    def _ask_high_watermark(self, partition: _Partition) -> None:
        def answered(response: offset_apis.ListOffsetsResponse | None) -> None:
            result = _only(response)
            if result is None or result.error_code or result.offset < partition.end_offset:
                self._again(partition)
                return
            stored = {batch.stamp for batch in partition.held}
            if len(stored) < len(partition.batches) and self._now_ms - self._began_ms < GRACE_MS:
                self._resolve_some(partition, partition.held)
                self._again(partition)
            else:
                self._resolve(partition, lambda batch: batch.stamp in stored)

        wanted = offset_apis.ListOffsetsPartition(partition.number, partition.leader_epoch, offset_apis.LATEST_TIMESTAMP)
        body = offset_apis.ListOffsetsRequest(CONSUMER, 0, (offset_apis.ListOffsetsTopic(partition.topic, (wanted,)),))
        self._ask(partition, offset_apis.LIST_OFFSETS_REQUEST, offset_apis.LIST_OFFSETS_RESPONSE, body, answered)

    # -- answers

    def _again(self, partition: _Partition) -> None:
        """Start again from the first request: another box may lead by now."""
        partition.is_asking = False
        partition.retry_at_ms = self._now_ms + RETRY_MS

    def _resolve_some(self, partition: _Partition, stored: list[JournalledBatch]) -> None:
        stamps = {batch.stamp for batch in stored}
        partition.batches = [batch for batch in partition.batches if batch.stamp not in stamps]
        for batch in stored:
            self._report(batch, True)

    def _resolve(self, partition: _Partition, is_stored: Callable[[JournalledBatch], bool]) -> None:
        self._partitions.pop((partition.topic_id, partition.number), None)
        for batch in partition.batches:
            self._report(batch, is_stored(batch))

    def _report(self, batch: JournalledBatch, is_stored: bool) -> None:
        for identity, _, _ in batch.parts:
            self._identities[identity] -= 1
            if not self._identities[identity]:
                del self._identities[identity]
        self._on_resolved(batch, is_stored)


def _place_of(partition: _Partition, image: MetadataImage) -> PartitionImage | None:
    """Return the partition in the image; None if the topic is gone or was created anew."""
    topic = image.topics.get(partition.topic)
    if topic is None or topic.topic_id != partition.topic_id or partition.number >= len(topic.partitions):
        return None
    return topic.partitions[partition.number]


def _has(last: Mapping[int, tuple[int, int]], batch: JournalledBatch) -> bool:
    """True if a log with these last sequences has the batch."""
    producer_epoch, last_sequence = last.get(batch.producer_id, (-1, -1))
    if producer_epoch != batch.producer_epoch or last_sequence < 0:
        return False
    batch_last = advance_sequence(batch.base_sequence, batch.record_count - 1)
    return advance_sequence(last_sequence, -batch_last) <= LARGEST_SEQUENCE // 2


def _only(response: Any) -> Any:
    """Return the answer about the one requested partition; None without one."""
    if response is None or len(response.topics) != 1 or len(response.topics[0].partitions) != 1:
        return None
    return response.topics[0].partitions[0]
