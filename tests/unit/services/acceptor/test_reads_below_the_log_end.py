"""Consumers if high watermark and log end differ: replicas in their rack, leaders without a lease,
and the offsets that they receive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.cluster.lease_gate import LeaseGate
from appliance.protocol.framing import RequestHeader
from appliance.protocol.offset_apis import LIST_OFFSETS_REQUEST, LIST_OFFSETS_RESPONSE, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.shm.counters import Counters
from appliance.shm.lease import LeaseReader, LeaseWriter
from appliance.shm.mapping import unlink
from appliance.shm.partition_table import ROLE_FOLLOWER
from lab.scratch_layout import scratch_layout
from tests.support.cold_segments import write_segment
from tests.support.leader_side import BATCHES, END, Make, ask, make_sides
from tests.support.stepped_fetches import TOPIC, Asked, Followed, SteppedFetches


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from make_sides(tmp_path)


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
        ("b", {1: "a", 2: "b", 3: "b"}, (1, 3), 3),  # a replica that is not in sync is never chosen
        ("d", {1: "a", 2: "b", 3: "c"}, (1, 2, 3), -1),
        ("", {1: "a", 2: "b", 3: "c"}, (1, 2, 3), -1),
    ],
)
def test_a_consumer_is_sent_to_the_replica_in_its_rack(make: Make, rack: str, racks: dict[int, str], isr: tuple[int, ...], preferred: int) -> None:
    side = make(prefers_racks=True)
    side.assign((1, 2, 3), isr, racks=racks)
    assert from_rack(side, rack)[:2] == (0, preferred)


def test_without_the_rack_aware_selector_all_consumers_read_from_the_leader(make: Make) -> None:
    side = make()
    side.assign((1, 2), racks={1: "a", 2: "b"})
    assert from_rack(side, "b")[:2] == (0, -1)


def test_a_follower_serves_consumers_that_say_where_they_are_up_to_its_high_watermark(make: Make) -> None:
    side = make(prefers_racks=True)
    side.assign((1, 2), leader=2, racks={1: "a", 2: "b"})
    side.change_row(0, role=ROLE_FOLLOWER)
    error_code, preferred, size_bytes = from_rack(side, "b")
    assert (error_code, preferred) == (0, -1) and 2 * side.batch_bytes < size_bytes < 3 * side.batch_bytes
    client = side.fetch(side.connect(), [Asked(0)])  # version 7: it has been sent nowhere
    assert side.fetched(client)[1][0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- the lease


def test_without_a_lease_consumers_of_shared_partitions_are_served_for_the_time_of_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    size_bytes = len(write_segment(path, BATCHES, 10, 10))
    with scratch_layout() as layout:
        clock = ManualClock()
        counters = Counters.create_or_adopt(layout, "other", 1)
        reader = LeaseReader(layout)
        gate = LeaseGate(reader, clock, counters, reads_ms=5_000)
        side = SteppedFetches(layout, path, size_bytes // BATCHES, 1, lease=gate)
        side.assign((1, 2))

        def consumed(offset: int = END) -> int:
            client = side.fetch(side.connect(), [Asked(0, offset)])
            return side.fetched(client)[1][0].error_code

        assert consumed() == 0, "no controller has stored a lease on this box"
        writer = LeaseWriter(layout, 1)
        gate.look_for()
        writer.extend(clock.boottime_ns() + 1_000_000_000)
        writer.extend(clock.boottime_ns() + 1)  # a late answer of ZooKeeper
        assert (consumed(), consumed(END + 1)) == (0, ErrorCode.OFFSET_OUT_OF_RANGE)
        writer.close()
        clock.advance_ms(1_000)
        assert gate.has_ended()
        assert consumed() == 0
        assert consumed(END + 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "the next leader may have it: the consumer must not reset its position"
        clock.advance_ms(5_000)
        assert consumed() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert ask(side, Followed(0, END)).error_code == 0, "followers are served"
        side.assign((1,))
        assert (consumed(), consumed(END + 1)) == (0, ErrorCode.OFFSET_OUT_OF_RANGE), "a sole replica needs no lease"
        again = LeaseWriter(layout, 2)
        assert again.until_ns == clock.boottime_ns() - 5_000_000_000
        side.assign((1, 2))
        again.extend(clock.boottime_ns() + 1_000_000_000)
        again.end(clock.boottime_ns())
        assert again.until_ns == clock.boottime_ns() and gate.has_ended()
        assert consumed() == 0, "the time of the setting counts from the end"
        clock.advance_ms(5_000)
        assert consumed() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        again.close()
        gate.close()
        side.close()
        counters.close()
        unlink(layout.shared_memory_name("lease", "controller"))


# -- offsets


def offsets(side: SteppedFetches, timestamp: int, replica_id: int = -1, version: int = 7, leader_epoch: int = -1) -> tuple[int, int]:
    """(error code, offset)."""
    asked = ListOffsetsRequest(replica_id, 0, (ListOffsetsTopic(TOPIC, (ListOffsetsPartition(0, leader_epoch, timestamp),)),))
    body = LIST_OFFSETS_REQUEST.encode(version, asked)
    client = side.connect()
    side.list_offsets.handle(client, RequestHeader(2, version, 7, "", 0), memoryview(body), len(body))
    side.serve()
    data = side.response(client)
    answer = LIST_OFFSETS_RESPONSE.decode(data, 9 if version >= 6 else 8, len(data), version)
    (result,) = answer.topics[0].partitions
    return result.error_code, result.offset


LATEST = -1


def test_a_replica_receives_the_log_end_and_a_consumer_the_high_watermark(make: Make) -> None:
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
    assert offsets(side, LATEST, 2, version) == (0, END), "followers receive it"
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
    assert offsets(side, 5)[0] == 0, "a found offset is returned"
    side.not_found = True
    assert offsets(side, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    side.change_row(0, high_watermark=30, last_stable_offset=30)
    assert offsets(side, 5) == (0, -1)
