"""One followed partition: what comes next after each answer."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import TruncateOrder, Truncation
from services.replica_fetcher.follower_fetch import BACKOFF_FIRST_NS, FollowerFetch, Need

SECOND = 1_000_000_000
EPOCH = 4


class Followed:
    """Broker 2's partition under epoch 4, with a clock that the test moves."""

    def __init__(self, log_end: int = 10, last_epoch: int = 3, log_start: int = 0) -> None:
        self.now = 50 * SECOND
        self.fetch = FollowerFetch(SECOND)
        assert self.fetch.follow(2, EPOCH, self.now)
        if log_end >= 0:
            self.on_log(log_end, last_epoch, log_start)

    def on_log(self, log_end: int, last_epoch: int = 3, log_start: int = 0, error: int = 0) -> bool:
        return self.fetch.on_log(self.fetch.begin(), error, log_start, log_end, last_epoch, self.now)

    def on_offset(self, offset: int, error: int = 0) -> bool:
        return self.fetch.on_offset(self.fetch.begin(), error, offset, self.now)

    def fetched(self, error: int = 0, records: bool = False, high_watermark: int = 8, log_start: int = 0, diverging: tuple[int, int] = (-1, -1)) -> bool:
        fetch = self.fetch
        return fetch.on_fetched(fetch.leader_epoch, fetch.log_end_offset, error, records, high_watermark, log_start, self.now, *diverging)


def test_it_begins_by_learning_where_its_own_log_ends() -> None:
    followed = Followed(log_end=-1)
    assert followed.fetch.need == Need.TELL and followed.fetch.truncation.kind == Truncation.TELL and followed.fetch.is_due(followed.now)
    followed.on_log(17, last_epoch=2, log_start=5)
    fetch = followed.fetch
    assert fetch.may_fetch(followed.now)
    assert (fetch.log_end_offset, fetch.last_fetched_epoch, fetch.log_start_offset, fetch.leader_epoch) == (17, 2, 5, EPOCH)


def test_records_are_appended_before_it_fetches_on() -> None:
    followed = Followed()
    assert followed.fetched(records=True, high_watermark=9)
    assert followed.fetch.need == Need.APPEND and not followed.fetch.may_fetch(followed.now)
    assert not followed.fetched(records=True), "the same records a second time"
    assert followed.on_log(14, last_epoch=4)
    assert followed.fetch.may_fetch(followed.now) and followed.fetch.log_end_offset == 14 and followed.fetch.last_fetched_epoch == 4


def test_a_new_high_watermark_or_log_start_is_passed_on_without_records_and_the_same_is_not() -> None:
    followed = Followed()
    followed.fetched(high_watermark=9)
    assert followed.fetch.need == Need.APPEND and followed.fetch.high_watermark == 9
    followed.on_log(10)
    followed.fetched(high_watermark=9)
    assert followed.fetch.need == Need.FETCH
    followed.fetched(high_watermark=9, log_start=2)
    assert followed.fetch.need == Need.APPEND and followed.fetch.leader_log_start_offset == 2


def test_a_diverging_epoch_is_cut_off_and_then_it_fetches_from_there() -> None:
    followed = Followed()
    followed.fetched(diverging=(2, 6))
    assert followed.fetch.need == Need.TRUNCATE and followed.fetch.truncation == TruncateOrder(Truncation.DIVERGED, 2, 6)
    followed.on_log(6, last_epoch=2)
    assert followed.fetch.may_fetch(followed.now) and (followed.fetch.log_end_offset, followed.fetch.last_fetched_epoch) == (6, 2)


def test_where_its_leaders_log_begins_no_lower_than_they_part_it_begins_anew_there() -> None:
    followed = Followed(log_end=50)
    followed.fetched(log_start=20, diverging=(3, 20))
    assert followed.fetch.truncation == TruncateOrder(Truncation.START_AT, -1, 20)
    followed = Followed(log_end=20)
    followed.fetched(records=True, log_start=20)
    assert followed.fetch.truncation == TruncateOrder(Truncation.START_AT, -1, 20)
    followed.on_log(20, last_epoch=-1, log_start=20)
    followed.fetched(records=True, log_start=20)
    assert followed.fetch.need == Need.APPEND
    followed = Followed(log_end=50, log_start=20)
    followed.fetched(log_start=20, diverging=(3, 20))
    assert followed.fetch.truncation == TruncateOrder(Truncation.DIVERGED, 3, 20)


def test_behind_the_end_of_its_leader_it_cuts_to_there() -> None:
    followed = Followed()
    followed.fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
    assert followed.fetch.need == Need.LATEST
    followed.on_offset(7)
    assert followed.fetch.truncation == TruncateOrder(Truncation.TO_OFFSET, -1, 7)
    followed.on_log(7)
    assert followed.fetch.may_fetch(followed.now)


