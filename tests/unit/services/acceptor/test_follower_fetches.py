"""A leader's side of replication: what followers receive, which fetchers are accepted, what is
reported to the log-writer, and where logs diverge.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.broker_configs import LEADER_RATE
from appliance.cluster.replication_throttle import LEADER_REPLICAS
from appliance.ipc.descriptors import Progress
from appliance.ipc.log_reader_messages import CHECK, EPOCH_END, LOOKUP
from appliance.protocol.fetch import EpochEndOffset
from appliance.protocol.framing import RequestHeader
from appliance.protocol.leader_hints import CurrentLeader
from appliance.protocol.replica_fetch import decode_replica_fetch_response
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE, ROLE_OFFLINE
from tests.support.leader_side import END, Make, ask, make_sides
from tests.support.stepped_fetches import BOX_ADDRESS, BROKER_EPOCH, FOLLOWER_VERSION, STRANGER, TOPIC, Asked, Followed


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from make_sides(tmp_path)


# -- how far


def test_a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark(make: Make) -> None:
    side = make()
    told = ask(side)
    assert (told.error_code, told.records_size, told.high_watermark) == (0, END // 10 * side.batch_bytes, 20)
    client = side.fetch(side.connect(), [Asked(0)])
    side.serve()
    assert side.fetched(client)[1][0].size_bytes == 2 * side.batch_bytes
    assert {question.value_b for question in side.questions_seen if question.kind == LOOKUP} <= {END, 20}


def test_a_consumer_between_high_watermark_and_log_end_waits_and_is_not_sent_away(make: Make) -> None:
    side = make()
    client = side.fetch(side.connect(), [Asked(0, 30)])
    assert side.fetched(client)[1][0][1:3] == (0, 0)


def test_what_followers_are_sent_is_not_counted_as_sent_to_consumers(make: Make) -> None:
    side = make()
    ask(side)
    counted = {label: side.counters.counter(label).value for label in side.counters.labels() if "bytes" in label}
    assert counted["fetch.follower_bytes"] == counted["fetch.range_bytes"] == END // 10 * side.batch_bytes
    assert not [label for label in counted if label.startswith("fetch.topic_bytes")]


def test_a_follower_that_was_sent_damage_has_the_place_looked_at(make: Make) -> None:
    side = make()
    ask(side, Followed(0, 30, damaged_offset=30))
    ask(side, Followed(0, 30))
    assert [(each.topic, each.partition, each.value_a) for each in side.questions_seen if each.kind == CHECK] == [(TOPIC, 0, 30)]
    assert side.counters.counter("fetch.follower_damages").value == 1
    ask(side, Followed(0, 30, damaged_offset=30), replica_id=-1)
    assert side.counters.counter("fetch.follower_damages").value == 1, "of a consumer nothing of the kind is believed"


def test_the_high_watermark_may_lie_in_an_older_segment_than_the_log_end(make: Make) -> None:
    side = make()
    side.change_row(0, active_base_offset=40, active_position=side.batch_bytes, log_end_offset=50)
    side.remember(0, 0)
    client = side.fetch(side.connect(), [Asked(0)])
    side.serve()
    assert side.fetched(client)[1][0].size_bytes == 2 * side.batch_bytes
    # To a follower the older segment is sealed: it goes to the end of its file.
    told = ask(side)
    assert told.records_size == side.size_bytes


def test_a_fetch_at_the_end_of_the_readable_log_needs_no_look_up(make: Make) -> None:
    side = make()
    ask(side)
    seen = len(side.questions_seen)
    ask(side, Followed(0, END))
    assert side.placements[TOPIC, 0].cursors[END][1] == side.size_bytes
    assert len(side.questions_seen) == seen


def test_a_follower_receives_no_aborted_transactions(make: Make) -> None:
    side = make()
    side.aborted = [(1, 0, 9)]
    side.writer.store_aborted_end(0, 10)
    ask(side)
    assert not [question for question in side.questions_seen if question.kind not in (LOOKUP, 1)]


# -- how fast


def test_a_throttled_follower_waits_for_as_long_as_the_rate_wants_for_what_it_got_and_one_in_sync_does_not(make: Make) -> None:
    side = make()
    rate = END // 10 * side.batch_bytes  # all that there is, in a second
    throttled = {"config": {LEADER_REPLICAS: "0:1"}, "box_config": {LEADER_RATE: str(rate)}}
    side.assign((1, 2, 3), (1, 3), **throttled)  # type: ignore[arg-type]
    side.fetches.on_view_changed()
    assert ask(side).records_size == rate
    client = side.follow(side.connect(), [Followed(0)], max_wait_ms=5_000)
    side.serve()
    assert side.answers(client) == 0 and ask(side, replica_id=3).records_size == rate
    side.clock.advance_ms(990)
    side.delayed.expire(side.clock.monotonic_ns())
    assert side.answers(client) == 0
    side.clock.advance_ms(20)
    side.delayed.expire(side.clock.monotonic_ns())
    side.serve()
    assert [told.records_size for told in side.followed(client)[1]] == [rate]
    assert ask(side).records_size == 0


# -- which fetchers are accepted


@pytest.mark.parametrize(("leader_epoch", "code"), [(0, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_a_box_to_which_the_partition_is_not_assigned_gets_nothing(make: Make, leader_epoch: int, code: ErrorCode) -> None:
    side = make()
    told = ask(side, Followed(0, 0, leader_epoch), replica_id=3)
    assert (told.error_code, told.records_size, side.progress()) == (code, 0, [])


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_a_follower_that_is_no_box_or_has_another_broker_epoch_gets_nothing(make: Make, session: tuple[int, int]) -> None:
    side = make()
    for address, broker_epoch, code in (
        (STRANGER, BROKER_EPOCH, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (BOX_ADDRESS, BROKER_EPOCH + 1, ErrorCode.STALE_BROKER_EPOCH),
        (BOX_ADDRESS, BROKER_EPOCH - 1, ErrorCode.STALE_BROKER_EPOCH),
    ):
        side.register({2: broker_epoch})
        data = side.response(side.follow(side.connect(address), [Followed(0)], session))
        told = decode_replica_fetch_response(data, 9, len(data), FOLLOWER_VERSION)
        assert (told.error_code, told.session_id) == (code, 0)
        assert [(part.partition, part.error_code, part.records_size) for part in told.partitions] == [(0, code, 0)]
    assert side.progress() == [] and side.questions_seen == []
    side.register({2: BROKER_EPOCH})
    assert ask(side).records_size > 0
    assert [progress.broker_epoch for progress in side.progress()] == [BROKER_EPOCH]


@pytest.mark.parametrize("version", [0, 3, 4, 7, 11])
@pytest.mark.parametrize(("address", "replica_id", "code"), [(STRANGER, 2, 31), (STRANGER, -2, 31), (BOX_ADDRESS, 2, 77)])
def test_older_versions_refuse_a_follower_in_each_partition(make: Make, version: int, address: str, replica_id: int, code: int) -> None:
    side = make()
    body = _old_fetch(version, replica_id)
    connection = side.connect(address)
    side.fetches.handle(connection, RequestHeader(1, version, 7, "", 0), memoryview(body), len(body))
    assert struct.pack(">ih", 0, code) in side.response(connection) and side.progress() == []


@pytest.mark.parametrize(
    ("role", "leader_epoch", "code"),
    [
        (ROLE_LEADER, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (ROLE_LEADER, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (ROLE_FOLLOWER, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (ROLE_FOLLOWER, 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ROLE_FOLLOWER, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (ROLE_FOLLOWER, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ROLE_NONE, 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ROLE_OFFLINE, 4, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_follower_of_another_epoch_or_at_the_wrong_box_receives_kafkas_error(make: Make, role: int, leader_epoch: int, code: ErrorCode) -> None:
    side = make()
    side.change_row(0, role=role, leader_epoch=5)
    told = ask(side, Followed(0, 0, leader_epoch, 5))
    assert (told.error_code, side.progress()) == (code, [])


def test_a_fetch_from_the_wrong_box_receives_the_leader_and_its_address(make: Make) -> None:
    side = make()
    side.assign((1, 2), leader=2)
    side.change_row(0, role=ROLE_FOLLOWER)
    client = side.follow(side.connect(), [Followed(0)])
    data = side.response(client)
    assert b"box2" in data and b"box1" not in data
    told = ask(side)
    assert (told.error_code, told.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, CurrentLeader(2, 0))


def _old_fetch(version: int, replica_id: int) -> bytes:
    """One partition, without a session and without a rack."""
    head = struct.pack(">iii", replica_id, 0, 1) + (struct.pack(">i", 1 << 20) if version >= 3 else b"")
    head += (b"\0" if version >= 4 else b"") + (struct.pack(">ii", 0, -1) if version >= 7 else b"")
    wanted = struct.pack(">i", 0) + (struct.pack(">i", -1) if version >= 9 else b"") + struct.pack(">q", 0)
    wanted += (struct.pack(">q", -1) if version >= 5 else b"") + struct.pack(">i", 1 << 20)
    topics = struct.pack(">ih", 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", 1) + wanted
    return head + topics + (struct.pack(">i", 0) if version >= 7 else b"") + (struct.pack(">h", 0) if version >= 11 else b"")


# -- progress


def test_each_partition_of_a_followers_fetch_is_reported_once_to_the_log_writer(make: Make) -> None:
    side = make(2)
    client = side.follow(side.connect(), [Followed(0, END), Followed(1, 40)])
    received_ns = client.last_active_ns
    side.serve()
    assert side.progress() == [Progress(2, END, received_ns, BROKER_EPOCH, 0), Progress(2, 40, received_ns, BROKER_EPOCH, 0)]
    side.fetch(side.connect(), [Asked(0), Asked(1)])
    side.serve()
    assert side.progress() == []


def test_evaluating_a_parked_fetch_again_reports_nothing_twice(make: Make) -> None:
    side = make()
    client = side.follow(side.connect(), [Followed(0, END)], max_wait_ms=500)
    assert len(side.progress()) == 1 and side.answers(client) == 0
    side.change_row(0, high_watermark=30, watermark_position=3 * side.batch_bytes)
    side.delayed.wake_moved()
    assert side.progress() == [] and side.answers(client) == 0


# -- divergence


def test_a_follower_with_a_longer_log_receives_the_diverging_epoch_and_does_not_count(make: Make) -> None:
    side = make()
    side.change_row(0, leader_epoch=5)
    side.epoch_ends = {4: (4, 30)}
    told = ask(side, Followed(0, 70, 5, 4))
    assert (told.error_code, told.diverging_epoch, told.records_size) == (0, EpochEndOffset(4, 30), 0)
    assert side.progress() == []
    told = ask(side, Followed(0, 30, 5, 4))
    assert told.diverging_epoch is None and told.records_size == 2 * side.batch_bytes
    assert [each.fetch_offset for each in side.progress()] == [30]
    assert len([question for question in side.questions_seen if question.kind == EPOCH_END]) == 1, "the end of an older epoch does not change under a leader"


def test_under_the_same_epoch_the_log_end_is_where_a_longer_log_parts(make: Make) -> None:
    side = make()
    told = ask(side, Followed(0, END + 1))
    assert (told.error_code, told.diverging_epoch) == (0, EpochEndOffset(0, END))


def test_what_is_remembered_of_older_epochs_ends_with_the_leader_epoch(make: Make) -> None:
    side = make()
    side.change_row(0, leader_epoch=5)
    side.epoch_ends = {4: (4, 30)}
    ask(side, Followed(0, 30, 5, 4))
    side.change_row(0, leader_epoch=6)
    side.epoch_ends = {4: (4, 20)}
    assert ask(side, Followed(0, 30, 6, 4)).diverging_epoch == EpochEndOffset(4, 20)


def test_an_error_of_the_log_reader_is_not_an_offset_out_of_range(make: Make) -> None:
    side = make()
    side.change_row(0, leader_epoch=5)
    side.epoch_error = int(ErrorCode.KAFKA_STORAGE_ERROR)
    assert ask(side, Followed(0, 30, 5, 4)).error_code == ErrorCode.KAFKA_STORAGE_ERROR, "the follower must not cut its log by the leader's end"


@pytest.mark.parametrize(("offset", "last_fetched_epoch"), [(END + 1, -1), (3, -1), (3, 0), (0, 1)])
def test_an_offset_outside_the_log_or_an_epoch_from_the_future_is_out_of_range(make: Make, offset: int, last_fetched_epoch: int) -> None:
    side = make()
    side.change_row(0, log_start_offset=5)
    told = ask(side, Followed(0, offset, 0, last_fetched_epoch))
    assert (told.error_code, side.progress()) == (ErrorCode.OFFSET_OUT_OF_RANGE, [])
