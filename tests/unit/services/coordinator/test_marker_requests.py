"""Markers that other boxes write (`services/coordinator/marker_requests.py`): what is put together, what waits, what comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.metadata_image import MetadataImage
from appliance.protocol.topic_partitions import PartitionResult, TopicPartitions, TopicResult
from appliance.protocol.transaction_apis import TxnMarkerResult, WriteTxnMarkersResponse
from services.coordinator.marker_requests import CHANNELS, MARKERS_A_REQUEST, MarkerRequests
from services.coordinator.transactions.transaction import Marker
from tests.support.asked_boxes import AskedBoxes


class World:
    def __init__(self) -> None:
        self.boxes = AskedBoxes()
        self.requests = MarkerRequests(self.boxes)
        self.told: dict[str, list[ErrorCode]] = {}

    def write(self, name: str, topic: str = "t", partition: int = 0, producer_id: int = 9, epoch: int = 2, is_commit: bool = True, box: int = 7) -> None:
        told = self.told[name] = []
        self.requests.write(box, Marker(TopicPartition(topic, partition), producer_id, epoch, is_commit, 5), told.append)


def image_of(**leaders: tuple[int, ...]) -> MetadataImage:
    """Topic → the leader of each of its partitions."""
    topics = {name: SimpleNamespace(partitions=tuple(SimpleNamespace(leader=leader) for leader in several)) for name, several in leaders.items()}
    return cast(MetadataImage, SimpleNamespace(topics=topics))


def test_markers_for_one_box_go_in_one_request_an_entry_for_each_end() -> None:
    world = World()
    world.write("a", "t", 0)
    world.write("b", "t", 1)
    world.write("c", "u", 0)
    world.write("d", "t", 0, producer_id=10, is_commit=False)
    world.write("e", "t", 2, box=8)
    assert world.boxes.questions == [], "never from within"
    assert world.requests.turn() == 5
    first, second = world.boxes.questions
    assert [(marker.producer_id, marker.is_commit, marker.topics) for marker in first.body.markers] == [
        (9, True, (TopicPartitions("t", (0, 1)), TopicPartitions("u", (0,)))),
        (10, False, (TopicPartitions("t", (0,)),)),
    ]
    assert (first.broker_id, second.broker_id) == (7, 8)
    first.answer_markers(ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert [world.told[name] for name in "abcde"] == [
        [ErrorCode.NONE],
        [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND],
        [ErrorCode.NONE],
        [ErrorCode.INVALID_PRODUCER_EPOCH],
        [],
    ]
    assert len(world.requests) == 1


def test_a_partition_whose_marker_is_not_answered_holds_up_itself_alone() -> None:
    world = World()
    world.write("slow", partition=0)
    world.requests.turn()
    world.write("behind it", partition=0, producer_id=10)
    world.write("beside it", partition=1)
    world.requests.turn()
    slow, beside = world.boxes.questions
    assert slow.channel != beside.channel
    assert beside.body.markers[0].topics == (TopicPartitions("t", (1,)),)
    beside.answer_markers(ErrorCode.NONE)
    assert world.requests.turn() == 0
    slow.answer_markers(ErrorCode.REQUEST_TIMED_OUT)
    world.requests.turn()
    world.boxes.questions[2].answer_markers(ErrorCode.NONE)
    assert world.told == {"slow": [ErrorCode.REQUEST_TIMED_OUT], "behind it": [ErrorCode.NONE], "beside it": [ErrorCode.NONE]}


def test_there_are_so_many_requests_at_a_time_and_so_many_markers_in_each() -> None:
    world = World()
    for partition in range(CHANNELS + 1):
        world.write(f"{partition}", partition=partition)
        world.requests.turn()
    assert len(world.boxes.questions) == CHANNELS
    world.boxes.questions[1].answer_markers(ErrorCode.NONE)
    for partition in range(MARKERS_A_REQUEST):
        world.write(f"more {partition}", topic="u", partition=partition)
    world.requests.turn()
    (marker,) = world.boxes.questions[-1].body.markers
    assert sum(len(topic.partitions) for topic in marker.topics) == MARKERS_A_REQUEST
    assert world.boxes.questions[-1].channel == world.boxes.questions[1].channel


def test_a_box_that_does_not_answer_gives_everything_back() -> None:
    world = World()
    world.write("a", partition=0)
    world.write("b", partition=1)
    world.requests.turn()
    world.boxes.questions[0].answer(None)
    assert world.told == {"a": [ErrorCode.NOT_LEADER_OR_FOLLOWER], "b": [ErrorCode.NOT_LEADER_OR_FOLLOWER]}
    assert len(world.requests) == 0


def test_what_an_answer_leaves_out_is_tried_again() -> None:
    world = World()
    world.write("a", partition=0)
    world.write("b", partition=1)
    world.requests.turn()
    world.boxes.questions[0].answer(WriteTxnMarkersResponse((TxnMarkerResult(9, (TopicResult("t", (PartitionResult(0, 0),)),)),)))
    assert world.told == {"a": [ErrorCode.NONE], "b": [ErrorCode.NOT_LEADER_OR_FOLLOWER]}
    world.write("c")
    world.requests.turn()
    world.boxes.questions[1].answer(WriteTxnMarkersResponse(()))
    assert world.told["c"] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_when_the_image_names_another_leader_a_marker_comes_back_at_once_and_the_late_answer_is_nobodys() -> None:
    world = World()
    world.write("moved", partition=0)
    world.write("stays", partition=1)
    world.requests.turn()
    world.write("moved before it was sent", partition=0, producer_id=10)
    world.write("of a topic that is gone", "gone")
    world.requests.refresh(image_of(t=(8, 7)))
    world.requests.turn()
    back = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert world.told == {"moved": back, "stays": [], "moved before it was sent": back, "of a topic that is gone": back}
    world.boxes.questions[0].answer_markers(ErrorCode.NONE)
    assert world.told["moved"] == back
    assert world.told["stays"] == [ErrorCode.NONE]
    assert len(world.requests) == 0
