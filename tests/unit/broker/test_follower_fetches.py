"""A leader's side of replication: what followers get, what the log-writer is told of them, and when they are woken; and consumers below the log end."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.broker.cold_reads import ColdRead
from appliance.broker.connection import Connection
from appliance.broker.lease_gate import LeaseGate
from appliance.broker.segment_files import FileRange, SegmentFile, SegmentFiles
from appliance.ipc.log_reader_messages import EPOCH_END, LOOKUP, ReadAnswer
from appliance.ipc.replication_descriptors import Progress
from appliance.metadata.dynamic_broker_configs import LEADER_RATE
from appliance.protocol.fetch import EpochEndOffset
from appliance.protocol.leader_hints import CurrentLeader
from appliance.protocol.list_offsets import REQUEST, RESPONSE, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.request_header import RequestHeader
from appliance.replication.replication_throttle import LEADER_REPLICAS
from appliance.shm.counters import Counters
from appliance.shm.lease import LeaseReader, LeaseWriter
from appliance.shm.mapping import unlink
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE, ROLE_OFFLINE
from tests.support.cold_segments import write_segment
from tests.support.scratch_layout import scratch_layout
from tests.support.stepped_fetches import BROKER_EPOCH, TOPIC, Asked, Followed, SteppedFetches

BATCHES, END = 5, 50
Make = Callable[..., SteppedFetches]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Partitions of 50 records, of which 20 are below the high watermark; boxes 1 (we) and 2 have replicas."""
    made: list[SteppedFetches] = []
    with scratch_layout() as layout:

        def maker(partitions: int = 1, high_watermark: int = 20, **more: Any) -> SteppedFetches:
            path = tmp_path / "segment.log"
            size_bytes = len(write_segment(path, BATCHES, 10, 10))
            side = SteppedFetches(layout, path, size_bytes // BATCHES, partitions, **more)
            made.append(side)
            side.assign((1, 2))
            position = high_watermark // 10 * side.batch_bytes
            for partition in range(partitions):
                side.change_row(
                    partition, high_watermark=high_watermark, last_stable_offset=high_watermark, watermark_position=position, isr_size=2, min_insync_replicas=2
                )
            return side

        yield maker
        for side in made:
            side.close()


def ask(side: SteppedFetches, *wanted: Followed, **more: Any) -> Any:
    """What one partition, the only or the first one, answers to a follower."""
    client = side.follow(side.connect(), wanted or [Followed(0)], **more)
    side.serve()
    return side.followed(client)[1][0]


def appended(side: SteppedFetches, partition: int, high_watermark: int | None = None) -> None:
    """One record more at the log end; the high watermark stays, or is there now."""
    row = side.placements[TOPIC, partition].table.read(partition)
    moved = row._replace(log_end_offset=row.log_end_offset + 1, active_position=row.active_position + 10)
    if high_watermark is not None:
        moved = moved._replace(high_watermark=high_watermark, last_stable_offset=high_watermark, watermark_position=moved.active_position)
    side.writer.store(partition, moved)


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


def test_who_comes_back_to_the_end_of_what_it_may_read_costs_no_question(make: Make) -> None:
    side = make()
    ask(side)
    seen = len(side.questions_seen)
    ask(side, Followed(0, END))
    assert side.placements[TOPIC, 0].cursors[END][1] == side.size_bytes
    assert len(side.questions_seen) == seen


def test_a_follower_is_told_of_no_aborted_transactions(make: Make) -> None:
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


# -- who


@pytest.mark.parametrize(("leader_epoch", "code"), [(0, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_a_box_to_which_the_partition_is_not_assigned_gets_nothing(make: Make, leader_epoch: int, code: ErrorCode) -> None:
    side = make()
    told = ask(side, Followed(0, 0, leader_epoch), replica_id=3)
    assert (told.error_code, told.records_size, side.progress()) == (code, 0, [])


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
def test_a_follower_of_another_epoch_or_at_the_wrong_box_is_told_what_kafka_says(make: Make, role: int, leader_epoch: int, code: ErrorCode) -> None:
    side = make()
    side.change_row(0, role=role, leader_epoch=5)
    told = ask(side, Followed(0, 0, leader_epoch, 5))
    assert (told.error_code, side.progress()) == (code, [])


def test_who_came_to_the_wrong_box_is_told_who_leads_and_where(make: Make) -> None:
    side = make()
    side.assign((1, 2), leader=2)
    side.change_row(0, role=ROLE_FOLLOWER)
    client = side.follow(side.connect(), [Followed(0)])
    data = side.response(client)
    assert b"box2" in data and b"box1" not in data
    told = ask(side)
    assert (told.error_code, told.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, CurrentLeader(2, 0))


# -- progress


def test_the_log_writer_is_told_once_of_each_partition_of_a_followers_fetch(make: Make) -> None:
    side = make(2)
    client = side.follow(side.connect(), [Followed(0, END), Followed(1, 40)])
    received_ns = client.last_active_ns
    side.serve()
    assert side.progress() == [Progress(2, END, received_ns, BROKER_EPOCH, 0), Progress(2, 40, received_ns, BROKER_EPOCH, 0)]
    side.fetch(side.connect(), [Asked(0), Asked(1)])
    side.serve()
    assert side.progress() == []


def test_a_parked_fetch_that_is_looked_at_again_tells_nothing_twice(make: Make) -> None:
    side = make()
    client = side.follow(side.connect(), [Followed(0, END)], max_wait_ms=500)
    assert len(side.progress()) == 1 and side.answers(client) == 0
    side.change_row(0, high_watermark=30, watermark_position=3 * side.batch_bytes)
    side.delayed.wake_moved()
    assert side.progress() == [] and side.answers(client) == 0


# -- divergence


def test_a_follower_with_a_longer_log_is_told_where_it_parts_and_counts_for_nothing(make: Make) -> None:
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


@pytest.mark.parametrize(("offset", "last_fetched_epoch"), [(END + 1, -1), (3, -1), (3, 0), (0, 1)])
def test_an_offset_outside_the_log_or_an_epoch_from_the_future_is_out_of_range(make: Make, offset: int, last_fetched_epoch: int) -> None:
    side = make()
    side.change_row(0, log_start_offset=5)
    told = ask(side, Followed(0, offset, 0, last_fetched_epoch))
    assert (told.error_code, side.progress()) == (ErrorCode.OFFSET_OUT_OF_RANGE, [])


# -- waiting


@pytest.mark.parametrize("partitions", [1, 40])
def test_a_parked_follower_is_woken_by_the_log_end_and_a_parked_consumer_by_the_high_watermark(make: Make, partitions: int) -> None:
    side = make(partitions)
    follower = side.follow(side.connect(), [Followed(each, END) for each in range(partitions)], max_wait_ms=500)
    consumer = side.fetch(side.connect(), [Asked(each, 20) for each in range(partitions)], max_wait_ms=500)
    side.serve()
    appended(side, partitions - 1)
    side.delayed.wake_moved()
    side.serve()
    assert (side.answers(follower), side.answers(consumer)) == (1, 0)
    appended(side, partitions - 1, high_watermark=END + 2)
    side.delayed.wake_moved()
    side.serve()
    assert side.answers(consumer) == 1


def in_session(side: SteppedFetches, client: Connection, *wanted: Followed) -> int:
    side.follow(client, wanted, (0, 0))
    side.serve()
    session_id, _ = side.followed(client)
    assert session_id
    side.progress()
    return session_id


def test_a_session_of_a_follower_sleeps_at_the_log_end_and_wakes_when_it_moves(make: Make) -> None:
    side = make(2)
    side.change_row(1, log_end_offset=40, active_position=4 * side.batch_bytes)
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, 40))
    side.follow(client, [], (session, 1))
    side.serve()
    side.followed(client)
    assert len(side.progress()) == 2, "they were awake"
    side.follow(client, [], (session, 2), max_wait_ms=500)
    assert side.progress() == [] and side.answers(client) == 0
    side.change_row(1, log_end_offset=END, active_position=side.size_bytes)
    side.delayed.wake_moved()
    side.serve()
    _, parts = side.followed(client)
    assert [(part.partition, part.records_size) for part in parts] == [(1, side.batch_bytes)]


def test_a_follower_that_is_not_in_sync_is_heard_with_every_fetch(make: Make) -> None:
    side = make(2)
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, END))
    for epoch in (1, 2):
        side.follow(client, [], (session, epoch))
        side.serve()
        side.followed(client)
    side.progress()
    side.assign((1, 2), isr=(1,))
    side.fetches.on_view_changed()
    for epoch in (3, 4):
        side.follow(client, [], (session, epoch))
        side.serve()
        side.followed(client)
        assert len(side.progress()) == 2
    side.assign((1, 2))
    side.fetches.on_view_changed()
    for epoch, told in ((5, 2), (6, 0)):
        side.follow(client, [], (session, epoch))
        side.serve()
        side.followed(client)
        assert len(side.progress()) == told


