"""Sessions of share groups on a log in memory: acknowledgements that the log refuses, locks that end, a coordinator that dies."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.protocol import share_apis as apis
from appliance.protocol import share_state_apis as apis_of_states
from services.coordinator.share.share_leaders import ShareEvent
from services.coordinator.share.share_partition import ACCEPT, RELEASE, RENEW, ShareLimits
from services.coordinator.share.share_persister import TIMEOUT_MS
from services.coordinator.share.share_sessions import LEAVE_MS, ReadBatch, ShareAsker, SharedRead
from tests.support.group_world import Replies
from tests.support.share_world import LOCK_MS, TOPIC, World, acquired, code_of


def test_a_record_is_acknowledged_when_the_log_has_it() -> None:
    world = World()
    world.join()
    assert acquired(world.fetch(0)) == [(0, 5, 1)]
    replies = world.acknowledge(1, (0, 5, (ACCEPT,)))
    assert not replies
    world.settle()
    assert code_of(replies) == ErrorCode.NONE
    assert acquired(world.fetch(2)) == []


def test_an_acknowledgement_that_the_log_refuses_leaves_the_records_to_the_member() -> None:
    world = World(lock_ms=60_000)
    world.join()
    world.fetch(0)
    refused = world.acknowledge(1, (0, 5, (ACCEPT,)))
    for _ in range(TIMEOUT_MS // 50):
        assert not refused, "an error that passes"
        world.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        world.wait(50)
    assert code_of(refused) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = world.acknowledge(2, (0, 5, (ACCEPT,)))
    world.settle()
    assert code_of(again) == ErrorCode.NONE


def test_a_lock_ends_unless_it_is_renewed_and_after_the_last_delivery_no_member_gets_the_record() -> None:
    world = World()
    world.join("a"), world.join("b")
    assert acquired(world.fetch(0, member_id="a", max_records=2)) == [(0, 1, 1)]
    world.wait(LOCK_MS - 1)
    assert code_of(world.acknowledge(1, (0, 0, (RENEW,)), member_id="a", renews=True)) == ErrorCode.NONE
    assert code_of(world.acknowledge(2, (0, 0, (RENEW,)), member_id="a")) == ErrorCode.INVALID_REQUEST
    world.wait(1)
    assert acquired(world.fetch(0, member_id="b", max_records=1)) == [(1, 1, 2)]
    assert code_of(world.acknowledge(1, (0, 0, (ACCEPT,)), member_id="b")) == ErrorCode.INVALID_RECORD_STATE
    world.wait(LOCK_MS)  # both locks are over; the record 1 was delivered as often as the limit says
    world.settle()
    assert acquired(world.fetch(2, member_id="b", max_records=1)) == [(0, 0, 2)]
    assert world.events == {ShareEvent.ACQUIRED: 4, ShareEvent.AGAIN: 2, ShareEvent.EXPIRED: 3, ShareEvent.REFUSED: 2}


def test_the_next_incarnation_delivers_what_was_not_acknowledged() -> None:
    world = World()
    world.join()
    world.fetch(0)
    world.acknowledge(1, (1, 2, (ACCEPT,)), (4, 4, (RELEASE,)))
    world.settle()
    after = World(world)
    assert after.heartbeat(member_epoch=1).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert after.fetch(1).error == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert acquired(after.fetch(0)) == [(0, 0, 2), (3, 5, 2)]


def test_the_end_of_a_session_releases_its_records_and_so_does_the_end_of_its_member() -> None:
    world = World(limit=5)
    world.join("a"), world.join("b")
    world.fetch(0, member_id="a")
    world.fetch(-1, member_id="a")
    assert acquired(world.fetch(0, member_id="b")) == [(0, 5, 2)]
    world.heartbeat("b", member_epoch=-1)
    world.wait(LEAVE_MS)
    assert acquired(world.fetch(0, member_id="a")) == [(0, 5, 3)]


def test_a_member_that_has_left_acknowledges_what_it_has_in_hand() -> None:
    """librdkafka sends the heartbeat that leaves and the last acknowledgements at once, by two connections."""
    world = World()
    world.join()
    assert acquired(world.fetch(0))
    world.heartbeat(member_epoch=-1)
    answer = world.acknowledge(-1, (0, 5, (1,)))
    world.settle()
    assert answer.only.topics[0].partitions[0].error_code == ErrorCode.NONE
    world.join("n")
    world.high_watermark = 8
    assert acquired(world.fetch(0, member_id="n")) == [(6, 7, 1)]


def test_what_a_member_that_has_left_does_not_acknowledge_is_for_others_after_a_moment() -> None:
    world = World()
    world.join()
    assert acquired(world.fetch(0))
    parked = world.fetch(1, max_wait_ms=60_000)
    world.heartbeat(member_epoch=-1)
    world.high_watermark = 8
    world.wait(1)
    assert not acquired(parked), "nothing is acquired for it any more"
    world.join("n")
    world.wait(LEAVE_MS)
    assert acquired(world.fetch(0, member_id="n")) == [(0, 5, 2), (6, 7, 1)]
    assert world.acknowledge(-1, (0, 5, (1,))).only.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_sessions_are_numbered_and_bounded() -> None:
    world = World(sessions_max=1)
    world.join()
    assert world.acknowledge(0).error == ErrorCode.SHARE_SESSION_NOT_FOUND
    world.fetch(0)
    assert world.fetch(2).error == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert world.fetch(0, member_id="another").error == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert world.fetch(0, group_id=None).error == ErrorCode.INVALID_REQUEST


def test_a_fetch_without_records_waits_for_them() -> None:
    world = World()
    world.join()
    world.high_watermark = 0
    replies = world.fetch(0, max_wait_ms=500)
    world.wait(100)
    assert not replies
    world.high_watermark = 2
    world.wait(100)
    assert acquired(replies) == [(0, 1, 1)] and replies.only.topics[0].partitions[0].records == bytes((0, 1))
    due = world.fetch(1, max_wait_ms=500)
    world.wait(500)
    assert acquired(due) == []


def test_a_fetch_that_could_not_be_read_is_tried_again() -> None:
    world = World()
    world.join()
    world.can_read = False
    replies = world.fetch(0, max_wait_ms=500)
    world.can_read = True
    world.wait(99)
    assert not replies
    world.wait(1)
    assert acquired(replies) == [(0, 5, 1)]


def test_without_a_lease_the_share_coordinator_confirms_the_leader_before_each_delivery() -> None:
    world = World()
    world.join()
    world.has_lease = False
    assert acquired(world.fetch(0, max_records=1)) == [(0, 1, 1)]
    later = apis_of_states.ReadShareGroupStateRequest("workers", (apis_of_states.TopicReadStates(TOPIC, (apis_of_states.ReadState(0, 9),)),))
    world.states.read(later, lambda _response: None)  # another box leads, and this one has not heard of it
    world.settle()
    parked = world.fetch(1, max_wait_ms=500)
    world.wait(100)
    assert code_of(parked) == ErrorCode.NOT_LEADER_OR_FOLLOWER and acquired(parked) == []


def test_a_leader_in_another_epoch_delivers_what_was_not_acknowledged() -> None:
    world = World(lock_ms=60_000)
    world.join()
    assert acquired(world.fetch(0)) == [(0, 5, 1)]
    world.acknowledge(1, (0, 1, (ACCEPT,)))
    world.settle()
    world.problem = ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.leaders.refresh(), world.leaders.work()
    assert world.leaders.find("workers", (TOPIC, 0)) is not None, "its log-writer restarts"
    world.problem = ErrorCode.NONE
    world.leader_epoch += 1
    world.leaders.refresh(), world.leaders.work()
    refused = world.acknowledge(2, (2, 3, (ACCEPT,)))
    assert code_of(refused) == ErrorCode.INVALID_RECORD_STATE
    assert acquired(world.fetch(3)) == [(2, 5, 2)]


def test_a_group_with_read_committed_gets_nothing_beyond_the_last_stable_offset() -> None:
    world = World()
    world.last_stable_offset = 2
    world.join()
    assert acquired(world.fetch(0)) == [(0, 1, 1)]
    parked = world.fetch(1, max_wait_ms=500)
    world.wait(1)
    assert not parked
    world.last_stable_offset = 6
    world.wait(1)
    assert acquired(parked) == [(2, 5, 1)]


def test_a_groups_limits_hold_for_what_is_delivered_from_then_on() -> None:
    world = World(lock_ms=60_000)
    world.join()
    world.of_group = ShareLimits(2, 500, 100)
    assert acquired(world.fetch(0, max_records=2)) == [(0, 1, 1)]
    world.wait(500)
    world.settle()
    answer = world.fetch(1)
    assert acquired(answer) == [(0, 1, 2), (2, 5, 1)] and answer.only.acquisition_lock_timeout_ms == 500


def test_a_session_has_partitions_of_its_group_only_and_a_request_each_of_them_once() -> None:
    world = World()
    world.join()
    assert code_of(world.fetch(0, partition=7)) == code_of(world.fetch(0, group_id="others")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    part = apis.SharePartitionRequest(0, (apis.AcknowledgementBatch(0, 0, (ACCEPT,)),))
    twice = world.fetch(1, topics=(apis.ShareTopicRequest(TOPIC, (part, part)),))
    assert twice.only.topics[0].partitions[0].acknowledge_error_code == ErrorCode.INVALID_REQUEST
    assert acquired(twice) == [(0, 5, 1)]


def test_a_hole_that_is_longer_than_the_window_is_passed() -> None:
    world = World()
    world.join()
    far = SharedRead(b"ab", [ReadBatch(1_000_000, 1_000_001, 0, 2, False)], 1_000_002)
    world.read = lambda _wanted, on_read: on_read(far) or True  # type: ignore[method-assign]
    assert acquired(world.fetch(0)) == [(1_000_000, 1_000_001, 1)]


def test_records_that_a_member_may_not_read_are_not_acquired_for_it() -> None:
    world = World()
    world.join()
    replies: Replies[Any] = Replies()
    topics = (apis.ShareTopicRequest(TOPIC, (apis.SharePartitionRequest(0),)),)
    world.sessions.fetch(
        apis.ShareFetchRequest("workers", "m", 0, max_records=100, topics=topics), 2, world.now_ms, replies, ShareAsker(lambda _topic_id: False)
    )
    assert (acquired(replies), code_of(replies)) == ([], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert acquired(world.fetch(1)) == [(0, 5, 1)]


def test_nothing_is_acquired_for_a_client_whose_acceptor_has_died() -> None:
    world = World()
    world.join()
    world.high_watermark = 0
    topics = (apis.ShareTopicRequest(TOPIC, (apis.SharePartitionRequest(0),)),)
    orphan: Replies[Any] = Replies()
    is_open = [True]
    request = apis.ShareFetchRequest("workers", "m", 0, max_wait_ms=5_000, max_records=100, topics=topics)
    world.sessions.fetch(request, 2, world.now_ms, orphan, ShareAsker(is_connected=lambda: is_open[0]))
    is_open[0] = False
    world.high_watermark = 6
    world.wait(1)
    assert acquired(orphan) == []
    assert acquired(world.fetch(0)) == [(0, 5, 1)]


def test_windows_are_bounded_together_and_what_is_in_them_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.join()
    monkeypatch.setattr("services.coordinator.share.share_leaders.WINDOW_RUNS_MAX", 6)
    assert acquired(world.fetch(0)) == [(0, 5, 1)]
    waits = world.fetch(1, (0, 0, (RELEASE,)), partition=0, max_wait_ms=500)
    other = world.fetch(2, partition=1, max_wait_ms=500)
    world.settle()
    assert acquired(waits) == [(0, 0, 2)] and not other  # the other window may not grow
    world.acknowledge(3, (0, 5, (ACCEPT,)))
    world.settle()
    world.wait(1)
    assert acquired(other) == [(0, 5, 1)]


def test_what_a_dead_member_had_in_hand_is_not_missing_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(limit=5)
    world.join("m"), world.join("n")
    monkeypatch.setattr("services.coordinator.share.share_leaders.WINDOW_RUNS_MAX", 6)
    assert acquired(world.fetch(0)) == [(0, 5, 1)]
    assert acquired(world.fetch(0, member_id="n", partition=1)) == []
    world.wait(LOCK_MS)
    world.settle()
    assert acquired(world.fetch(1, member_id="n", partition=1)) == [(0, 5, 1)]
