"""`df.write.format("millrace")` and `writeStream`. Arrow in, because Python rows cost twice as much.

The tasks of a batch job write by themselves, as with Spark's Kafka connector: a task that Spark retries writes twice. The
tasks of a streaming query only encode; large batches wait in a topic (`sink_spool.py`). The driver writes the micro-batch
into its topics exactly once, in one transaction that also contains the batch's id. Transactional id and group are named
after the query, and the id is metadata of the group's committed offsets, so records and id are committed together or not at
all. No transaction stays open between a decision and its end.

    begin (fences earlier incarnations) ▸ which batch is in? ▸ join ▸ append … ▸ flush ▸ add group ▸ offsets ▸ end
    killed before the end: `begin` of the next incarnation aborts, and the replay writes; after it: the replay finds its batch

Owned by Spark: created on the driver, pickled into every task. Weak spots: the bytes of a micro-batch pass through the
driver; the group's offsets expire after `offsets.retention.minutes` (7 days) without a batch, so a query that was killed
between `end` and Spark's own commit and restarts later than that writes its last batch twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode
from appliance.base.model import Offset, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.groups import CommittedOffset, committed_offsets
from appliance.client.producer import BatchProducer, new_identity
from appliance.client.transaction import TransactionalProducer
from appliance.pipeline.outgoing_batches import OutgoingBatches, TopicBatch
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.sink_options import SinkOptions, place_in_series, sink_options
from appliance.pipeline.sink_spool import SpooledBatch, SpoolWriter, read_spooled

NO_BATCH = -1
_METADATA = "micro-batch "


class MicroBatch(NamedTuple):
    """The rows that Spark writes, their query and batch id. `topic`, if set, is that of every row."""

    query_id: str
    batch_id: int
    batches: Iterable[TopicBatch]
    partitions: tuple[TopicPartition, ...]
    """the topics of the batches"""
    topic: str | None = None


def sink_name(query_id: str) -> str:
    """Return the transactional id, which is also the group, of a streaming query."""
    return f"millrace-spark-sink-{query_id}"


def last_batch(offsets: Mapping[TopicPartition, CommittedOffset]) -> int:
    """Return the last committed micro-batch of a group, or NO_BATCH."""
    texts = [each.metadata.removeprefix(_METADATA) for each in offsets.values() if each.metadata.startswith(_METADATA)]
    return max((int(text) for text in texts if text.isdecimal()), default=NO_BATCH)


class SinkCommit:
    """One attempt to commit a micro-batch. `run` does it; `steps` stops after each step, for tests."""

    def __init__(self, cluster: ClusterClient, micro_batch: MicroBatch, transaction: TransactionalProducer) -> None:
        self.micro_batch = micro_batch
        self.was_in_already = False
        self._cluster = cluster
        self._transaction = transaction

    def run(self) -> None:
        """Commit the batch. After `RequestRefused` or `ClientFailed` it is not committed, or its replay finds it."""
        with self._transaction:
            for _ in self.steps():
                pass

    def steps(self) -> Iterator[str]:
        """Yield the name of each finished step."""
        transaction, batch_id, name = self._transaction, self.micro_batch.batch_id, sink_name(self.micro_batch.query_id)
        transaction.begin()
        yield "begin"
        known = committed_offsets(self._cluster, name, require_stable=True)
        self.was_in_already = last_batch(known) >= batch_id
        yield "look"
        if self.was_in_already:
            return
        transaction.join(self.micro_batch.partitions)
        yield "join"
        for topic, partition, _, encoded in self.micro_batch.batches:
            transaction.append(TopicPartition(topic, partition), encoded)
            yield "append"
        transaction.flush()
        yield "flush"
        marks = self._marks(known)
        if marks:
            transaction.add_group(name)
            yield "add group"
            transaction.commit_offsets(name, {partition: CommittedOffset(offset, f"{_METADATA}{batch_id}") for partition, offset in marks.items()})
            yield "commit offsets"
        transaction.commit()
        yield "end"

    def _marks(self, known: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, Offset]:
        """Return the partitions whose committed offsets store the batch id.

        These are the written ones; for a batch without rows one that stores an earlier id, else the topic's first.
        """
        ends = self._transaction.sender.ends
        if self.micro_batch.partitions:
            return {partition: ends.get(partition, Offset(0)) for partition in self.micro_batch.partitions}
        if known:
            return {partition: each.offset for partition, each in list(known.items())[:1]}
        topic = self.micro_batch.topic
        found = None if topic is None else self._cluster.metadata([topic]).topics.get(topic)
        return {} if found is None or found.error != ErrorCode.NONE else {TopicPartition(found.name, 0): Offset(0)}


CARRIED_BYTES = 512 * 1024
"""Bytes in a task's message; larger batches go through the spool. Spark passes up to 1 MiB of a task's result directly."""
_QUERY_ID = "sql.streaming.queryId"


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter | NumberedWriter:
    """For `DataSource.writer`. Raises `SourceProblem` for wrong options or columns."""
    chosen = _with_topic(sink_options(options, schema.fields, overwrite))
    numbered = place_in_series(options)
    return BatchWriter(chosen) if numbered is None else NumberedWriter(chosen, *numbered)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`. With `overwrite` (output mode complete) each micro-batch appends the whole result, as Spark's Kafka connector does."""
    return StreamWriter(_with_topic(sink_options(options, schema.fields, False)))