def test_a_moved_high_watermark_alone_answers_followers_only_where_consumers_read_from_them(make: Make) -> None:
    side = make(finds_nearest=True)
    client = side.connect()
    session = in_session(side, client, Followed(0, END))
    side.follow(client, [], (session, 1), max_wait_ms=500)
    assert side.answers(client) == 0
    side.change_row(0, high_watermark=30, last_stable_offset=30, watermark_position=3 * side.batch_bytes)
    side.delayed.wake_moved()
    ((_, (part,))) = side.followed(client)
    assert (part.high_watermark, part.records_size) == (30, 0)


def test_the_sessions_of_consumers_never_push_out_that_of_a_follower(make: Make) -> None:
    side = make()
    client = side.connect()
    session = in_session(side, client, Followed(0, END))
    for _ in range(150):  # the cache has a hundred places
        side.fetched(side.fetch(side.connect(), [Asked(0, 20)], (0, 0)))
        side.clock.advance_ms(500)
    side.follow(client, [Followed(0, END)], (session, 1))
    side.serve()
    side.followed(client)


# -- reading from followers


def from_rack(side: SteppedFetches, rack: str, offset: int = 0) -> tuple[int, int, int]:
    """(error, preferred replica, bytes) for a consumer there."""
    client = side.follow(side.connect(), [Followed(0, offset, -1, -1)], replica_id=-1, rack=rack)
    side.serve()
    data = side.response(client)
    # head 9, throttle and error and session 10, topic count 1, id 16, partition count 1
    _, error_code, *_, aborted, preferred = struct.unpack_from(">ihqqqBi", data, 37)
    assert aborted == 0
    return error_code, preferred, len(data)


