"""Followers of what is not in the page cache, and of segments that change under them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.log_reader_messages import ReadAnswer
from services.acceptor.fetch.cold_reads import ColdRead
from services.acceptor.fetch.record_ranges import FileRange, SegmentFiles, ServedSegment
from tests.support.leader_side import END, Make, in_session, make_sides
from tests.support.stepped_fetches import TOPIC, Followed, SteppedFetches


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from make_sides(tmp_path)


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
        self.asked: list[tuple[ColdRead, ServedSegment, int, int, bool, Callable[[], None]]] = []
        reading = cast(Any, side.fetches.reading)
        reading.residency = self
        side.fetches.follower_reads.cold_reads = cast(Any, self)

    def is_resident(self, file: ServedSegment, _position: int, _size_bytes: int) -> bool:
        return file.origin.partition not in self.cold

    def ask(self, read: ColdRead, file: ServedSegment, position: int, most: int, _limit: int, _first: bool, is_active: bool, then: Callable[[], None]) -> bool:
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


def test_a_cold_partition_delays_no_other_and_is_sent_when_it_was_read(make: Make) -> None:
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
    disks.bring()  # the first, which no fetch needs any more
    disks.bring()
    reads = side.fetches.follower_reads
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


def test_what_is_taken_back_for_a_moment_gets_what_was_read_for_it_meanwhile(make: Make) -> None:
    side = make(2)
    disks = PlayedDisks(side, {0, 1})
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, END))
    side.follow(client, [Followed(0, 0)], (session, 1))
    side.serve()
    side.followed(client)
    side.follow(client, [Followed(1, 0)], (session, 2), forgotten=[0])
    side.serve()
    side.followed(client)
    assert [each[1].origin.partition for each in disks.asked] == [0], "it is expected back, so the other one waits for a moment"
    disks.bring()
    side.follow(client, [Followed(0, 0)], (session, 3))
    side.serve()
    assert [(part.partition, part.records_size) for part in side.followed(client)[1]] == [(0, side.batch_bytes)]
    side.follow(client, [Followed(0, 10)], (session, 4))
    side.serve()
    assert [each[1].origin.partition for each in disks.asked] == [1], "the partition that waited is next"


def test_a_cancelled_cold_read_without_a_reply_does_not_block_its_disk(make: Make) -> None:
    side = make(2)
    disks = PlayedDisks(side, {0, 1})
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, END))
    side.follow(client, [Followed(0, 0)], (session, 1))
    side.serve()
    side.followed(client)
    side.clock.advance_ms(60)
    side.follow(client, [Followed(1, 0)], (session, 2), max_wait_ms=500, forgotten=[0])
    side.serve()
    assert [each[1].origin.partition for each in disks.asked] == [0, 1]
    disks.bring()  # the first, which no fetch needs any more
    disks.bring()
    assert [(part.partition, part.records_size) for part in side.followed(client)[1]] == [(1, side.batch_bytes)]


def test_a_range_that_became_resident_does_not_block_its_disk(make: Make) -> None:
    side = make(2)
    disks = PlayedDisks(side, {0, 1})
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, END))
    side.follow(client, [Followed(0, 0)], (session, 1))
    side.serve()
    side.followed(client)
    disks.cold = {1}
    side.follow(client, [Followed(1, 0)], (session, 2))
    side.serve()
    assert [part.partition for part in side.followed(client)[1] if part.records_size] == [0]
    side.follow(client, [Followed(0, END)], (session, 3))
    side.serve()
    assert [each[1].origin.partition for each in disks.asked] == [0, 1]