def _with_topic(options: SinkOptions) -> SinkOptions:
    """Check that the named topic exists, or let the cluster create it, before any task runs."""
    if options.topic is not None:
        with options.access.open() as cluster:
            cluster.topic(options.topic, allow_auto_topic_creation=True, complete=False)
    return options


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The counts of a task of a batch job."""

    records_count: int


@dataclass(frozen=True)
class Encoded(WriterCommitMessage):
    """The batches that a task of a streaming query made for the driver."""

    query_id: str
    carried: list[TopicBatch] = field(repr=False)
    spooled: list[SpooledBatch] = field(default_factory=list, repr=False)


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch job."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        """In a task: when this returns, all in-sync replicas have acknowledged everything."""
        options = self._options
        with options.access.open() as cluster:
            sender = BatchProducer(cluster, new_identity(cluster), delivery_timeout_ms=options.delivery_timeout_ms)
            outgoing = OutgoingBatches(cluster, options, _task_number(), SystemClock().wall_ms)
            try:
                for batch in _encoded(outgoing, iterator):
                    sender.append(TopicPartition(batch.topic, batch.partition), batch.encoded)
                sender.flush()
            finally:
                sender.close()
        return Written(outgoing.records_count)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query. It writes nothing before `commit`, so there is nothing to abort."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Encoded:
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise SourceProblem("this is not a task of a streaming query: it has no query id, so its batches cannot be distinguished")
        return encode_rows(self._options, query_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver. A batch without tasks has no message, so its query is unknown and nothing is written."""
        encoded = [message for message in messages if isinstance(message, Encoded)]
        if encoded:
            commit_encoded(self._options, encoded[0].query_id, batchId, encoded)


class NumberedWriter(DataSourceArrowWriter):
    """The writer of a numbered batch job (`txnAppId`, `txnVersion`): each number is written once, like a micro-batch."""

    def __init__(self, options: SinkOptions, series: str, number: int) -> None:
        self._options = options
        self._series = series
        self._number = number

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Encoded:
        return encode_rows(self._options, self._series, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_encoded(self._options, self._series, self._number, [message for message in messages if isinstance(message, Encoded)])


def encode_rows(options: SinkOptions, query_id: str, rows: Iterator[pyarrow.RecordBatch]) -> Encoded:
    """In a task: seal all rows, into the message or the spool."""
    with options.access.open() as cluster:
        outgoing = OutgoingBatches(cluster, options, _task_number(), SystemClock().wall_ms)
        encoded = _encoded(outgoing, rows)
        carried = _carried(encoded)
        following = next(encoded, None)
        if following is None:
            return Encoded(query_id, carried)
        spool = SpoolWriter(cluster, _task_number(), options.delivery_timeout_ms)
        try:
            for batch in chain((following,), encoded):
                spool.put(batch)
            return Encoded(query_id, carried, spool.finish())
        finally:
            spool.close()


def commit_encoded(options: SinkOptions, query_id: str, batch_id: int, messages: Sequence[Encoded]) -> None:
    """On the driver: commit the micro-batch exactly once."""
    carried = [batch for message in messages for batch in message.carried]
    spooled = [batch for message in messages for batch in message.spooled]
    partitions = {TopicPartition(batch.topic, batch.partition) for batch in carried} | {TopicPartition(each.topic, each.partition) for each in spooled}
    batches = chain(carried, read_spooled(options.access, spooled))  # what a task spooled comes behind what it carried
    micro_batch = MicroBatch(query_id, batch_id, batches, tuple(sorted(partitions)), options.topic)
    with options.access.open(options.delivery_timeout_ms) as cluster:
        SinkCommit(cluster, micro_batch, options.transaction(cluster, sink_name(query_id))).run()


def _carried(batches: Iterator[TopicBatch]) -> list[TopicBatch]:
    """Return the first of `batches`, as many as a commit message carries."""
    carried: list[TopicBatch] = []
    size_bytes = 0
    while size_bytes < CARRIED_BYTES and (batch := next(batches, None)) is not None:
        carried.append(batch)
        size_bytes += len(batch.encoded)
    return carried


def _encoded(outgoing: OutgoingBatches, rows: Iterator[pyarrow.RecordBatch]) -> Iterator[TopicBatch]:
    for batch in rows:
        yield from outgoing.encode(batch)
    yield from outgoing.rest()


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