@pytest.mark.parametrize(
    ("rack", "racks", "isr", "preferred"),
    [
        ("b", {1: "a", 2: "b", 3: "c"}, (1, 2, 3), 2),
        ("a", {1: "a", 2: "a", 3: "c"}, (1, 2, 3), -1),  # the leader is near
        ("b", {1: "a", 2: "b", 3: "b"}, (1, 3), 3),  # who is not in sync is nobody's choice
        ("d", {1: "a", 2: "b", 3: "c"}, (1, 2, 3), -1),
        ("", {1: "a", 2: "b", 3: "c"}, (1, 2, 3), -1),
    ],
)
def test_a_consumer_is_sent_to_the_replica_in_its_rack(make: Make, rack: str, racks: dict[int, str], isr: tuple[int, ...], preferred: int) -> None:
    side = make(finds_nearest=True)
    side.assign((1, 2, 3), isr, racks=racks)
    assert from_rack(side, rack)[:2] == (0, preferred)


def test_without_the_rack_aware_selector_everybody_reads_from_the_leader(make: Make) -> None:
    side = make()
    side.assign((1, 2), racks={1: "a", 2: "b"})
    assert from_rack(side, "b")[:2] == (0, -1)


def test_a_follower_serves_consumers_that_say_where_they_are_up_to_its_high_watermark(make: Make) -> None:
    side = make(finds_nearest=True)
    side.assign((1, 2), leader=2, racks={1: "a", 2: "b"})
    side.change_row(0, role=ROLE_FOLLOWER)
    error_code, preferred, size_bytes = from_rack(side, "b")
    assert (error_code, preferred) == (0, -1) and 2 * side.batch_bytes < size_bytes < 3 * side.batch_bytes
    client = side.fetch(side.connect(), [Asked(0)])  # version 7: it has been sent nowhere
    assert side.fetched(client)[1][0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- the lease


def test_without_a_lease_a_leader_of_shared_partitions_serves_followers_but_no_consumers(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    size_bytes = len(write_segment(path, BATCHES, 10, 10))
    with scratch_layout() as layout:
        clock = ManualClock()
        counters = Counters.create_or_adopt(layout, "other", 1)
        reader = LeaseReader(layout)
        gate = LeaseGate(reader, clock, counters)
        side = SteppedFetches(layout, path, size_bytes // BATCHES, 1, lease=gate)
        side.assign((1, 2))

        def consumed() -> int:
            client = side.fetch(side.connect(), [Asked(0, END)])
            return side.fetched(client)[1][0].error_code

        assert consumed() == 0, "nobody keeps a lease on this box"
        writer = LeaseWriter(layout, 1)
        gate.look_for()
        assert consumed() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert ask(side, Followed(0, END)).error_code == 0
        writer.extend(clock.boottime_ns() + 1_000_000_000)
        writer.extend(clock.boottime_ns() + 1)  # an answer that was long on its way
        assert consumed() == 0
        writer.close()
        assert consumed() == 0, "a controller that is started again has its registration still"
        clock.advance_ms(1_000)
        assert consumed() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        side.assign((1,))
        assert consumed() == 0, "a sole replica goes on without ZooKeeper"
        again = LeaseWriter(layout, 2)
        assert again.until_ns == clock.boottime_ns()
        again.end()
        assert again.until_ns == 0
        again.close()
        gate.close()
        side.close()
        counters.close()
        unlink(layout.shared_memory_name("lease", "controller"))


# -- offsets


def offsets(side: SteppedFetches, timestamp: int, replica_id: int = -1, version: int = 7, leader_epoch: int = -1) -> tuple[int, int]:
    """(error code, offset)."""
    asked = ListOffsetsRequest(replica_id, 0, (ListOffsetsTopic(TOPIC, (ListOffsetsPartition(0, leader_epoch, timestamp),)),))
    body = REQUEST.encode(version, asked)
    client = side.connect()
    side.list_offsets.handle(client, RequestHeader(2, version, 7, "", 0), memoryview(body), len(body))
    side.serve()
    data = side.response(client)
    answer = RESPONSE.decode(data, 9 if version >= 6 else 8, len(data), version)
    (result,) = answer.topics[0].partitions
    return result.error_code, result.offset


LATEST = -1


def test_a_replica_is_told_the_log_end_and_a_consumer_the_high_watermark(make: Make) -> None:
    side = make()
    assert [offsets(side, LATEST, replica_id) for replica_id in (-1, 2, -2)] == [(0, 20), (0, END), (0, END)]
    side.change_row(0, role=ROLE_FOLLOWER)
    assert [offsets(side, LATEST, replica_id)[0] for replica_id in (-1, 2, -2)] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE), (9, ErrorCode.OFFSET_NOT_AVAILABLE)])
