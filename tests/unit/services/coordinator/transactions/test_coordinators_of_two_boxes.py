"""A decided transaction whose coordinator dies in the middle of its markers: the next one, on another box, ends it; what the first one sent late ends nothing.

Two coordinators with their real rules over one log, partitions whose leaders check markers as a log does, and requests between boxes that the test delivers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.state_log import LoadedRecord, StateRecord
from appliance.protocol.transaction_apis import EndTxnRequest, InitProducerIdRequest
from appliance.records.control_batch import EndTransactionMarker
from appliance.storage.producer_state import ProducerState
from services.coordinator.marker_requests import MarkerRequests
from services.coordinator.transactions.transaction import Marker, TransactionSettings
from services.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from tests.support.asked_boxes import AskedBoxes, Question

NAME, PRODUCER = "tx", 9
PLACES = (TopicPartition("t", 0), TopicPartition("t", 1))


class SharedLog:
    """The one partition of the state topic: what a coordinator appends is replicated at once, and the next one reads it."""

    def __init__(self) -> None:
        self.records: list[StateRecord] = []

    def append(self, partition: int, records: Any, on_appended: Any, *, producer: Any = None, timeout_ms: int = 0) -> None:
        self.records += records
        on_appended(ErrorCode.NONE)


class Leaders:
    """Box 7 leads both partitions; a log's own rules say what becomes of a marker."""

    def __init__(self) -> None:
        self.producers = {place: ProducerState() for place in PLACES}
        self.markers: list[tuple[int, bool, int]] = []

    def answer(self, question: Question, only: tuple[int, ...] = (0, 1)) -> None:
        """Write the markers of a request, those of some partitions; the others' followers are away."""
        codes = []
        for marker in question.body.markers:
            for topic in marker.topics:
                for number in topic.partitions:
                    codes.append(self._write(marker, TopicPartition(topic.topic, number)) if number in only else ErrorCode.REQUEST_TIMED_OUT)
        question.answer_markers(*codes, ErrorCode.NONE)

    def _write(self, marker: Any, place: TopicPartition) -> ErrorCode:
        producers = self.producers[place]
        staging = producers.stage()
        ended = EndTransactionMarker(marker.is_commit, marker.coordinator_epoch)
        refused = staging.end_transaction(marker.producer_id, marker.producer_epoch, 10 + len(self.markers), 1_000, ended)
        if refused is None:
            producers.apply(staging)
            self.markers.append((place.partition, marker.is_commit, marker.coordinator_epoch))
        return refused or ErrorCode.NONE


class Box:
    """One box's coordinator of the partition, under a leader epoch."""

    def __init__(self, log: SharedLog, leader_epoch: int) -> None:
        self.asked = AskedBoxes()
        self.requests = MarkerRequests(self.asked)
        self.now_ms = 1_000
        self.coordinator = TransactionCoordinator(
            cast(Any, log), 1, self, cast(Any, SimpleNamespace(next=lambda: PRODUCER)), TransactionSettings(), lambda _place: True,
            lambda _partition: leader_epoch, lambda _group: None, lambda: self.now_ms,
        )  # fmt: skip
        self.coordinator.begin_load(0)
        self.coordinator.load(0, [LoadedRecord(offset, 1_000, record.key, record.value) for offset, record in enumerate(log.records)])
        self.coordinator.finish_load(0, self.now_ms)

    def write(self, marker: Marker, on_written: Any) -> None:
        self.requests.write(7, marker, on_written)

    @property
    def state_name(self) -> str:
        found = self.coordinator.ids.find(NAME)
        assert found is not None
        return found.current.state.name

    def decide(self, commit: bool) -> None:
        self.coordinator.init_producer_id(InitProducerIdRequest(NAME, 10_000), 3, self.now_ms, lambda _answer: None)
        self.coordinator.extend(NAME, PRODUCER, 0, frozenset(PLACES), 0, lambda _codes: None)
        self.coordinator.end_transaction(EndTxnRequest(NAME, PRODUCER, 0, commit), 3, self.now_ms, lambda _answer: None)

    def turn(self, pass_ms: int = 0) -> list[Question]:
        """What it asks of box 7 now."""
        self.now_ms += pass_ms
        self.coordinator.tick(self.now_ms)
        self.requests.turn()
        asked, self.asked.questions = self.asked.questions, []
        return asked


@pytest.mark.parametrize("commit", [True, False])
def test_what_one_box_decided_the_next_one_ends_everywhere_as_it_was_decided(commit: bool) -> None:
    log, leaders = SharedLog(), Leaders()
    first = Box(log, 3)
    first.decide(commit)
    (question,) = first.turn()
    leaders.answer(question, only=(0,))
    late = first.turn(pass_ms=1_000)  # and dies; what it sent lies in a socket
    second = Box(log, 4)
    assert second.state_name == ("PREPARE_COMMIT" if commit else "PREPARE_ABORT")
    (question,) = second.turn()
    leaders.answer(question)
    assert second.state_name == ("COMPLETE_COMMIT" if commit else "COMPLETE_ABORT")
    assert sorted(leaders.markers) == [(0, commit, 3), (0, commit, 4), (1, commit, 4)]
    for question in late:
        leaders.answer(question)
    assert len(leaders.markers) == 3, "the first one is fenced by its coordinator epoch"


def test_a_coordinator_that_was_replaced_gives_up_and_does_not_complete_what_is_not_its_own() -> None:
    log, leaders = SharedLog(), Leaders()
    first = Box(log, 3)
    first.decide(True)
    (sent,) = first.turn()
    second = Box(log, 4)
    leaders.answer(second.turn()[0])
    written = len(log.records)
    leaders.answer(sent)
    assert (first.coordinator.under_way, first.turn(pass_ms=1_000)) == (0, [])
    assert len(log.records) == written
