"""A micro-batch into its topics exactly once, however often it is replayed: all of it in one transaction, which also says that the batch is in.

Tasks only encode; the driver writes. Transactional id and group are named after the streaming query; with the records, the batch's id is committed as
metadata of the group's offsets. So both count or none, there is no open transaction that could time out between a decision and its end, and what a
replay's tasks see does not matter: a batch that is in is left alone.

    begin (fences the query's earlier lives) ▸ which batch is in? ▸ join ▸ append … ▸ flush ▸ add group ▸ offsets ▸ end
    killed anywhere before the end: the next life's `begin` aborts it, and the replay writes; behind it: the replay finds its batch there.

Weak spots: the group's offsets are forgotten after `offsets.retention.minutes` without a batch (7 days); a query that was killed between the end here and
Spark's own commit, and started again later than that, writes its last batch twice. Everything goes through the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import Offset, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.groups import CommittedOffset, committed_offsets
from appliance.client.transaction import Transaction
from appliance.pipeline.outgoing_batches import TopicBatch

NO_BATCH = -1
_METADATA = "micro-batch "


class MicroBatch(NamedTuple):
    """What Spark wants written, and as whose which batch. `topic` is that of every row, if the sink has one."""

    query_id: str
    batch_id: int
    batches: Iterable[TopicBatch]
    partitions: tuple[TopicPartition, ...]
    """where the batches go"""
    topic: str | None = None


def sink_name(query_id: str) -> str:
    """The transactional id and the group of a streaming query."""
    return f"millrace-spark-sink-{query_id}"


def last_batch(offsets: Mapping[TopicPartition, CommittedOffset]) -> int:
    """The newest micro-batch that a sink's group says is in, or NO_BATCH."""
    texts = [each.metadata.removeprefix(_METADATA) for each in offsets.values() if each.metadata.startswith(_METADATA)]
    return max((int(text) for text in texts if text.isdecimal()), default=NO_BATCH)


class SinkCommit:
    """One attempt at one micro-batch. `run` does it; `steps` does it a step at a time, and is what tests stop in between."""

    def __init__(self, cluster: ClusterClient, micro_batch: MicroBatch, transaction: Transaction) -> None:
        self.micro_batch = micro_batch
        self.was_in_already = False
        self._cluster = cluster
        self._transaction = transaction

    def run(self) -> None:
        """Returns when the batch is in. Raises `RequestRefused` or `ClientFailed`; then it is not, or a replay finds out."""
        with self._transaction:
            for _ in self.steps():
                pass

    def steps(self) -> Iterator[str]:
        """Each step's name when it is done."""
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
        """Where the batch id is noted: behind what was written; of a batch without rows where an earlier one noted it, else in the sink's topic."""
        ends = self._transaction.sender.ends
        if self.micro_batch.partitions:
            return {partition: ends.get(partition, Offset(0)) for partition in self.micro_batch.partitions}
        if known:
            return {partition: each.offset for partition, each in list(known.items())[:1]}
        topic = self.micro_batch.topic
        found = None if topic is None else self._cluster.metadata([topic]).topics.get(topic)
        return {} if found is None or found.error != ErrorCode.NONE else {TopicPartition(found.name, 0): Offset(0)}