def test_a_new_leader_says_no_end_before_its_high_watermark_has_reached_its_epoch(make: Make, version: int, code: ErrorCode) -> None:
    side = make()
    side.change_row(0, leader_epoch=7)
    side.epoch_ends = {6: (4, 30)}
    assert offsets(side, LATEST, version=version) == (code, -1)
    assert offsets(side, LATEST, 2, version) == (0, END), "followers are told"
    side.change_row(0, high_watermark=30, last_stable_offset=30)
    assert offsets(side, LATEST, version=version) == (0, 30)
    side.change_row(0, high_watermark=40, last_stable_offset=40)
    asked = len(side.questions_seen)
    assert offsets(side, LATEST, version=version) == (0, 40)
    assert len(side.questions_seen) == asked, "once is enough for an epoch"


def test_a_time_that_is_not_found_below_a_lagging_high_watermark_is_not_said_to_be_none(make: Make) -> None:
    side = make()
    side.change_row(0, leader_epoch=7)
    side.epoch_ends = {6: (4, 30)}
    assert offsets(side, 5)[0] == 0, "what is found is told"
    side.not_found = True
    assert offsets(side, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    side.change_row(0, high_watermark=30, last_stable_offset=30)
    assert offsets(side, 5) == (0, -1)


# -- files


def test_a_segment_that_was_sealed_and_is_active_again_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(b"r" * 100)
    files = SegmentFiles(4, cast(Any, SimpleNamespace()))
    key = ("d0", 0, 1, 0)
    file = files.add(key, os.open(path, os.O_RDONLY), TOPIC, 0)
    files.keep_active("d0", 0, 1, 0)
    assert files.get(key) is file
    assert file.sealed_size_bytes() == 100
    files.keep_active("d0", 0, 1, 0)
    assert files.get(key) is None


# -- what is cold


class PlayedDisks:
    """Stands for residency and log-readers: which partitions are cold, and what of them has come."""

    def __init__(self, side: SteppedFetches, cold: set[int]) -> None:
        self.side = side
        self.cold = cold
        self.asked: list[tuple[ColdRead, SegmentFile, int, int, bool, Callable[[], None]]] = []
        answers = cast(Any, side.fetches._answers)
        answers._residency = self
        side.fetches._follower_reads._cold_reads = cast(Any, self)

    def is_resident(self, file: SegmentFile, _position: int, _size_bytes: int) -> bool:
        return file.origin.partition not in self.cold

    def ask(self, read: ColdRead, file: SegmentFile, position: int, most: int, _limit: int, _first: bool, is_active: bool, then: Callable[[], None]) -> bool:
        read.base_offset, read.position = file.origin.base_offset, position
        self.asked.append((read, file, position, most, is_active, then))
        return True

    def bring(self, error: ErrorCode | None = None) -> None:
        """The oldest read is done, with one batch."""
        read, file, position, _, _, then = self.asked.pop(0)
        read.error = error
        if error is None:
            read.answer = ReadAnswer(1, -1, 0, ())
            read.range = cast(Any, FileRange(file, position, self.side.batch_bytes))
        then()
        self.side.delayed.wake_moved()


def test_what_is_cold_holds_up_nobody_and_comes_when_it_is_there(make: Make) -> None:
    side = make(2)
    side.change_row(1, log_end_offset=40, active_position=4 * side.batch_bytes)
    disks = PlayedDisks(side, {0})
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, 40))
    side.follow(client, [Followed(0, 0)], (session, 1), max_wait_ms=500)
    side.serve()
    assert len(disks.asked) == 1 and disks.asked[0][4], "the segment still grows, whatever the high watermark says"
    assert side.answers(client) == 0
    side.change_row(1, log_end_offset=END, active_position=side.size_bytes)
    side.delayed.wake_moved()
    side.serve()
    assert [(part.partition, part.records_size) for part in side.followed(client)[1]] == [(1, side.batch_bytes)]
    side.follow(client, [Followed(1, END)], (session, 2), max_wait_ms=500)
    assert side.answers(client) == 0 and len(disks.asked) == 1, "it is asked once"
    disks.bring()
    assert [(part.partition, part.records_size) for part in side.followed(client)[1]] == [(0, side.batch_bytes)]
    side.follow(client, [Followed(0, 10)], (session, 3), max_wait_ms=500)
    side.serve()
    assert [each[2] for each in disks.asked] == [side.batch_bytes], "it goes on behind what was sent"


