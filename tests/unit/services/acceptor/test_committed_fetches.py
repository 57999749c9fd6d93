"""Fetches of read_committed consumers: nothing at or above the last stable offset, and the aborted
transactions below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.log_reader_messages import ABORTED, IN_ANSWER_MAX, LOOKUP, Question
from lab.scratch_layout import scratch_layout
from services.acceptor.connection import Connection
from tests.support.cold_segments import write_segment
from tests.support.stepped_fetches import Asked, Part, SteppedFetches

BATCHES = 5
"""of ten records each, in every partition"""
END = BATCHES * 10
READ_COMMITTED = 1
Make = Callable[..., SteppedFetches]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[SteppedFetches] = []
    with scratch_layout() as layout:

        def maker(partitions: int = 1) -> SteppedFetches:
            path = tmp_path / "segment.log"
            content = write_segment(path, BATCHES, 10, 10)
            made.append(SteppedFetches(layout, path, len(content) // BATCHES, partitions))
            return made[0]

        yield maker
        for side in made:
            side.close()


def committed(side: SteppedFetches, *asked: Asked) -> list[Part]:
    client = side.fetch(side.connect(), asked, isolation_level=READ_COMMITTED)
    side.serve()
    return side.fetched(client)[1]


def asked_for(side: SteppedFetches, kind: int) -> list[Question]:
    return [question for question in side.questions_seen if question.kind == kind]


def test_a_topic_without_transactions_costs_a_read_committed_consumer_no_question_more(make: Make) -> None:
    side = make()
    assert committed(side, Asked(0)) == [Part(0, 0, side.size_bytes)]
    side.questions_seen.clear()
    assert committed(side, Asked(0, 0)) == [Part(0, 0, side.size_bytes)]
    assert not asked_for(side, ABORTED) and len(side.questions_seen) <= 1


@pytest.mark.parametrize("stable_batches", range(BATCHES + 1))
def test_what_is_sent_ends_at_the_last_stable_offset(make: Make, stable_batches: int) -> None:
    side = make()
    side.move_stable(0, stable_batches * 10)
    for first_batch in range(BATCHES):
        wanted = max(0, stable_batches - first_batch) * side.batch_bytes
        assert committed(side, Asked(0, first_batch * 10)) == [Part(0, 0, wanted)]
    assert [part.size_bytes for part in side.fetched(uncommitted(side))[1]] == [side.size_bytes]


def uncommitted(side: SteppedFetches) -> Connection:
    client = side.fetch(side.connect(), [Asked(0)])
    side.serve()
    return client


def test_the_position_of_the_last_stable_offset_is_asked_for_once(make: Make) -> None:
    side = make()
    side.move_stable(0, 30)
    for _ in range(3):
        assert committed(side, Asked(0, 10)) == [Part(0, 0, 2 * side.batch_bytes)]
    assert [question.value_a for question in asked_for(side, LOOKUP)].count(30) == 1
    side.move_stable(0, 40)
    assert committed(side, Asked(0, 10)) == [Part(0, 0, 3 * side.batch_bytes)]


def test_a_long_poll_at_the_last_stable_offset_ends_when_that_moves(make: Make) -> None:
    side = make()
    side.move_stable(0, 20)
    committed(side, Asked(0, 10))
    client = side.fetch(side.connect(), [Asked(0, 20)], max_wait_ms=10_000, isolation_level=READ_COMMITTED)
    side.serve()
    assert side.answers(client) == 0 and len(side.delayed) == 1
    side.aborted = [(7, 20, 49)]
    side.move_stable(0, END, aborted_end_offset=50)
    side.delayed.wake_moved()
    side.serve()
    assert side.fetched(client)[1] == [Part(0, 0, 3 * side.batch_bytes, ((7, 20),))]


def test_an_aborted_transaction_is_listed_only_in_fetches_that_read_some_of_it(make: Make) -> None:
    side = make()
    side.aborted = [(7, 12, 25), (8, 5, 27)]
    side.move_stable(0, END, aborted_end_offset=28)
    assert committed(side, Asked(0, 0))[0].aborted == ((8, 5), (7, 12))
    assert committed(side, Asked(0, 26))[0].aborted == ((8, 5),)
    asked = len(asked_for(side, ABORTED))
    assert committed(side, Asked(0, 28))[0].aborted == ()
    assert committed(side, Asked(0, 20))[0].aborted == ((8, 5), (7, 12))  # what is known serves until the next abort
    assert len(asked_for(side, ABORTED)) == asked
    side.aborted.append((9, 30, 45))
    side.move_stable(0, END, aborted_end_offset=46)
    assert committed(side, Asked(0, 26))[0].aborted == ((8, 5), (9, 30))


def test_more_aborted_transactions_than_a_message_holds_come_whole(make: Make) -> None:
    side = make()
    side.aborted = [(producer_id, 1, 40) for producer_id in range(IN_ANSWER_MAX + 1_000)]
    side.move_stable(0, END, aborted_end_offset=41)
    (part,) = committed(side, Asked(0))
    assert [producer_id for producer_id, _ in part.aborted] == list(range(IN_ANSWER_MAX + 1_000))


def test_a_log_reader_that_cannot_say_what_was_aborted_sends_no_records(make: Make) -> None:
    side = make(2)
    committed(side, Asked(0), Asked(1))
    for partition in (0, 1):
        side.remember(partition, 0)
    side.move_stable(1, END, aborted_end_offset=41)
    client = side.fetch(side.connect(), [Asked(0), Asked(1)], isolation_level=READ_COMMITTED)
    (question,) = [question for question in side.take_questions() if question.kind == ABORTED]
    side.kill_reader()
    side.poller.poll(0)
    assert question.partition == 1
    assert side.fetched(client)[1] == [Part(0, 0, side.size_bytes), Part(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)]
