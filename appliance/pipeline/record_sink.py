"""`df.write.format("millrace")` and `writeStream`: what Spark calls. Arrow in, because Python rows cost twice as much.

A batch job's tasks write by themselves, as with Spark's Kafka connector: what a task has acknowledged stays, so a task that Spark tries again writes twice.
A streaming query's tasks only encode, and the driver commits the micro-batch as a whole (`sink_commits.py`); what is large waits in a topic meanwhile
(`sink_spool.py`).

Owned by Spark: made on the driver, pickled into every task. Weak spot: a micro-batch's bytes pass through the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from appliance.base.clock import SystemClock
from appliance.base.model import TopicPartition
from appliance.client.sequenced_sender import SequencedSender, new_identity
from appliance.pipeline.outgoing_batches import OutgoingBatches, TopicBatch
from appliance.pipeline.sink_commits import MicroBatch, SinkCommit, sink_name
from appliance.pipeline.sink_options import SinkOptions, place_in_series, sink_options
from appliance.pipeline.sink_spool import SpooledBatch, SpoolWriter, read_spooled
from appliance.pipeline.source_problem import SourceProblem

CARRIED_BYTES = 512 * 1024
"""What a task's message carries by itself; more goes by way of the spool. Spark passes up to 1 MiB of a task's result on directly."""
_QUERY_ID = "sql.streaming.queryId"


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter | NumberedWriter:
    """For `DataSource.writer`. Raises `SourceProblem` for what cannot be written."""
    chosen = _with_topic(sink_options(options, schema.fields, overwrite))
    numbered = place_in_series(options)
    return BatchWriter(chosen) if numbered is None else NumberedWriter(chosen, *numbered)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`. With `overwrite` (output mode complete) each micro-batch appends the whole result, as Spark's Kafka connector does."""
    return StreamWriter(_with_topic(sink_options(options, schema.fields, False)))


def _with_topic(options: SinkOptions) -> SinkOptions:
    """The same, once the topic that was named is there: created, where the cluster does that, and known to be missing before any task runs."""
    if options.topic is not None:
        with options.access.open() as cluster:
            cluster.topic(options.topic, allow_auto_topic_creation=True, complete=False)
    return options


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """How much a task of a batch job wrote."""

    records_count: int


@dataclass(frozen=True)
class Encoded(WriterCommitMessage):
    """What a task of a streaming query made for the driver."""

    query_id: str
    carried: list[TopicBatch] = field(repr=False)
    spooled: list[SpooledBatch] = field(default_factory=list, repr=False)


class BatchWriter(DataSourceArrowWriter):
    """A batch job's writer."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        """In a task: everything is acknowledged by all in-sync replicas when this returns."""
        options = self._options
        with options.access.open() as cluster:
            sender = SequencedSender(cluster, new_identity(cluster), delivery_timeout_ms=options.delivery_timeout_ms)
            outgoing = OutgoingBatches(cluster, options, _task_number(), SystemClock().wall_ms)
            try:
                for batch in _encoded(outgoing, iterator):
                    sender.append(TopicPartition(batch.topic, batch.partition), batch.encoded)
                sender.flush()
            finally:
                sender.close()
        return Written(outgoing.records_count)


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's writer. Nothing is written to the topics before `commit`, so there is nothing to abort."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Encoded:
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise SourceProblem("this is not a task of a streaming query: it has no query id, so its batches could not be told from each other")
        return encode_rows(self._options, query_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver. A batch without tasks has nothing to say, nor anybody who knows whose it is."""
        encoded = [message for message in messages if isinstance(message, Encoded)]
        if encoded:
            commit_encoded(self._options, encoded[0].query_id, batchId, encoded)


class NumberedWriter(DataSourceArrowWriter):
    """A batch job's writer as one of a numbered series (`txnAppId`, `txnVersion`): each number is written once, as a streaming query's micro-batch is."""

    def __init__(self, options: SinkOptions, series: str, number: int) -> None:
        self._options = options
        self._series = series
        self._number = number

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Encoded:
        return encode_rows(self._options, self._series, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_encoded(self._options, self._series, self._number, [message for message in messages if isinstance(message, Encoded)])


def encode_rows(options: SinkOptions, query_id: str, rows: Iterator[pyarrow.RecordBatch]) -> Encoded:
    """In a task: all rows sealed, in the message or in the spool."""
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
    """On the driver: the micro-batch is in when this returns, and was written once."""
    carried = [batch for message in messages for batch in message.carried]
    spooled = [batch for message in messages for batch in message.spooled]
    partitions = {TopicPartition(batch.topic, batch.partition) for batch in carried} | {TopicPartition(each.topic, each.partition) for each in spooled}
    batches = chain(carried, read_spooled(options.access, spooled))  # what a task spooled comes behind what it carried
    micro_batch = MicroBatch(query_id, batch_id, batches, tuple(sorted(partitions)), options.topic)
    with options.access.open(options.delivery_timeout_ms) as cluster:
        SinkCommit(cluster, micro_batch, options.transaction(cluster, sink_name(query_id))).run()


def _carried(batches: Iterator[TopicBatch]) -> list[TopicBatch]:
    """The first of `batches`, as many as a commit message carries."""
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
