"""The console's questions about groups, against a coordinator that answers as the test says, over its real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.clock import ManualClock
from appliance.ipc.frames import Frame
from appliance.ipc.request_frames import KAFKA_RESPONSE, unpack_kafka_request
from appliance.protocol import group_apis, group_offset_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.group_apis import ListedGroup, ListGroupsResponse
from appliance.protocol.group_offset_apis import OffsetFetchGroupResult, OffsetFetchPartitionResult, OffsetFetchResponse, OffsetFetchTopicResult
from appliance.runtime.poller import Poller
from appliance.runtime.request_server import RequestClient, RequestServer
from lab.pretended_box import PretendedBox
from lab.scratch_layout import scratch_layout
from services.console.box_sample import BoxReader
from services.console.console_groups import ANSWER_MS, ROUND_NS, GroupLag, GroupQuestions, TopicLag

Committed = dict[str, dict[str, dict[int, int]]]


class FakeCoordinator:
    """Groups with their commits. While `is_silent` it takes questions and answers none."""

    def __init__(self, path: str, poller: Poller) -> None:
        self.committed: Committed = {}
        self.is_silent = False
        self.asked: list[str] = []
        self._server = RequestServer(path, poller, self._on_frame)

    def _on_frame(self, client: RequestClient, frame: Frame) -> None:
        asked = unpack_kafka_request(frame.payload)
        if asked.api_key == ApiKey.LIST_GROUPS:
            self.asked.append("list")
            listed = tuple(ListedGroup(group, "consumer", "Stable", "classic") for group in self.committed)
            body = group_apis.LIST_GROUPS_RESPONSE.encode(asked.api_version, ListGroupsResponse(groups=listed))
        else:
            request = group_offset_apis.OFFSET_FETCH_REQUEST.decode(asked.body, 0, len(asked.body), asked.api_version)
            (group,) = request.groups
            self.asked.append(group.group_id)
            topics = tuple(
                OffsetFetchTopicResult(topic, tuple(OffsetFetchPartitionResult(partition, offset) for partition, offset in offsets.items()))
                for topic, offsets in self.committed[group.group_id].items()
            )
            body = group_offset_apis.OFFSET_FETCH_RESPONSE.encode(
                asked.api_version, OffsetFetchResponse(groups=(OffsetFetchGroupResult(group.group_id, topics),))
            )
        if not self.is_silent:
            self._server.send(client, KAFKA_RESPONSE, frame.token, body)

    def close(self) -> None:
        self._server.close()


class World:
    def __init__(self, box: PretendedBox, clock: ManualClock) -> None:
        self.box, self.clock, self.poller = box, clock, Poller()
        self.reader = BoxReader(box.layout, box.box, clock)
        self.questions = GroupQuestions(box.layout, self.poller, clock, self.reader.read)
        self.coordinator = FakeCoordinator(box.layout.coordinator_socket, self.poller)

    def let_pass(self, milliseconds: int = 0) -> None:
        self.clock.advance_ms(milliseconds)
        self.questions.turn()
        while self.poller.poll(0):
            pass

    def lags(self) -> dict[str, int]:
        return {group.group: group.records for group in self.questions.look.groups}


@pytest.fixture
def world() -> Iterator[World]:
    clock = ManualClock()
    with scratch_layout() as layout:
        box = PretendedBox(layout, clock, topics={"logs": 4, "quiet": 1})
        made = World(box, clock)
        yield made
        made.questions.close()
        made.coordinator.close()
        made.reader.close()
        made.poller.close()
        box.close()


def test_lag_is_what_lies_between_commit_and_high_watermark(world: World) -> None:
    for partition in range(4):
        world.box.append("logs", partition, records=100, size_bytes=1_000)
    world.coordinator.committed = {"billing": {"logs": {0: 90, 1: 100, 2: 120, 3: -1}, "quiet": {0: 0}, "gone": {0: 5}}, "idle": {}}
    world.let_pass()
    look = world.questions.look
    assert look.groups == (
        GroupLag("billing", "Stable", (TopicLag("billing", "logs", 10, 3), TopicLag("billing", "quiet", 0, 1))),
        GroupLag("idle", "Stable", ()),
    )
    assert (look.states, look.left_out) == ({"Stable": 2}, 0)


def test_a_round_begins_every_five_seconds_and_groups_are_asked_one_by_one(world: World) -> None:
    world.coordinator.committed = {f"g{number}": {"logs": {0: 0}} for number in range(3)}
    world.let_pass()
    world.let_pass(ROUND_NS // 1_000_000 - 1)
    assert world.coordinator.asked == ["list", "g0", "g1", "g2"]
    world.box.append("logs", 0, records=7, size_bytes=70)
    world.coordinator.committed.pop("g1")
    world.let_pass(1)
    assert world.lags() == {"g0": 7, "g2": 7}


def test_a_coordinator_that_does_not_answer_leaves_the_last_figures(world: World) -> None:
    world.coordinator.committed = {"billing": {"logs": {0: 0}}}
    world.let_pass()
    seen = world.questions.look
    world.coordinator.is_silent = True
    world.let_pass(ROUND_NS // 1_000_000)
    world.let_pass(ANSWER_MS)
    assert world.questions.look is seen
    world.coordinator.is_silent = False
    world.let_pass(ROUND_NS // 1_000_000)
    assert world.questions.look.monotonic_ns > seen.monotonic_ns


def test_a_coordinator_that_is_not_there_is_asked_when_it_comes(world: World) -> None:
    world.coordinator.close()
    world.let_pass()
    assert world.questions.look.monotonic_ns == 0
    world.coordinator = FakeCoordinator(world.box.layout.coordinator_socket, world.poller)
    world.coordinator.committed = {"late": {"logs": {0: 0}}}
    world.let_pass(1_000)
    world.let_pass(ROUND_NS // 1_000_000)
    assert world.lags() == {"late": 0}
