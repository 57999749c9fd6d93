"""Requests to the box that coordinates a transaction (`client/transaction_gate.py`): recipient,
content, answer.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.client.transaction_gate import TransactionPeers
from appliance.cluster.state_log import TRANSACTIONS_TOPIC, partition_of
from appliance.ipc.request_link import CoordinatorLink
from appliance.protocol.topic_partitions import PartitionResult, TopicPartitions, TopicResult
from appliance.protocol.transaction_apis import AddPartitionsToTxnResponse, ExtendedTransaction, TransactionToExtend
from services.acceptor.handlers.coordinated import TransactionQuestions
from tests.support.asked_boxes import AskedBoxes

NAME = "tx"
PLACES = [("t", 0), ("u", 1), ("t", 2)]


class World:
    """Our box is broker 1."""

    def __init__(self, leader: int | None) -> None:
        leaders = [3] * 5
        if leader is not None:
            leaders[partition_of(NAME, 5)] = leader
        topic = SimpleNamespace(partitions=tuple(SimpleNamespace(leader=each) for each in leaders))
        view = SimpleNamespace(broker_id=1, image=SimpleNamespace(topics={} if leader is None else {TRANSACTIONS_TOPIC: topic}))
        self.boxes, self.told, self.sent = AskedBoxes(), list[list[int]](), list[Any]()
        self.peers = TransactionPeers(cast(Any, view), self.boxes)
        link = SimpleNamespace(request=lambda *arguments, **_named: self.sent.append(arguments))
        self.questions = TransactionQuestions(cast(CoordinatorLink, link), self.peers)

    def ask(self, add: bool = False) -> None:
        self.questions.verify(NAME, 9, 2, PLACES, add, lambda codes: self.told.append(list(codes)))


@pytest.mark.parametrize("add", [True, False])
def test_a_transaction_that_another_box_coordinates_is_asked_about_there(add: bool) -> None:
    world = World(leader=7)
    world.ask(add)
    (question,) = world.boxes.questions
    assert (question.broker_id, world.sent) == (7, [])
    assert question.body.transactions == (TransactionToExtend(NAME, 9, 2, not add, (TopicPartitions("t", (0, 2)), TopicPartitions("u", (1,)))),)
    results = (TopicResult("u", (PartitionResult(1, 0),)), TopicResult("t", (PartitionResult(2, ErrorCode.TRANSACTION_ABORTABLE), PartitionResult(0, 0))))
    question.answer(AddPartitionsToTxnResponse(transactions=(ExtendedTransaction(NAME, results),)))
    assert world.told == [[0, 0, ErrorCode.TRANSACTION_ABORTABLE]]


@pytest.mark.parametrize("leader", [1, -1, None])
def test_the_own_coordinator_receives_the_request_if_it_or_no_box_leads(leader: int | None) -> None:
    world = World(leader)
    world.ask()
    assert (len(world.sent), world.boxes.questions) == (1, [])
    world.sent[0][3](None)
    assert world.told == [[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3]


def test_a_box_that_does_not_answer_is_an_unavailable_coordinator() -> None:
    world = World(leader=7)
    world.ask()
    world.boxes.questions[0].answer(None)
    assert world.told == [[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3]


def test_a_box_that_does_not_know_our_address_yet_is_an_unavailable_coordinator() -> None:
    world = World(leader=7)
    world.ask()
    world.boxes.questions[0].answer(AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert world.told == [[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3]


def test_what_goes_for_the_whole_request_goes_for_every_partition() -> None:
    world = World(leader=7)
    world.ask()
    world.boxes.questions[0].answer(AddPartitionsToTxnResponse(error_code=ErrorCode.NOT_COORDINATOR))
    assert world.told == [[ErrorCode.NOT_COORDINATOR] * 3]
