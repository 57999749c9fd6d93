"""OffsetCommit and TxnOffsetCommit: offsets are appended to the log, and count when the append is answered.

An error of one partition does not affect the others; an error of the group applies to all. Owned by the group coordinator.
Weak spot: one batch per request, so many small commits are many small batches; the log may join them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.state_log import ProducerIdentity, StateRecord
from appliance.protocol.forwarded_apis import AnswerBudget
from appliance.protocol.group_offset_apis import (
    DEFAULT_RETENTION,
    NO_OFFSET,
    NOW,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResult,
    OffsetFetchPartitionResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopicResult,
    failed_group,
)
from appliance.protocol.topic_partitions import PartitionResult, TopicResult
from appliance.protocol.transaction_apis import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from services.coordinator.groups.group_directory import GroupDirectory, HostedGroup
from services.coordinator.groups.group_log import GroupLog, Replies, commit_error, transactional_commit_error
from services.coordinator.groups.group_membership import CommitTopic
from services.coordinator.groups.group_records import NO_EXPIRY, OffsetCommitValue, offset_record
from services.coordinator.groups.ports import GroupSettings, LegacyOffsets, Topics
from services.coordinator.groups.rebalances import Rebalances

ReplyToCommit = Callable[[OffsetCommitResponse], None]
ReplyToTransactionalCommit = Callable[[TxnOffsetCommitResponse], None]
Offsets = dict[TopicPartition, OffsetCommitValue]

LEGACY_VERSION: Final = 0
LOAD_IN_PROGRESS_SINCE: Final = 2


class OffsetCommits:
    """Decides about one commit at a time; the reply follows the answer of its append."""

    def __init__(
        self,
        settings: GroupSettings,
        directory: GroupDirectory,
        rebalances: Rebalances,
        replies: Replies,
        log: GroupLog,
        topics: Topics,
        legacy: LegacyOffsets,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._rebalances = rebalances
        self._replies = replies
        self._log = log
        self._topics = topics
        self._legacy = legacy

    # ---- OffsetCommit

    def commit(self, request: OffsetCommitRequest, version: int, now_ms: int, reply: ReplyToCommit) -> None:
        errors = self._problems(request.topics)
        offsets = self._offsets(request, errors, now_ms)
        is_legacy = version == LEGACY_VERSION
        unknown_only = not offsets and ErrorCode.OFFSET_METADATA_TOO_LARGE not in errors.values()
        hosted, error = (None, ErrorCode.NONE) if is_legacy or unknown_only else self._admit(request, version, now_ms)
        if hosted is not None and error is ErrorCode.NONE:
            self._refuse_growth(hosted.offsets.find, offsets, errors)
        if error is not ErrorCode.NONE:
            errors = {place: error if known_as is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else known_as for place, known_as in errors.items()}
        if error is not ErrorCode.NONE or not offsets:
            self._replies.say(reply, OffsetCommitResponse(topics=_results(request.topics, errors)))
        elif hosted is None:
            on_committed = partial(self._on_legacy_committed, request, errors, reply)
            self._legacy.commit(request.group_id, {place: value.offset for place, value in offsets.items()}, on_committed)
        else:
            self._append(hosted, request, offsets, errors, reply)

    def _admit(self, request: OffsetCommitRequest, version: int, now_ms: int) -> tuple[HostedGroup | None, ErrorCode]:
        error = self._directory.refusal(request.group_id, may_be_empty=True, may_create=request.generation_id < 0)
        if error is not ErrorCode.NONE:
            return None, error
        hosted = self._directory.find(request.group_id)
        if hosted is None:
            if request.generation_id >= 0:
                return None, ErrorCode.ILLEGAL_GENERATION
            hosted = self._directory.host(request.group_id, now_ms)
        problem = hosted.membership.commit_problem(request.member_id, request.group_instance_id, request.generation_id, False, version, request.topics)
        group = hosted.classic
        member = group.members.get(request.member_id) if group is not None else None
        if problem is ErrorCode.NONE and group is not None and member is not None:
            self._rebalances.renew_session(group, member, now_ms)
        return hosted, problem

    def _append(
        self, hosted: HostedGroup, request: OffsetCommitRequest, offsets: Offsets, errors: dict[TopicPartition, ErrorCode], reply: ReplyToCommit
    ) -> None:
        hosted.offsets.begin(offsets)

        def on_done(error: ErrorCode, position: int, now_ms: int) -> None:
            if error is ErrorCode.NONE:
                hosted.offsets.on_appended(position, offsets)
            else:
                hosted.offsets.on_refused(offsets)
                errors.update(dict.fromkeys(offsets, commit_error(error)))
            self._replies.say(reply, OffsetCommitResponse(topics=_results(request.topics, errors)))

        self._log.append(hosted.partition, _records(hosted, offsets), on_done)

    def _on_legacy_committed(
        self, request: OffsetCommitRequest, errors: dict[TopicPartition, ErrorCode], reply: ReplyToCommit, committed: dict[TopicPartition, ErrorCode]
    ) -> None:
        self._replies.say(reply, OffsetCommitResponse(topics=_results(request.topics, errors | dict(committed))))

    def _offsets(self, request: OffsetCommitRequest, errors: dict[TopicPartition, ErrorCode], now_ms: int) -> Offsets:
        retention_ms = request.retention_time_ms
        expire_ms = NO_EXPIRY if retention_ms == DEFAULT_RETENTION else now_ms + retention_ms
        offsets: Offsets = {}
        for topic, partitions in request.topics:
            for index, offset, leader_epoch, commit_timestamp_ms, metadata in partitions:
                place = TopicPartition(topic, index)
                if errors[place] is ErrorCode.NONE:
                    committed_ms = now_ms if commit_timestamp_ms == NOW else commit_timestamp_ms
                    offsets[place] = OffsetCommitValue(offset, leader_epoch, metadata or "", committed_ms, expire_ms)
        return offsets

    # ---- TxnOffsetCommit

    def commit_transactional(self, request: TxnOffsetCommitRequest, version: int, now_ms: int, reply: ReplyToTransactionalCommit) -> None:
        errors = self._problems(request.topics)
        offsets: Offsets = {
            TopicPartition(topic.topic, each.partition): OffsetCommitValue(each.offset, each.leader_epoch, each.metadata or "", now_ms)
            for topic in request.topics
            for each in topic.partitions
            if errors[TopicPartition(topic.topic, each.partition)] is ErrorCode.NONE
        }
        unknown_only = not offsets and ErrorCode.OFFSET_METADATA_TOO_LARGE not in errors.values()
        error = ErrorCode.NONE if unknown_only else self._transactional_problem(request, version, now_ms)
        if error is not ErrorCode.NONE:
            errors = {place: error if known_as is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else known_as for place, known_as in errors.items()}
        if error is not ErrorCode.NONE or not offsets:
            self._replies.say(reply, TxnOffsetCommitResponse(topics=_results(request.topics, errors)))
            return
        hosted = self._directory.host(request.group_id, now_ms)
        self._refuse_growth(partial(hosted.offsets.find_pending, request.producer_id), offsets, errors)
        if not offsets:
            self._replies.say(reply, TxnOffsetCommitResponse(topics=_results(request.topics, errors)))
            return
        append = hosted.offsets.begin_transactional(request.producer_id, offsets)
        self._directory.note_transaction(hosted, request.producer_id)

        def on_done(error: ErrorCode, position: int, now_ms: int) -> None:
            if error is ErrorCode.NONE:
                hosted.offsets.on_transactional_appended(append, position)
            else:
                hosted.offsets.on_transactional_refused(append)
                errors.update(dict.fromkeys(offsets, transactional_commit_error(error, version)))
            self._replies.say(reply, TxnOffsetCommitResponse(topics=_results(request.topics, errors)))

        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        self._log.append(hosted.partition, _records(hosted, offsets), on_done, producer)

    def _transactional_problem(self, request: TxnOffsetCommitRequest, version: int, now_ms: int) -> ErrorCode:
        error = self._directory.refusal(request.group_id, may_create=True)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOAD_IN_PROGRESS_SINCE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            return error
        membership = self._directory.host(request.group_id, now_ms).membership
        return membership.commit_problem(request.member_id, request.group_instance_id, request.generation_id, True, version, request.topics)

    # ---- what both have

    def _refuse_growth(self, find: Callable[[TopicPartition], OffsetCommitValue | None], offsets: Offsets, errors: dict[TopicPartition, ErrorCode]) -> None:
        """Take out of `offsets` what needs more memory than its group may have; `find` what it replaces."""
        if self._directory.has_memory():
            return
        for place, value in list(offsets.items()):
            former = find(place)
            if not self._directory.may_grow(1 if former is None else len(value.metadata) - len(former.metadata)):
                del offsets[place]
                errors[place] = ErrorCode.POLICY_VIOLATION

    def _problems(self, topics: Iterable[CommitTopic]) -> dict[TopicPartition, ErrorCode]:
        """Why each partition cannot be committed, or NONE."""
        errors = {}
        for topic in topics:
            for each in topic.partitions:
                error = ErrorCode.NONE
                if not self._topics.has_partition(topic.topic, each.partition):
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif each.metadata and java_length(each.metadata) > self._settings.offset_metadata_max_bytes:
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                errors[TopicPartition(topic.topic, each.partition)] = error
        return errors


def java_length(text: str) -> int:
    """`String.length()`: UTF-16 code units, which Kafka counts although the setting says bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _records(hosted: HostedGroup, offsets: Offsets) -> list[StateRecord]:
    return [offset_record(hosted.group_id, place, value) for place, value in offsets.items()]


