"""What another box's controller has to do (`services/controller/admin/topic_administration.py`): what it is asked for, and what its answer means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.client.peers import CONTROLLER_CLIENT, UNAUTHORIZED
from appliance.cluster.metadata_image import BrokerImage, MetadataImage
from appliance.cluster.placement import TopicCreation
from appliance.cluster.state_log import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from appliance.ipc.request_frames import KAFKA_REQUEST, KafkaRequest, pack_kafka_request
from appliance.protocol.topic_apis import CREATE_TOPICS_RESPONSE, CreatableTopic, CreatedTopic, CreateTopicsResponse, TopicConfig
from services.controller.admin.topic_administration import PASSED_ON_MAX, OtherController
from services.controller.admin.waiting_requests import Result
from tests.support.asked_boxes import AskedBoxes
from tests.support.memory_zookeeper import MemoryZooKeeper
from tests.support.scripted_peer import PeerRequest, ScriptedPeer, until
from tests.support.stepped_controller import SteppedBox


class World:
    """Broker 7 is the controller."""

    def __init__(self, has_authorizer: bool = True) -> None:
        self.boxes, self.told = AskedBoxes(), list[Result]()
        image = MetadataImage(1, "cluster", 7, {7: BrokerImage(7, "host", 9092)}, {})
        internal = {OFFSETS_TOPIC: TopicCreation(OFFSETS_TOPIC, 50, 3, (), (("cleanup.policy", "compact"),))}
        self.elsewhere = OtherController(1, cast(Any, self.boxes), lambda: image, internal.get, has_authorizer)

    def ensure(self, name: str, partitions: int = -1) -> None:
        self.elsewhere.ensure(name, partitions, self.told.append)


def test_the_controllers_box_is_asked_for_a_topic_with_its_own_defaults() -> None:
    world = World()
    world.ensure("orders")
    world.ensure("syslog", 8)
    assert [(question.broker_id, question.body.topics) for question in world.boxes.questions] == [
        (7, (CreatableTopic("orders", -1, -1),)),
        (7, (CreatableTopic("syslog", 8, -1),)),
    ]
    assert world.told == []


def test_a_state_topic_is_asked_for_as_coordinators_need_it() -> None:
    world = World()
    world.ensure(OFFSETS_TOPIC)
    assert world.boxes.questions[0].body.topics == (CreatableTopic(OFFSETS_TOPIC, 50, 3, (), (TopicConfig("cleanup.policy", "compact"),)),)
    world.ensure(TRANSACTIONS_TOPIC)
    assert [result.code for result in world.told] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], "no box here can create it"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (ErrorCode.NONE, ErrorCode.NONE),
        (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE),
        (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER),
        (12_345, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_topic_that_is_there_is_as_good_as_a_new_one(said: int, meant: ErrorCode) -> None:
    world = World()
    world.ensure("orders")
    world.boxes.questions[0].answer(CreateTopicsResponse(topics=(CreatedTopic("orders", error_code=said),)))
    assert [result.code for result in world.told] == [meant]


@pytest.mark.parametrize("response", [None, CreateTopicsResponse()])
def test_a_box_that_does_not_answer_is_asked_again_by_clients(response: CreateTopicsResponse | None) -> None:
    world = World()
    world.ensure("orders")
    world.boxes.questions[0].answer(response)
    assert [result.code for result in world.told] == [ErrorCode.LEADER_NOT_AVAILABLE]


# --- requests of clients that have not noticed that the controller moved -----------------------------------------------


class TwoBoxes:
    """Box 1 is the controller, and its Kafka port is the test's; clients ask box 2."""

    def __init__(self, directory: Path) -> None:
        clock = ManualClock()
        self.peer = ScriptedPeer(self.turn)
        zookeeper = MemoryZooKeeper(clock.wall_ms)
        ports = self.peer.address.port, 9092
        self.boxes = [
            SteppedBox(directory / str(number), zookeeper, number, {"auto.leader.rebalance.enable": False}, port, clock=clock)
            for number, port in enumerate(ports, 1)
        ]
        self.clock = clock
        for box in self.boxes:
            box.start_writers()
            box.start_controller()
            self.until(lambda box=box: box.notifier.is_ready)  # type: ignore[misc]
        self.until(lambda: len(self.boxes[1].image().brokers) == 2 and self.boxes[1].image().controller_id == 1)

    def turn(self) -> None:
        self.clock.advance_ms(1)
        for box in self.boxes:
            if box.agent is not None:
                box.turn(0)

    def until(self, condition: Any) -> None:
        until(condition, self.turn, "not in time")

    def carry_out(self, request: PeerRequest) -> None:
        """As box 1's acceptor does."""
        box = self.boxes[0]
        box.send(KAFKA_REQUEST, pack_kafka_request(request.api_key, request.version, request.client_id, "::1", request.body))
        self.until(lambda: box.frames)
        self.peer.answer(request, bytes(box.frames[0].payload))

    def created(self) -> int:
        """The error code in the response of box 2."""
        self.until(lambda: self.boxes[1].frames)
        body = bytes(self.boxes[1].frames[0].payload)
        (topic,) = CREATE_TOPICS_RESPONSE.decode(body, 0, len(body), 7).topics
        return topic.error_code

    def close(self) -> None:
        for box in self.boxes:
            box.close()
        self.peer.die()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoBoxes]:
    boxes = TwoBoxes(tmp_path)
    yield boxes
    boxes.close()


