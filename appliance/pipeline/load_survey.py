"""What a load finds before it begins: how far each partition is loaded, what its log holds, and how its topic becomes rows. Asks the cluster, changes nothing.

The ends are last stable offsets: a load takes no record of an open or aborted transaction. Weak spot: start and end are asked for one after the other, so
retention may pass between the two; a task finds that out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from appliance.base.model import TopicId, TopicPartition
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_manifest import Positions
from appliance.pipeline.load_plan import Due, Extent, find_due
from appliance.pipeline.load_problem import LoadProblem
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.record_reader import read_range
from appliance.pipeline.table_kind import Field, TopicFormat
from appliance.pipeline.topic_offsets import TopicOffsets

SAMPLE_RECORDS = 10_000
KEPT = "a table keeps its form: load it into another place"


class PartitionLag(NamedTuple):
    """One line of the lag report."""

    topic: str
    partition: int
    loaded: int | None
    """the next offset to load; None where nothing was loaded yet"""
    start: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets that are not loaded yet and still there."""
        return self.end - max(self.start, min(self.end, self.start if self.loaded is None else self.loaded))

    @property
    def lost(self) -> int:
        return 0 if self.loaded is None else max(0, self.start - self.loaded)


class Survey(NamedTuple):
    """`access` is what tasks are given."""

    access: ClusterAccess
    extents: Mapping[TopicPartition, Extent]

    def due(self, positions: Positions) -> Due:
        return find_due(self.extents, positions)

    def lags(self, positions: Positions) -> list[PartitionLag]:
        return [PartitionLag(*partition, positions.get(partition), *extent) for partition, extent in sorted(self.extents.items())]


def survey_topics(offsets: TopicOffsets, topics: Iterable[str]) -> Survey:
    """Raises SourceProblem for a topic that is not there."""
    names = sorted(set(topics))
    partitions = offsets.partitions_of(names)
    starts, ends = offsets.earliest(partitions), offsets.latest(partitions)
    return Survey(offsets.access_for(names), {partition: Extent(starts[partition], max(starts[partition], ends[partition])) for partition in partitions})


class LoadRequest(NamedTuple):
    """How the user wants records decoded; None where nothing was said."""

    decode: str | None = None
    fields: Sequence[Field] | None = None
    headers: bool | None = None


def choose_format(topic: str, survey: Survey, wish: LoadRequest, kept: TopicFormat | None) -> TopicFormat:
    """The format of a topic's first load, or the kept one, which later runs may repeat but not change. Raises LoadProblem."""
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
    fields: Sequence[Field] = ()
    if decode == "json":
        fields = wish.fields if wish.fields is not None else _sampled_fields(topic, survey)
    elif wish.fields is not None:
        raise LoadProblem(f"a schema is for --decode json; {decode} has its own")
    return TopicFormat(topic_id, decode, tuple(fields), bool(wish.headers))


def _word(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _sampled_fields(topic: str, survey: Survey) -> tuple[Field, ...]:
    """From the first records of every partition."""
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
