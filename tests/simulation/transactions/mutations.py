"""Rules of transactions broken on purpose: the simulation notices each (`test_broken_transaction_rules.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import ProducerId
from appliance.storage import producer_state
from appliance.storage.producer_state import ProducerStaging
from appliance.storage.verification import NeedsVerification, Offer, Verifications
from services.coordinator.transactions.transaction import ENDING, TransactionalId
from services.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from services.coordinator.transactions.transaction_ends import TransactionEnds
from tests.simulation.invariants import Broken
from tests.simulation.mutations import Mutation
from tests.simulation.transactions.broker import Acceptor
from tests.simulation.transactions.simulation import run

# --- the wrong ones ----------------------------------------------------------------------------------------------------


def _refuses_what_lost_its_guard(verifications: Verifications, *arguments: Any, problem: Any = Verifications.problem) -> Any:
    answer = problem(verifications, *arguments)
    offer: Offer = arguments[3]
    return ErrorCode.INVALID_TXN_STATE if offer.guard and isinstance(answer, NeedsVerification) else answer


def _verifies_nothing(_verifications: Verifications, *_arguments: Any) -> None:
    return None


def _knows_no_lowest_sequence(verifications: Verifications, *arguments: Any, problem: Any = Verifications.problem) -> Any:
    answer = problem(verifications, *arguments)
    return None if answer is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER else answer


def _takes_any_marker(staging: ProducerStaging, *arguments: Any, end: Any = ProducerStaging.end_transaction) -> Any:
    return end(staging, *arguments[:5])


def _takes_old_epochs(_entry: Any, _producer_epoch: int, _batch: Any) -> None:
    return None


def _extends_what_is_being_ended(rules: TransactionCoordinator, name: str, producer_id: int, _epoch: int) -> TransactionalId:
    return rules._known(name, ProducerId(producer_id))


def _completes_with_the_first_marker(
    ends: TransactionEnds, job: Any, topic_partition: Any, code: ErrorCode, written: Any = TransactionEnds._on_written
) -> None:
    if code is ErrorCode.NONE:
        job.missing = {topic_partition}
    written(ends, job, topic_partition, code)


def _forgets_decisions(rules: TransactionCoordinator, partition: int, now_ms: int) -> None:
    rules._ends.now_ms = now_ms
    rules.ids.finish_load(partition)


def _tries_markers_once(ends: TransactionEnds, job: Any, topic_partition: Any, _code: ErrorCode, written: Any = TransactionEnds._on_written) -> None:
    written(ends, job, topic_partition, ErrorCode.NONE)


def _fences_while_it_completes(rules: TransactionCoordinator, transactional: TransactionalId, request: Any, is_second: bool) -> bool:
    current = transactional.current
    if transactional.pending is not None and request.producer_epoch != current.producer_epoch:
        raise RequestRefused(ErrorCode.PRODUCER_FENCED, "an older epoch")
    answer: bool = _IS_ENDED(rules, transactional, request, is_second)
    return answer


def _fences_every_repetition(rules: TransactionCoordinator, transactional: TransactionalId, request: Any, is_second: bool) -> bool:
    if request.producer_epoch != transactional.current.producer_epoch:
        raise RequestRefused(ErrorCode.PRODUCER_FENCED, "an older epoch")
    answer: bool = _IS_ENDED(rules, transactional, request, is_second)
    return answer


def _aborts_what_is_being_ended(rules: TransactionCoordinator, transactional: TransactionalId, request: Any, is_second: bool) -> bool:
    current = transactional.current
    if is_second and current.state in ENDING and request.producer_epoch == current.producer_epoch and current.is_commit != request.is_commit:
        raise RequestRefused(ErrorCode.INVALID_TXN_STATE, "the transaction before")
    answer: bool = _IS_ENDED(rules, transactional, request, is_second)
    return answer


_IS_ENDED = TransactionCoordinator._is_ended_already

MUTATIONS: dict[str, Mutation] = {
    "a batch that lost its guard is refused": Mutation(((Verifications, "problem", _refuses_what_lost_its_guard),)),
    "transactions begin without the coordinator": Mutation(((Verifications, "problem", _verifies_nothing),)),
    "a guard knows no lowest sequence": Mutation(((Verifications, "problem", _knows_no_lowest_sequence),)),
    "a late marker ends what has its epoch": Mutation(((ProducerStaging, "end_transaction", _takes_any_marker),)),
    "old epochs and repeated batches are taken": Mutation(((producer_state, "_known", _takes_old_epochs),)),
    "a transaction that is being ended goes on": Mutation(((TransactionCoordinator, "_transaction_of", _extends_what_is_being_ended),)),
    "a transaction is complete with its first marker": Mutation(((TransactionEnds, "_on_written", _completes_with_the_first_marker),)),
    "markers are tried once": Mutation(((TransactionEnds, "_on_written", _tries_markers_once),)),
    "the next coordinator forgets decisions": Mutation(((TransactionCoordinator, "finish_load", _forgets_decisions),)),
    "a repeated end is fenced while it completes": Mutation(((TransactionCoordinator, "_is_ended_already", _fences_while_it_completes),)),
    "a repeated end is fenced": Mutation(((TransactionCoordinator, "_is_ended_already", _fences_every_repetition),)),
    "an abort does not wait for the end of the transaction before": Mutation(((TransactionCoordinator, "_is_ended_already", _aborts_what_is_being_ended),)),
    "what overtook a batch that is verified is not offered again": Mutation(((Acceptor, "_may_offer_again", lambda _acceptor, _part: False),)),
}


def found_by(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of `seeds` whose run notices, and how; None: none did."""
    with MUTATIONS[name].applied():
        for seed in seeds:
            try:
                run(seed)
            except Broken as broken:
                return seed, str(broken).split("\n", 1)[0]
    return None
