"""Fetches and offset look-ups that want much, come twice, meet a dying log-reader, or a first batch larger than is allowed today."""

from __future__ import annotations

import socket
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.ipc.log_reader_messages import LOOKUP, OPEN
from appliance.ipc.log_reader_proxy import QUESTIONS_AHEAD_MAX, UNSENT_MAX
from appliance.protocol.fetch import FetchPartition, FetchPartitionResult
from lab.scratch_layout import scratch_layout
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.fanned_out_request import LookUpRequest, RequestPart
from services.acceptor.fetch.parked_growth import ParkedGrowth
from services.acceptor.fetch.partition_read import PartitionRead
from services.acceptor.fetch.pending_fetch import PendingFetch
from tests.support.cold_segments import write_segment
from tests.support.reference_cycles import leaves_none_of
from tests.support.stepped_fetches import Asked, SteppedFetches

BATCHES = 5
Make = Callable[..., SteppedFetches]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[SteppedFetches] = []
    with scratch_layout() as layout:

        def maker(partitions: int, value_bytes: int = 10, **more: int) -> SteppedFetches:
            path = tmp_path / "segment.log"
            content = write_segment(path, BATCHES, 10, value_bytes)
            made.append(SteppedFetches(layout, path, len(content) // BATCHES, partitions, **more))
            return made[0]

        yield maker
        for side in made:
            side.close()


# -- the first batch goes whole


def test_a_first_batch_goes_whole_that_is_larger_than_what_a_topic_allows_today(make: Make) -> None:
    side = make(1, value_bytes=1_000, max_message_bytes=500)
    side.remember(0, 10)
    client = side.fetch(side.connect(), [Asked(0, 10, max_bytes=2_000)])
    side.serve()
    _, (part,) = side.fetched(client)
    assert side.batch_bytes > 10_000 and part.size_bytes == side.batch_bytes


def test_a_later_partition_whose_first_batch_does_not_fit_is_empty(make: Make) -> None:
    side = make(2, value_bytes=1_000, max_message_bytes=500)
    for partition in (0, 1):
        side.remember(partition, 10)
    client = side.fetch(side.connect(), [Asked(0, 10, 2_000), Asked(1, 10, 2_000)])
    side.serve()
    assert [part.size_bytes for part in side.fetched(client)[1]] == [side.batch_bytes, 0]


# -- one look-up for several reads


def _read_on(side: SteppedFetches, max_bytes: int) -> list[int]:
    """Bytes of each fetch of a consumer that asks for one batch and a bit, from the beginning to the end."""
    sizes = []
    for offset in range(0, side.offset, 10):
        client = side.fetch(side.connect(), [Asked(0, offset, max_bytes=max_bytes)])
        side.serve()
        sizes += [part.size_bytes for part in side.fetched(client)[1]]
    return sizes


def test_a_consumer_that_reads_on_through_the_page_cache_asks_once_for_several_reads(make: Make) -> None:
    side = make(1, value_bytes=500)
    max_bytes = side.batch_bytes * 3 // 2
    assert _read_on(side, max_bytes) == [max_bytes] * (BATCHES - 1) + [side.batch_bytes]
    lookups = [(question.value_a, question.ahead_bytes) for question in side.questions_seen if question.kind == LOOKUP]
    assert lookups == [(0, 0), (10, max_bytes)], "the first may be the only one that comes; the second one's answer is good for the others"


def test_what_was_looked_up_ahead_is_forgotten_when_segments_come_or_go(make: Make) -> None:
    side = make(1, value_bytes=500)
    max_bytes = side.batch_bytes * 3 // 2
    _read_on(side, max_bytes)
    side.writer.store(0, side.placements["t", 0].read_row()._replace(segment_list_generation=2))
    client = side.fetch(side.connect(), [Asked(0, 20, max_bytes=max_bytes)])
    side.serve()
    assert [part.size_bytes for part in side.fetched(client)[1]] == [max_bytes]
    assert [question.value_a for question in side.questions_seen if question.kind == LOOKUP] == [0, 10, 20]


# -- a log-reader dies in the middle of a question


@pytest.mark.parametrize("session", [(0, -1), (0, 0)], ids=["without a session", "beginning a session"])
@pytest.mark.parametrize("others", [0, 3])
def test_a_log_reader_that_dies_while_it_is_asked_leaves_every_fetch_with_one_whole_answer(make: Make, session: tuple[int, int], others: int) -> None:
    side = make(8)
    side.fetch(warm := side.connect(), [Asked(7)])
    side.serve()  # there is a connection now
    side.fetched(warm)
    waiting = [side.fetch(side.connect(), [Asked(partition) for partition in range(8)]) for _ in range(others)]
    side.kill_reader()
    client = side.fetch(side.connect(), [Asked(partition) for partition in range(8)], session)
    for each in (*waiting, client):
        parts = side.fetched(each)[1]
        assert [part.partition for part in parts] == list(range(8))
        assert {part.error_code for part in parts if not part.size_bytes} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 17))