def test_a_request_to_a_box_that_is_not_the_controller_is_passed_on(two: TwoBoxes) -> None:
    """librdkafka asks for the controller once and after five minutes; after a move of the controller it asked this box meanwhile."""
    two.boxes[1].send_create(CreatableTopic("orders", 1, 1))
    request = two.peer.next_request()
    assert (request.api_key, request.version, request.client_id) == (19, 7, f"{CONTROLLER_CLIENT}2{UNAUTHORIZED}")
    two.carry_out(request)
    assert two.created() == ErrorCode.NONE
    assert "orders" in two.boxes[0].image().topics
    two.boxes[1].send_delete("orders")
    two.carry_out(two.peer.next_request())
    two.until(lambda: "orders" not in two.boxes[1].image().topics)


def test_a_request_is_passed_on_once(two: TwoBoxes) -> None:
    """Two boxes may each take the other one for the controller."""
    two.boxes[1].send_create(CreatableTopic("orders", 1, 1))
    request = two.peer.next_request()
    two.boxes[1].send(KAFKA_REQUEST, pack_kafka_request(request.api_key, request.version, request.client_id, "::1", request.body))
    assert two.created() == ErrorCode.NOT_CONTROLLER


def test_a_request_that_was_sent_and_not_answered_may_have_been_carried_out(two: TwoBoxes) -> None:
    """After NOT_CONTROLLER, a client sends it again: a topic that exists already would be an error."""
    two.boxes[1].send_create(CreatableTopic("orders", 1, 1))
    two.peer.next_request()
    two.peer.hang_up()
    assert two.created() == ErrorCode.REQUEST_TIMED_OUT


def test_a_client_looks_for_the_controller_again_if_its_request_was_not_sent(two: TwoBoxes) -> None:
    two.peer.answers_versions = False
    two.boxes[1].send_create(CreatableTopic("orders", 1, 1))
    two.peer.next_request()
    two.peer.hang_up()
    assert two.created() == ErrorCode.NOT_CONTROLLER


def test_requests_that_are_passed_on_do_not_wait_for_each_other_and_are_few() -> None:
    world = World()
    passed = [world.elsewhere.pass_on(KafkaRequest(19, 7, "test", "::1", b""), 1_000, lambda _body, _is_sent: None) for _ in range(PASSED_ON_MAX + 1)]
    assert passed == [True] * PASSED_ON_MAX + [False]
    assert sorted(channel for channel, _ in world.boxes.passed_on) == list(range(1, PASSED_ON_MAX + 1)), "0 is that of automatic creations"
    world.boxes.passed_on[3][1](b"done", True)
    assert world.elsewhere.pass_on(KafkaRequest(19, 7, "test", "::1", b""), 1_000, lambda _body, _is_sent: None)
    assert world.boxes.passed_on[-1][0] == world.boxes.passed_on[3][0]


@pytest.mark.parametrize(("has_authorizer", "client_id"), [(True, "controller of broker 1"), (False, "controller of broker 1, without authorizer")])
def test_a_box_says_whether_it_authorizes_the_clients_whose_requests_it_passes_on(has_authorizer: bool, client_id: str) -> None:
    world = World(has_authorizer)
    assert world.elsewhere.pass_on(KafkaRequest(19, 7, "test", "::1", b""), 1_000, lambda _body, _is_sent: None)
    assert world.boxes.client_ids == {client_id}
