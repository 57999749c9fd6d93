"""A cluster for the planning of queries: partitions with a beginning and an end, changed by hand. It answers what `TopicOffsets` answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.base.model import TopicPartition
from appliance.client.address import Address
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.topic_offsets import TopicOffsets


class PretendedCluster(TopicOffsets):
    """`logs[partition]` = (earliest, latest)."""

    def __init__(self, logs: Mapping[TopicPartition, tuple[int, int]], times: Mapping[int, int] | None = None) -> None:
        self.logs = dict(logs)
        self.times = dict(times or {})
        self.topic_id = bytes(16)
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def partitions_of(self, topics: Iterable[str], must_exist: bool = True) -> list[TopicPartition]:
        names = sorted(set(topics))
        if must_exist and (missing := [name for name in names if name not in {each.topic for each in self.logs}]):
            raise SourceProblem(f"there is no topic '{missing[0]}'")
        return sorted(each for each in self.logs if each.topic in names)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.logs[each][0] for each in partitions}

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.logs[each][1] for each in partitions}

    def at_timestamps(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {each: self.times.get(time) for each, time in timestamps.items()}

    def access_for(self, topics: Iterable[str]) -> ClusterAccess:
        return ClusterAccess((Address("pretended", 1),), cluster_id="c", topic_ids=tuple((topic, self.topic_id) for topic in sorted(set(topics))))
