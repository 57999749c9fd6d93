"""What a batch and a stream read: starting and ending offsets, limits of a micro-batch, and what counts as lost."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from appliance.base.clock import ManualClock
from appliance.base.model import TopicPartition
from appliance.pipeline.batch_reader import MillraceBatchReader, RangePartition
from appliance.pipeline.data_source import MillraceDataSource, checked_columns
from appliance.pipeline.offset_limits import resolve
from appliance.pipeline.problems import OffsetsLost, SourceProblem
from appliance.pipeline.source_options import SourceOptions, read_options
from appliance.pipeline.stream_reader import MillraceStreamReader, rate_limited
from tests.unit.pipeline.pretended_cluster import PretendedCluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def options_of(is_stream: bool, **options: str) -> SourceOptions:
    return read_options({"kafka.bootstrap.servers": "box", "subscribe": "a", **options}, is_stream)


def ranges_of(cluster: PretendedCluster, columns: tuple[str, ...] = ("value",), **options: str) -> list[tuple[str, int, int]]:
    """(partition, start, end) of every task of a batch."""
    tasks = MillraceBatchReader(options_of(False, **options), columns, lambda _: cluster).partitions()
    assert all(isinstance(pickle.loads(pickle.dumps(task)), RangePartition) for task in tasks)
    return [(f"{task.wanted.topic}-{task.wanted.partition}", task.wanted.start, task.wanted.end) for task in tasks if isinstance(task, RangePartition)]


def stream_of(cluster: PretendedCluster, clock: ManualClock | None = None, **options: str) -> MillraceStreamReader:
    return MillraceStreamReader(options_of(True, **options), ("value",), clock or ManualClock(), lambda _: cluster)


def tasks_of(stream: MillraceStreamReader, start: Any, end: Any) -> list[tuple[str, int, int]]:
    found = [task.wanted for task in stream.partitions(start, end) if isinstance(task, RangePartition)]
    return [(f"{each.topic}-{each.partition}", each.start, each.end) for each in found]


# --- a batch


def test_a_batch_reads_all_there_is_by_default() -> None:
    assert ranges_of(PretendedCluster({A0: (5, 10), A1: (0, 0), B0: (0, 9)})) == [("a-0", 5, 10)]
    assert ranges_of(PretendedCluster({A0: (5, 10), A1: (0, 3), B0: (0, 9)}), subscribe="a,b") == [("a-0", 5, 10), ("a-1", 0, 3), ("b-0", 0, 9)]


def test_a_batch_reads_between_the_offsets_that_were_given() -> None:
    cluster = PretendedCluster({A0: (5, 10), A1: (0, 30)})
    given = {"startingOffsets": '{"a":{"0":7,"1":-2}}', "endingOffsets": '{"a":{"0":-1,"1":20}}'}
    assert ranges_of(cluster, **given) == [("a-0", 7, 10), ("a-1", 0, 20)]
    assert ranges_of(cluster, **given, maxRecordsPerPartition="10") == [("a-0", 7, 10), ("a-1", 0, 10), ("a-1", 10, 20)]


def test_a_batch_reads_between_times() -> None:
    cluster = PretendedCluster({A0: (5, 10), A1: (0, 30)}, times={1000: 7})
    assert ranges_of(cluster, startingTimestamp="1000", endingTimestamp="2000") == [("a-0", 7, 10), ("a-1", 7, 30)]
    with pytest.raises(SourceProblem, match="no offset matched from request of topic-partition a-0 and timestamp 2000"):
        ranges_of(cluster, startingTimestamp="2000")
    assert ranges_of(cluster, startingTimestamp="2000", startingOffsetsByTimestampStrategy="latest") == []


def test_given_offsets_must_be_of_the_partitions_that_are_read() -> None:
    cluster = PretendedCluster({A0: (5, 10), A1: (0, 30)})
    with pytest.raises(SourceProblem, match="must specify all topic-partitions that are read, and misses a-1"):
        ranges_of(cluster, startingOffsets='{"a":{"0":7}}')
    with pytest.raises(SourceProblem, match="specifies b-0, which the query does not read"):
        ranges_of(cluster, startingOffsets='{"a":{"0":7,"1":2},"b":{"0":0}}')
    with pytest.raises(SourceProblem, match="misses a-1"):
        ranges_of(cluster, startingOffsetsByTimestamp='{"a":{"0":7}}')


def test_offsets_beyond_the_end_are_an_error_at_once_unless_loss_is_borne() -> None:
    cluster = PretendedCluster({A0: (5, 10)})
    with pytest.raises(SourceProblem, match="'endingOffsets' asks for offset 11 of a-0, beyond the end of its log at offset 10"):
        ranges_of(cluster, endingOffsets='{"a":{"0":11}}')
    with pytest.raises(SourceProblem, match="'startingOffsets' asks for offset 12 of a-0"):
        ranges_of(cluster, startingOffsets='{"a":{"0":12}}')
    assert ranges_of(cluster, endingOffsets='{"a":{"0":11}}', failOnDataLoss="false") == [("a-0", 5, 10)]


def test_a_batch_that_ends_before_it_starts_is_an_error() -> None:
    cluster = PretendedCluster({A0: (5, 10)}, times={1000: 6, 2000: 8})
    with pytest.raises(SourceProblem, match="starts at offset 8 of a-0 and ends before it, at offset 7"):
        ranges_of(cluster, startingOffsets='{"a":{"0":8}}', endingOffsets='{"a":{"0":7}}', failOnDataLoss="false")
    with pytest.raises(SourceProblem, match="starts at offset 8 of a-0 and ends before it, at offset 6"):
        ranges_of(cluster, startingTimestamp="2000", endingTimestamp="1000")
    assert ranges_of(cluster, endingOffsets='{"a":{"0":4}}') == [], "retention was faster"
    assert ranges_of(cluster, startingOffsets='{"a":{"0":7}}', endingOffsets='{"a":{"0":7}}') == []


def test_offsets_that_are_deleted_already_are_named() -> None:
    cluster = PretendedCluster({A0: (5, 10)})
    with pytest.raises(OffsetsLost, match="offsets 2 to 4 of a-0 cannot be read any more: the log begins at offset 5"):
        ranges_of(cluster, startingOffsets='{"a":{"0":2}}')
    assert ranges_of(cluster, startingOffsets='{"a":{"0":2}}', failOnDataLoss="false") == [("a-0", 5, 10)]
    assert ranges_of(cluster, startingOffsets='{"a":{"0":2}}', endingOffsets='{"a":{"0":4}}', failOnDataLoss="false") == []


def test_an_error_of_a_task_comes_through_pickling_with_its_words() -> None:
    with pytest.raises(OffsetsLost) as lost:
        ranges_of(PretendedCluster({A0: (5, 10)}), startingOffsets='{"a":{"0":2}}')
    again = pickle.loads(pickle.dumps(lost.value))
    assert (str(again), again.loss) == (str(lost.value), lost.value.loss)


def test_a_query_without_ranges_reads_nothing() -> None:
    assert list(MillraceBatchReader(options_of(False), ("value",)).read(InputPartition(None))) == []


def test_every_limit_of_every_partition_is_found() -> None:
    cluster = PretendedCluster({A0: (5, 10)}, times={3: 6})
    for options, expected in (({}, 10), ({"startingOffsets": "earliest"}, 5), ({"startingOffsets": '{"a":{"0":-1}}'}, 10), ({"startingTimestamp": "3"}, 6)):
        assert resolve(options_of(True, **options).starting, [A0], cluster) == {A0: expected}


# --- a stream


def test_a_stream_begins_at_the_end_and_goes_on_to_the_end() -> None:
    cluster = PretendedCluster({A0: (5, 10), A1: (0, 0)})
    stream = stream_of(cluster)
    start = stream.initialOffset()
    assert start == {"a": {"0": 10, "1": 0}}
    assert stream.latestOffset(start, ReadAllAvailable()) == start and tasks_of(stream, start, start) == []
    cluster.logs[A0] = (5, 13)
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {"a": {"0": 13, "1": 0}} == stream.reportLatestOffset()
    assert tasks_of(stream, start, end) == [("a-0", 10, 13)]
    stream.stop()
    assert cluster.is_closed


def test_a_micro_batch_takes_of_every_partition_in_proportion() -> None:
    begin = {A0: 0, A1: 100, B0: 7}
    until = {A0: 1000, A1: 1100, B0: 7}
    assert rate_limited(begin, until, 100) == {A0: 50, A1: 150, B0: 7}
    assert rate_limited(begin, until | {B0: 8}, 10)[B0] == 8, "a small partition does not starve"
    assert rate_limited(begin, until, 10**9) == until
    assert rate_limited(until, until, 10) == until
    stream = stream_of(PretendedCluster({A0: (0, 1000), A1: (0, 1000)}), maxOffsetsPerTrigger="10")
    assert stream.getDefaultReadLimit() == ReadMaxRows(10)
    assert stream.latestOffset({"a": {"0": 0, "1": 0}}, ReadMaxRows(10)) == {"a": {"0": 5, "1": 5}}


def test_a_micro_batch_waits_for_enough_offsets_but_not_for_ever() -> None:
    clock = ManualClock()
    cluster = PretendedCluster({A0: (0, 9)})
    stream = stream_of(cluster, clock, minOffsetsPerTrigger="10", maxTriggerDelay="5s")
    start = {"a": {"0": 0}}
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    assert stream.latestOffset(start, limit) == start
    assert stream.latestOffset(start, ReadAllAvailable()) == {"a": {"0": 9}}, "a trigger that wants everything gets it"
    cluster.logs[A0] = (0, 10)
    assert stream.latestOffset(start, limit) == {"a": {"0": 10}}
    start = {"a": {"0": 10}}
    cluster.logs[A0] = (0, 11)
    clock.advance_ms(4999)
    assert stream.latestOffset(start, limit) == start
    clock.advance_ms(1)
    assert stream.latestOffset(start, limit) == {"a": {"0": 11}}


def test_a_query_of_what_is_there_now_ends_where_it_began() -> None:
    cluster = PretendedCluster({A0: (0, 9)})
    stream = stream_of(cluster, maxOffsetsPerTrigger="6", minOffsetsPerTrigger="6")
    stream.prepareForTriggerAvailableNow()
    cluster.logs |= {A0: (0, 50), A1: (0, 50)}
    offsets: Any = {"a": {"0": 0}}
    seen = []
    while (following := stream.latestOffset(offsets, ReadMaxRows(6))) != offsets:
        seen.append(offsets := following)
    assert seen == [{"a": {"0": 6}}, {"a": {"0": 9}}]


def test_a_partition_that_is_new_is_read_from_its_beginning() -> None:
    cluster = PretendedCluster({A0: (0, 9), A1: (0, 4)})
    stream = stream_of(cluster)
    end = stream.latestOffset({"a": {"0": 9}}, ReadAllAvailable())
    assert end == {"a": {"0": 9, "1": 4}}
    assert tasks_of(stream, {"a": {"0": 9}}, end) == [("a-1", 0, 4)]
    cluster.logs[A1] = (2, 4)
    with pytest.raises(OffsetsLost, match=r"offsets 0 to 1 of a-1 .* the partition is new to the query, and its log begins at offset 2"):
        stream.partitions({"a": {"0": 9}}, end)
    assert tasks_of(stream_of(cluster, failOnDataLoss="false"), {"a": {"0": 9}}, end) == [("a-1", 2, 4)]


def test_a_partition_that_is_gone_is_a_loss() -> None:
    cluster = PretendedCluster({A0: (0, 9)})
    with pytest.raises(OffsetsLost, match="a-1 cannot be read any more: the partition is gone"):
        stream_of(cluster).partitions({"a": {"0": 3, "1": 7}}, {"a": {"0": 9}})
    tolerant = stream_of(cluster, subscribe="a,b", failOnDataLoss="false")
    assert tolerant.latestOffset({"a": {"0": 3}, "b": {"0": 7}}, ReadAllAvailable()) == {"a": {"0": 9}}
    assert tasks_of(tolerant, {"a": {"0": 3}, "b": {"0": 7}}, {"a": {"0": 9}}) == [("a-0", 3, 9)]


def test_a_log_that_became_shorter_is_a_loss() -> None:
    cluster = PretendedCluster({A0: (0, 4)})
    with pytest.raises(OffsetsLost, match=r"offsets 4 to 8 of a-0 .* ends at offset 4 now"):
        stream_of(cluster).latestOffset({"a": {"0": 9}}, ReadAllAvailable())
    tolerant = stream_of(cluster, failOnDataLoss="false")
    assert tolerant.latestOffset({"a": {"0": 9}}, ReadAllAvailable()) == {"a": {"0": 4}}
    assert tasks_of(tolerant, {"a": {"0": 9}}, {"a": {"0": 4}}) == []


def test_a_topic_that_was_made_anew_between_two_micro_batches_is_an_error_unless_loss_is_borne() -> None:
    cluster = PretendedCluster({A0: (0, 10)})
    streams = [stream_of(cluster), stream_of(cluster, failOnDataLoss="false")]
    for stream in streams:
        assert tasks_of(stream, {"a": {"0": 0}}, {"a": {"0": 4}}) == [("a-0", 0, 4)]
    cluster.topic_id = bytes(15) + b"1"
    with pytest.raises(SourceProblem, match="topic a was deleted and made anew while the query ran"):
        streams[0].partitions({"a": {"0": 4}}, {"a": {"0": 10}})
    assert tasks_of(streams[1], {"a": {"0": 4}}, {"a": {"0": 10}}) == [("a-0", 4, 10)]


def test_a_stream_reader_goes_into_tasks_without_its_connection() -> None:
    stream = MillraceStreamReader(options_of(True), ("value",))
    again = pickle.loads(pickle.dumps(stream))
    assert list(again.read(InputPartition(None))) == []


# --- the source


def test_the_schema_is_the_connectors_and_headers_come_on_demand() -> None:
    plain = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    given = {"kafka.bootstrap.servers": "box", "subscribe": "a"}
    assert MillraceDataSource.name() == "millrace"
    assert MillraceDataSource(given).schema() == plain
    assert MillraceDataSource({**given, "includeHeaders": "true"}).schema() == plain + ", headers array<struct<key:string,value:binary>>"
    with pytest.raises(SourceProblem, match="one of the following options"):
        MillraceDataSource({}).schema()


def test_a_schema_of_the_users_own_may_leave_columns_out_and_no_more() -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructType

    assert checked_columns(StructType().add("offset", LongType()).add("value", BinaryType())) == ("offset", "value")
    with pytest.raises(SourceProblem, match="no column 'body'"):
        checked_columns(StructType().add("body", BinaryType()))
    with pytest.raises(SourceProblem, match="column 'value' is binary, not string"):
        checked_columns(StructType().add("value", StringType()))
