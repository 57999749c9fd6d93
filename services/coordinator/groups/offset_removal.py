"""How offsets end: OffsetDelete, DeleteGroups, topics that are deleted, and age.

What ends is taken out of memory when its tombstones are in the log, and a request is answered then; a tombstone takes away only what stands before it,
so a commit that comes meanwhile stays. A group without members and without offsets goes too. Everything that goes over many groups does so in slices.
Owned by the group coordinator. Weak spot: a group with very many offsets is deleted in one turn, in several batches; should one of them be refused, the
offsets of the others are gone and the group is still there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.state_log import StateRecord
from appliance.protocol.group_apis import DeletedGroup, DeleteGroupsRequest, DeleteGroupsResponse
from appliance.protocol.group_offset_apis import OffsetDeleteRequest, OffsetDeleteResponse
from appliance.protocol.topic_partitions import PartitionResult, TopicResult
from appliance.runtime.timers import Timers
from services.coordinator.groups.group import Group
from services.coordinator.groups.group_directory import GroupDirectory, HostedGroup
from services.coordinator.groups.group_log import GroupLog, Replies, commit_error
from services.coordinator.groups.group_membership import ClassicMembership
from services.coordinator.groups.group_records import offset_record
from services.coordinator.groups.ports import GroupSettings, Topics

TOMBSTONES_MAX: Final = 1_000
"""In one batch, which stays far below `message.max.bytes`."""
SLICE_OFFSETS: Final = 500
"""How many offsets one step of a slow job checks; a group counts as one more."""

Job = Iterator[None]
_OVER: Final = object()


class OffsetRemoval:
    """Requests at once; slow jobs by `work`, a slice a call."""

    def __init__(self, settings: GroupSettings, directory: GroupDirectory, timers: Timers, replies: Replies, log: GroupLog, topics: Topics) -> None:
        self._settings = settings
        self._directory = directory
        self._timers = timers
        self._replies = replies
        self._log = log
        self._topics = topics
        self._jobs: deque[Job] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    def work(self) -> int:
        """One slice of the oldest job; returns how much was done."""
        if not self._jobs:
            return 0
        if next(self._jobs[0], _OVER) is _OVER:
            self._jobs.popleft()
        return 1

    # ---- by request

    def delete_offsets(self, request: OffsetDeleteRequest, now_ms: int, reply: Callable[[OffsetDeleteResponse], None]) -> None:
        error = self._directory.refusal(request.group_id)
        hosted = self._directory.find(request.group_id)
        if error is ErrorCode.NONE:
            error = ErrorCode.GROUP_ID_NOT_FOUND if hosted is None else hosted.membership.offset_deletion_problem()
        if error is not ErrorCode.NONE or hosted is None:
            self._replies.say(reply, OffsetDeleteResponse(error))
            return
        membership = hosted.membership
        errors: dict[TopicPartition, ErrorCode] = {}
        for topic in request.topics:
            is_subscribed = membership.is_subscribed_to(topic.topic)
            for each in topic.partitions:
                is_known = self._topics.has_partition(topic.topic, each.partition)
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if not is_known else ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
                errors[TopicPartition(topic.topic, each.partition)] = error
        known = {place for place in hosted.offsets.known_partitions() & errors.keys() if errors[place] is ErrorCode.NONE}

        def on_removed(error: ErrorCode) -> None:
            """A partition of which there is nothing to delete is deleted."""
            errors.update(dict.fromkeys(known, error))
            topics = [
                TopicResult(topic, tuple([PartitionResult(partition, errors[TopicPartition(topic, partition)]) for (partition,) in partitions]))
                for topic, partitions in request.topics
            ]
            self._replies.say(reply, OffsetDeleteResponse(topics=tuple(topics)))

        self._remove(hosted, known, now_ms, on_removed)

    def delete_groups(self, request: DeleteGroupsRequest, now_ms: int, reply: Callable[[DeleteGroupsResponse], None]) -> None:
        """A slice for each group; answered when the last of them is gone."""
        self._jobs.append(self._deletion_of_groups(request.group_ids, now_ms, reply))

    def _deletion_of_groups(self, group_ids: tuple[str, ...], now_ms: int, reply: Callable[[DeleteGroupsResponse], None]) -> Job:
        errors: dict[str, ErrorCode] = {}
        distinct = list(dict.fromkeys(group_ids))

        def on_decided(group_id: str, error: ErrorCode) -> None:
            errors[group_id] = error
            if len(errors) == len(distinct):
                self._replies.say(reply, DeleteGroupsResponse(groups=tuple([DeletedGroup(each, errors[each]) for each in group_ids])))

        if not distinct:
            self._replies.say(reply, DeleteGroupsResponse())
        for group_id in distinct:
            hosted = self._directory.find(group_id)
            error = self._directory.refusal(group_id, may_be_empty=True)
            if error is ErrorCode.NONE:
                error = ErrorCode.GROUP_ID_NOT_FOUND if hosted is None else hosted.membership.deletion_problem()
            if error is not ErrorCode.NONE or hosted is None:
                on_decided(group_id, error)
            else:
                self._remove(hosted, hosted.offsets.known_partitions(), now_ms, partial(on_decided, group_id), with_group=True)
            yield

    # ---- by events

    def on_topics_deleted(self, topics: Collection[str], now_ms: int) -> None:
        """Their offsets go, in all groups that are loaded."""
        self._jobs.append(self._removal_of_topics(frozenset(topics), now_ms))

    def _removal_of_topics(self, topics: frozenset[str], now_ms: int) -> Job:
        looked_at = 0
        for hosted in list(self._directory):
            known = hosted.offsets.known_partitions()
            gone = [place for place in known if place.topic in topics]
            if gone and not hosted.is_gone:
                self._remove(hosted, gone, now_ms, _ignore)
            looked_at += len(known) + 1
            if looked_at >= SLICE_OFFSETS:
                looked_at = 0
                yield

    def begin(self, now_ms: int) -> None:
        """Look for old offsets from now on, at every interval."""
        self._timers.schedule(now_ms + self._settings.offsets_retention_check_interval_ms, self._on_check_due)

    def _on_check_due(self, now_ms: int) -> None:
        self._jobs.append(self._removal_of_old(now_ms))

    def _removal_of_old(self, now_ms: int) -> Job:
        looked_at = 0
        for hosted in list(self._directory):
            places = iter(hosted.offsets.partitions())
            while not hosted.is_gone:
                some = list(islice(places, SLICE_OFFSETS))
                rule = hosted.membership.expiry_rule()
                old = list(hosted.offsets.expired(some, rule, self._settings.offsets_retention_ms, now_ms)) if rule is not None else []
                if old:
                    self._remove(hosted, old, now_ms, _ignore)
                looked_at += len(some) + 1
                if looked_at >= SLICE_OFFSETS:
                    looked_at = 0
                    yield
                if len(some) < SLICE_OFFSETS:
                    break
            self._maybe_remove_group(hosted, now_ms)
        self.begin(now_ms)

    # ---- both ends of a removal

    def _remove(
        self, hosted: HostedGroup, places: Collection[TopicPartition], now_ms: int, on_removed: Callable[[ErrorCode], None], with_group: bool = False
    ) -> None:
        """Tombstones for these, and for the membership if `with_group`; `on_removed` is called once, when all are answered."""
        rest = iter(places)
        batches: list[tuple[list[TopicPartition], list[StateRecord]]] = []
        while some := list(islice(rest, TOMBSTONES_MAX)):
            batches.append((some, [offset_record(hosted.group_id, place, None) for place in some]))
        of_membership = hosted.membership.tombstones() if with_group else []
        if of_membership:
            batches.append(([], of_membership))
        membership = hosted.membership
        generation_id = membership.generation_id
        errors: list[ErrorCode] = []

        def finish(now_ms: int) -> None:
            worst = next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)
            is_as_it_was = hosted.membership is membership and membership.generation_id == generation_id and membership.deletion_problem() is ErrorCode.NONE
            if not with_group:
                self._maybe_remove_group(hosted, now_ms)
            elif worst is ErrorCode.NONE and is_as_it_was and not hosted.is_gone:
                if hosted.offsets.is_empty:
                    self._directory.remove(hosted)
                else:  # a commit came meanwhile, to a group of which the log has nothing else now
                    hosted.membership = ClassicMembership(Group(hosted.group_id, hosted.partition, now_ms))
            on_removed(commit_error(worst))

        def on_done(some: list[TopicPartition], error: ErrorCode, position: int, now_ms: int) -> None:
            if error is ErrorCode.NONE:
                hosted.offsets.remove(some, position)
            errors.append(error)
            if len(errors) == len(batches):
                finish(now_ms)

        for some, records in batches:
            self._log.append(hosted.partition, records, partial(on_done, some))
        if not batches:
            finish(now_ms)

    def _maybe_remove_group(self, hosted: HostedGroup, now_ms: int) -> None:
        """Without members and without offsets there is nothing to coordinate."""
        if hosted.is_gone or not hosted.offsets.is_empty or not hosted.membership.is_empty:
            return
        self._remove(hosted, (), now_ms, _ignore, with_group=True)


def _ignore(error: ErrorCode) -> None:
    """What could not be removed is found again at the next look."""
