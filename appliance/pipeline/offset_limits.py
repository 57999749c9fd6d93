"""Where a query begins and ends, as options say it: earliest, latest, given offsets, or the first record at or after a time.

`read_limit` takes it from the options of one side (`starting` or `ending`), in the precedence of Spark's Kafka connector: one time for all, times by partition,
offsets. `resolve` asks the cluster. Weak spot: a time is looked up once; a record that is stored later with an older time is not found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from appliance.base.model import TopicPartition
from appliance.pipeline.offset_json import EARLIEST, LATEST, describe_partitions, parse_offsets
from appliance.pipeline.option_values import OptionValues
from appliance.pipeline.source_problem import SourceProblem
from appliance.pipeline.topic_offsets import TopicOffsets

STARTING, ENDING = "starting", "ending"


class EveryPartition(NamedTuple):
    """EARLIEST or LATEST, of all partitions."""

    place: int


class GivenOffsets(NamedTuple):
    """By partition; EARLIEST and LATEST stand for these."""

    option: str
    offsets: dict[TopicPartition, int]


class AtTime(NamedTuple):
    """One time in ms for all partitions, or one for each."""

    option: str
    everywhere: int | None
    by_partition: dict[TopicPartition, int]
    latest_if_none: bool
    """what no record is so late for begins at the end; else that is an error"""


OffsetLimit: TypeAlias = EveryPartition | GivenOffsets | AtTime


def read_limit(values: OptionValues, side: str, default: int) -> OffsetLimit:
    """The limit of one side. Raises `SourceProblem`."""
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
    """A batch cannot start at the end, nor end at the beginning. Raises `SourceProblem`."""
    if limit == EveryPartition(place):
        raise SourceProblem(f"{side} offset can't be {word} for batch queries on Millrace")
    if isinstance(limit, GivenOffsets):
        for partition, offset in limit.offsets.items():
            if offset == place:
                raise SourceProblem(f"{side}Offsets for {partition} can't be {word} for batch queries on Millrace")


def resolve(limit: OffsetLimit, partitions: Iterable[TopicPartition], cluster: TopicOffsets) -> dict[TopicPartition, int]:
    """The offset of every partition. Raises `SourceProblem`."""
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
    """Who names partitions must name all that are read, and no other."""
    names = set(given)
    if missing := set(wanted) - names:
        raise SourceProblem(
            f"option '{option}' must specify all topic-partitions that are read, and misses {describe_partitions(missing)}; use -1 for latest, -2 for earliest"
        )
    if more := names - set(wanted):
        raise SourceProblem(f"option '{option}' specifies {describe_partitions(more)}, which the query does not read or the cluster does not have")
