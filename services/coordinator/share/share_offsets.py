"""What administrators see and change of what share groups have done: start offsets, lag, deletions (KIP-932).

Owned by the coordinator. Only groups without members are changed, as in Kafka. Weak spots: a leader
on another box that has read the state within the last second delivers once more from where the
group was before its offsets were altered; a deletion that is delayed on its way to another box also
deletes the state of a group that was made again meanwhile; a change of several partitions may be in
the log for some of them only, and the answer says of which; a lag counts what the share coordinator
knows, which is what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from appliance.base.errors import ErrorCode, known_error
from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol import share_apis as apis
from appliance.protocol.share_state_apis import StateResult, StateSummary
from services.coordinator.share.share_group_records import ShareGroupPlaces
from services.coordinator.share.share_groups import NAME_CHARACTERS_MAX, SharedTopics, ShareGroups, by_topic
from services.coordinator.share.share_leaders import SHARES_MAX
from services.coordinator.share.share_persister import SharePersister
from services.coordinator.share.share_states import Place

OnEnds = Callable[[Mapping[Place, int]], None]


class SharedEnds(Protocol):
    """High watermarks of partitions that any box leads."""

    def ends(self, places: Collection[Place], on_ends: OnEnds) -> None:
        """`on_ends` gets those that are known."""


class ShareOffsets:
    """Of all share groups that this box coordinates."""

    def __init__(self, groups: ShareGroups, places: ShareGroupPlaces, persister: SharePersister, topics: SharedTopics, ends: SharedEnds) -> None:
        self._groups = groups
        self._places = places
        self._persister = persister
        self._topics = topics
        self._ends = ends
        self.on_begun_anew: Callable[[str], None] = lambda _group_id: None
        """Called when start offsets of a group were altered, for leaders in this box."""

    # ---- describing

    def describe_offsets(self, request: apis.DescribeShareGroupOffsetsRequest, reply: Callable[[apis.DescribeShareGroupOffsetsResponse], None]) -> None:
        asked = list(dict.fromkeys(request.groups))
        described: dict[int, apis.DescribedShareOffsets] = {}

        def on_described(number: int, group: apis.DescribedShareOffsets) -> None:
            described[number] = group
            if len(described) == len(asked):
                reply(apis.DescribeShareGroupOffsetsResponse(groups=tuple(described[each] for each in range(len(asked)))))

        if not asked:
            reply(apis.DescribeShareGroupOffsetsResponse())
        for number, group in enumerate(asked):
            self._describe(group, lambda found, number=number: on_described(number, found))  # type: ignore[misc]

    def _describe(self, group: apis.ShareOffsetsGroup, on_described: Callable[[apis.DescribedShareOffsets], None]) -> None:
        group_id = group.group_id
        refusal = self._places.refusal(group_id)
        if refusal is not ErrorCode.NONE or not self._groups.has(group_id):
            code, text = (refusal, None) if refusal is not ErrorCode.NONE else (ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            on_described(apis.DescribedShareOffsets(group_id, (), code, text))
            return
        known = set(self._places.of_group(group_id))
        if group.topics is None:
            asked = [(self._topics.name_of(topic_id), topic_id, partitions) for topic_id, partitions in by_topic(known)]
        else:
            found = ((name, self._topics.find(name), partitions) for name, partitions in group.topics)
            asked = [(name, topic.topic_id if topic is not None else NO_TOPIC_ID, partitions) for name, topic, partitions in found]
        wanted = {(topic_id, partition) for _, topic_id, partitions in asked for partition in partitions} & known

        def on_summaries(summaries: dict[Place, StateSummary]) -> None:
            self._ends.ends(wanted, lambda ends: answer(summaries, ends))

        def answer(summaries: Mapping[Place, StateSummary], ends: Mapping[Place, int]) -> None:
            topics = tuple(
                apis.ShareOffsetsTopic(name, topic_id, tuple(_offset_of((topic_id, partition), summaries, ends) for partition in partitions))
                for name, topic_id, partitions in asked
                if name is not None
            )
            on_described(apis.DescribedShareOffsets(group_id, topics))

        self._persister.summarize(group_id, wanted, on_summaries)

    # ---- changes

    def alter_offsets(self, request: apis.AlterShareGroupOffsetsRequest, reply: Callable[[apis.AlterShareGroupOffsetsResponse], None]) -> None:
        """Let delivery begin elsewhere in partitions of a group without members; the group is made by it."""
        code, text = self._idle(request.group_id)
        if code is ErrorCode.NONE:
            code, text = self._groups.room(request.group_id)
        if code is ErrorCode.NONE and self._places.count + sum(len(topic.partitions) for topic in request.topics) > SHARES_MAX:
            code, text = ErrorCode.POLICY_VIOLATION, f"This box coordinates {self._places.count} share partitions, and may coordinate {SHARES_MAX}."
        if code is not ErrorCode.NONE:
            reply(apis.AlterShareGroupOffsetsResponse(error_code=code, error_message=text))
            return
        results: dict[tuple[str, int], ErrorCode] = {}
        wanted: dict[Place, int] = {}
        names: dict[Place, tuple[str, int]] = {}
        for topic, partitions in request.topics:
            known = self._topics.find(topic)
            for number, start_offset in partitions:
                exists = known is not None and 0 <= number < known.partition_count
                results[topic, number] = ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if known is not None and exists:
                    place = known.topic_id, number
                    wanted[place], names[place] = self._within(place, start_offset), (topic, number)

        def done(codes: Mapping[Place, ErrorCode]) -> None:
            results.update({names[place]: code for place, code in codes.items()})
            topics = tuple(
                apis.AlteredShareOffsets(topic, self._id_of(topic), tuple(apis.AlteredShareOffset(number, results[topic, number]) for number, _ in partitions))
                for topic, partitions in request.topics
            )
            reply(apis.AlterShareGroupOffsetsResponse(topics=topics))

        self._begin_anew(request.group_id, wanted, done)

    def _within(self, place: Place, start_offset: int) -> int:
        """Return the offset, within the log if this box leads the partition; a leader raises one that is too low."""
        bounds = self._topics.bounds(*place)
        return min(max(start_offset, bounds.log_start_offset), bounds.high_watermark) if bounds.error_code is ErrorCode.NONE else max(0, start_offset)

    def _begin_anew(self, group_id: str, wanted: Mapping[Place, int], on_done: Callable[[dict[Place, ErrorCode]], None]) -> None:
        """Initialize the states with the next state epoch, which fences what a leader remembers."""
        codes: dict[Place, ErrorCode] = {}

        def on_summaries(summaries: dict[Place, StateSummary]) -> None:
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            codes.update({place: known_error(each.error_code) for place, each in summaries.items() if each.error_code and each.error_code != missing})
            parts = [(place, summaries[place].state_epoch + 1, wanted[place]) for place in wanted if not summaries[place].error_code]
            parts += [(place, 0, wanted[place]) for place in wanted if summaries[place].error_code == missing]
            self._persister.initialize(group_id, parts, on_initialized)

        def on_initialized(found: dict[Place, StateResult]) -> None:
            codes.update({place: known_error(each.error_code) for place, each in found.items()})
            done = [place for place, each in found.items() if not each.error_code]
            self.on_begun_anew(group_id)
            self._places.change(group_id, done, (), lambda code: on_written(done, code))

        def on_written(done: Collection[Place], code: ErrorCode) -> None:
            codes.update(dict.fromkeys(done, code))
            on_done(codes)

        self._persister.summarize(group_id, wanted, on_summaries)

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

        def on_deleted(codes: Mapping[Place, ErrorCode]) -> None:
            results.update({names[topic_id]: code for (topic_id, _), code in codes.items() if code is not ErrorCode.NONE})
            reply(apis.DeleteShareGroupOffsetsResponse(topics=tuple(apis.DeletedShareOffsets(topic, ids[topic], results[topic]) for topic in ids)))

        self._delete(request.group_id, [place for place in self._places.of_group(request.group_id) if place[0] in names], on_deleted)

    def delete_group(self, group_id: str, on_deleted: Callable[[ErrorCode], None]) -> None:
        """Delete a group without members, with all that it has done."""
        if self._groups.has_members(group_id):
            on_deleted(ErrorCode.NON_EMPTY_GROUP)
            return
        self._delete(group_id, list(self._places.of_group(group_id)), lambda codes: on_deleted(max(codes.values(), default=ErrorCode.NONE)))

    def _delete(self, group_id: str, places: Collection[Place], on_done: Callable[[dict[Place, ErrorCode]], None]) -> None:
        """Delete states, then let the group have the share partitions no more."""

        def on_deleted(results: dict[Place, StateResult]) -> None:
            codes = {place: known_error(each.error_code) for place, each in results.items()}
            done = [place for place, code in codes.items() if code is ErrorCode.NONE]
            self._places.change(group_id, (), done, lambda code: on_done({**codes, **dict.fromkeys(done, code)}))

        self._persister.delete(group_id, places, on_deleted)

    def on_topics_deleted(self, topic_ids: Collection[TopicId]) -> None:
        """Their records are gone, and what was done with them."""
        for group_id in list(self._places.names()):
            places = [place for place in self._places.of_group(group_id) if place[0] in topic_ids]
            if places:
                self._delete(group_id, places, lambda _codes: None)

    def _idle(self, group_id: str) -> tuple[ErrorCode, str | None]:
        if not group_id or len(group_id) > NAME_CHARACTERS_MAX:
            return ErrorCode.INVALID_GROUP_ID, f"GroupId must have 1 to {NAME_CHARACTERS_MAX} characters."
        if self._groups.has_members(group_id):
            return ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} has members."
        return self._topics.refusal(group_id)

    def _id_of(self, topic: str) -> TopicId:
        known = self._topics.find(topic)
        return known.topic_id if known is not None else NO_TOPIC_ID


def _offset_of(place: Place, summaries: Mapping[Place, StateSummary], ends: Mapping[Place, int]) -> apis.ShareOffsetsPartition:
    summary = summaries.get(place)
    if summary is None or summary.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return apis.ShareOffsetsPartition(place[1])
    if summary.error_code:
        return apis.ShareOffsetsPartition(place[1], error_code=summary.error_code)
    lag = -1
    if place in ends and summary.start_offset >= 0:
        lag = max(0, ends[place] - summary.start_offset - max(0, summary.delivery_complete_count))
    return apis.ShareOffsetsPartition(place[1], summary.start_offset, max(0, summary.leader_epoch), lag)
