"""ListOffsets in its old form and to the record, OffsetForLeaderEpoch, and fetches that say which epoch they read last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.shm.mapping import list_names, unlink
from lab.running_box import RunningBox, eventually
from lab.session_client import SessionClient, Wanted

pytestmark = [pytest.mark.system, pytest.mark.slow]

NOW_MS = 1_700_000_000_000
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


@pytest.fixture
def client(shared_box: RunningBox) -> Iterator[SessionClient]:
    client = SessionClient(shared_box.kafka)
    yield client
    client.close()


def _batch(*stamps: int, codec: Codec = Codec.NONE, size: int = 10) -> bytes:
    builder = BatchBuilder(codec)
    for stamp in stamps:
        builder.append(stamp, None, b"x" * size)
    return builder.build()


def _segments(box: RunningBox, topic: str) -> list[Path]:
    return sorted(file for disk in box.disks for file in disk.glob(f"{topic}-0/*.log"))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_a_time_leads_to_the_record_within_its_batch(client: SessionClient, codec: Codec) -> None:
    topic = f"times-{codec.name.lower()}"
    client.create_topic(topic, 1)
    for number in range(5):
        client.produce(topic, 0, _batch(*(NOW_MS + 10 * number + delay for delay in (3, 0, 7)), codec=codec))
    assert client.list_offset_and_epoch(topic, 0, NOW_MS + 24) == (0, 8, NOW_MS + 27, 0)
    assert client.list_offset_and_epoch(topic, 0, 0) == (0, 0, NOW_MS + 3, 0)
    assert client.list_offset_and_epoch(topic, 0, NOW_MS + 48) == (0, -1, -1, -1)
    assert client.list_offset_and_epoch(topic, 0, MAX_TIMESTAMP) == (0, 14, NOW_MS + 47, 0)
    assert client.list_offset_and_epoch(topic, 0, LATEST) == (0, 15, -1, 0)
    assert client.list_offset_and_epoch(topic, 0, EARLIEST) == (0, 0, -1, 0)


def test_append_times_are_found_at_the_first_record_of_their_batch(client: SessionClient) -> None:
    client.create_topic("appended", 1, message_timestamp_type="LogAppendTime")
    for _ in range(3):
        client.produce("appended", 0, _batch(NOW_MS, NOW_MS + 5, codec=Codec.GZIP))
    error_code, offset, stamp, leader_epoch = client.list_offset_and_epoch("appended", 0, NOW_MS + 6)
    assert (error_code, offset, leader_epoch) == (0, 0, 0)
    assert stamp > NOW_MS + 1_000_000, "the broker's clock, not the producer's"
    error_code, offset, largest, _ = client.list_offset_and_epoch("appended", 0, MAX_TIMESTAMP)
    assert (error_code, offset % 2) == (0, 0) and largest >= stamp
    assert client.list_offset_and_epoch("appended", 0, largest + 1)[1] == -1


def test_nothing_has_the_largest_time_in_an_empty_partition(client: SessionClient) -> None:
    client.create_topic("empty", 1)
    eventually(lambda: client.fetch("empty", 0, 0).error_code == 0, "the topic is served")
    assert client.list_offset_and_epoch("empty", 0, MAX_TIMESTAMP) == (0, -1, -1, -1)
    assert client.list_offset_and_epoch("empty", 0, NOW_MS) == (0, -1, -1, -1)
    assert client.list_old_style("empty", 0, LATEST, 5) == [0]


def test_the_old_form_lists_segments_by_their_age(shared_box: RunningBox, client: SessionClient) -> None:
    client.create_topic("old", 1, internal_segment_bytes="16384")
    for number in range(8):
        client.produce("old", 0, _batch(NOW_MS + number, size=7000))
    files = _segments(shared_box, "old")
    bases = [int(file.stem) for file in files]
    assert bases == [0, 2, 4, 6]
    for age, file in enumerate(files):
        os.utime(file, (1000 + age, 1000 + age))
    assert client.list_old_style("old", 0, LATEST, 100) == [8, 6, 4, 2, 0]
    assert client.list_old_style("old", 0, LATEST, 2) == [8, 6]
    assert client.list_old_style("old", 0, EARLIEST, 5) == [0]
    assert client.list_old_style("old", 0, 1_001_000, 5) == [2, 0]
    assert client.list_old_style("old", 0, 999_000, 5) == []
    assert client.list_old_style("old", 0, LATEST, 0) == []


def _after_a_power_cut(box: RunningBox, start: Callable[..., RunningBox]) -> RunningBox:
    """What a log-writer finds makes the controller lead every partition under the next epoch."""
    box.kill_supervisor()
    for name in list_names(box.layout.shared_memory_prefix):
        unlink(name)
    return start(disks=1)


def test_leader_epochs_are_compared_and_a_diverged_reader_receives_the_diverging_epoch(start: Callable[..., RunningBox]) -> None:
    box = start(disks=1)
    client = SessionClient(box.kafka)
    client.create_topic("t", 1)
    ends: list[tuple[int, int]] = []
    for number in range(3):
        assert client.produce("t", 0, _batch(NOW_MS, NOW_MS + number)).error_code == 0
        _, end, _, leader_epoch = client.list_offset_and_epoch("t", 0, LATEST)
        ends.append((leader_epoch, end))
        client.close()
        box = _after_a_power_cut(box, start)
        client = SessionClient(box.kafka)
        eventually(lambda client=client: client.fetch("t", 0, 0).error_code == 0, "the topic is served")  # type: ignore[misc]
    latest = client.list_offset_and_epoch("t", 0, LATEST)[3]
    assert [end for _, end in ends] == [2, 4, 6]

    for version in range(5):
        for leader_epoch, end in ends:
            assert client.epoch_end("t", 0, leader_epoch, version) == (0, leader_epoch if version else -1, end)
        assert client.epoch_end("t", 0, latest, version) == (0, latest if version else -1, 6)
        assert client.epoch_end("t", 0, latest + 1, version) == (0, -1, -1)
        assert client.epoch_end("t", 0, -1, version) == (0, -1, -1)
    assert client.epoch_end("t", 0, 0, current_leader_epoch=latest)[0] == 0
    assert client.epoch_end("t", 0, 0, current_leader_epoch=ends[0][0])[0] == 74
    assert client.epoch_end("t", 0, 0, current_leader_epoch=latest + 1)[0] == 75
    assert client.epoch_end("t", 9, 0)[0] == 3

    assert client.list_offset_and_epoch("t", 0, EARLIEST) == (0, 0, -1, ends[0][0])
    assert client.list_offset_and_epoch("t", 0, NOW_MS + 1) == (0, 3, NOW_MS + 1, ends[1][0])
    assert client.list_offset_and_epoch("t", 0, MAX_TIMESTAMP) == (0, 5, NOW_MS + 2, ends[2][0])

    def fetch(offset: int, last_fetched_epoch: int) -> tuple[int, bool, tuple[int, int]]:
        (part,) = client.session_fetch(0, -1, [Wanted("t", 0, offset, last_fetched_epoch=last_fetched_epoch)]).parts
        return part.error_code, bool(part.records), part.diverging

    for leader_epoch, end in ends:
        assert fetch(end, leader_epoch) == (0, end < 6, (-1, -1)), "it goes on where that epoch ended"
        if end < 6:
            assert fetch(end + 1, leader_epoch) == (0, False, (leader_epoch, end)), "it has more of the epoch than we"
    assert fetch(6, latest) == (0, False, (-1, -1))
    assert fetch(0, latest + 1) == (1, False, (-1, -1))

    session = client.session_fetch(0, 0, [Wanted("t", 0, 6)]).session_id
    client.send_session_fetch(session, 1, [Wanted("t", 0, 5, last_fetched_epoch=ends[1][0])], max_wait_ms=20_000)
    (part,) = client.receive_session_fetch().parts
    assert (part.diverging, part.records) == (ends[1], b""), "returned at once, however long it would wait"
    client.close()