def _results(topics: Iterable[CommitTopic], errors: dict[TopicPartition, ErrorCode]) -> tuple[TopicResult, ...]:
    return tuple(
        TopicResult(topic.topic, tuple(PartitionResult(each.partition, errors[TopicPartition(topic.topic, each.partition)]) for each in topic.partitions))
        for topic in topics
    )


# ---- OffsetFetch


ReplyToFetch = Callable[[OffsetFetchResponse], None]
GROUP_BYTES: Final = 20
PARTITION_BYTES: Final = 30


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
        budget = AnswerBudget()
        groups = tuple([self._fetch_group(group, version, request.require_stable, budget) for group in request.groups])
        self._replies.say(reply, OffsetFetchResponse(groups=groups))

    def _fetch_group(self, group: OffsetFetchGroup, version: int, require_stable: bool, budget: AnswerBudget) -> OffsetFetchGroupResult:
        error = ErrorCode.INVALID_REQUEST if budget.is_spent else self._directory.refusal(group.group_id, may_be_empty=True)
        hosted = self._directory.find(group.group_id)
        if error is ErrorCode.NONE and hosted is not None:
            error = hosted.membership.fetch_problem(group.member_id, group.member_epoch)
        if error is not ErrorCode.NONE:
            return failed_group(version, group, error)
        asked = _all_partitions(hosted, require_stable) if group.topics is None else group.topics
        if not budget.take(sum(GROUP_BYTES + len(topic) + sum(_size_of(hosted, topic, each) for each in partitions) for topic, partitions in asked)):
            return failed_group(version, group, ErrorCode.INVALID_REQUEST)
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


def _size_of(hosted: HostedGroup | None, topic: str, partition: int) -> int:
    """Return about how many bytes the answer has for a partition."""
    value = hosted.offsets.find(TopicPartition(topic, partition)) if hosted is not None else None
    return PARTITION_BYTES + (3 * len(value.metadata) if value is not None else 0)


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
