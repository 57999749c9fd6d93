"""Read what a load needs before it starts: destination, stored positions, log ends, row formats; and plan the next commit.

Requests to the cluster only read. The ends are last stable offsets: a load takes no record of an open or aborted
transaction. A commit takes a limited part of what is left, so that a crash repeats one commit and not the whole load.

A load is published by link(2) and rename(2), so its directory must be on a POSIX file system, local or shared; object
stores have neither. Weak spot: start and end are two requests. If retention deletes records between them, a task reports
the loss.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from appliance.base.model import TopicId, TopicPartition
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_manifest import Positions, SkippedRange
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import LoadProblem
from appliance.pipeline.record_reader import read_range
from appliance.pipeline.table_kind import JsonField, TopicFormat
from appliance.pipeline.topic_offsets import TopicOffsets

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DATABASES = ("postgresql", "postgres")


class Destination(NamedTuple):
    """Either a directory's absolute path or a database's address."""

    directory: str | None = None
    database: str | None = None


def parse_destination(text: str) -> Destination:
    """Parse `--to`. Raises LoadProblem, with the reason, for a place that cannot be loaded into."""
    if not text:
        raise LoadProblem("--to is empty; name a directory, or postgresql://USER@HOST/DATABASE")
    found = _SCHEME.match(text)
    if found is None:
        return Destination(directory=os.path.abspath(text))
    scheme = found.group(1).lower()
    if scheme in _DATABASES:
        address = urlsplit(text)
        if address.password is not None or "password" in parse_qs(address.query):
            raise LoadProblem(
                "--to has a password, which every user of this machine sees in the list of processes; leave it out, and put it into ~/.pgpass "
                "or into a file that PGPASSFILE names (mode 0600, HOST:PORT:DATABASE:USER:PASSWORD)"
            )
        return Destination(database=text)
    if scheme == "file":
        address = urlsplit(text)
        if address.netloc not in ("", "localhost") or not address.path.startswith("/"):
            raise LoadProblem(f"--to {text}: write file:///DIR, or the directory alone")
        return Destination(directory=os.path.abspath(unquote(address.path)))
    raise LoadProblem(
        f"--to {text}: only directories of local or shared POSIX file systems and postgresql:// can be loaded into. A load becomes part of a directory "
        f"by link and rename, each in one step, which {scheme}: does not have; load into a directory and copy what its manifests name"
    )


class LogExtent(NamedTuple):
    """The log of a partition: `start` inclusive, `end` exclusive (the last stable offset)."""

    start: int
    end: int


class Due(NamedTuple):
    """What is to be loaded, and what was deleted before it was loaded."""

    ranges: tuple[OffsetRange, ...]
    lost: tuple[SkippedRange, ...]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.ranges)

    @property
    def is_nothing(self) -> bool:
        return not self.ranges and not self.lost


def find_due(extents: Mapping[TopicPartition, LogExtent], positions: Mapping[TopicPartition, int]) -> Due:
    """Return the ranges from each partition's position (without one, its log start) to its end."""
    ranges, lost = [], []
    for partition, extent in sorted(extents.items()):
        position = positions.get(partition, extent.start)
        if position < extent.start:
            lost.append(SkippedRange(*partition, position, extent.start, "lost"))
            position = extent.start
        if position > extent.end:
            raise LoadProblem(
                f"{partition} was loaded up to offset {position}, but its log ends at {extent.end}: it is not the log that was loaded "
                "(was the topic deleted and made anew?); load it into another place"
            )
        if position < extent.end:
            ranges.append(OffsetRange(*partition, position, extent.end))
    return Due(tuple(ranges), tuple(lost))


