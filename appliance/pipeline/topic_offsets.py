"""Requests of Spark's driver about topics: partitions, ids, log ends, and offsets of times.

Owned by one thread; keeps one ClusterClient until it is closed. Weak spot: answers are of different moments; between two of
them a partition may grow, or lose its oldest records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TypeVar

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicPartition
from appliance.client.admin import FoundOffset, list_offsets
from appliance.client.cluster import ClusterClient, TopicMetadata
from appliance.client.errors import ClientFailed, is_retriable
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.sink_spool import SPOOL_TOPIC
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

NUM_RETRIES = 3
RETRY_INTERVAL_MS = 10
PATIENCE_MS = 180_000
"""A box may be away for two minutes during an upgrade."""
READ_COMMITTED, READ_UNCOMMITTED = 1, 0

Answer = TypeVar("Answer")


class TopicOffsets:
    """A context manager. An unreachable broker is a `SourceProblem` after `fetchOffset.numRetries` retries."""

    def __init__(self, access: ClusterAccess, num_retries: int = NUM_RETRIES, retry_interval_ms: int = RETRY_INTERVAL_MS) -> None:
        self._access = access
        self._num_retries = num_retries
        self._retry_interval_ms = retry_interval_ms
        self._cluster = access.open()
        self._has_answered = False

    def __enter__(self) -> TopicOffsets:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._cluster.close()

    def partitions_of(self, topics: Iterable[str], must_exist: bool = True) -> list[TopicPartition]:
        """Return all partitions of topics, in order. Raises `SourceProblem` for an unknown topic, unless that is allowed."""
        names = sorted(set(topics))
        known = self._ask(lambda cluster: cluster.metadata(names)).topics if names else {}
        if not must_exist:
            names = [name for name in names if name in known and known[name].error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        return [TopicPartition(name, partition.partition) for name in names for partition in self._checked(name, known.get(name)).partitions]

    def topics_like(self, pattern: str) -> list[str]:
        """Return topics whose whole name matches, without the cluster's internal topics and the sink's spool."""
        topics = self._ask(lambda cluster: cluster.metadata(None)).topics
        return sorted(name for name, topic in topics.items() if not topic.is_internal and name != SPOOL_TOPIC and re.fullmatch(pattern, name))

    def require(self, partitions: Iterable[TopicPartition], must_exist: bool = True) -> list[TopicPartition]:
        """Return these partitions, in order. Raises `SourceProblem` for an unknown one, unless that is allowed."""
        wanted = sorted(set(partitions))
        there = set(self.partitions_of((each.topic for each in wanted), must_exist))
        missing = [each for each in wanted if each not in there]
        if missing and must_exist:
            count = sum(other.topic == missing[0].topic for other in there)
            raise SourceProblem(f"topic '{missing[0].topic}' has no partition {missing[0].partition}; it has {count}, counted from 0")
        return [each for each in wanted if each in there]

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._list(partitions, EARLIEST_TIMESTAMP)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends for readers: last stable offsets with read_committed, else high watermarks."""
        return self._list(partitions, LATEST_TIMESTAMP)

    def at_timestamps(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time in ms; None if no record is that late. -1 and -2 mean latest and earliest."""
        found: dict[TopicPartition, int | None] = {}
        for timestamp in sorted(set(timestamps.values())):
            offsets = self._list([each for each, its in timestamps.items() if its == timestamp], timestamp)
            found.update({each: offset if offset >= 0 else None for each, offset in offsets.items()})
        return found

    def access_for(self, topics: Iterable[str]) -> ClusterAccess:
        """Return the tasks' access, with the ids of the cluster and the topics, so that a task finds its box and notices a re-created topic."""
        names = sorted(set(topics))
        metadata = self._ask(lambda cluster: cluster.metadata(names))
        ids = ((name, metadata.topics[name].topic_id) for name in names if name in metadata.topics)
        return self._access._replace(cluster_id=metadata.cluster_id or "", topic_ids=tuple((name, bytes(id)) for name, id in ids if id is not None))

    def _list(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        isolation_level = READ_COMMITTED if self._access.read_committed else READ_UNCOMMITTED
        wanted = sorted(set(partitions))

        def ask(cluster: ClusterClient) -> dict[TopicPartition, FoundOffset]:
            return list_offsets(cluster, wanted, timestamp, isolation_level)

        found = self._ask(ask) if wanted else {}
        return {each: int(found[each].offset) for each in wanted}

    def _ask(self, question: Callable[[ClusterClient], Answer]) -> Answer:
        """Retry requests. A cluster that never answered fails soon: its address is wrong or it is down. One that answered before may be restarting."""
        left = self._num_retries
        patience = self._cluster.backoff(PATIENCE_MS if self._has_answered else 0)
        while True:
            try:
                answer = question(self._cluster)
                self._has_answered = True
                return answer
            except (ClientFailed, RequestRefused) as error:
                problem = SourceProblem(f"the cluster at {self._access.servers} could not be asked: {error}")
                if not is_retriable(error):
                    raise problem from error
                if not left:
                    patience.pause_or_raise(problem)
                    continue
            left -= 1
            self._cluster.sleep(self._retry_interval_ms / 1000)

    def _checked(self, name: str, topic: TopicMetadata | None) -> TopicMetadata:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
        if topic is None or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise SourceProblem(f"there is no topic '{name}' in the cluster at {self._access.servers} ({code.name})")
        if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise SourceProblem(f"'{name}' is not a name for a topic ({code.name})")
        if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise SourceProblem(f"topic '{name}' of the cluster at {self._access.servers} cannot be used: {code.name}")
        return topic
