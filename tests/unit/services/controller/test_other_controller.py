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
from appliance.cluster.quota_image import read_quota_image
from appliance.cluster.state_log import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from appliance.cluster.znodes import BrokerRegistration, encode_config, encode_config_change
from appliance.ipc.request_frames import KAFKA_REQUEST, KafkaRequest, pack_kafka_request
from appliance.protocol.schema import Message
from appliance.protocol.topic_apis import (
    CREATE_PARTITIONS_REQUEST,
    CREATE_PARTITIONS_RESPONSE,
    CREATE_TOPICS_RESPONSE,
    DELETE_TOPICS_REQUEST,
    DELETE_TOPICS_RESPONSE,
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    TopicConfig,
    TopicToGrow,
)
from appliance.security.quotas import CONTROLLER_MUTATION_RATE
from services.controller.admin.topic_administration import PASSED_ON_MAX, OtherController
from services.controller.admin.waiting_requests import Result
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper.requests import Create
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
        self.zookeeper = zookeeper = MemoryZooKeeper(clock.wall_ms)
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
        (topic,) = self.response(CREATE_TOPICS_RESPONSE, 7).topics
        return int(topic.error_code)

    def response(self, message: Message[Any], version: int) -> Any:
        """That of box 2."""
        self.until(lambda: self.boxes[1].frames)
        body = bytes(self.boxes[1].frames[0].payload)
        return message.decode(body, 0, len(body), version)

    def limit_mutations(self, client_id: str, rate: float) -> None:
        self.zookeeper.write(Create(f"/config/clients/{client_id}", encode_config({CONTROLLER_MUTATION_RATE: str(rate)})))
        self.zookeeper.write(Create("/config/changes/config_change_", encode_config_change(f"clients/{client_id}"), sequence=True))
        self.until(lambda: all(read_quota_image(box.layout.quota_image_file) for box in self.boxes))

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
    request = KafkaRequest(19, 7, "test", "::1", b"")
    for _ in range(PASSED_ON_MAX):
        assert world.elsewhere.may_pass_on(request)
        world.elsewhere.pass_on(request, 1_000, lambda _body, _is_sent: None)
    assert not world.elsewhere.may_pass_on(request)
    assert sorted(channel for channel, _ in world.boxes.passed_on) == list(range(1, PASSED_ON_MAX + 1)), "0 is that of automatic creations"
    world.boxes.passed_on[3][1](b"done", True)
    assert world.elsewhere.may_pass_on(request)
    world.elsewhere.pass_on(request, 1_000, lambda _body, _is_sent: None)
    assert world.boxes.passed_on[-1][0] == world.boxes.passed_on[3][0]


def test_a_client_uses_its_quota_at_the_box_that_it_asks(two: TwoBoxes) -> None:
    """There it is known; the controller counts the box."""
    two.limit_mutations("test", 0.01)
    box, peer = two.boxes[1], two.peer
    for partitions, is_trial in ((40, True), (3, False)):
        box.send_create(CreatableTopic("orders", partitions, 1), validate_only=is_trial)
        two.carry_out(peer.next_request())
        assert two.created() == ErrorCode.NONE
    two.until(lambda: "orders" in box.image().topics)
    box.send_create(CreatableTopic("more", 1, 1))
    refused = two.response(CREATE_TOPICS_RESPONSE, 7)
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED and 200_000 < refused.throttle_time_ms <= 289_000
    growth = CREATE_PARTITIONS_REQUEST.encode(3, CreatePartitionsRequest((TopicToGrow("orders", 4),), 10_000, False))
    box.send(KAFKA_REQUEST, pack_kafka_request(37, 3, "test", "::1", growth))
    assert two.response(CREATE_PARTITIONS_RESPONSE, 3).results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert peer.poll_request() is None, "neither is passed on"
    box.send_create(CreatableTopic("orders", 5, 1))
    two.carry_out(peer.next_request())
    assert two.created() == ErrorCode.TOPIC_ALREADY_EXISTS, "that creates nothing"
    deletion = DELETE_TOPICS_REQUEST.encode(4, DeleteTopicsRequest(topic_names=("orders", "unknown"), timeout_ms=10_000))
    box.send(KAFKA_REQUEST, pack_kafka_request(20, 4, "test", "::1", deletion))
    two.carry_out(peer.next_request())
    deleted = two.response(DELETE_TOPICS_RESPONSE, 4)
    assert [topic.error_code for topic in deleted.topics] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert 500_000 < deleted.throttle_time_ms <= 589_000, "older versions are throttled afterwards"


@pytest.mark.parametrize(("has_authorizer", "client_id"), [(True, "controller of broker 1"), (False, "controller of broker 1, without authorizer")])
def test_a_box_says_whether_it_authorizes_the_clients_whose_requests_it_passes_on(has_authorizer: bool, client_id: str) -> None:
    world = World(has_authorizer)
    world.elsewhere.pass_on(KafkaRequest(19, 7, "test", "::1", b""), 1_000, lambda _body, _is_sent: None)
    assert world.boxes.client_ids == {client_id}


def test_a_box_without_the_listener_of_boxes_is_never_reached_in_clear_text_where_boxes_use_tls() -> None:
    cluster = Cluster(1, {}, [])
    cluster.brokers = {
        1: BrokerRegistration(1, (("PLAINTEXT", "one", 9092), ("BOXES", "one", 9093)), {"PLAINTEXT": "PLAINTEXT", "BOXES": "SSL"}, None, 0),
        2: BrokerRegistration(2, (("PLAINTEXT", "two", 9092), ("INTERNAL", "two", 9094)), {"PLAINTEXT": "PLAINTEXT", "INTERNAL": "SSL"}, None, 0),
        3: BrokerRegistration(3, (("OTHER", "three", 9095),), {"OTHER": "PLAINTEXT"}, None, 0),
    }
    cluster.inter_broker_listener, cluster.inter_broker_protocol = "BOXES", "SSL"
    assert {each.id: (each.host, each.port) for each in cluster.image(1).brokers.values()} == {1: ("one", 9093), 2: ("two", 9094), 3: ("three", 9095)}
    cluster.inter_broker_listener, cluster.inter_broker_protocol = "PLAINTEXT", "PLAINTEXT"  # of a box that has not changed yet
    assert {each.id: (each.host, each.port) for each in cluster.image(1).brokers.values()} == {1: ("one", 9092), 2: ("two", 9092), 3: ("three", 9095)}
