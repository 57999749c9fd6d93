"""What a leader's log takes of transactional producers and their coordinators, and what it sends back to be verified first (KIP-98, KIP-890)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch
from appliance.storage.append_plan import RefusedBatch
from appliance.storage.log import Log
from appliance.storage.producer_state import ProducerState
from appliance.storage.recovery import CLEAN, Recovery, SameBoot, Unclean
from appliance.storage.transaction_index import AbortedTxn, read_transaction_index
from appliance.storage.verification import NeedsVerification, Offer, Verifications
from tests.unit.storage.storage_support import NOW_MS, batch, open_log, with_attributes

ABORTED, COMMITTED = False, True
FENCED = RefusedBatch(ErrorCode.INVALID_PRODUCER_EPOCH)
GAP = RefusedBatch(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
NOT_OPEN = RefusedBatch(ErrorCode.INVALID_TXN_STATE)


class Producer:
    """A transactional producer at the log's leader; batches of one record."""

    def __init__(self, log: Log, producer_id: int = 7, adds_partitions: bool = False) -> None:
        self.log = log
        self.producer_id = producer_id
        self.adds_partitions = adds_partitions

    def send(self, sequence: int, guard: int = 0, epoch: int = 0, is_transactional: bool = True) -> Any:
        raw = batch(b"%d" % sequence, producer=(self.producer_id, epoch, sequence))
        if is_transactional:
            raw = with_attributes(raw, 0x10)
        offers = {0: Offer(guard, self.adds_partitions)}
        (result,) = self.log.append_as_leader([raw], 0, NOW_MS, offers)
        return result

    def begin(self, sequence: int, epoch: int = 0) -> Any:
        """The first batch, as one that the coordinator agreed to."""
        asked = self.send(sequence, epoch=epoch)
        assert isinstance(asked, NeedsVerification)
        return self.send(sequence, asked.guard, epoch)

    def end(self, is_commit: bool, epoch: int = 0, coordinator_epoch: int = 3, raises_epoch: bool = False) -> Any:
        raw = build_end_transaction_batch(self.producer_id, epoch, EndTransactionMarker(is_commit, coordinator_epoch), NOW_MS)
        (result,) = self.log.append_as_leader([memoryview(raw)], 0, NOW_MS, {0: Offer(0, False, raises_epoch=raises_epoch)})
        return result

    @property
    def open_since(self) -> int:
        entry = self.log.producers.entry(self.producer_id)
        return entry.transaction_first_offset if entry is not None else -1


