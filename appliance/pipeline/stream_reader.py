"""A streaming query: its start, the end of each micro-batch, and the ranges between. The rules are those of Spark's Kafka connector.

Offsets are documents in the connector's form (`offset_limits`), so checkpoints read the same. Owned by one Python process of
Spark's driver while the query runs; it keeps one connection, so a micro-batch costs two requests. A pickled copy reads ranges
in tasks. Weak spot: `minOffsetsPerTrigger` and `maxTriggerDelay` count from the start of this process, not from the last batch
before a restart, and a topic that was made anew while no query ran is noticed by its offsets alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow

from appliance.base.clock import Clock, SystemClock
from appliance.base.model import TopicPartition
from appliance.pipeline.batch_reader import read_partition, tasks_for, warn_of_loss
from appliance.pipeline.offset_limits import OffsetDocument, offsets_from_document, offsets_to_document, resolve
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import DataLoss, OffsetsLost, SourceProblem
from appliance.pipeline.source_options import SourceOptions
from appliance.pipeline.topic_offsets import TopicOffsets

Offsets = dict[TopicPartition, int]
log = logging.getLogger(__name__)


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All methods but `read` run on the driver."""

    def __init__(self, options: SourceOptions, columns: Sequence[str], clock: Clock | None = None,
                 ask: Callable[[SourceOptions], TopicOffsets] = SourceOptions.ask) -> None:  # fmt: skip
        self._options = options
        self._columns = tuple(columns)
        self._ask = ask
        self._clock: Clock = clock or SystemClock()
        self._last_trigger_ms = self._clock.monotonic_ms()
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        self._cluster: TopicOffsets | None = None
        self._topic_ids: dict[str, bytes] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    # --- offsets

    def initialOffset(self) -> OffsetDocument:
        """Return the start of a query without a checkpoint. Raises `SourceProblem`."""
        cluster = self._asked()
        return offsets_to_document(resolve(self._options.starting, self._options.selection.partitions(cluster), cluster))

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        return ReadMinRows(options.min_offsets_per_trigger) if options.min_offsets_per_trigger is not None else ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> OffsetDocument:
        """Return the end of the next micro-batch; `start` if there are too few offsets for one."""
        begin = offsets_from_document(start)
        latest = self._read_latest()
        begin_new = self._asked().earliest(latest.keys() - begin.keys())
        known = begin_new | begin
        for partition, end in latest.items():
            if end < known[partition]:
                reason = f"its log ended at offset {known[partition]} or later, and ends at offset {end} now"
                self._on_loss(DataLoss(*partition, end, known[partition], reason))
        if isinstance(limit, ReadAllAvailable):
            return offsets_to_document(latest)
        if self._target is None and self._waits(known, latest):
            return offsets_to_document(begin)
        return offsets_to_document(rate_limited(known, latest, limit.max_rows) if isinstance(limit, ReadMaxRows) else latest)

    def reportLatestOffset(self) -> OffsetDocument | None:
        return offsets_to_document(self._latest) if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query: later records are not its own."""
        self._target = self._read_latest()

    def _read_latest(self) -> Offsets:
        if self._target is not None:
            return self._target
        cluster = self._asked()
        # A topic that is gone is no error where data loss is none: the query goes on with the others.
        self._latest = cluster.latest(self._options.selection.partitions(cluster, must_exist=self._options.fail_on_data_loss))
        return self._latest

    def _waits(self, begin: Offsets, latest: Offsets) -> bool:
        """Return whether there are too few offsets for a batch, and the last batch is recent."""
        least = self._options.min_offsets_per_trigger
        now_ms = self._clock.monotonic_ms()
        if least is not None and now_ms - self._last_trigger_ms < self._options.max_trigger_delay_ms:
            if sum(max(end - begin[partition], 0) for partition, end in latest.items()) < least:
                return True
        self._last_trigger_ms = now_ms
        return False

    # --- ranges

    def partitions(self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> list[InputPartition]:
        """Return the tasks of a micro-batch; equal offsets give equal tasks."""
        begin, until = offsets_from_document(start), offsets_from_document(end)
        if begin == until:
            return []
        for gone in sorted(begin.keys() - until.keys()):
            self._on_loss(DataLoss(*gone, begin[gone], begin[gone] + 1, "the partition is gone, and whatever it held from there on"))
        cluster = self._asked()
        added = cluster.earliest(until.keys() - begin.keys())
        for partition, earliest in sorted(added.items()):
            if earliest > 0:
                self._on_loss(DataLoss(*partition, 0, earliest, f"the partition is new to the query, and its log begins at offset {earliest}"))
        known = added | begin
        ranges = [OffsetRange(*partition, known[partition], offset) for partition, offset in sorted(until.items())]
        access = cluster.access_for(each.topic for each in until)
        self._check_topic_ids(dict(access.topic_ids))
        return [*tasks_for(ranges, access, self._options)]

    def _check_topic_ids(self, found: Mapping[str, bytes]) -> None:
        """Compare the topics with those of the micro-batch before: offsets of one that was made anew mean other records."""
        for topic in sorted(found):
            if self._topic_ids.get(topic, found[topic]) != found[topic]:
                words = f"topic {topic} was deleted and made anew while the query ran: its offsets mean other records now"
                if self._options.fail_on_data_loss:
                    raise SourceProblem(f"{words}; begin again with a new checkpoint, or set the option 'failOnDataLoss' to 'false'")
                log.warning("%s", words)
        self._topic_ids |= found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        return read_partition(partition, self._columns, self._options)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _asked(self) -> TopicOffsets:
        if self._cluster is None:
            self._cluster = self._ask(self._options)
        return self._cluster

    def _on_loss(self, loss: DataLoss) -> None:
        if self._options.fail_on_data_loss:
            raise OffsetsLost(loss)
        warn_of_loss(loss)


def rate_limited(begin: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int], most: int) -> Offsets:
    """Return `until`, reduced to about `most` offsets, each partition in proportion to its backlog and at least one of each."""
    waiting = {partition: end - begin[partition] for partition, end in until.items() if end > begin[partition]}
    total = sum(waiting.values())
    limited = dict(until)
    for partition, size in waiting.items():
        share = most * (size / total)
        limited[partition] = min(until[partition], begin[partition] + (math.ceil(share) if share < 1 else math.floor(share)))
    return limited
