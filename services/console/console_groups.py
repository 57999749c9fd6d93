"""Asks the coordinator how far consumer groups have read, one group at a time, for the page and the
metrics.

It sends Kafka's requests (ListGroups, OffsetFetch) on `coordinator.sock`, as an acceptor forwards
them. If the coordinator does not answer, the figures become old. Owned by the console's loop. Weak:
at most `GROUPS_A_ROUND` groups are asked for; the rest is counted.

Lag of consumer groups: committed offsets against the high watermarks in the partition tables.
Pure; `GroupQuestions` asks the coordinator.

Of several boxes, each reports the groups that it coordinates. Weak: commits and high watermarks are
read at slightly different times, so the lag of a busy partition is off by up to a second's records;
partitions without a replica on this box are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ProtocolViolation
from appliance.base.layout import BoxLayout
from appliance.ipc.frames import Registry
from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.ipc.request_link import CoordinatorLink
from appliance.protocol import group_apis, group_offset_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.group_apis import ListedGroup, ListGroupsRequest
from appliance.protocol.group_offset_apis import NO_OFFSET, OffsetFetchGroup, OffsetFetchGroupResult, OffsetFetchRequest
from appliance.security.principals import OF_BOX
from services.console.box_sample import BoxSample


class TopicLag(NamedTuple):
    """One group in one topic, over the partitions with a committed offset."""

    group: str
    topic: str
    records: int
    partitions: int


class GroupLag(NamedTuple):
    """One group; `topics` with the largest lag first."""

    group: str
    state: str
    topics: tuple[TopicLag, ...]

    @property
    def records(self) -> int:
        """The lag over all topics, in records."""
        return sum(topic.records for topic in self.topics)

    @property
    def partitions(self) -> int:
        """The number of partitions with a committed offset."""
        return sum(topic.partitions for topic in self.topics)


class GroupsSample(NamedTuple):
    """All groups of a round; `left_out` counts those beyond its limit. `monotonic_ns` 0: there was
    no answer yet."""

    groups: tuple[GroupLag, ...] = ()
    states: Mapping[str, int] = {}
    left_out: int = 0
    monotonic_ns: int = 0


NOT_LOOKED = GroupsSample()


def high_watermarks(sample: BoxSample) -> dict[str, dict[int, int]]:
    """Return topic → partition → high watermark, for the partitions on this box."""
    names = {bytes(topic.topic_id): name for name, topic in sample.image.topics.items()}
    found: dict[str, dict[int, int]] = {}
    for disk, look in sample.disks.items():
        for held in look.partitions:
            name = names.get(held.row.topic_id)
            if name is not None and sample.image.is_in_place(disk, held.row.topic_id, held.row.partition):
                found.setdefault(name, {})[held.row.partition] = held.row.high_watermark
    return found


def group_lag(group: str, state: str, answer: OffsetFetchGroupResult, watermarks: Mapping[str, Mapping[int, int]]) -> GroupLag:
    """Return the lag of one group. Partitions without a commit, or without a replica on this box,
    do not count."""
    topics = []
    for topic in answer.topics:
        known = watermarks.get(topic.topic, {})
        behind = [
            max(known[partition.partition] - partition.offset, 0)
            for partition in topic.partitions
            if partition.offset != NO_OFFSET and not partition.error_code and partition.partition in known
        ]
        if behind:
            topics.append(TopicLag(group, topic.topic, sum(behind), len(behind)))
    return GroupLag(group, state, tuple(sorted(topics, key=lambda lag: (-lag.records, lag.topic))))


ROUND_NS = 5_000_000_000
GROUPS_A_ROUND = 500
ANSWER_MS = 3_000
_LIST_VERSION, _FETCH_VERSION = 5, 8
_NAME = "millrace-console"
_ORIGIN = OF_BOX.pack()


class GroupQuestions:
    """Asks the coordinator, a round every `ROUND_NS`; `look` is the last complete round."""

    def __init__(self, layout: BoxLayout, registry: Registry, clock: Clock, last_sample: Callable[[], BoxSample]) -> None:
        self._clock = clock
        self._last_sample = last_sample
        self._link = CoordinatorLink(layout, registry, clock)
        self._next_ns = 0
        self._waits = False
        self._left: list[ListedGroup] = []
        self._found: list[GroupLag] = []
        self._states: dict[str, int] = {}
        self._left_out = 0
        self._watermarks: tuple[int, dict[str, dict[int, int]]] = (-1, {})
        self.look = NOT_LOOKED

    def turn(self) -> None:
        """Connect, give up overdue requests, start a round if it is time; call it several times a
        second."""
        now_ns = self._clock.monotonic_ns()
        self._link.do_work(now_ns)
        if not self._waits and now_ns >= self._next_ns:
            self._next_ns = now_ns + ROUND_NS
            self._ask(ApiKey.LIST_GROUPS, _LIST_VERSION, group_apis.LIST_GROUPS_REQUEST.encode(_LIST_VERSION, ListGroupsRequest()), self._on_list)

    def _ask(self, api: ApiKey, version: int, body: bytes, on_answer: Callable[[bytes | None], None]) -> None:
        self._waits = True

        def answered(payload: bytes | None) -> None:
            self._waits = False
            try:
                on_answer(payload)
            except ProtocolViolation:
                return  # the coordinator restarts; the next round asks again

        self._link.request(KAFKA_REQUEST, pack_kafka_request(api, version, _NAME, "localhost", body, _ORIGIN), ANSWER_MS, answered)

    def _on_list(self, payload: bytes | None) -> None:
        if not payload:
            return
        listed = sorted(group_apis.LIST_GROUPS_RESPONSE.decode(payload, 0, len(payload), _LIST_VERSION).groups)
        self._left, self._left_out = listed[:GROUPS_A_ROUND][::-1], max(len(listed) - GROUPS_A_ROUND, 0)
        self._found = []
        self._states = {}
        for group in listed:
            self._states[group.group_state] = self._states.get(group.group_state, 0) + 1
        self._ask_next()

    def _ask_next(self) -> None:
        if not self._left:
            self.look = GroupsSample(tuple(self._found), self._states, self._left_out, self._clock.monotonic_ns())
            return
        request = OffsetFetchRequest((OffsetFetchGroup(self._left[-1].group_id),))
        self._ask(ApiKey.OFFSET_FETCH, _FETCH_VERSION, group_offset_apis.OFFSET_FETCH_REQUEST.encode(_FETCH_VERSION, request), self._on_offsets)

    def _on_offsets(self, payload: bytes | None) -> None:
        if not payload:
            return
        group = self._left.pop()
        sample = self._last_sample()
        if sample.monotonic_ns != self._watermarks[0]:
            self._watermarks = sample.monotonic_ns, high_watermarks(sample)
        for answer in group_offset_apis.OFFSET_FETCH_RESPONSE.decode(payload, 0, len(payload), _FETCH_VERSION).groups:
            self._found.append(group_lag(group.group_id, group.group_state, answer, self._watermarks[1]))
        self._ask_next()

    def close(self) -> None:
        """Close the connection to the coordinator."""
        self._link.close()
