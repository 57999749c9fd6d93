"""Topics that another box's controller has to make (`services/controller/admin/topic_administration.py`): what it is asked for, and what its answer means."""

from __future__ import annotations

from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_image import BrokerImage, MetadataImage
from appliance.cluster.placement import TopicCreation
from appliance.cluster.state_log import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from appliance.protocol.topic_apis import CreatableTopic, CreatedTopic, CreateTopicsResponse, TopicConfig
from services.controller.admin.topic_administration import CreationElsewhere
from services.controller.admin.waiting_requests import Result
from tests.support.asked_boxes import AskedBoxes


class World:
    """Broker 7 is the controller."""

    def __init__(self) -> None:
        self.boxes, self.told = AskedBoxes(), list[Result]()
        image = MetadataImage(1, "cluster", 7, {7: BrokerImage(7, "host", 9092)}, {})
        internal = {OFFSETS_TOPIC: TopicCreation(OFFSETS_TOPIC, 50, 3, (), (("cleanup.policy", "compact"),))}
        self.elsewhere = CreationElsewhere(cast(Any, self.boxes), lambda: image, internal.get)

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