def test_a_disk_that_cannot_be_read_is_that_partitions_error(make: Make) -> None:
    side = make()
    disks = PlayedDisks(side, {0})
    client = side.connect()
    session = in_session(side, client, Followed(0, END))
    side.follow(client, [Followed(0, 0)], (session, 1), max_wait_ms=500)
    side.serve()
    disks.bring(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [part.error_code for part in side.followed(client)[1]] == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_follower_that_goes_on_elsewhere_or_never_comes_back_keeps_no_memory(make: Make) -> None:
    side = make()
    disks = PlayedDisks(side, {0})
    client = side.connect()
    session = in_session(side, client, Followed(0, END))
    side.follow(client, [Followed(0, 0)], (session, 1))
    side.serve()
    side.followed(client)
    side.follow(client, [Followed(0, 10)], (session, 2))
    side.serve()
    side.followed(client)
    assert [each[2] for each in disks.asked] == [0, side.batch_bytes]
    disks.bring()  # the first, which nobody wants any more
    disks.bring()
    reads = side.fetches._follower_reads
    side.fetches.sweep(side.clock.monotonic_ns())
    assert len(reads) == 1
    side.clock.advance_ms(2_001)
    side.fetches.sweep(side.clock.monotonic_ns())
    assert len(reads) == 0
    side.follow(client, [Followed(0, 20)], (session, 3))
    side.serve()
    side.followed(client)
    assert len(reads) == 1
    side.follow(client, [Followed(0, END)], (session, 0))
    side.serve()
    assert len(reads) == 0, "its session is over"
