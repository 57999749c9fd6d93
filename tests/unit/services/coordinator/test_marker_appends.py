"""Pending markers (`services/coordinator/marker_appends.py`): what is offered, when it completes,
and what the caller retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.state_log import ProducerIdentity, StateRecord
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COMMIT_FLAG, DescriptorKind
from appliance.protocol.topic_partitions import TopicPartitions
from lab.scratch_layout import scratch_layout
from services.coordinator.marker_appends import MarkerAppends
from services.coordinator.marker_requests import MarkerRequests
from services.coordinator.transactions.transaction import Marker
from tests.support.asked_boxes import AskedBoxes
from tests.support.stepped_state import TOPIC, SteppedState

PLACE = TopicPartition(TOPIC, 0)


class World(NamedTuple):
    state: SteppedState
    markers: MarkerAppends
    ended: list[tuple[TopicPartition, int, bool]]
    boxes: AskedBoxes

    def write(self, is_commit: bool = True, place: TopicPartition = PLACE) -> list[ErrorCode]:
        told: list[ErrorCode] = []
        self.markers.write(Marker(place, 9, 2, is_commit, 5), told.append)
        return told

    def complete(self, error_code: int = 0, end_offset: int = 0) -> None:
        descriptor, append = self.state.offered.pop(0)
        self.markers.on_completion(append, (descriptor.kind, 0, error_code, 0, 0, 0, -1, 0, end_offset, 3, 1, 0))

    def turn(self) -> None:
        self.markers.turn(self.state.clock.monotonic_ns())


@pytest.fixture
def world() -> Iterator[World]:
    with scratch_layout() as layout:
        state, ended = SteppedState(layout), list[tuple[TopicPartition, int, bool]]()
        requests = MarkerRequests(boxes := AskedBoxes())
        yield World(state, MarkerAppends(state.view, requests, state.clock, state.counters, lambda *end: ended.append(end)), ended, boxes)
        state.close()


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_is_done_when_the_high_watermark_has_passed_it(world: World, is_commit: bool) -> None:
    told = world.write(is_commit)
    descriptor = world.state.offered[0][0]
    assert (descriptor.kind, descriptor.flags) == (DescriptorKind.TRANSACTION_MARKER, ACKS_ALL_FLAG | (COMMIT_FLAG if is_commit else 0))
    assert (descriptor.value_a, descriptor.value_b, descriptor.value_c, descriptor.leader_epoch) == (9, 5, 2, 3)
    world.complete(end_offset=1)
    world.turn()
    assert (told, world.ended, world.markers.waits_for_rows) == ([], [], True)
    world.state.reader.append(_one_batch())
    world.state.show()
    world.turn()
    assert (told, world.ended, world.markers.waits_for_rows) == ([ErrorCode.NONE], [(PLACE, 9, is_commit)], False)


def test_what_cannot_be_offered_is_refused_with_the_next_turn(world: World) -> None:
    nowhere = world.write(place=TopicPartition("gone", 0))
    world.state.is_full = True
    full = world.write()
    world.state.is_full = False
    world.state.show(is_leader=False)
    not_ours = world.write()
    assert nowhere == full == not_ours == []
    world.turn()
    assert nowhere == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert full == not_ours == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert world.ended == []


def test_a_refusal_a_death_and_a_deadline_are_reported_once(world: World) -> None:
    refused, lost, late = world.write(), world.write(), world.write()
    world.complete(ErrorCode.INVALID_PRODUCER_EPOCH)
    world.markers.on_lost(world.state.offered.pop(0)[1])
    world.state.clock.advance_ms(5_001)
    world.turn()
    world.complete(end_offset=0)
    assert refused == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert lost == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert late == [ErrorCode.REQUEST_TIMED_OUT]


def test_another_leader_epoch_leaves_it_open_whether_the_marker_is_there(world: World) -> None:
    told = world.write()
    world.complete(end_offset=1)
    world.state.show(leader_epoch=4)
    world.turn()
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert world.ended == []


def test_what_another_box_leads_goes_there_and_its_answer_is_the_markers(world: World) -> None:
    world.state.lead_elsewhere(7)
    told = world.write(is_commit=False)
    world.turn()
    assert world.state.offered == []
    (question,) = world.boxes.questions
    (marker,) = question.body.markers
    assert (question.broker_id, marker.producer_id, marker.producer_epoch, marker.is_commit, marker.coordinator_epoch) == (7, 9, 2, False, 5)
    assert marker.topics == (TopicPartitions(TOPIC, (0,)),)
    assert told == []
    question.answer_markers(ErrorCode.NONE)
    assert (told, world.ended) == ([ErrorCode.NONE], []), "the owner of the open transactions is notified there"


def test_a_marker_that_waits_for_a_box_comes_back_when_another_leads(world: World) -> None:
    world.state.lead_elsewhere(7)
    told = world.write()
    world.turn()
    world.state.lead_elsewhere(8)
    world.markers.refresh()
    world.turn()
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.boxes.questions[0].answer_markers(ErrorCode.NONE)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER], "once"


def test_a_marker_does_not_pass_what_belongs_before_it(world: World) -> None:
    world.state.topic.refresh()
    world.state.lead()
    world.markers._must_wait = lambda place: world.state.topic.has_waiting(place.partition)
    world.state.is_full = True
    world.state.topic.append(0, [StateRecord(b"offset", b"5")], lambda _code: None, producer=ProducerIdentity(9, 2))
    world.state.is_full = False
    told = world.write()
    world.turn()
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.state.turn()
    world.write()
    assert [descriptor.kind for descriptor, _ in world.state.offered] == [DescriptorKind.PRODUCE, DescriptorKind.TRANSACTION_MARKER]


def _one_batch() -> bytes:
    from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch

    return bytes(build_end_transaction_batch(9, 2, EndTransactionMarker(True, 5), 1_000))


def test_a_marker_whose_log_writer_ends_while_it_waits_for_replicas_is_written_again(world: World) -> None:
    """The table is unmapped with the connection: to look at the row would end the coordinator."""
    told = world.write()
    world.complete(end_offset=1)
    world.turn()
    assert (told, world.markers.waits_for_rows) == ([], True)
    world.state.proxy.table = None
    world.state.table.close()
    world.turn()
    assert (told, world.ended, world.markers.waits_for_rows) == ([ErrorCode.NOT_LEADER_OR_FOLLOWER], [], False)
