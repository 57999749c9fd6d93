"""Where a query starts and ends: earliest, latest, given offsets, or the first record at or after a time.

`read_limit` reads the options of one side (`starting` or `ending`) in the precedence of Spark's Kafka connector: one time for
all partitions, times by partition, offsets. `resolve` asks the cluster. Offsets are written as Spark's connector writes them,
`{"syslog": {"0": 23, "1": -1}}`. This is also the form in Spark's checkpoints, so names and numbers are sorted: equal offsets
are equal texts. Weak spot: a time is resolved once; a record stored later with an older time is not found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from appliance.base.model import TopicPartition
from appliance.pipeline.option_values import OptionValues
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.topic_offsets import TopicOffsets

LATEST, EARLIEST = -1, -2
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_PARTITIONS_EXAMPLE = '{"topicA":[0,1],"topicB":[0,1]}'

OffsetDocument: TypeAlias = dict[str, dict[str, int]]


def offsets_to_document(offsets: Mapping[TopicPartition, int]) -> OffsetDocument:
    """Return a document whose `json.dumps` is the connector's text."""
    document: OffsetDocument = {}
    for partition in sorted(offsets):
        document.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return document


def offsets_from_document(document: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Inverse of `offsets_to_document`."""
    return {TopicPartition(topic, int(number)): int(offset) for topic, numbers in document.items() for number, offset in numbers.items()}


def parse_offsets(name: str, text: str) -> dict[TopicPartition, int]:
    """Parse offsets or times of partitions. Raises `SourceProblem`."""
    document = _load(name, text, _OFFSETS_EXAMPLE)
    found = {}
    for topic, numbers in document.items():
        if not isinstance(numbers, dict) or not numbers:
            raise _malformed(name, text, _OFFSETS_EXAMPLE)
        for number, offset in numbers.items():
            if not number.isascii() or not number.isdigit() or not _is_integer(offset):
                raise _malformed(name, text, _OFFSETS_EXAMPLE)
            found[TopicPartition(topic, int(number))] = int(offset)
    if not found:
        raise _malformed(name, text, _OFFSETS_EXAMPLE)
    return found


def parse_partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions. Raises `SourceProblem`."""
    document = _load(name, text, _PARTITIONS_EXAMPLE)
    found = []
    for topic, numbers in document.items():
        if not isinstance(numbers, list) or not all(_is_integer(number) and number >= 0 for number in numbers):
            raise _malformed(name, text, _PARTITIONS_EXAMPLE)
        found += [TopicPartition(topic, number) for number in numbers]
    if not found:
        raise _malformed(name, text, _PARTITIONS_EXAMPLE)
    return tuple(sorted(set(found)))


def describe_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Return `a-0, a-1`, or the first few of many."""
    names = [str(each) for each in sorted(partitions)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _load(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        raise _malformed(name, text, example) from None
    if not isinstance(document, dict):
        raise _malformed(name, text, example)
    return document


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _malformed(name: str, text: str, example: str) -> SourceProblem:
    return SourceProblem(f"option '{name}': expected e.g. {example}, got {text}")


STARTING, ENDING = "starting", "ending"


class EveryPartition(NamedTuple):
    """EARLIEST or LATEST for all partitions."""

    place: int


class GivenOffsets(NamedTuple):
    """Offsets by partition, or EARLIEST and LATEST for them."""

    option: str
    offsets: dict[TopicPartition, int]


class AtTime(NamedTuple):
    """One time in ms for all partitions, or one for each."""

    option: str
    everywhere: int | None
    by_partition: dict[TopicPartition, int]
    latest_if_none: bool
    """if no record is that late: start at the end (True), or fail"""


OffsetLimit: TypeAlias = EveryPartition | GivenOffsets | AtTime


def read_limit(values: OptionValues, side: str, default: int) -> OffsetLimit:
    """Parse the limit of one side. Raises `SourceProblem`."""
    latest_if_none = side == ENDING or values.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest")) == "latest"
    if (option := f"{side}Timestamp") in values:
        return AtTime(option, values.number(option, 0), {}, latest_if_none)
    if (option := f"{side}OffsetsByTimestamp") in values:
        times = parse_offsets(option, values[option])
        if min(times.values()) < 0:
            raise SourceProblem(f"option '{option}': a time must be milliseconds since 1970, got {values[option]}")
        return AtTime(option, None, times, latest_if_none)
    option = f"{side}Offsets"
    text = values.get(option, "").strip()
    match text.lower():
        case "":
            return EveryPartition(default)
        case "earliest":
            return EveryPartition(EARLIEST)
        case "latest":
            return EveryPartition(LATEST)
    offsets = parse_offsets(option, text)
    if min(offsets.values()) < EARLIEST:
        raise SourceProblem(f"option '{option}': an offset is at least 0, or -1 for latest, -2 for earliest; got {text}")
    return GivenOffsets(option, offsets)


def refuse_place(limit: OffsetLimit, side: str, place: int, word: str) -> None:
    """Refuse a batch that starts at the end or ends at the beginning. Raises `SourceProblem`."""
    if limit == EveryPartition(place):
        raise SourceProblem(f"{side} offset can't be {word} for batch queries on Millrace")
    if isinstance(limit, GivenOffsets):
        for partition, offset in limit.offsets.items():
            if offset == place:
                raise SourceProblem(f"{side}Offsets for {partition} can't be {word} for batch queries on Millrace")


def resolve(limit: OffsetLimit, partitions: Iterable[TopicPartition], cluster: TopicOffsets) -> dict[TopicPartition, int]:
    """Return the offset of every partition. Raises `SourceProblem`."""
    wanted = sorted(set(partitions))
    match limit:
        case EveryPartition(place):
            return cluster.earliest(wanted) if place == EARLIEST else cluster.latest(wanted)
        case GivenOffsets(option, offsets):
            _require_same(option, offsets, wanted)
            found = dict(offsets)
            found.update(cluster.earliest(each for each in wanted if offsets[each] == EARLIEST))
            found.update(cluster.latest(each for each in wanted if offsets[each] == LATEST))
            return found
        case AtTime(option, everywhere, by_partition, latest_if_none):
            if everywhere is None:
                _require_same(option, by_partition, wanted)
            times = by_partition if everywhere is None else dict.fromkeys(wanted, everywhere)
            at = cluster.at_timestamps(times)
            found = {each: offset for each, offset in at.items() if offset is not None}
            missing = [each for each in wanted if each not in found]
            if missing and not latest_if_none:
                what = f"topic-partition {missing[0]} and timestamp {times[missing[0]]}"
                raise SourceProblem(f"option '{option}': no offset matched from request of {what}; see startingOffsetsByTimestampStrategy")
            return found | cluster.latest(missing)
    raise AssertionError(limit)


def _require_same(option: str, given: Iterable[TopicPartition], wanted: list[TopicPartition]) -> None:
    """Options that name partitions must name all that are read, and no other."""
    names = set(given)
    if missing := set(wanted) - names:
        raise SourceProblem(
            f"option '{option}' must specify all topic-partitions that are read, and misses {describe_partitions(missing)}; use -1 for latest, -2 for earliest"
        )
    if more := names - set(wanted):
        raise SourceProblem(f"option '{option}' specifies {describe_partitions(more)}, which the query does not read or the cluster does not have")