def next_ranges(due: Due, records_max: int) -> tuple[OffsetRange, ...]:
    """Return the first part of each range, in proportion, so that all partitions progress together.

    A partition that lost all it had has a range of nothing, which moves its position.
    """
    passed = {TopicPartition(each.topic, each.partition): each.end for each in due.lost}
    for each in due.ranges:
        passed.pop(each.topic_partition, None)
    moves = tuple(OffsetRange(*partition, end, end) for partition, end in sorted(passed.items()))
    share = due.ranges if due.size <= records_max else (each._replace(end=each.start + max(1, each.size * records_max // due.size)) for each in due.ranges)
    return (*moves, *share)


SAMPLE_RECORDS = 10_000
KEPT = "a table keeps its form: load it into another place"


class PartitionLag(NamedTuple):
    """A row of the lag report."""

    topic: str
    partition: int
    loaded: int | None
    """the next offset to load; None if nothing was loaded yet"""
    start: int
    end: int

    @property
    def lag(self) -> int:
        """Return the number of offsets that are not loaded and still exist."""
        return self.end - max(self.start, min(self.end, self.start if self.loaded is None else self.loaded))

    @property
    def lost(self) -> int:
        return 0 if self.loaded is None else max(0, self.start - self.loaded)


class Survey(NamedTuple):
    """`access` is what tasks are given."""

    access: ClusterAccess
    extents: Mapping[TopicPartition, LogExtent]

    def due(self, positions: Positions) -> Due:
        return find_due(self.extents, positions)

    def lags(self, positions: Positions) -> list[PartitionLag]:
        return [PartitionLag(*partition, positions.get(partition), *extent) for partition, extent in sorted(self.extents.items())]


def survey_topics(offsets: TopicOffsets, topics: Iterable[str]) -> Survey:
    """Raises SourceProblem for a topic that does not exist."""
    names = sorted(set(topics))
    partitions = offsets.partitions_of(names)
    starts, ends = offsets.earliest(partitions), offsets.latest(partitions)
    return Survey(offsets.access_for(names), {partition: LogExtent(starts[partition], max(starts[partition], ends[partition])) for partition in partitions})


class LoadRequest(NamedTuple):
    """The decoding options; None where an option was not given."""

    decode: str | None = None
    fields: Sequence[JsonField] | None = None
    headers: bool | None = None


def choose_format(topic: str, survey: Survey, wish: LoadRequest, kept: TopicFormat | None) -> TopicFormat:
    """Return the format of a topic's first load, or the stored one, which later runs may repeat but not change. Raises LoadProblem."""
    number = survey.access.topic_id(topic)
    topic_id = None if number is None else str(TopicId(number))
    if kept is not None:
        if kept.topic_id is not None and topic_id is not None and kept.topic_id != topic_id:
            raise LoadProblem(f"topic {topic} was deleted and made anew since it was loaded: its offsets mean other records now; load it into another place")
        for name, wanted, there in (("decode", wish.decode, kept.decode), ("headers", wish.headers, kept.headers)):
            if wanted is not None and wanted != there:
                raise LoadProblem(
                    f"topic {topic} was loaded with {name} {_word(there)}, not {_word(wanted)}; a table keeps its form: load it into another place"
                )
        if wish.fields is not None and tuple(wish.fields) != kept.fields:
            schema = ", ".join(f"{field.name} {field.type}" for field in kept.fields)
            raise LoadProblem(f"topic {topic} was loaded with the schema {schema!r}; {KEPT}")
        return kept
    decode = wish.decode or "raw"
    fields: Sequence[JsonField] = ()
    if decode == "json":
        fields = wish.fields if wish.fields is not None else _sampled_fields(topic, survey)
    elif wish.fields is not None:
        raise LoadProblem(f"a schema is for --decode json; {decode} has its own")
    return TopicFormat(topic_id, decode, tuple(fields), bool(wish.headers))


def _word(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _sampled_fields(topic: str, survey: Survey) -> tuple[JsonField, ...]:
    """Infer fields from the first records of every partition."""
    from appliance.pipeline.json_fields import infer_fields

    values: list[bytes | None] = []
    extents = [(partition, extent) for partition, extent in sorted(survey.extents.items()) if partition.topic == topic]
    for partition, extent in extents:
        sample = OffsetRange(*partition, extent.start, min(extent.end, extent.start + max(1, SAMPLE_RECORDS // len(extents))))
        for batch in read_range(survey.access, sample, ("value",), on_data_loss=lambda loss: None, on_corrupt=lambda corrupt: None):
            values += batch.column("value").to_pylist()
    fields = infer_fields(values)
    if not fields:
        raise LoadProblem(f"no JSON object is among the first {len(values)} records of topic {topic}: its fields cannot be found out; name them with --schema")
    return fields
