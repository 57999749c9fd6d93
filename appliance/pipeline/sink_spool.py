"""Batches that are too large for a task's commit message wait in a topic of their own until the driver has committed them.

A task appends, and its message names the place; the driver reads the same bytes back. Retention removes leftovers of failed
tasks and of committed batches. Owned by one task, or by one commit on the driver. Weak spot: such batches are written and
read once more; if the driver is more than an hour late, the batches are gone, and Spark replays the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.invariants import check
from appliance.base.model import FIRST_OFFSET, NO_LEADER_EPOCH, Offset, TopicPartition
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient, TopicMetadata
from appliance.client.producer import BatchProducer, new_identity
from appliance.pipeline.batch_scan import BatchScan, ReadProgress
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.fetched_batches import FetchedBatches
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.outgoing_batches import TopicBatch
from appliance.pipeline.problems import DataLoss, SourceProblem
from appliance.records.batch import read_batch_header, stamp_batch

SPOOL_TOPIC = "millrace-spark-spool"
SPOOL_PARTITIONS = 4
KEPT_MS = 3_600_000
SPOOL_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(KEPT_MS),
    "segment.ms": str(KEPT_MS // 4),
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": str(64 * 1024 * 1024),
}


class SpooledBatch(NamedTuple):
    """Where a batch goes and where it is stored; the checksum identifies it."""

    topic: str
    partition: int
    records_count: int
    spool_partition: int
    offset: Offset
    crc: int


class SpoolWriter:
    """`put` batches, then `finish` returns their places."""

    def __init__(self, cluster: ClusterClient, task: int, delivery_timeout_ms: int) -> None:
        partitions = _spool_topic(cluster).partitions
        self._partition = TopicPartition(SPOOL_TOPIC, partitions[task % len(partitions)].partition)
        self._sender = BatchProducer(cluster, new_identity(cluster), delivery_timeout_ms=delivery_timeout_ms)
        self._sender.on_stored = self._on_stored
        self._put: list[TopicBatch] = []
        self._stored: list[SpooledBatch] = []

    def put(self, batch: TopicBatch) -> None:
        self._put.append(batch._replace(encoded=b""))
        self._sender.append(self._partition, batch.encoded)

    def finish(self) -> list[SpooledBatch]:
        self._sender.flush()
        check(len(self._stored) == len(self._put), f"{len(self._put)} batches were spooled and {len(self._stored)} acknowledged")
        return self._stored

    def close(self) -> None:
        self._sender.close()

    def _on_stored(self, partition: TopicPartition, base_offset: Offset, stamped: bytearray) -> None:
        """Record where a batch is stored; acknowledgements of one partition arrive in order."""
        if base_offset < 0:
            raise SourceProblem(f"the answer of {partition} was lost, so the place of the batch is unknown; Spark has to retry the task")
        batch = self._put[len(self._stored)]
        self._stored.append(SpooledBatch(batch.topic, batch.partition, batch.records_count, partition.partition, base_offset, read_batch_header(stamped).crc))


def read_spooled(access: ClusterAccess, spooled: Iterable[SpooledBatch]) -> Iterator[TopicBatch]:
    """Read the batches back, those of a partition in order. Raises `SourceProblem` if one no longer exists."""
    by_partition: dict[int, dict[int, SpooledBatch]] = {}
    for each in spooled:
        by_partition.setdefault(each.spool_partition, {})[each.offset] = each
    for partition, wanted in sorted(by_partition.items()):
        yield from _read_partition(access._replace(read_committed=False, topic_ids=()), partition, wanted)


def _read_partition(access: ClusterAccess, partition: int, wanted: dict[int, SpooledBatch]) -> Iterator[TopicBatch]:
    offsets = OffsetRange(SPOOL_TOPIC, partition, min(wanted), max(wanted) + 1)
    progress = ReadProgress(offsets.start)
    scan = BatchScan(offsets, progress)
    missing = set(wanted)
    for raw in FetchedBatches(access, offsets).raw_batches(progress, _gone):
        for header, position in scan.batches(raw):
            found = wanted.get(header.base_offset)
            if found is None:
                continue
            if header.crc != found.crc:
                break
            missing.discard(header.base_offset)
            encoded = bytearray(raw.memory[position : position + header.size_bytes])
            stamp_batch(encoded, 0, FIRST_OFFSET, NO_LEADER_EPOCH)
            yield TopicBatch(found.topic, found.partition, found.records_count, bytes(encoded))
    if missing:
        raise SourceProblem(f"{len(missing)} batches of this micro-batch are not in {SPOOL_TOPIC}-{partition} any more, the first at offset {min(missing)}")


def _gone(loss: DataLoss) -> None:
    raise SourceProblem(f"{loss}; the micro-batch has to be written again")


def _spool_topic(cluster: ClusterClient) -> TopicMetadata:
    """Return the topic; the first task that needs it creates it."""
    found = cluster.metadata([SPOOL_TOPIC]).topics.get(SPOOL_TOPIC)
    if found is None or found.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        try:
            create_topic(cluster, SPOOL_TOPIC, partitions=SPOOL_PARTITIONS, configs=SPOOL_SETTINGS)
        except RequestRefused as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another task was faster
                raise
    backoff = cluster.backoff()
    while True:
        try:
            return cluster.topic(SPOOL_TOPIC)
        except RequestRefused as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # not every broker knows it at once
                raise
            backoff.pause_or_raise(error)
