"""The replica-fetcher on real rings and a real log-writer, with a leader that the test plays; no
call blocks, time is the test's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.frames import listen_unix
from appliance.protocol.fetch import EpochEndOffset, FetchPartition, FetchPartitionResult
from appliance.shm.partition_table import ROLE_FOLLOWER
from lab.scratch_layout import purposes_left, scratch_layout
from services.replica_fetcher.leader_fetcher import REFUSALS_LOGGED
from tests.support.real_log_writer import BROKER_ID, TOPIC_ID
from tests.support.scripted_leader import LedLog, made_batch
from tests.support.scripted_peer import PeerRequest, ScriptedPeer
from tests.support.stepped_follower import OWN_EPOCH, SteppedFollower

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SteppedFollower]:
    with scratch_layout() as layout:
        made = SteppedFollower(layout, tmp_path / "d0")
        yield made
        made.close()
        assert not [name for name in purposes_left(layout) if "replica-fetcher" in name and not name.startswith("counters")]


def serve_until(box: SteppedFollower, partition: int, offset: int) -> None:
    for _ in range(50):
        if box.row(partition).log_end_offset >= offset:
            return
        box.leader.serve()
        box.turns(3)
    raise AssertionError(f"it ends at {box.row(partition).log_end_offset}")


def test_a_follower_gets_its_leaders_batches_byte_for_byte(box: SteppedFollower) -> None:
    led = box.follow(0)
    for records in (1, 3, 2):
        led.append(records)
    first = box.leader.serve()
    assert (first.replica_id, first.replica_epoch, first.session_epoch) == (BROKER_ID, OWN_EPOCH, 0)
    assert [(wanted.fetch_offset, wanted.last_fetched_epoch, wanted.current_leader_epoch) for wanted in first.partitions] == [(0, -1, 0)]
    box.until(lambda: box.log_end_offset(0) == 6)
    assert box.content(0) == led.content() and box.row(0).role == ROLE_FOLLOWER
    second = box.leader.serve()
    assert [(wanted.fetch_offset, wanted.last_fetched_epoch) for wanted in second.partitions] == [(6, 0)], "the leader hears at once how far it is"
    box.until(box.arena_is_free)
    assert (box.counted("appends"), box.counted("fetched_bytes")) == (1, len(led.content()))
    assert box.notifier.said == ["ready"] and box.agent.status_line() == "follows 1 partitions of 1 boxes"


def test_the_high_watermark_follows_and_never_passes_the_own_end(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append(2)
    led.append(2)
    led.high_watermark = 2
    serve_until(box, 0, 4)
    assert box.row(0).high_watermark == 2
    led.high_watermark = 4
    box.leader.serve()
    box.until(lambda: box.row(0).high_watermark == 4)
    led.high_watermark = 9
    box.leader.serve()
    box.turns(5)
    assert box.row(0).high_watermark == 4


def test_a_session_names_only_what_changed(box: SteppedFollower) -> None:
    logs = [box.follow(partition) for partition in range(3)]
    box.turns(20)
    fetch = box.leader.serve()
    while len(box.leader.session) < 3:
        fetch = box.leader.serve()
    box.turns(5)
    logs[1].append()
    fetch = box.leader.serve()
    assert not fetch.partitions and not fetch.forgotten and fetch.session_epoch > 0
    box.until(lambda: box.log_end_offset(1) == 1)
    fetch = box.leader.serve()
    assert [(wanted.partition, wanted.fetch_offset) for wanted in fetch.partitions] == [(1, 1)]
    assert box.leader.sessions_begun == 1


def test_without_a_session_every_fetch_names_everything(box: SteppedFollower) -> None:
    box.leader.gives_sessions = False
    logs = [box.follow(partition) for partition in range(2)]
    for led in logs:
        led.append()
    for partition in range(2):
        serve_until(box, partition, 1)
    fetch = box.leader.serve()
    assert fetch.session_epoch == 0 and len(fetch.partitions) == 2


def test_a_session_that_the_leader_has_forgotten_is_begun_anew_at_once(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append()
    serve_until(box, 0, 1)
    request, _ = box.leader.next_fetch()
    box.leader.answer(request, [], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    fetch = box.leader.serve()
    assert fetch.session_epoch == 0 and [wanted.fetch_offset for wanted in fetch.partitions] == [1]


def test_a_leader_that_refuses_everything_is_not_asked_without_a_pause(box: SteppedFollower) -> None:
    box.follow(0)
    for _ in range(3):
        request, _ = box.leader.next_fetch()
        box.leader.answer(request, [], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    box.until(lambda: box.counted("errors") == 3)
    begun = box.counted("fetches")
    box.turns(60)
    assert box.counted("fetches") == begun, "80 ms are due after the third"
    box.until(lambda: box.counted("fetches") == begun + 1)


def test_a_leader_that_takes_this_box_for_a_stranger_is_logged_once_and_not_at_the_first_refusal(box: SteppedFollower) -> None:
    box.follow(0)
    for number in range(1, 2 * REFUSALS_LOGGED):
        request, _ = box.leader.next_fetch()
        box.leader.answer(request, [], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        box.until(lambda number=number: box.counted("errors") == number)  # type: ignore[misc]
        refused = [line for line in box.said.splitlines() if "refuses the fetches of this box" in line]
        assert len(refused) == (number == REFUSALS_LOGGED)
        assert all("inter.broker.allowed.networks" in line for line in refused)


def test_a_diverging_log_is_cut_where_the_leader_says_and_goes_on(box: SteppedFollower) -> None:
    led = box.follow(0)
    for _ in range(3):
        led.append(2)
    serve_until(box, 0, 6)
    other = LedLog()
    other.batches = led.batches[:2]
    other.leader_epoch = 3
    other.append(1)
    box.follow(0, 3, other)
    while box.log_end_offset(0) != 4:
        box.leader.serve()
        box.turns(3)
    serve_until(box, 0, 5)
    assert box.content(0) == other.content()
    assert box.counted("truncations") == 1


def test_a_log_whose_offset_the_leader_has_no_more_begins_anew(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append(2)
    serve_until(box, 0, 2)
    led.log_start_offset = led.high_watermark = 10
    led.batches = []
    box.leader.serve()
    box.leader.serve()
    assert box.row(0).log_start_offset == 10
    led.append(3)
    serve_until(box, 0, 13)
    assert box.content(0) == led.content() and box.counted("restarts") == 1


def test_an_error_of_one_partition_delays_no_other(box: SteppedFollower) -> None:
    trouble, well = box.follow(0), box.follow(1)
    trouble.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    trouble.append()
    for _ in range(4):
        well.append()
    serve_until(box, 1, 4)
    trouble.error = ErrorCode.NONE
    serve_until(box, 0, 1)
    assert [label for label in box.counted_by_label() if "errors" in label] == ['replica_fetcher.errors{error="NOT_LEADER_OR_FOLLOWER"}']


def test_a_leader_that_knows_a_larger_epoch_is_left_in_peace_until_we_know_it_too(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append()
    led.leader_epoch = 1
    box.leader.serve()
    box.turns(200)
    assert box.counted("fetches") == 1
    box.follow(0, 1, led)
    serve_until(box, 0, 1)


@pytest.mark.parametrize("where", [8, 30, 61, -1], ids=["length", "header", "first byte", "last byte"])
def test_a_damaged_batch_is_never_appended_and_fetched_again(box: SteppedFollower, where: int) -> None:
    led = box.follow(0)
    led.append()
    good = led.append(2)
    damaged = bytearray(good)
    damaged[where] ^= 0x40
    led.batches[1] = led.batches[1]._replace(batch=bytes(damaged))
    box.leader.serve()
    box.until(lambda: box.log_end_offset(0) == 1)
    box.leader.serve()
    box.turns(10)
    assert box.log_end_offset(0) == 1
    box.until(lambda: box.counted("corrupt_batches") >= 1)
    assert "broker 2 sent a damaged copy of t-0 at offset 1" in box.said
    request, fetch = box.leader.next_fetch()
    assert [(each.fetch_offset, each.damaged_offset) for each in box.leader.wanted(fetch)] == [(1, 1)], "the leader receives it"
    box.leader.answer(request, [FetchPartitionResult("", TOPIC_ID, 0, high_watermark=1, log_start_offset=0)])
    request, fetch = box.leader.next_fetch()
    assert [(each.fetch_offset, each.damaged_offset) for each in box.leader.wanted(fetch)] == [(1, -1)], "until it sends something else"
    box.leader.answer(request, [FetchPartitionResult("", TOPIC_ID, 0, high_watermark=1, log_start_offset=0)])
    led.batches[1] = led.batches[1]._replace(batch=good)
    serve_until(box, 0, 3)
    assert box.content(0) == led.content()


def test_batches_below_the_offset_are_passed_over_and_one_that_is_cut_off_is_left(box: SteppedFollower) -> None:
    led = box.follow(0)
    batches = [led.append() for _ in range(4)]
    serve_until(box, 0, 4)
    batches += [led.append(), led.append()]
    request, fetch = box.leader.next_fetch()
    box.leader.wanted(fetch)
    records = b"".join(batches[2:5]) + batches[5][:70]
    box.leader.answer(request, [FetchPartitionResult("", TOPIC_ID, 0, high_watermark=4, log_start_offset=0, records=records)])
    box.until(lambda: box.log_end_offset(0) == 5)
    serve_until(box, 0, 6)
    assert box.content(0) == led.content()
    assert not box.counted("corrupt_batches")


@pytest.mark.parametrize(
    "records",
    [made_batch(0, 0)[:40], made_batch(1, 9), made_batch(1, 0) + made_batch(1, 0), made_batch(2**63 - 1, 0), b"\0" * 61],
    ids=["no whole batch", "epoch of the future", "offsets go back", "no offset follows", "zeros"],
)
def test_an_answer_that_lies_harms_nothing(box: SteppedFollower, records: bytes) -> None:
    led = box.follow(0)
    led.append()
    serve_until(box, 0, 1)
    request, fetch = box.leader.next_fetch()
    box.leader.wanted(fetch)
    box.leader.answer(request, [FetchPartitionResult("", TOPIC_ID, 0, high_watermark=1, log_start_offset=0, records=records)])
    box.until(lambda: box.counted("corrupt_batches"))
    led.append()
    led.append()
    serve_until(box, 0, 3)
    assert box.content(0) == led.content()
    box.until(box.arena_is_free)


def test_what_was_not_asked_for_is_not_taken(box: SteppedFollower) -> None:
    led = box.follow(0)
    request, fetch = box.leader.next_fetch()
    box.leader.wanted(fetch)
    foreign = FetchPartitionResult("", type(TOPIC_ID)(b"?" * 16), 0, high_watermark=1, log_start_offset=0, records=made_batch(0, 0))
    unknown = FetchPartitionResult("", TOPIC_ID, 9, high_watermark=1, log_start_offset=0, records=made_batch(0, 0))
    box.leader.answer(request, [foreign, unknown])
    led.append()
    serve_until(box, 0, 1)
    assert box.content(0) == led.content()


@pytest.mark.parametrize(
    "answer", [b"\0\0\0\0\0\0\0\0\0\7\xff\xff", b"", b"\0" * 10 + b"\2" + TOPIC_ID + b"\xff\xff\x7f"], ids=["count", "empty", "partitions"]
)
def test_an_answer_that_cannot_be_read_costs_the_connection_only(box: SteppedFollower, answer: bytes) -> None:
    led = box.follow(0)
    led.append()
    request, _ = box.leader.next_fetch()
    box.leader.peer.answer(request, answer)
    box.until(lambda: box.counted("lost_fetches") or "breaks the protocol" in box.said)
    box.leader.peer.hang_up()
    serve_until(box, 0, 1)
    assert box.content(0) == led.content()
    box.until(box.arena_is_free)


def test_a_log_that_loses_no_record_where_it_parts_is_no_news(box: SteppedFollower) -> None:
    """It led, and wrote nothing: only its epoch goes."""
    led = box.follow(0)
    led.append()
    serve_until(box, 0, 1)
    request, fetch = box.leader.next_fetch()
    box.leader.wanted(fetch)
    box.leader.answer(request, [FetchPartitionResult("", TOPIC_ID, 0, high_watermark=1, log_start_offset=0, diverging_epoch=EpochEndOffset(0, 1))])
    led.append()
    serve_until(box, 0, 2)
    assert "does not have" not in box.said and box.counted("truncations") == 0


def test_a_diverging_epoch_with_records_takes_no_records(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append()
    serve_until(box, 0, 1)
    request, fetch = box.leader.next_fetch()
    box.leader.wanted(fetch)
    lying = FetchPartitionResult("", TOPIC_ID, 0, high_watermark=1, log_start_offset=0, records=made_batch(1, 0), diverging_epoch=EpochEndOffset(0, 1))
    box.leader.answer(request, [lying])
    box.turns(10)
    assert box.log_end_offset(0) == 1


def test_a_leader_that_hangs_up_in_the_middle_of_an_answer_is_asked_again(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append(3, b"y" * 1000)
    request, fetch = box.leader.next_fetch()
    box.leader.wanted(fetch)
    box.leader.peer.send(b"\0\0\x10\0" + request.correlation_id.to_bytes(4, "big") + b"half of it")
    box.until(lambda: not box.arena_is_free())
    box.leader.peer.hang_up()
    box.until(box.arena_is_free)
    serve_until(box, 0, 3)
    assert box.leader.sessions_begun == 2


def test_a_leader_box_that_is_away_is_found_again_where_it_is_then(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append()
    serve_until(box, 0, 1)
    box.leader.peer.die()
    box.until(lambda: "cannot fetch from broker 2" in box.said)
    box.leader.peer = ScriptedPeer(box.turn)
    box.leader_moves(box.leader.peer.address, 6)
    led.append()
    serve_until(box, 0, 2)
    box.until(lambda: "fetches from broker 2" in box.said)


def test_a_leader_without_a_registration_is_waited_for(box: SteppedFollower) -> None:
    known, box.leader_box = box.leader_box, None
    led = box.follow(0)
    led.append()
    box.turns(50)
    assert not box.counted("fetches")
    box.leader_box = known
    box.publish()
    serve_until(box, 0, 1)


def test_a_new_registration_of_this_box_begins_a_new_session_that_names_it(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append()
    serve_until(box, 0, 1)
    box.own_epoch = 88
    box.publish()
    box.turns(3)
    box.leader.peer.hang_up()
    fetch = box.leader.serve()
    assert (fetch.replica_epoch, fetch.session_epoch) == (88, 0) and len(fetch.partitions) == 1


def test_nothing_is_fetched_while_row_and_image_differ(box: SteppedFollower) -> None:
    box.follow(0)
    box.leader.serve()
    box.turns(5)
    box.leader.peer.poll_request()
    box.epochs[0] = 4
    box.publish()  # the row is still of epoch 0
    box.turns(20)
    assert box.agent.status_line() == "follows 0 partitions of 0 boxes"
    box.become_follower(0, 4)
    box.turns(20)
    assert box.agent.status_line() == "follows 1 partitions of 1 boxes"
    box.publish(leaders=[BROKER_ID])
    box.turns(20)
    assert box.agent.status_line() == "follows 0 partitions of 0 boxes"


def test_after_a_kill_at_any_moment_the_next_incarnation_continues(box: SteppedFollower) -> None:
    led = box.follow(0)
    for moment in range(12):
        led.append(2)
        box.turns(moment)
        request = box.leader.peer.poll_request() if box.leader.peer.sock is not None else None
        if request is not None and moment % 2:
            box.leader.requests.clear()
        box.kill_and_start()
    serve_until(box, 0, 24)
    assert box.content(0) == led.content()


def test_a_log_writer_that_dies_costs_nothing(box: SteppedFollower, tmp_path: Path) -> None:
    led = box.follow(0)
    led.append(2)
    serve_until(box, 0, 2)
    box.restart_log_writer()
    led.append(2)
    serve_until(box, 0, 4)
    assert box.content(0) == led.content()
    box.until(box.arena_is_free)


def _parked(box: SteppedFollower) -> PeerRequest:
    """A fetch of a session that knows partition 0; the leader keeps it."""
    box.follow(0)
    box.leader.serve()
    request, fetch = box.leader.next_fetch()
    assert fetch.max_wait_ms == 500 and fetch.session_epoch == 1
    box.leader.wanted(fetch)
    return request


def test_a_new_partition_does_not_wait_for_a_fetch_that_is_parked(box: SteppedFollower) -> None:
    parked = _parked(box)
    led = box.follow(1)
    led.append()
    second, fetch = box.leader.next_fetch()
    assert [wanted.partition for wanted in fetch.partitions] == [1] and fetch.session_epoch == 2
    assert box.counted("hastened") == 1
    box.leader.answer(parked, [])
    box.leader.answer(second, [box.leader.logs[wanted.topic_id, wanted.partition].answer(wanted) for wanted in box.leader.wanted(fetch)])
    box.until(lambda: box.log_end_offset(1) == 1)
    serve_until(box, 1, 1)
    assert (box.leader.sessions_begun, box.leader.peer.accepted) == (1, 1), "neither session nor connection was given up"


def test_partitions_that_come_together_hasten_one_fetch_and_none_is_sent_behind_two(box: SteppedFollower) -> None:
    parked = _parked(box)
    box.follow(1)
    box.follow(2)
    second, fetch = box.leader.next_fetch()
    assert sorted(wanted.partition for wanted in fetch.partitions) == [1, 2]
    box.leader.wanted(fetch)
    box.follow(3)
    box.turns(100)
    assert box.leader.peer.poll_request() is None
    box.leader.answer(parked, [])
    box.leader.wanted(third := box.leader.next_fetch()[1])
    assert [wanted.partition for wanted in third.partitions] == [3]
    box.leader.answer(second, [])


def test_both_answers_may_bring_the_same_records_once(box: SteppedFollower) -> None:
    """The leader had answered the first fetch already when the second came: its session still stands where the first had it."""
    parked = _parked(box)
    led = box.leader.logs[TOPIC_ID, 0]
    led.append(3)
    other = box.follow(1)
    other.append(5)
    second, fetch = box.leader.next_fetch()
    wanted = box.leader.wanted(fetch)
    answers = [box.leader.logs[each.topic_id, each.partition].answer(each) for each in wanted]
    box.leader.peer.send(box.leader.packed(parked, answers[:1]) + box.leader.packed(second, answers[::-1]))
    box.until(lambda: (box.log_end_offset(0), box.log_end_offset(1)) == (3, 5))
    box.turns(20)
    assert (box.content(0), box.content(1)) == (led.content(), other.content()) and box.counted("corrupt_batches") == 0
    box.until(box.arena_is_free)
    led.append()
    serve_until(box, 0, 4)


def test_a_partition_that_the_second_fetch_restarts_ignores_the_answer_to_the_first(box: SteppedFollower) -> None:
    """The partition has another epoch by then: records for the old one are not appended, nor taken for damaged."""
    parked = _parked(box)
    old = box.leader.logs[TOPIC_ID, 0]
    old.append(2)
    stale = old.answer(FetchPartition("", TOPIC_ID, 0, 0, 0, -1, 0, 1 << 20))
    box.follow(0, leader_epoch=3, log=(led := LedLog(3)))
    led.append(1)
    box.follow(1)
    second, fetch = box.leader.next_fetch()
    assert sorted(wanted.partition for wanted in fetch.partitions) == [0, 1]
    wanted = box.leader.wanted(fetch)
    box.leader.answer(parked, [stale])
    box.turns(20)
    assert box.log_end_offset(0) == 0 and box.counted("corrupt_batches") == 0
    box.leader.answer(second, [box.leader.logs[each.topic_id, each.partition].answer(each) for each in wanted])
    box.until(lambda: box.log_end_offset(0) == 1)
    assert box.content(0) == led.content()


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_session_that_ends_under_two_fetches_is_begun_anew_over_another_connection(box: SteppedFollower, error: ErrorCode) -> None:
    parked = _parked(box)
    led = box.follow(1)
    led.append()
    box.leader.wanted(box.leader.next_fetch()[1])
    box.leader.answer(parked, [], error)
    since_ns = box.clock.monotonic_ns()
    box.until(lambda: box.leader.peer.poll_request() is None and box.leader.peer.sock is None)
    assert box.clock.monotonic_ns() - since_ns < 1_000_000_000
    serve_until(box, 1, 1)
    assert (box.leader.sessions_begun, box.leader.peer.accepted) == (2, 2)


def test_of_two_answers_the_second_means_nothing_where_the_first_ends_the_session(box: SteppedFollower) -> None:
    """The leader refuses the first and takes the second, and both come at once."""
    parked = _parked(box)
    led = box.follow(1)
    led.append()
    second, fetch = box.leader.next_fetch()
    answers = [box.leader.logs[each.topic_id, each.partition].answer(each) for each in box.leader.wanted(fetch)]
    box.leader.peer.send(box.leader.packed(parked, [], ErrorCode.CLUSTER_AUTHORIZATION_FAILED) + box.leader.packed(second, answers))
    box.until(lambda: box.counted("errors") == 1)
    box.leader.peer.hang_up()
    fetch = box.leader.serve()
    assert (fetch.session_id, fetch.session_epoch) == (0, 0) and sorted(each.partition for each in fetch.partitions) == [0, 1]
    serve_until(box, 1, 1)


def test_a_leader_that_refuses_both_of_two_fetches_is_asked_again_without_a_pause(box: SteppedFollower) -> None:
    parked = _parked(box)
    box.follow(1)
    second, _ = box.leader.next_fetch()
    error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    box.leader.peer.send(box.leader.packed(parked, [], error) + box.leader.packed(second, [], error))
    box.until(lambda: box.counted("errors") == 1)
    box.turns(5)
    assert box.counted("errors") == 1, "it is one refusal"
    box.leader.peer.hang_up()
    fetch = box.leader.serve()
    assert fetch.session_epoch == 0 and len(fetch.partitions) == 2 and box.leader.peer.accepted == 2


def test_a_leader_that_breaks_the_protocol_under_two_fetches_is_left_alone_for_a_moment(box: SteppedFollower) -> None:
    parked = _parked(box)
    box.follow(1)
    box.leader.next_fetch()
    box.leader.peer.answer(parked, b"\0\0\0\0\0\0\0\0\0\7\xff\xff")
    box.until(lambda: "breaks the protocol" in box.said)


def test_without_a_session_a_new_partition_waits_a_short_while(box: SteppedFollower) -> None:
    box.leader.gives_sessions = False
    box.follow(0)
    box.leader.serve()
    request, fetch = box.leader.next_fetch()
    assert fetch.max_wait_ms == 50
    box.follow(1)
    box.turns(100)
    assert box.leader.peer.poll_request() is None and box.counted("hastened") == 0
    box.leader.wanted(fetch)
    box.leader.answer(request, [])
    assert {wanted.partition for wanted in box.leader.next_fetch()[1].partitions} == {0, 1}


def test_an_answer_waits_at_the_leader_while_the_arena_is_full(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append()
    serve_until(box, 0, 1)
    following = box.agent.following
    assert following is not None
    arena = following.source.arena
    slots = [arena.allocate(1 << 20) for _ in range(4)]
    led.append()
    request, fetch = box.leader.next_fetch()
    box.leader.answer(request, [led.answer(wanted) for wanted in box.leader.wanted(fetch)])
    box.turns(50)
    assert box.log_end_offset(0) == 1 and arena.slots_in_use() == 4
    for slot in slots:
        arena.free(slot)
    box.until(lambda: box.log_end_offset(0) == 2)
    box.until(box.arena_is_free)


def test_nothing_is_fetched_for_a_disk_that_takes_long_until_it_has_done(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append()
    box.turns(10)
    request, fetch = box.leader.next_fetch()
    box.writer_is_held = True
    box.leader.answer(request, [led.answer(wanted) for wanted in box.leader.wanted(fetch)])
    box.until(lambda: not box.arena_is_free())
    box.turns(200)
    assert box.counted("fetches") == 1 and not box.arena_is_free()
    assert box.leader.peer.poll_request() is None
    box.writer_is_held = False
    fetch = box.leader.serve()
    assert [wanted.fetch_offset for wanted in fetch.partitions] == [1]


def test_a_slow_append_costs_its_own_partition_its_place_in_the_session_and_no_other(box: SteppedFollower) -> None:
    box.follow(0)
    box.follow(1)
    while len(box.leader.session) < 2:
        box.leader.serve()
        box.turns(5)
    box.leader.logs[TOPIC_ID, 0].append()
    request, fetch = box.leader.next_fetch()
    box.writer_is_held = True
    box.leader.answer(request, [box.leader.logs[TOPIC_ID, 0].answer(wanted) for wanted in box.leader.wanted(fetch) if wanted.partition == 0])
    parked, fetch = box.leader.next_fetch()
    assert not fetch.partitions and [gone.partition for gone in fetch.forgotten] == [0]
    box.leader.wanted(fetch)
    box.writer_is_held = False
    second, fetch = box.leader.next_fetch()
    assert [(wanted.partition, wanted.fetch_offset) for wanted in fetch.partitions] == [(0, 1)] and not fetch.forgotten
    box.leader.answer(parked, [])
    box.leader.answer(second, [])


def test_a_log_that_could_not_be_written_is_tried_again_after_a_while(box: SteppedFollower) -> None:
    led = box.follow(0)
    led.append()
    trouble = box.writer.agent.trouble
    trouble.is_full = True
    box.leader.serve()
    box.until(lambda: box.counted("errors") == 1)
    assert 'replica_fetcher.errors{error="KAFKA_STORAGE_ERROR"}' in box.counted_by_label()
    box.until(lambda: box.counted("stalled_partitions") == 1)
    trouble.is_full = False
    serve_until(box, 0, 1)


def test_a_leader_of_nothing_is_left_alone(box: SteppedFollower) -> None:
    box.follow(0)
    box.leader.serve()
    box.turns(3)
    box.publish(leaders=[BROKER_ID])
    box.until(lambda: box.leader.peer.poll_request() is None and box.leader.peer.sock is None)
    assert box.agent.status_line() == "follows 0 partitions of 0 boxes", "its session ended with the connection"


def test_a_box_that_is_alone_has_no_arena_and_no_rings(tmp_path: Path) -> None:
    with scratch_layout() as layout:
        box = SteppedFollower(layout, tmp_path / "d0")
        box.leader_box = None
        box.publish()
        box.turns(5)
        assert box.notifier.said == ["ready"] and box.agent.status_line() == "no other box"
        assert not [name for name in purposes_left(layout) if "replica-fetcher" in name and not name.startswith("counters")]
        assert box.agent.park_ms() == 100 and box.agent.may_park(), "it has to connect to the controller"
        with listen_unix(layout.controller_socket):
            box.clock.advance_ms(100)
            box.turns(1)
            assert box.agent.park_ms() == 250, "the controller reports what changes"
        box.close()