def test_a_log_reader_that_dies_between_two_questions_of_one_fetch_leaves_it_with_one_whole_answer(
    make: Make, incremental: bool, dies_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = make(8)
    client, session = side.connect(), (0, -1)
    if incremental:
        side.fetch(client, [Asked(partition, side.offset) for partition in range(8)], (0, 0))
        session = (side.fetched(client)[0], 1)
    asked = 0
    flush = side.reader.flush

    def dies(sock: socket.socket) -> bool:
        nonlocal asked
        asked += 1
        if asked != dies_at:
            return flush(sock)
        side.reader.hang_up()  # what a failing send does
        return False

    monkeypatch.setattr(side.reader, "flush", dies)
    side.fetch(client, [Asked(partition) for partition in range(8)], session)
    if dies_at > 8:  # in the second round, which opens segments
        for question in side.take_questions():
            side.answer(question)
        side.poller.poll(0)
    _, parts = side.fetched(client)
    assert [part.partition for part in parts] == list(range(8))
    assert {part.error_code for part in parts} == {ErrorCode.NOT_LEADER_OR_FOLLOWER} and asked == dies_at


# -- many partitions


def test_a_partition_that_is_named_again_replaces_what_was_wanted_of_it(make: Make) -> None:
    side = make(2)
    client = side.fetch(side.connect(), [*[Asked(0, side.offset)] * 1_000, Asked(1, side.offset), Asked(0, 0)])
    side.serve()
    _, parts = side.fetched(client)
    assert [part.partition for part in parts] == [0, 1] and parts[0].size_bytes == side.size_bytes and len(side.questions_seen) == 2


def test_a_parked_fetch_of_many_partitions_is_not_looked_at_for_every_row_that_moves(make: Make) -> None:
    side = make(1_000)
    client = side.fetch(side.connect(), [Asked(partition, side.offset) for partition in range(1_000)], max_wait_ms=60_000, min_bytes=10_000)
    side.looks = 0
    for move in range(90):
        side.move(move * 10, 100)
        side.delayed.wake_moved()
    assert not side.answers(client)
    assert side.looks < 3_000, "one look costs a thousand"
    for move in range(30):
        side.move(move, 100)
        side.delayed.wake_moved()
    # Enough bytes are there: the fetch evaluates all partitions and requests what it sends.
    assert side.looks > 1_000


def test_a_parked_fetch_whose_growth_never_fits_is_looked_at_ever_more_rarely(make: Make) -> None:
    side = make(20)
    placements = [side.placements["t", partition] for partition in range(20)]
    wanted = [FetchPartition("t", TopicId(bytes(16)), partition, -1, side.offset, -1, -1, 1_000) for partition in range(20)]
    # The first has something; of the others nothing ever fits.
    results = [FetchPartitionResult("t", TopicId(bytes(16)), partition, 0, records=b"x" * 500 if not partition else None) for partition in range(20)]
    growth, looks = ParkedGrowth(), 0
    for placement in placements:
        placement.read_row()
    growth.begin(placements, wanted, results, 1_000)
    for _ in range(1_000):
        for partition in range(20):
            side.move(partition, 100)
        if growth.is_enough([("d0", partition) for partition in range(20)], side.view):
            looks += 1
            growth.begin(placements, wanted, results, 1_000)
    assert 3 <= looks <= 8


@pytest.mark.parametrize("gone", ["leader", "placement", "log-writer"])
def test_a_parked_fetch_of_many_partitions_is_answered_when_one_of_them_goes(make: Make, gone: str) -> None:
    side = make(100)
    client = side.fetch(side.connect(), [Asked(partition, side.offset) for partition in range(100)], max_wait_ms=60_000, min_bytes=10_000)
    side.delayed.wake_moved()
    assert not side.answers(client)
    if gone == "leader":
        side.writer.remove_row(50)
    elif gone == "placement":
        side.move(50, 1)
        del side.placements["t", 50]
    else:
        side.proxy.serving = False
        side.placements.clear()
    side.delayed.wake_moved()
    codes = Tally(part.error_code for part in side.fetched(client)[1])
    assert codes[0] == (0 if gone == "log-writer" else 99) and sum(codes.values()) == 100


def test_a_parked_fetch_of_many_partitions_leaves_nothing_behind(make: Make) -> None:
    side = make(100)
    client = side.fetch(side.connect(), [Asked(partition, side.offset) for partition in range(100)], max_wait_ms=60_000, min_bytes=10_000)
    side.move(5, 100)
    side.delayed.rows.collect()
    client.closed = True
    assert side.delayed.forget_closed() == 1
    assert not len(side.delayed) and not len(side.delayed.rows) and not side.delayed.rows.moved and not side.delayed.rows.due


def test_a_fetch_of_more_partitions_than_there_can_be_open_segments_gets_to_all_of_them_and_no_false_error(make: Make) -> None:
    side = make(300, files_max=64)
    got: set[int] = set()
    for _ in range(6):
        client = side.fetch(side.connect(), [Asked(partition) for partition in range(300)])
        side.serve()
        parts = side.fetched(client)[1]
        assert sorted(part.partition for part in parts) == list(range(300))
        assert not any(part.error_code for part in parts)
        with_records = {part.partition for part in parts if part.size_bytes}
        assert len(with_records) == 64
        got |= with_records
    assert len(got) == 300


def test_a_session_of_more_partitions_than_there_can_be_open_segments_gets_to_all_of_them(make: Make) -> None:
    side = make(200, files_max=64)
    client = side.fetch(side.connect(), [Asked(partition) for partition in range(200)], (0, 0))
    side.serve()
    session_id, parts = side.fetched(client)
    got = {part.partition for part in parts if part.size_bytes}
    for epoch in range(1, 5):
        side.fetch(client, [Asked(part.partition, side.offset) for part in parts if part.size_bytes], (session_id, epoch))
        side.serve()
        if not side.answers(client):
            break
        _, parts = side.fetched(client)
        assert not any(part.error_code for part in parts)
        got |= {part.partition for part in parts if part.size_bytes}
    assert len(got) == 200


def test_two_wide_fetches_that_push_out_each_others_segments_are_answered_without_an_error(make: Make) -> None:
    side = make(128, files_max=64)
    clients = [side.fetch(side.connect(), [Asked(partition) for partition in range(first, first + 64)]) for first in (0, 64)]
    side.serve()
    for client in clients:
        _, parts = side.fetched(client)
        assert not any(part.error_code for part in parts) and any(part.size_bytes for part in parts)


# -- the log-reader's queue


def test_one_request_has_a_bounded_number_of_questions_under_way_and_is_answered_in_full(make: Make) -> None:
    count = QUESTIONS_AHEAD_MAX + 300
    side = make(count)
    client = side.fetch(side.connect(), [Asked(partition) for partition in range(count)])
    lister = side.ask_offsets(side.connect(), [range(count)])
    assert len(side.reader.waiting) <= 2 * QUESTIONS_AHEAD_MAX < UNSENT_MAX
    innocent = side.ask_offsets(side.connect(), [[0]])
    side.serve()
    assert side.offsets(innocent) == [(0, 0)]
    assert side.offsets(lister) == [(partition, 0) for partition in range(count)]
    assert not any(part.error_code for part in side.fetched(client)[1])
    assert {question.kind for question in side.questions_seen} >= {LOOKUP, OPEN}


def test_every_copy_of_a_partition_that_is_listed_twice_is_refused(make: Make) -> None:
    side = make(3)
    client = side.ask_offsets(side.connect(), [[0, 1], [2], [1]])
    side.serve()
    refused = ErrorCode.INVALID_REQUEST
    assert side.offsets(client) == [(0, 0), (1, refused), (2, 0), (1, refused)]


def test_a_topic_that_is_named_thousands_of_times_asks_nothing(make: Make) -> None:
    side = make(1)
    client = side.ask_offsets(side.connect(), [[0]] * 5_000)
    assert {code for _, code in side.offsets(client)} == {ErrorCode.INVALID_REQUEST} and not side.reader.waiting


def test_a_log_reader_that_dies_while_offsets_are_asked_for_leaves_one_whole_answer(make: Make) -> None:
    side = make(8)
    first = side.ask_offsets(side.connect(), [range(8)])
    side.take_questions()
    side.kill_reader()
    second = side.ask_offsets(side.connect(), [range(8)])
    for client in (first, second):
        assert side.offsets(client) == [(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER) for partition in range(8)]


# -- the process runs without the garbage collector


def test_an_answered_offset_look_up_leaves_no_reference_cycle(make: Make) -> None:
    side = make(3)
    with leaves_none_of(LookUpRequest, RequestPart, PendingReply, Connection):
        listed = side.ask_offsets(side.connect(), [range(3)])
        by_epoch = side.ask_epoch_ends(side.connect(), range(3))
        side.serve()
        assert side.offsets(listed) == [(partition, 0) for partition in range(3)]
        assert side.response(by_epoch)
        del listed, by_epoch


def test_an_offset_look_up_whose_connection_closes_leaves_no_reference_cycle(make: Make) -> None:
    count = QUESTIONS_AHEAD_MAX + 1
    side = make(count)
    with leaves_none_of(LookUpRequest, RequestPart, PendingReply, Connection):
        client = side.ask_offsets(side.connect(), [range(count)])
        _close(client)
        side.serve()
        assert not side.answers(client)
        del client


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("partitions", [1, 40])
def test_a_parked_fetch_whose_connection_closes_leaves_no_reference_cycle(make: Make, partitions: int, incremental: bool) -> None:
    side = make(partitions)
    asked = [Asked(partition, side.offset) for partition in range(partitions)]
    with leaves_none_of(PendingFetch, PartitionRead, PendingReply, Connection):
        client, session = side.connect(), (0, -1)
        if incremental:
            side.fetch(client, asked, (0, 0))
            session = (side.fetched(client)[0], 1)
        side.fetch(client, asked, session, max_wait_ms=60_000, min_bytes=10_000)
        side.move(0, 100)
        side.delayed.wake_moved()
        side.serve()
        assert len(side.delayed) == 1
        _close(client)
        assert side.delayed.forget_closed() == 1 and not len(side.delayed)
        del client


def test_a_parked_fetch_whose_connection_closes_during_a_question_ends_with_the_answer(make: Make) -> None:
    side = make(1)
    with leaves_none_of(PendingFetch, PartitionRead, PendingReply, Connection):
        client = side.fetch(side.connect(), [Asked(0, side.offset)], max_wait_ms=60_000, min_bytes=10_000)
        side.move(0, 100)
        side.delayed.wake_moved()
        (question,) = side.take_questions()
        _close(client)
        assert side.delayed.forget_closed() == 1
        side.answer(question)
        side.poller.poll(0)
        assert not side.answers(client)
        del client


def test_a_fetch_that_stays_parked_looks_up_its_position_once(make: Make) -> None:
    """A position between two cursors is in the fetch only; another look-up at each append would delay all of them."""
    side = make(1)
    client = side.fetch(side.connect(), [Asked(0)], max_wait_ms=60_000, min_bytes=1 << 20)
    side.serve()
    side.questions_seen.clear()
    for _ in range(5):
        side.move(0, 10)
        side.delayed.wake_moved()
        side.serve()
    assert not side.answers(client) and len(side.delayed) == 1
    assert [question.kind for question in side.questions_seen] == [LOOKUP]


def _close(client: Connection) -> None:
    """As the acceptor does when the client is gone."""
    client.closed = True
    client.replies.clear()
