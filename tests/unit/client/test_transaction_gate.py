"""Transactional batches that wait for the word of their coordinator: in order, asked for once, and never let through by an answer to an older question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.client.transaction_gate import GUARDS_KEPT, RETRIES_MAX, OnVerified, Producer, TransactionGate, client_error


class Batch(NamedTuple):
    name: str
    producer: Producer
    transactional_id: str = "tx"
    version: int = 11


class Coordinator:
    """Keeps every question until the test answers it."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, int, int, list[tuple[str, int]], bool]] = []
        self._answers: list[OnVerified] = []

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[str, int]], add: bool, on_answer: OnVerified
    ) -> None:
        self.questions.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        self._answers.append(on_answer)

    def answer(self, *codes: int) -> None:
        self._answers.pop(0)(codes)


class Gate:
    """A gate whose verdicts stand in `said`: (batch, guard) or (batch, error code)."""

    def __init__(self, coordinator: Coordinator | None) -> None:
        self.clock = ManualClock()
        self.offered: list[tuple[str, int]] = []
        self.refused: list[tuple[str, int]] = []
        self.gate: TransactionGate[Batch] = TransactionGate(
            coordinator,
            self.clock,
            lambda batch, guard: self.offered.append((batch.name, guard)),
            lambda batch, code: self.refused.append((batch.name, code)),
        )

    def turn(self) -> int:
        return self.gate.ask(self.clock.monotonic_ns())


ONE, TWO = Producer("t", 0, 7, 0), Producer("t", 1, 7, 0)


def test_one_question_a_turn_covers_all_partitions_of_a_transaction() -> None:
    coordinator = Coordinator()
    side = Gate(coordinator)
    side.gate.on_needed(Batch("a", ONE), 11)
    side.gate.on_needed(Batch("b", TWO), 12)
    side.gate.on_needed(Batch("c", Producer("t", 0, 8, 3), "other", 12), 13)
    assert coordinator.questions == [] and side.turn() == 2 and side.turn() == 0
    assert coordinator.questions == [("tx", 7, 0, [("t", 0), ("t", 1)], False), ("other", 8, 3, [("t", 0)], True)]
    coordinator.answer(ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)
    assert side.offered == [("a", 11)] and side.refused == [("b", ErrorCode.INVALID_TXN_STATE)]
    coordinator.answer(ErrorCode.NONE)
    assert side.offered[1:] == [("c", 13)] and len(side.gate) == 0


def test_what_follows_waits_behind_and_is_offered_in_order() -> None:
    coordinator = Coordinator()
    side = Gate(coordinator)
    first, second, third, fourth = (Batch(name, ONE) for name in "abcd")
    assert not side.gate.maybe_hold(first)
    side.gate.on_needed(first, 11)
    side.turn()
    side.gate.on_needed(second, 11)  # it was on its way already
    assert side.gate.maybe_hold(third) and not side.gate.maybe_hold(Batch("x", TWO))
    coordinator.answer(ErrorCode.NONE)
    assert side.offered == [("a", 11), ("b", 11), ("c", 0)]
    assert not side.gate.maybe_hold(fourth)
    side.gate.on_needed(fourth, 11)  # so was this one: no second request is sent
    assert side.offered[3:] == [("d", 11)] and side.turn() == 0 and len(coordinator.questions) == 1


def test_an_answer_serves_no_guard_that_was_given_after_the_question() -> None:
    """The transaction has ended meanwhile, or the log-writer restarted: the coordinator's answer
    may be outdated.
    """
    coordinator = Coordinator()
    side = Gate(coordinator)
    side.gate.on_needed(Batch("a", ONE), 11)
    side.turn()
    side.gate.on_needed(Batch("b", ONE), 12)
    coordinator.answer(ErrorCode.NONE)
    assert side.offered == [("a", 11), ("b", 0)]
    side.gate.on_needed(Batch("b", ONE), 12)
    assert side.turn() == 1
    coordinator.answer(ErrorCode.NONE)
    assert side.offered[2:] == [("b", 12)]


def test_a_refusal_hits_those_it_was_asked_for_and_others_are_offered_as_if_for_the_first_time() -> None:
    coordinator = Coordinator()
    side = Gate(coordinator)
    side.gate.on_needed(Batch("a", ONE), 11)
    side.turn()
    side.gate.maybe_hold(Batch("b", ONE))
    coordinator.answer(ErrorCode.PRODUCER_FENCED)
    assert side.refused == [("a", ErrorCode.INVALID_PRODUCER_EPOCH)] and side.offered == [("b", 0)] and len(side.gate) == 0


def test_a_coordinator_that_still_ends_the_transaction_before_is_asked_again_where_it_is_to_add_partitions() -> None:
    coordinator = Coordinator()
    side = Gate(coordinator)
    side.gate.on_needed(Batch("a", ONE, version=12), 11)
    for _ in range(RETRIES_MAX):
        assert side.turn() == 1
        coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        assert side.turn() == 0 and side.gate.park_ms(side.clock.monotonic_ns(), 100) == 20
        side.clock.advance_ms(20)
    assert side.refused == [] and side.turn() == 1
    coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert side.refused == [("a", ErrorCode.NOT_ENOUGH_REPLICAS)]
    side.gate.on_needed(Batch("b", TWO), 12)
    side.turn()
    coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert side.refused[1:] == [("b", ErrorCode.NOT_ENOUGH_REPLICAS)] and side.gate.park_ms(0, 100) == 100


def test_a_batch_whose_guard_a_marker_took_while_the_coordinator_was_asked_is_asked_about_again() -> None:
    """The answer is good for the guard that was asked about; the log-writer gives another one, and with that answer alone nothing is offered."""
    coordinator = Coordinator()
    side = Gate(coordinator)
    first, second = Batch("a", ONE, version=12), Batch("b", ONE, version=12)
    side.gate.on_needed(first, 11)
    side.turn()
    assert side.gate.maybe_hold(second)
    coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    side.clock.advance_ms(20)
    side.turn()
    coordinator.answer(ErrorCode.NONE)
    assert side.offered == [("a", 11), ("b", 0)]
    side.gate.on_needed(first, 12)
    side.gate.on_needed(second, 12)
    assert side.offered[2:] == [] and side.turn() == 1
    coordinator.answer(ErrorCode.NONE)
    assert side.offered[2:] == [("a", 12), ("b", 12)] and len(side.gate) == 0


def test_without_a_coordinator_no_transaction_begins() -> None:
    side = Gate(None)
    side.gate.on_needed(Batch("a", ONE), 11)
    side.turn()
    assert side.refused == [("a", ErrorCode.INVALID_TXN_STATE)]


def test_guards_that_are_remembered_are_bounded() -> None:
    coordinator = Coordinator()
    side = Gate(coordinator)
    for number in range(GUARDS_KEPT + 1):
        side.gate.on_needed(Batch("a", Producer("t", number, 7, 0)), 11)
    side.turn()
    coordinator.answer(*[ErrorCode.NONE] * (GUARDS_KEPT + 1))
    side.gate.on_needed(Batch("b", Producer("t", 0, 7, 0)), 11)
    side.gate.on_needed(Batch("c", Producer("t", 1, 7, 0)), 11)
    assert side.offered[-1] == ("c", 11) and len(side.gate) == 1


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 3, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_producer_receives_the_error_that_its_version_knows(code: ErrorCode, version: int, expected: ErrorCode) -> None:
    assert client_error(code, version) == expected
