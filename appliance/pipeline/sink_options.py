"""Options of a writer, named as in Spark's Kafka connector, and the columns of its rows. Checked on the driver. Values only.

Weak spot: `kafka.…` options that only tune a Java producer (linger, buffers) are accepted and have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from appliance.base.model import topic_name_problem
from appliance.client.cluster import ClusterClient
from appliance.client.producer import DELIVERY_TIMEOUT_MS
from appliance.client.transaction import TRANSACTION_TIMEOUT_MS, TransactionalProducer
from appliance.pipeline.cluster_access import ClusterAccess, access_from
from appliance.pipeline.option_values import OptionValues
from appliance.pipeline.problems import SourceProblem
from appliance.records.compression import Codec

TOPIC_OPTION = "topic"
SERIES_OPTION, NUMBER_OPTION = "txnAppId", "txnVersion"
BATCH_BYTES = 256 * 1024
_FIXED = ("kafka.key.serializer", "kafka.value.serializer", "kafka.transactional.id")
_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
}
"""Columns with a meaning, and their types; others are ignored."""


class SinkOptions(NamedTuple):
    """The parsed options of a writer; pickled into every task."""

    access: ClusterAccess
    topic: str | None
    """the topic of every row, whatever its column says"""
    columns: tuple[str, ...]
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS

    def transaction(self, cluster: ClusterClient, transactional_id: str) -> TransactionalProducer:
        return TransactionalProducer(cluster, transactional_id, timeout_ms=self.transaction_timeout_ms, delivery_timeout_ms=self.delivery_timeout_ms)


def sink_options(options: Mapping[str, str], fields: Iterable[Any], overwrite: bool) -> SinkOptions:
    """Parse a writer's options and the fields of its schema (name, dataType). Raises `SourceProblem`."""
    values = OptionValues(options)
    if overwrite:
        raise SourceProblem("mode 'overwrite' is not possible on topics, which only grow; use mode 'append'")
    for name in _FIXED:
        if name in values:
            raise SourceProblem(f"option '{name}' is not supported: keys and values are binary or string columns, and transactions are named after the query")
    topic = values.get(TOPIC_OPTION)
    if topic is not None and (problem := topic_name_problem(topic)):
        raise SourceProblem(f"option '{TOPIC_OPTION}' is '{topic}': {problem}")
    codec = values.choice("kafka.compression.type", "none", tuple(codec.name.lower() for codec in Codec))
    values.choice("kafka.acks", "all", ("all", "-1", "0", "1"))
    return SinkOptions(
        access=access_from(values),
        topic=topic,
        columns=_columns({field.name: field.dataType.simpleString() for field in fields}, topic),
        codec=Codec[codec.upper()],
        batch_bytes=values.number("kafka.batch.size", BATCH_BYTES, 1),
        delivery_timeout_ms=values.number("kafka.delivery.timeout.ms", DELIVERY_TIMEOUT_MS, 1),
        transaction_timeout_ms=values.number("kafka.transaction.timeout.ms", TRANSACTION_TIMEOUT_MS, 1),
    )


def place_in_series(options: Mapping[str, str]) -> tuple[str, int] | None:
    """Parse `txnAppId` and `txnVersion`, as in Delta Lake for writes inside foreachBatch: a name and a number. Raises `SourceProblem`."""
    values = OptionValues(options)
    series, number = values.get(SERIES_OPTION), values.integer(NUMBER_OPTION, None, 0)
    if series is None and number is None:
        return None
    if not series or number is None:
        raise SourceProblem(f"options '{SERIES_OPTION}' and '{NUMBER_OPTION}' belong together: a name, and a number that grows from write to write")
    return series, number


def _columns(types: Mapping[str, str], topic: str | None) -> tuple[str, ...]:
    if "value" not in types:
        raise SourceProblem(f"Required attribute 'value' not found among the columns {', '.join(types)}")
    if topic is None and "topic" not in types:
        raise SourceProblem("topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.")
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise SourceProblem(f"{name} attribute unsupported type {types[name]}. {name} must be a {' or a '.join(allowed)}")
    return tuple(name for name in _TYPES if name in types and not (name == "topic" and topic is not None))
