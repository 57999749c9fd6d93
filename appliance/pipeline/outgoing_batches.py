"""Encode rows of Arrow batches into sealed record batches, with the columns of Spark's Kafka connector.

Owned by one task. The partition of a row is its column's, else that of its key (Kafka's default partitioner), else one
partition until its batch is full, then the next. The timestamp is the time of encoding. Weak spot: one Python call per row,
about 2 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow

from appliance.base.errors import RequestRefused
from appliance.client.admin import topic_settings
from appliance.client.cluster import ClusterClient
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.sink_options import SinkOptions
from appliance.records.builder import NO_HEADERS, BatchBuilder, encode_headers
from appliance.records.keys import partition_of_key

_BATCH_OVERHEAD = 64
"""More than a record needs beside its key, value and headers."""

_partition_of_key = lru_cache(maxsize=8192)(partition_of_key)


class TopicBatch(NamedTuple):
    """A sealed batch without a producer id, and its partition."""

    topic: str
    partition: int
    records_count: int
    encoded: bytes


class _TopicLanes:
    """The builders of a topic; rows without key and partition rotate over its partitions."""

    def __init__(self, topic: str, batch_bytes: int, builders: list[BatchBuilder], sticky: int) -> None:
        self.topic = topic
        self.batch_bytes = batch_bytes
        self.builders = builders
        self.sticky = sticky % len(builders)


class OutgoingBatches:
    """`encode` returns full batches, `rest` the others. Missing topics are created if the cluster does that."""

    def __init__(self, cluster: ClusterClient, options: SinkOptions, task: int, wall_ms: Callable[[], int]) -> None:
        """`task` spreads the keyless rows of several tasks."""
        self.records_count = 0
        self._cluster = cluster
        self._options = options
        self._task = task
        self._wall_ms = wall_ms
        self._lanes: dict[str, _TopicLanes] = {}

    def encode(self, rows: pyarrow.RecordBatch) -> Iterator[TopicBatch]:
        """Encode all rows; return the batches that became full."""
        wall_ms = self._wall_ms()
        for key, value, headers, topic, partition in zip(*self._columns(rows)):
            lanes = self._lanes.get(topic) or self._open(topic)
            number = self._partition(lanes, key, partition)
            builder = lanes.builders[number]
            section = NO_HEADERS if not headers else _encode_headers(headers)
            size_bytes = builder.size_bytes + len(key or b"") + len(value or b"") + len(section) + _BATCH_OVERHEAD
            if size_bytes > lanes.batch_bytes and builder.count:
                yield self._seal(lanes, number)
            builder.append(wall_ms, key, value, section)

    def rest(self) -> Iterator[TopicBatch]:
        """Return all batches that are not sealed yet."""
        for lanes in self._lanes.values():
            for number, builder in enumerate(lanes.builders):
                if builder.count:
                    yield self._seal(lanes, number)

    def _columns(self, rows: pyarrow.RecordBatch) -> list[Any]:
        return [
            _bytes(rows, "key") if "key" in self._options.columns else repeat(None),
            _bytes(rows, "value"),
            rows.column("headers").to_pylist() if "headers" in self._options.columns else repeat(None),
            rows.column("topic").to_pylist() if self._options.topic is None else repeat(self._options.topic),
            rows.column("partition").to_pylist() if "partition" in self._options.columns else repeat(None),
        ]

    def _partition(self, lanes: _TopicLanes, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            if not 0 <= partition < len(lanes.builders):
                raise SourceProblem(f"a row has partition {partition}; topic {lanes.topic!r} has partitions 0 to {len(lanes.builders) - 1}")
            return partition
        return lanes.sticky if key is None else _partition_of_key(key, len(lanes.builders))

    def _open(self, topic: str | None) -> _TopicLanes:
        if topic is None:
            raise SourceProblem("null topic present in the data. Use the topic option for setting a topic.")
        found = self._cluster.topic(topic, allow_auto_topic_creation=True)
        builders = [BatchBuilder(self._options.codec) for _ in found.partitions]
        lanes = self._lanes[topic] = _TopicLanes(topic, self._batch_bytes(topic), builders, self._task)
        return lanes

    def _batch_bytes(self, topic: str) -> int:
        """Return the option's size, limited by the topic's; a client that may not describe the topic learns the limit by a refusal."""
        try:
            limit = topic_settings(self._cluster, topic).own.get("max.message.bytes", "")
        except RequestRefused:
            limit = ""
        return min(self._options.batch_bytes, int(limit)) if limit.isdigit() else self._options.batch_bytes

    def _seal(self, lanes: _TopicLanes, number: int) -> TopicBatch:
        builder = lanes.builders[number]
        count = builder.count
        if number == lanes.sticky:
            lanes.sticky = (number + 1) % len(lanes.builders)
        self.records_count += count
        return TopicBatch(lanes.topic, number, count, builder.build())


def _bytes(rows: pyarrow.RecordBatch, name: str) -> list[bytes | None]:
    column = rows.column(name)
    if pyarrow.types.is_string(column.type):
        column = column.cast(pyarrow.binary())
    elif pyarrow.types.is_large_string(column.type):
        column = column.cast(pyarrow.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _encode_headers(headers: list[dict[str, Any] | None]) -> bytes:
    named = [header for header in headers if header is not None and header["key"] is not None]
    if len(named) != len(headers):
        raise SourceProblem("a row has a header without a key; the keys of headers must not be null")
    return encode_headers((header["key"], header["value"]) for header in named)