def test_below_the_start_of_its_leader_it_begins_anew_there() -> None:
    followed = Followed()
    followed.fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
    followed.on_offset(90)
    assert followed.fetch.need == Need.EARLIEST
    followed.on_offset(40)
    assert followed.fetch.truncation == TruncateOrder(Truncation.START_AT, -1, 40)


def test_out_of_range_between_the_leaders_ends_is_asked_again_later_and_ever_later() -> None:
    followed = Followed()
    waits = []
    for _ in range(9):
        followed.fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
        followed.on_offset(10)
        followed.on_offset(0)
        assert followed.fetch.need == Need.FETCH and not followed.fetch.may_fetch(followed.now)
        waits.append(followed.fetch.retry_ns - followed.now)
        followed.now = followed.fetch.retry_ns
        assert followed.fetch.may_fetch(followed.now)
    assert waits[0] == BACKOFF_FIRST_NS and waits == sorted(waits) and waits[-1] == SECOND


def test_fenced_it_waits_for_a_newer_epoch() -> None:
    followed = Followed()
    followed.fetched(ErrorCode.FENCED_LEADER_EPOCH)
    assert followed.fetch.need == Need.NOTHING and not followed.fetch.is_due(followed.now + 1000 * SECOND)
    assert not followed.fetch.follow(2, EPOCH, followed.now)
    assert followed.fetch.follow(3, EPOCH + 1, followed.now)
    assert followed.fetch.need == Need.TELL and followed.fetch.leader_id == 3


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_ID])
def test_other_errors_of_the_leader_are_tried_again_after_a_while(error: ErrorCode) -> None:
    followed = Followed()
    followed.fetched(error)
    assert followed.fetch.need == Need.FETCH and not followed.fetch.may_fetch(followed.now) and followed.fetch.problem
    followed.now += BACKOFF_FIRST_NS
    assert followed.fetch.may_fetch(followed.now)
    followed.fetched(records=True)
    assert followed.fetch.failures == 0 and not followed.fetch.problem


def test_corrupt_records_are_fetched_again() -> None:
    followed = Followed()
    followed.fetch.on_corrupt(followed.fetch.log_end_offset, followed.now)
    assert followed.fetch.need == Need.FETCH and followed.fetch.log_end_offset == 10 and not followed.fetch.may_fetch(followed.now)


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR])
def test_what_its_own_log_writer_refuses_makes_it_ask_where_the_log_ends(error: ErrorCode) -> None:
    followed = Followed()
    followed.fetched(records=True)
    followed.on_log(-1, -1, -1, error)
    assert followed.fetch.need == Need.TELL and not followed.fetch.is_due(followed.now)
    assert followed.fetch.retry_ns - followed.now == (SECOND if error == ErrorCode.KAFKA_STORAGE_ERROR else BACKOFF_FIRST_NS)
    assert followed.fetch.log_end_offset == 10


def test_an_answer_that_was_asked_for_under_another_epoch_is_thrown_away() -> None:
    followed = Followed()
    assert not followed.fetch.on_fetched(EPOCH - 1, 10, 0, True, 10, 0, followed.now)
    assert not followed.fetch.on_fetched(EPOCH, 9, 0, True, 10, 0, followed.now)
    assert followed.fetch.need == Need.FETCH


def test_an_answer_of_the_log_writer_to_what_was_asked_before_a_new_epoch_is_thrown_away() -> None:
    followed = Followed()
    followed.fetched(records=True)
    turn = followed.fetch.begin()
    followed.fetch.follow(3, EPOCH + 1, followed.now)
    assert not followed.fetch.on_log(turn, 0, 0, 14, 4, followed.now)
    assert followed.fetch.need == Need.TELL and followed.fetch.log_end_offset == 10


def test_nothing_older_is_followed() -> None:
    followed = Followed()
    assert not followed.fetch.follow(9, EPOCH - 1, followed.now) and followed.fetch.leader_id == 2


def test_a_question_that_the_leader_cannot_answer_is_asked_again_later() -> None:
    followed = Followed()
    followed.fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
    followed.on_offset(-1, ErrorCode.NETWORK_EXCEPTION)
    assert followed.fetch.need == Need.FETCH and not followed.fetch.may_fetch(followed.now)
    followed.now = followed.fetch.retry_ns
    followed.fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
    followed.on_offset(-1, ErrorCode.FENCED_LEADER_EPOCH)
    assert followed.fetch.need == Need.NOTHING
