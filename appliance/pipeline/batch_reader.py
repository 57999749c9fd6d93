"""A batch query: its offset ranges, planned once on the driver, and the read of one range in a task.

Spark pickles the reader before it requests partitions, so a partition has all that its task needs. Weak spot: an offset is
checked against the log's ends at planning time; a task finds what retention deletes later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from appliance.base.model import TopicPartition
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.offset_limits import EveryPartition, resolve
from appliance.pipeline.offset_range import OffsetRange, split_ranges
from appliance.pipeline.problems import CorruptRange, DataLoss, OffsetsLost, SourceProblem
from appliance.pipeline.record_reader import read_range
from appliance.pipeline.source_options import SourceOptions
from appliance.pipeline.topic_offsets import TopicOffsets

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """The work of one task."""

    def __init__(self, access: ClusterAccess, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.access = access
        self.wanted = wanted


def read_partition(partition: InputPartition, columns: Sequence[str], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """In a task: read a range. Spark turns a query without ranges into one partition of another class."""
    if isinstance(partition, RangePartition):
        on_data_loss = None if options.fail_on_data_loss else warn_of_loss
        on_corrupt = warn_of_damage if options.skip_corrupt else None
        yield from read_range(partition.access, partition.wanted, columns, on_data_loss=on_data_loss, on_corrupt=on_corrupt)


def warn_of_loss(loss: DataLoss) -> None:
    log.warning("%s", loss)


def warn_of_damage(corrupt: CorruptRange) -> None:
    log.warning("left out: %s", corrupt)


def tasks_for(ranges: Sequence[OffsetRange], access: ClusterAccess, options: SourceOptions) -> list[RangePartition]:
    """Split the ranges by the options, one task each."""
    return [RangePartition(access, each) for each in split_ranges(ranges, options.min_partitions, options.max_records)]


class MillraceBatchReader(DataSourceReader):
    """Created on the driver, pickled into tasks."""

    def __init__(self, options: SourceOptions, columns: Sequence[str], ask: Callable[[SourceOptions], TopicOffsets] = SourceOptions.ask) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._ask = ask

    def partitions(self) -> list[InputPartition]:
        """On the driver: plan the ranges. Raises `SourceProblem`."""
        options = self._options
        with self._ask(options) as cluster:
            wanted = options.selection.partitions(cluster)
            starts = resolve(options.starting, wanted, cluster)
            ends = resolve(options.ending, wanted, cluster)
            earliest, latest = cluster.earliest(wanted), cluster.latest(wanted)
            access = cluster.access_for(each.topic for each in wanted)
        ranges = [self._range(each, starts[each], ends[each], earliest[each], latest[each]) for each in wanted]
        return [*tasks_for(ranges, access, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._columns, self._options)

    def _range(self, partition: TopicPartition, start: int, end: int, earliest: int, latest: int) -> OffsetRange:
        """Limit a range to the log's ends: a given offset beyond them is an error; one that was looked up has moved meanwhile."""
        for side, offset in (("startingOffsets", start), ("endingOffsets", end)):
            if offset > latest:
                words = f"option '{side}' asks for offset {offset} of {partition}, beyond the end of its log at offset {latest}"
                if self._options.fail_on_data_loss:
                    raise SourceProblem(f"{words}; set the option 'failOnDataLoss' to 'false' to read what is there")
                log.warning("%s", words)
        if end < start <= latest and not isinstance(self._options.starting, EveryPartition):
            raise SourceProblem(f"the query starts at offset {start} of {partition} and ends before it, at offset {end}; exchange its two limits")
        if start < earliest and start < end:
            loss = DataLoss(*partition, start, min(earliest, end), f"the log begins at offset {earliest}")
            if self._options.fail_on_data_loss:
                raise OffsetsLost(loss)
            warn_of_loss(loss)
        return OffsetRange(*partition, min(max(start, earliest), latest), min(max(end, earliest), latest))
