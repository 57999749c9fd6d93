"""What administrators see and change of what share groups have done: start offsets, lag, deletions (KIP-932).

Owned by the coordinator. Only groups without members are changed, as in Kafka. Weak spot: a change of several partitions may be in the log for
some of them only; the answer says of which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol import share_apis as apis
from services.coordinator.share.share_groups import (
    NAME_CHARACTERS_MAX,
    SHARES_MAX,
    LogBounds,
    Place,
    SharedTopics,
    ShareGroups,
    all_of,
    by_topic,
)
from services.coordinator.share.share_states import ShareKey, ShareStates


class ShareOffsets:
    """Of all share groups of this box."""

    def __init__(self, groups: ShareGroups, states: ShareStates, topics: SharedTopics) -> None:
        self._groups = groups
        self._states = states
        self._topics = topics

    def describe_offsets(self, request: apis.DescribeShareGroupOffsetsRequest) -> apis.DescribeShareGroupOffsetsResponse:
        return apis.DescribeShareGroupOffsetsResponse(groups=tuple([self._offsets_of(group) for group in dict.fromkeys(request.groups)]))

    def _offsets_of(self, group: apis.ShareOffsetsGroup) -> apis.DescribedShareOffsets:
        if not self._groups.has(group.group_id):
            return apis.DescribedShareOffsets(group.group_id, (), ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} not found.")
        if group.topics is None:
            asked = [(self._topics.name_of(topic_id), topic_id, partitions) for topic_id, partitions in by_topic(self._states.of_group(group.group_id))]
        else:
            found = ((name, self._topics.find(name), partitions) for name, partitions in group.topics)
            asked = [(name, topic.topic_id if topic is not None else NO_TOPIC_ID, partitions) for name, topic, partitions in found]
        topics = tuple(
            apis.ShareOffsetsTopic(name, topic_id, tuple(self._offset_of(group.group_id, (topic_id, partition)) for partition in partitions))
            for name, topic_id, partitions in asked
            if name is not None
        )
        return apis.DescribedShareOffsets(group.group_id, topics)

    def _offset_of(self, group_id: str, place: Place) -> apis.ShareOffsetsPartition:
        hosted = self._states.find(group_id, place)
        if hosted is None:
            return apis.ShareOffsetsPartition(place[1])
        bounds, share = self._topics.bounds(*place), hosted.share
        lag = max(0, bounds.high_watermark - share.start_offset - share.done_count()) if bounds.error_code is ErrorCode.NONE else -1
        return apis.ShareOffsetsPartition(place[1], share.start_offset, hosted.snapshot.leader_epoch, lag)

    def alter_offsets(self, request: apis.AlterShareGroupOffsetsRequest, reply: Callable[[apis.AlterShareGroupOffsetsResponse], None]) -> None:
        """Let delivery begin elsewhere in partitions of a group without members; the group is made by it."""
        code, text = self._idle(request.group_id)
        if code is ErrorCode.NONE:
            code, text = self._groups.room(request.group_id)
        if code is ErrorCode.NONE and self._states.count + sum(len(topic.partitions) for topic in request.topics) > SHARES_MAX:
            code, text = ErrorCode.POLICY_VIOLATION, f"This box has {self._states.count} share partitions, and may have {SHARES_MAX}."
        if code is not ErrorCode.NONE:
            reply(apis.AlterShareGroupOffsetsResponse(error_code=code, error_message=text))
            return
        results: dict[tuple[str, int], ErrorCode] = {}
        steps: list[Callable[[Callable[[ErrorCode], None]], None]] = []
        for topic, partitions in request.topics:
            known = self._topics.find(topic)
            for number, start_offset in partitions:
                bounds = self._topics.bounds(known.topic_id, number) if known is not None else LogBounds(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                results[topic, number] = bounds.error_code
                if known is not None and bounds.error_code is ErrorCode.NONE:
                    offset = min(max(start_offset, bounds.log_start_offset), bounds.high_watermark)
                    steps.append(self._altering(ShareKey(request.group_id, known.topic_id, number), offset, results, (topic, number)))

        def done() -> None:
            topics = tuple(
                apis.AlteredShareOffsets(topic, self._id_of(topic), tuple(apis.AlteredShareOffset(number, results[topic, number]) for number, _ in partitions))
                for topic, partitions in request.topics
            )
            reply(apis.AlterShareGroupOffsetsResponse(topics=topics))

        all_of(steps, done)

    def _altering(self, key: ShareKey, offset: int, results: dict[tuple[str, int], ErrorCode], of: tuple[str, int]) -> Any:
        def step(on_done: Callable[[], None]) -> None:
            def on_written(code: ErrorCode) -> None:
                results[of] = code
                on_done()

            self._states.initialize(key, offset, on_written)

        return step

    def delete_offsets(self, request: apis.DeleteShareGroupOffsetsRequest, reply: Callable[[apis.DeleteShareGroupOffsetsResponse], None]) -> None:
        """Forget topics of a group without members."""
        code, text = self._idle(request.group_id)
        if code is ErrorCode.NONE and not self._groups.has(request.group_id):
            code, text = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found."
        if code is not ErrorCode.NONE:
            reply(apis.DeleteShareGroupOffsetsResponse(error_code=code, error_message=text))
            return
        ids = {each.topic: self._id_of(each.topic) for each in request.topics}
        results = {topic: ErrorCode.NONE if topic_id != NO_TOPIC_ID else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic, topic_id in ids.items()}
        names = {topic_id: topic for topic, topic_id in ids.items() if topic_id != NO_TOPIC_ID}

        def done() -> None:
            reply(apis.DeleteShareGroupOffsetsResponse(topics=tuple(apis.DeletedShareOffsets(topic, ids[topic], results[topic]) for topic in ids)))

        self._delete(request.group_id, lambda topic_id: topic_id in names, lambda topic_id, code: results.update({names[topic_id]: code}), done)

    def delete_group(self, group_id: str, on_deleted: Callable[[ErrorCode], None]) -> None:
        """Delete a group without members, with all that it has done."""
        if self._groups.has_members(group_id):
            on_deleted(ErrorCode.NON_EMPTY_GROUP)
            return
        found: list[ErrorCode] = [ErrorCode.NONE]
        self._delete(group_id, lambda _topic_id: True, lambda _topic_id, code: found.append(code), lambda: on_deleted(max(found)))

    def _delete(self, group_id: str, is_wanted: Callable[[TopicId], bool], on_result: Callable[[TopicId, ErrorCode], None], done: Callable[[], None]) -> None:
        steps: list[Callable[[Callable[[], None]], None]] = []
        for hosted in list(self._states.of_group(group_id).values()):
            if is_wanted(hosted.key.topic_id):

                def step(on_done: Callable[[], None], hosted: Any = hosted) -> None:
                    def on_written(code: ErrorCode) -> None:
                        if code is not ErrorCode.NONE:
                            on_result(hosted.key.topic_id, code)
                        on_done()

                    self._states.delete(hosted, on_written)

                steps.append(step)
        all_of(steps, done)

    def on_topics_deleted(self, topic_ids: Collection[TopicId]) -> None:
        """Their records are gone, and what was done with them."""
        for hosted in [hosted for hosted in self._states if hosted.key.topic_id in topic_ids]:
            self._states.delete(hosted, lambda _code: None)

    def _idle(self, group_id: str) -> tuple[ErrorCode, str | None]:
        if not group_id or len(group_id) > NAME_CHARACTERS_MAX:
            return ErrorCode.INVALID_GROUP_ID, f"GroupId must have 1 to {NAME_CHARACTERS_MAX} characters."
        if self._groups.has_members(group_id):
            return ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} has members."
        return self._topics.refusal(group_id)

    def _id_of(self, topic: str) -> TopicId:
        known = self._topics.find(topic)
        return known.topic_id if known is not None else NO_TOPIC_ID
