"""The options of `spark.read.format("millrace")` and `readStream`: names, defaults and refusals of Spark's Kafka connector.

Checked on the driver before any request to the cluster; pickled with the reader. An unknown option that starts with
`millrace.` is refused; other unknown ones are ignored, as the connector does. Weak spot: `subscribePattern` is a Python
pattern, which equals Java's in all but rare cases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from appliance.base.model import TopicPartition
from appliance.pipeline.cluster_access import DATA_OPTION, READ_PATH_OPTION, ClusterAccess, access_from
from appliance.pipeline.offset_limits import EARLIEST, ENDING, LATEST, STARTING, OffsetLimit, parse_partitions, read_limit, refuse_place
from appliance.pipeline.option_values import OptionValues
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.topic_offsets import NUM_RETRIES, RETRY_INTERVAL_MS, TopicOffsets

SELECTIONS = ("assign", "subscribe", "subscribePattern")
SKIP_CORRUPT_OPTION = "millrace.skipCorruptBatches"
OWN_OPTIONS = (DATA_OPTION, READ_PATH_OPTION, SKIP_CORRUPT_OPTION)
REFUSED = {
    "kafka.auto.offset.reset": "instead set the option 'startingOffsets' to 'earliest' or 'latest' to specify where to start",
    "kafka.key.deserializer": "keys are bytes; use DataFrame operations to deserialize them",
    "kafka.value.deserializer": "values are bytes; use DataFrame operations to deserialize them",
    "kafka.enable.auto.commit": "the source commits no offsets",
    "kafka.interceptor.classes": "the source reads keys and values as bytes, and an interceptor may break the query",
}


class Selection(NamedTuple):
    """The topics, the topic pattern, or the partitions to read; exactly one is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def partitions(self, cluster: TopicOffsets, must_exist: bool = True) -> list[TopicPartition]:
        """Return the current partitions. Raises `SourceProblem` for an unknown topic or partition, unless `failOnDataLoss` is false."""
        if self.assigned:
            return cluster.require(self.assigned, must_exist)
        if self.pattern is not None:
            return cluster.partitions_of(cluster.topics_like(self.pattern), must_exist=False)
        return cluster.partitions_of(self.topics, must_exist)


class SourceOptions(NamedTuple):
    """All options, checked. In a batch those of streams have their defaults."""

    access: ClusterAccess
    selection: Selection
    starting: OffsetLimit
    ending: OffsetLimit
    include_headers: bool
    fail_on_data_loss: bool
    skip_corrupt: bool
    min_partitions: int | None
    max_records: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    num_retries: int
    retry_interval_ms: int

    def ask(self) -> TopicOffsets:
        return TopicOffsets(self.access, self.num_retries, self.retry_interval_ms)


def read_options(options: Mapping[str, str], is_stream: bool | None) -> SourceOptions:
    """Parse the options. Raises `SourceProblem` for the first wrong one. `is_stream` None: the kind of query is not known yet."""
    values = OptionValues(options)
    _refuse(values)
    selection = _selection(values)
    if is_stream:
        for option in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if option in values:
                raise SourceProblem(f"option '{option}': ending offset not valid in streaming queries")
    starting = read_limit(values, STARTING, LATEST if is_stream else EARLIEST)
    ending = read_limit(values, ENDING, LATEST)
    if is_stream is False:
        refuse_place(starting, STARTING, LATEST, "latest")
        refuse_place(ending, ENDING, EARLIEST, "earliest")
    most, least = values.integer("maxOffsetsPerTrigger", None, 1), values.integer("minOffsetsPerTrigger", None, 1)
    if most is not None and least is not None and most < least:
        raise SourceProblem(f"the value of maxOffsetsPerTrigger ({most}) must be at least minOffsetsPerTrigger ({least})")
    return SourceOptions(
        access=access_from(values),
        selection=selection,
        starting=starting,
        ending=ending,
        include_headers=values.flag("includeHeaders", False),
        fail_on_data_loss=values.flag("failOnDataLoss", True),
        skip_corrupt=values.flag(SKIP_CORRUPT_OPTION, False),
        min_partitions=values.integer("minPartitions", None, 1),
        max_records=values.integer("maxRecordsPerPartition", None, 1),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=values.milliseconds("maxTriggerDelay", "15m"),
        num_retries=values.number("fetchOffset.numRetries", NUM_RETRIES),
        retry_interval_ms=values.number("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS),
    )


def _refuse(values: OptionValues) -> None:
    for option, reason in REFUSED.items():
        if option in values:
            raise SourceProblem(f"Kafka option '{option.removeprefix('kafka.')}' is not supported: {reason}")
    own = {option.lower() for option in OWN_OPTIONS}
    for option in values:
        if option.lower().startswith("millrace.") and option.lower() not in own:
            raise SourceProblem(f"there is no option '{option}'; there are {', '.join(OWN_OPTIONS)}")


def _selection(values: OptionValues) -> Selection:
    given = [option for option in SELECTIONS if option in values]
    if not given:
        raise SourceProblem("one of the following options must be specified: subscribe, subscribePattern, assign")
    if len(given) > 1:
        raise SourceProblem(f"only one of the options subscribe, subscribePattern, assign can be specified, not {' and '.join(given)}")
    option, text = given[0], values[given[0]].strip()
    match option:
        case "assign":
            return Selection(assigned=parse_partitions(option, text))
        case "subscribe":
            topics = tuple(sorted({name.strip() for name in text.split(",")} - {""}))
            if not topics:
                raise SourceProblem(f"option 'subscribe' is '{text}', which names no topic to subscribe to")
            return Selection(topics=topics)
    if not text:
        raise SourceProblem("option 'subscribePattern' is empty")
    try:
        re.compile(text)
    except re.error as error:
        raise SourceProblem(f"option 'subscribePattern' is '{text}', which is no pattern: {error}") from None
    return Selection(pattern=text)
