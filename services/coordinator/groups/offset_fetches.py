"""OffsetFetch: how far groups have read, as far as that is certain.

Whoever begins to consume behind a transaction asks for stable offsets: a partition whose commit is undecided is refused for now, because the answer
could be taken back. Offsets of partitions that do not exist any more are told too, as with Kafka. Owned by the group coordinator. Weak spot: the answer
for all partitions of a group is as large as the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.protocol.group_offset_apis import (
    NO_OFFSET,
    OffsetFetchGroup,
    OffsetFetchGroupResult,
    OffsetFetchPartitionResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopicResult,
    failed_group,
)
from services.coordinator.groups.group_directory import GroupDirectory, HostedGroup
from services.coordinator.groups.ports import LegacyOffsets, Topics
from services.coordinator.groups.replies import Replies

ReplyToFetch = Callable[[OffsetFetchResponse], None]

LEGACY_VERSION: Final = 0


class OffsetFetches:
    """Answers at once from memory; version 0 when ZooKeeper has answered."""

    def __init__(self, directory: GroupDirectory, replies: Replies, topics: Topics, legacy: LegacyOffsets) -> None:
        self._directory = directory
        self._replies = replies
        self._topics = topics
        self._legacy = legacy

    def fetch(self, request: OffsetFetchRequest, version: int, reply: ReplyToFetch) -> None:
        if version == LEGACY_VERSION:
            self._fetch_legacy(request.groups[0], reply)
            return
        groups = tuple([self._fetch_group(group, version, request.require_stable) for group in request.groups])
        self._replies.say(reply, OffsetFetchResponse(groups=groups))

    def _fetch_group(self, group: OffsetFetchGroup, version: int, require_stable: bool) -> OffsetFetchGroupResult:
        error = self._directory.refusal(group.group_id, may_be_empty=True)
        hosted = self._directory.find(group.group_id)
        if error is ErrorCode.NONE and hosted is not None:
            error = hosted.membership.fetch_problem(group.member_id, group.member_epoch)
        if error is not ErrorCode.NONE:
            return failed_group(version, group, error)
        asked = _all_partitions(hosted, require_stable) if group.topics is None else group.topics
        return OffsetFetchGroupResult(
            group.group_id,
            tuple([OffsetFetchTopicResult(topic, tuple([_result(hosted, topic, each, require_stable) for each in partitions])) for topic, partitions in asked]),
        )

    # ---- version 0

    def _fetch_legacy(self, group: OffsetFetchGroup, reply: ReplyToFetch) -> None:
        asked = [TopicPartition(topic, each) for topic, partitions in group.topics or () for each in partitions]
        known = [place for place in asked if self._topics.has_partition(*place)]
        self._legacy.fetch(group.group_id, known, partial(self._on_legacy_fetched, group, reply))

    def _on_legacy_fetched(self, group: OffsetFetchGroup, reply: ReplyToFetch, fetched: Mapping[TopicPartition, int]) -> None:
        """What is not there is an unknown partition to these clients."""

        def result(topic: str, partition: int) -> OffsetFetchPartitionResult:
            offset = fetched.get(TopicPartition(topic, partition))
            if offset is None:
                return OffsetFetchPartitionResult(partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return OffsetFetchPartitionResult(partition, offset)

        topics = tuple([OffsetFetchTopicResult(topic, tuple([result(topic, each) for each in partitions])) for topic, partitions in group.topics or ()])
        self._replies.say(reply, OffsetFetchResponse(groups=(OffsetFetchGroupResult(group.group_id, topics),)))


def _all_partitions(hosted: HostedGroup | None, require_stable: bool) -> Iterable[tuple[str, list[int]]]:
    """Return the partitions with a commit; with `require_stable` also those whose first commit is undecided, because leaving them out means no commit.

    (Kafka leaves them out.)"""
    if hosted is None:
        return ()
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(hosted.offsets.known_partitions()) if require_stable else hosted.offsets.partitions():
        by_topic.setdefault(topic, []).append(partition)
    return by_topic.items()


def _result(hosted: HostedGroup | None, topic: str, partition: int, require_stable: bool) -> OffsetFetchPartitionResult:
    if hosted is None:
        return OffsetFetchPartitionResult(partition)
    place = TopicPartition(topic, partition)
    if require_stable and hosted.offsets.is_unstable(place):
        return OffsetFetchPartitionResult(partition, NO_OFFSET, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    value = hosted.offsets.find(place)
    if value is None:
        return OffsetFetchPartitionResult(partition)
    return OffsetFetchPartitionResult(partition, value.offset, value.leader_epoch, value.metadata)