def test_a_transaction_begins_once_its_coordinator_was_asked_and_then_goes_on_unasked(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    first = producer.send(0)
    assert isinstance(first, NeedsVerification) and first.guard
    assert producer.send(0) == first  # the same question
    assert log.log_end_offset == 0
    assert producer.send(0, first.guard) == (0, 0, -1)
    assert producer.send(1) == (1, 1, -1)
    assert producer.open_since == 0 and log.last_stable_offset(2) == 0
    assert producer.end(COMMITTED) == (2, 2, -1)
    assert log.last_stable_offset(3) == 3
    second = producer.send(2)
    assert isinstance(second, NeedsVerification) and second.guard != first.guard
    assert producer.send(2, first.guard) == NOT_OPEN
    assert producer.send(2, second.guard) == (3, 3, -1)
    log.close()


def test_an_answer_that_comes_after_the_transaction_has_ended_opens_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    asked = producer.send(0)
    assert producer.end(ABORTED) == (0, 0, -1)
    assert producer.send(0, asked.guard) == NOT_OPEN
    again = producer.send(0)
    assert again.guard != asked.guard and producer.send(0, again.guard) == (1, 1, -1)
    log.close()


def test_a_batch_that_adds_its_partition_is_verified_anew_after_a_marker_took_its_guard(tmp_path: Path) -> None:
    """The marker of the transaction before, under the epoch of the next one (KIP-890): it comes between the guard and the coordinator's answer."""
    log = open_log(tmp_path)
    producer = Producer(log, adds_partitions=True)
    producer.begin(0)
    asked = producer.send(0, epoch=1)
    assert producer.end(COMMITTED, epoch=1) == (1, 1, -1)
    again = producer.send(0, asked.guard, epoch=1)
    assert isinstance(again, NeedsVerification) and again.guard != asked.guard
    assert producer.send(1, asked.guard, epoch=1) == again  # what was sent behind it
    assert producer.send(0, again.guard, epoch=1) == (2, 2, -1) and producer.send(1, again.guard, epoch=1) == (3, 3, -1)
    assert producer.send(2, epoch=0) == FENCED
    log.close()


def test_a_guard_that_a_newer_epoch_has_taken_is_not_given_anew(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log, adds_partitions=True)
    old, new = producer.send(0, epoch=0), producer.send(0, epoch=1)
    assert producer.send(0, old.guard, epoch=0) == NOT_OPEN
    assert producer.send(0, new.guard, epoch=1) == (0, 0, -1)
    log.close()


def test_a_guard_is_good_for_one_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    old = producer.send(0, epoch=0)
    new = producer.send(0, epoch=1)
    assert old.guard != new.guard
    assert producer.send(0, old.guard, epoch=0) == NOT_OPEN
    assert producer.send(0, new.guard, epoch=1) == (0, 0, -1)
    log.close()


def test_no_batch_overtakes_one_that_waits_for_its_verification(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    guard = producer.send(0).guard
    assert producer.send(1).guard == guard
    assert producer.send(1, guard) == GAP
    assert producer.send(0, guard) == (0, 0, -1)
    assert producer.send(1, guard) == (1, 1, -1)  # open now: a guard is not looked at any more
    log.close()


def test_a_producer_that_adds_its_partitions_itself_begins_at_zero_or_not_at_all(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    guard = Producer(log).send(4).guard
    assert Producer(log).send(4, guard) == (0, 0, -1)  # an unknown producer of old may begin anywhere
    newer = Producer(log, 8, adds_partitions=True)
    guard = newer.send(4).guard
    assert newer.send(4, guard) == GAP
    guard = newer.send(0).guard
    assert newer.send(0, guard) == (1, 1, -1)
    log.close()


def test_where_verification_is_off_only_partitions_to_be_added_are_asked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.verifications = Verifications(is_enabled=False)
    assert Producer(log, 7).send(0) == (0, 0, -1)
    assert isinstance(Producer(log, 8, adds_partitions=True).send(0), NeedsVerification)
    log.close()


def test_a_coordinators_own_batches_are_asked_nothing_and_count_no_sequences(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for offset in range(3):
        raw = with_attributes(batch(b"offset", producer=(7, 2, 0)), 0x10)
        assert log.append_as_leader([raw], 0, NOW_MS, {0: Offer(0, False, is_coordinator=True)}) == [(offset, offset, -1)]
    old = with_attributes(batch(b"offset", producer=(7, 1, 0)), 0x10)
    assert log.append_as_leader([old], 0, NOW_MS, {0: Offer(0, False, is_coordinator=True)}) == [FENCED]
    assert log.last_stable_offset(3) == 0
    log.close()


def test_inside_a_transaction_every_batch_is_of_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    producer.begin(0)
    assert producer.send(1, is_transactional=False) == NOT_OPEN
    assert producer.send(1) == (1, 1, -1)
    log.close()


def test_a_duplicate_is_answered_whatever_became_of_its_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    producer.begin(0)
    assert producer.send(0) == (0, 0, -1)
    producer.end(COMMITTED)
    assert producer.send(0) == (0, 0, -1)
    log.close()


def test_an_old_epoch_is_refused_without_a_verification(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    producer.begin(0, epoch=1)
    assert producer.send(1, epoch=0) == FENCED
    assert producer.end(ABORTED, epoch=0) == FENCED
    assert producer.open_since == 0
    log.close()


def test_an_old_coordinator_ends_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    producer.begin(0)
    producer.end(COMMITTED, coordinator_epoch=5)
    producer.begin(1)
    assert producer.end(ABORTED, coordinator_epoch=4) == RefusedBatch(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert producer.open_since == 2
    assert producer.end(ABORTED, coordinator_epoch=5) == (3, 3, -1)
    log.close()


@pytest.mark.parametrize("marker_epoch", [0, 1])
def test_a_marker_of_a_newer_epoch_ends_the_transaction_and_fences_the_old_one(tmp_path: Path, marker_epoch: int) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    producer.begin(0)
    producer.end(COMMITTED, epoch=marker_epoch)
    if marker_epoch:
        assert producer.send(1, epoch=0) == FENCED
        guard = producer.send(1, epoch=1).guard
        assert producer.send(1, guard, epoch=1) == GAP  # a new epoch begins at 0
        assert producer.begin(0, epoch=1) == (2, 2, -1)
    else:
        assert producer.begin(1) == (2, 2, -1)
    log.close()


@pytest.mark.parametrize("is_commit", [COMMITTED, ABORTED])
def test_a_marker_that_comes_late_does_not_end_the_next_transaction(tmp_path: Path, is_commit: bool) -> None:
    """With KIP-890 the next transaction's batches have the epoch of the marker."""
    log = open_log(tmp_path)
    producer = Producer(log)
    producer.begin(0)
    assert producer.end(is_commit, epoch=1, raises_epoch=True) == (1, 1, -1)
    assert producer.end(is_commit, epoch=1, raises_epoch=True) == (1, 1, -1) and log.log_end_offset == 2  # there already
    asked = producer.send(0, epoch=1)
    assert producer.end(is_commit, epoch=1, raises_epoch=True) == (1, 1, -1)
    assert producer.send(0, asked.guard, epoch=1) == (2, 2, -1)
    assert producer.end(is_commit, epoch=1, raises_epoch=True) == FENCED
    assert producer.open_since == 2 and producer.end(COMMITTED, epoch=2, raises_epoch=True) == (3, 3, -1)
    log.close()


def test_a_marker_that_is_written_twice_ends_one_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    producer.begin(0)
    assert producer.end(ABORTED) == (1, 1, -1) and producer.end(ABORTED) == (2, 2, -1)
    assert read_transaction_index(str(tmp_path), 0) == [AbortedTxn(7, 0, 1, 2)]
    assert log.aborted_end_offset == 2 and log.last_stable_offset(3) == 3
    log.close()


def test_a_refused_batch_or_a_failed_append_leaves_verifications_as_they_were(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producer = Producer(log)
    guard = producer.send(0).guard
    assert producer.send(0, guard + 1) == NOT_OPEN
    assert producer.send(0, guard) == (0, 0, -1) and len(log.verifications) == 0
    log.close()


def test_silent_producers_are_forgotten_and_those_with_an_open_transaction_are_not(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_expiration_ms=1_000)
    Producer(log, 7).begin(0)
    Producer(log, 8).send(0, is_transactional=False)
    Producer(log, 9).send(0)
    log.expire_producers(NOW_MS + 999)
    assert len(log.producers) == 2 and len(log.verifications) == 1
    log.expire_producers(NOW_MS + 1_000)
    assert [producer_id for producer_id, _ in log.producers.snapshot()] == [7] and len(log.verifications) == 0
    assert Producer(log, 8).send(5, is_transactional=False) == (2, 2, -1)  # as if it had never been there
    log.close()


@pytest.mark.parametrize("end", ["closed", "killed", "power cut"])
def test_every_incarnation_of_a_log_knows_its_open_and_its_aborted_transactions(tmp_path: Path, end: str) -> None:
    log = open_log(tmp_path)
    one, two = Producer(log, 1), Producer(log, 2)
    one.begin(0)
    one.end(ABORTED)
    two.begin(0)
    one.begin(1)
    one.end(ABORTED)
    asked = Producer(log, 3).send(0)
    recovery: Recovery = CLEAN
    if end == "closed":
        log.close()
    else:
        recovery = SameBoot(log.log_end_offset, log.active_base_offset, log.active_position) if end == "killed" else Unclean(0)
        log.abandon()
    log = open_log(tmp_path, recovery=recovery)
    assert log.log_end_offset == 5 and log.last_stable_offset(5) == 2 and log.aborted_end_offset == 5
    assert read_transaction_index(str(tmp_path), 0) == [AbortedTxn(1, 0, 1, 2), AbortedTxn(1, 3, 4, 2)]
    two = Producer(log, 2)
    assert two.send(1) == (5, 5, -1)
    log.verifications = Verifications(first_guard=1_000)
    assert Producer(log, 3).send(0, asked.guard) == NOT_OPEN
    assert two.end(COMMITTED) == (6, 6, -1) and log.last_stable_offset(7) == 7
    log.truncate_to(5)
    assert log.last_stable_offset(5) == 2 and log.aborted_end_offset == 5
    log.truncate_to(1)
    assert log.last_stable_offset(1) == 0 and log.aborted_end_offset == 1 and read_transaction_index(str(tmp_path), 0) == []
    log.close()


def test_the_oldest_open_transaction_is_known_whatever_the_order_in_which_producers_came(tmp_path: Path) -> None:
    """Both ended and began again in one append: the younger producer's is the older transaction now."""
    log = open_log(tmp_path)
    log.verifications = Verifications(is_enabled=False)
    one, two = Producer(log, 1), Producer(log, 2)
    one.send(0)
    two.send(0)
    raws = []
    for producer in (one, two):
        raws.append(memoryview(build_end_transaction_batch(producer.producer_id, 0, EndTransactionMarker(COMMITTED, 3), NOW_MS)))
    for producer, sequence in ((two, 1), (one, 1)):
        raws.append(with_attributes(batch(b"x", producer=(producer.producer_id, 0, sequence)), 0x10))
    log.append_as_leader(raws, 0, NOW_MS)
    assert (two.open_since, one.open_since) == (4, 5) and log.last_stable_offset(6) == 4
    state = ProducerState()
    state.decode(log.producers.encode())
    assert state.is_undecided and state.last_stable_offset(6) == 4
    two.end(COMMITTED)
    assert log.last_stable_offset(7) == 5
    one.end(COMMITTED)
    assert log.last_stable_offset(8) == 8 and not log.producers.is_undecided
    log.close()
