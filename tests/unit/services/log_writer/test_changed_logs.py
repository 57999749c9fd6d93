"""A log whose files were cut, emptied or removed while its box was stopped: it is reported, and its offsets are never given to other records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.base.layout import BoxLayout
from appliance.base.model import NO_LEADER_EPOCH, LeaderEpoch, Offset
from appliance.ipc.descriptors import Completion, DescriptorKind, ReplicaAppend, TruncateOrder, Truncation, replica_append_descriptor, truncate_descriptor
from appliance.records.batch import stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.shm.mapping import list_names, unlink
from appliance.shm.partition_table import DISK_ONLINE
from appliance.storage.segment_scan import SegmentScan
from services.log_writer.replicas.replica import Replica
from tests.support.real_log_writer import BROKER_ID, DISK, TOPIC_ID, RealLogWriter

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

RECORDS = 10
SEGMENT = "00000000000000000000.log"


def _batch(value: bytes = b"value", records: int = 1) -> bytes:
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(1_700_000_000_000, None, value)
    return builder.build()


def started(layout: BoxLayout, path: Path, incarnation: int, settings: dict[str, Any] | None = None) -> RealLogWriter:
    writer = RealLogWriter(layout, path / "d0", incarnation, settings)
    writer.recover()
    return writer


def command(writer: RealLogWriter, kind: DescriptorKind, leader_epoch: int, **more: object) -> int:
    controller = writer.sources.get("controller") or writer.source("controller")
    asked = {"topic": "t", "partition": 0, "topic_id": str(TOPIC_ID), "leader_epoch": leader_epoch, "isr": [BROKER_ID], "replicas": [BROKER_ID], **more}
    assert controller.offer_command(DISK, kind, asked, (kind.name, leader_epoch))
    return _answer(writer)


def _answer(writer: RealLogWriter) -> int:
    seen = len(writer.answers)
    for proxies in writer.sources.values():
        proxies.flush()
    while len(writer.answers) == seen:
        writer.turn()
    return writer.answers[-1][2]


def produce(writer: RealLogWriter, count: int, records: int = 1) -> None:
    acceptor = writer.sources.get("acceptor@0") or writer.source("acceptor@0")
    for _ in range(count):
        writer.produce(acceptor, 0, _batch(records=records))
        assert _answer(writer) == 0


def _written_and_stopped(layout: BoxLayout, path: Path) -> Path:
    writer = started(layout, path, 1)
    writer.create(writer.source("controller"), 0)
    _answer(writer)
    assert command(writer, DescriptorKind.BECOME_LEADER, 0) == 0
    produce(writer, RECORDS)
    writer.stop()
    return path / "d0" / "t-0" / SEGMENT


def batches_of(directory: Path) -> list[tuple[int, int, int]]:
    """(first offset, last offset, records) of each batch of a log."""
    found = []
    for segment in sorted(directory.glob("*.log")):
        with open(segment, "rb") as file:
            found += [(header.base_offset, header.last_offset, header.records_count) for _, header in SegmentScan(file.fileno(), 0, segment.stat().st_size)]
    return found


def _cut(segment: Path) -> None:
    os.truncate(segment, segment.stat().st_size * 7 // 10 + 1)


def _zero(segment: Path) -> None:
    size_bytes = segment.stat().st_size
    with open(segment, "r+b") as file:
        file.seek(size_bytes * 7 // 10 + 1)
        file.write(bytes(size_bytes - file.tell()))


def _empty(segment: Path) -> None:
    os.truncate(segment, 0)


def _remove(segment: Path) -> None:
    for path in segment.parent.glob("0*"):
        path.unlink()


@pytest.mark.parametrize(("harm", "kept", "leaves_copy"), [(_cut, 7, True), (_zero, 7, True), (_empty, 0, False), (_remove, 0, False)])
def test_offsets_of_a_log_that_was_changed_during_a_stop_are_not_given_again(
    layout: BoxLayout, tmp_path: Path, harm: Callable[[Path], None], kept: int, leaves_copy: bool
) -> None:
    segment = _written_and_stopped(layout, tmp_path)
    whole = segment.read_bytes()
    harm(segment)
    writer = started(layout, tmp_path, 2)
    assert f"log t-0 of {tmp_path}/d0 lacks {RECORDS - kept} offsets at its end, {kept} to {RECORDS - 1}" in writer.said
    assert writer.counters.gauge("log_writer.lost_offsets").value == RECORDS - kept
    assert writer.agent.describe()["needs_epoch_bump"], "in-sync replicas on other boxes lead first"
    if kept:  # an empty log knows no epoch; the controller raises it in any case
        assert command(writer, DescriptorKind.BECOME_LEADER, 0) != 0, "consumers have seen these offsets under epoch 0"
    assert command(writer, DescriptorKind.BECOME_LEADER, 1) == 0
    produce(writer, 1)
    writer.stop()
    assert batches_of(segment.parent)[kept:] == [(kept, RECORDS - 1, 0), (RECORDS, RECORDS, 1)]
    copies = list(segment.parent.glob("*.damaged"))
    assert bool(copies) is leaves_copy
    assert all(whole.startswith(copy.read_bytes().rstrip(b"\0")) for copy in copies), "what was there when the box started"
    third = started(layout, tmp_path, 3)
    assert "lacks" not in third.said and third.agent.partitions.find(TOPIC_ID, 0).log.log_end_offset == RECORDS + 1  # type: ignore[union-attr]
    third.stop()


def test_a_changed_log_that_follows_fetches_what_it_lacks(layout: BoxLayout, tmp_path: Path) -> None:
    segment = _written_and_stopped(layout, tmp_path)
    _cut(segment)
    writer = started(layout, tmp_path, 2)
    assert command(writer, DescriptorKind.BECOME_FOLLOWER, 1, leader=2, replicas=[2, BROKER_ID]) == 0
    replica = writer.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None and replica.log.log_end_offset == 7 and not replica.log.damage.ranges
    writer.stop()


@pytest.mark.parametrize(("kind", "records", "end"), [(Truncation.TO_OFFSET, 1, 4), (Truncation.TO_OFFSET, 3, 3), (Truncation.START_AT, 1, 4)])
def test_a_power_cut_between_a_truncation_and_its_checkpoint_is_no_damage(
    layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Truncation, records: int, end: int
) -> None:
    class PowerCut(Exception):
        pass

    def cut_power(_replica: Replica) -> bool:
        raise PowerCut

    writer = started(layout, tmp_path, 1)
    writer.create(writer.source("controller"), 0)
    _answer(writer)
    assert command(writer, DescriptorKind.BECOME_LEADER, 0) == 0
    produce(writer, RECORDS, records)
    writer.agent.flush_rounds.start_round(writer.clock.monotonic_ns())
    writer.seconds(3)
    writer.agent.partitions.save_checkpoints()
    assert command(writer, DescriptorKind.BECOME_FOLLOWER, 1, leader=2, replicas=[2, BROKER_ID]) == 0
    replica = writer.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None and replica.log.recovery_point == RECORDS * records
    fetcher = writer.source("replica-fetcher")
    order = TruncateOrder(kind, NO_LEADER_EPOCH, Offset(4))
    assert fetcher.by_disk[DISK].offer(truncate_descriptor(replica.row, replica.row_generation, replica.leader_epoch, order), 0, ("truncate", 0))
    fetcher.flush()
    with monkeypatch.context() as power:
        power.setattr(Replica, "on_truncated", cut_power)
        with pytest.raises(PowerCut):
            _answer(writer)
    writer.die()
    for name in list_names(layout.shared_memory_prefix + "table"):
        unlink(name)
    second = started(layout, tmp_path, 2)
    assert second.agent.boot == "unclean" and "lacks" not in second.said and second.agent.partitions.lost_offsets() == ()
    found = second.agent.partitions.find(TOPIC_ID, 0)
    assert found is not None and found.log.log_end_offset == end
    second.stop()


def test_a_log_of_a_clean_stop_is_opened_as_it_was(layout: BoxLayout, tmp_path: Path) -> None:
    segment = _written_and_stopped(layout, tmp_path)
    whole = segment.read_bytes()
    writer = started(layout, tmp_path, 2)
    assert "lacks" not in writer.said and not writer.agent.describe()["needs_epoch_bump"]
    writer.stop()
    assert segment.read_bytes() == whole


@pytest.mark.parametrize("ends_cleanly", [True, False])
def test_what_a_log_lacks_is_known_until_it_leads_or_follows(layout: BoxLayout, tmp_path: Path, ends_cleanly: bool) -> None:
    segment = _written_and_stopped(layout, tmp_path)
    _cut(segment)
    second = started(layout, tmp_path, 2)
    assert command(second, DescriptorKind.BECOME_FOLLOWER, 1, leader=-1) == 0, "no leader has what it lacks"
    if ends_cleanly:
        second.stop()
    else:
        second.die()
    third = started(layout, tmp_path, 3)
    assert f"lacks {RECORDS - 7} offsets" in third.said and third.agent.describe()["needs_epoch_bump"]
    assert command(third, DescriptorKind.BECOME_LEADER, 2) == 0
    replica = third.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None and replica.log.log_end_offset == RECORDS and not replica.log.damage.open
    third.stop()


SMALL = {"segment.bytes": "250"}
"""Three batches of one record in each segment: 0, 3, 6 and 9 are base offsets."""


def _segments_written(layout: BoxLayout, path: Path, ends_cleanly: bool, config: dict[str, str] = SMALL) -> Path:
    """A log of four segments, all of it flushed."""
    writer = started(layout, path, 1)
    assert command(writer, DescriptorKind.CREATE, 0, config=config) == 0
    assert command(writer, DescriptorKind.BECOME_LEADER, 0, config=config) == 0
    produce(writer, RECORDS)
    _end(writer, ends_cleanly)
    directory = path / "d0" / "t-0"
    assert sorted(each.name for each in directory.glob("*.log")) == [f"{base:020d}.log" for base in (0, 3, 6, 9)]
    return directory


def _end(writer: RealLogWriter, ends_cleanly: bool) -> None:
    """Stop it, or flush its logs and cut the power: the tables of the box go with the machine."""
    if ends_cleanly:
        writer.stop()
        return
    writer.agent.flush_rounds.start_round(writer.clock.monotonic_ns())
    writer.seconds(3)
    writer.agent.partitions.save_checkpoints()
    writer.die()
    for name in list_names(writer.layout.shared_memory_prefix + "table"):
        unlink(name)


def _first(directory: Path) -> Path:
    return directory / f"{0:020d}.log"


def _middle(directory: Path) -> Path:
    return directory / f"{3:020d}.log"


def _unlink(segment: Path) -> None:
    segment.unlink()


def _zero_all(segment: Path) -> None:
    segment.write_bytes(bytes(segment.stat().st_size))


@pytest.mark.parametrize("ends_cleanly", [True, False])
@pytest.mark.parametrize(
    ("harm", "lost_from", "leaves_copy"), [(_cut, 5, True), (_zero, 5, True), (_zero_all, 3, True), (_empty, 3, False), (_unlink, 3, False)]
)
def test_a_hole_in_the_middle_of_a_log_is_reported_and_filled_without_records(
    layout: BoxLayout, tmp_path: Path, harm: Callable[[Path], None], lost_from: int, leaves_copy: bool, ends_cleanly: bool
) -> None:
    directory = _segments_written(layout, tmp_path, ends_cleanly)
    whole = _middle(directory).read_bytes()
    harm(_middle(directory))
    writer = started(layout, tmp_path, 2)
    assert f"log t-0 of {tmp_path}/d0 lacks {6 - lost_from} offsets between its segments, {lost_from} to 5" in writer.said
    assert writer.counters.gauge("log_writer.lost_offsets").value == 6 - lost_from
    assert writer.agent.describe()["needs_epoch_bump"], "in-sync replicas on other boxes lead first"
    assert command(writer, DescriptorKind.BECOME_LEADER, 1, config=SMALL) == 0
    produce(writer, 1)
    writer.stop()
    each = [(offset, offset, 1) for offset in range(RECORDS + 1)]
    assert batches_of(directory) == [*each[:lost_from], (lost_from, 5, 0), *each[6:]]
    copies = list(directory.glob("*.damaged"))
    assert bool(copies) is leaves_copy and all(len(copy.read_bytes()) <= len(whole) for copy in copies)
    third = started(layout, tmp_path, 3)
    assert "lacks" not in third.said, "the hole is on record"
    assert (directory / "lost-offsets").read_text() == f"{lost_from} 6 settled\n"
    third.stop()


@pytest.mark.parametrize("ends_cleanly", [True, False])
@pytest.mark.parametrize("harm", [_zero_all, _empty, _unlink])
def test_a_log_without_its_first_segment_begins_later_and_says_so(layout: BoxLayout, tmp_path: Path, harm: Callable[[Path], None], ends_cleanly: bool) -> None:
    directory = _segments_written(layout, tmp_path, ends_cleanly)
    harm(_first(directory))
    writer = started(layout, tmp_path, 2)
    assert f"log t-0 of {tmp_path}/d0 lacks 3 offsets at its start, 0 to 2" in writer.said
    assert command(writer, DescriptorKind.BECOME_LEADER, 1, config=SMALL) == 0
    replica = writer.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None and replica.log.log_start_offset == 3
    produce(writer, 1)
    writer.stop()
    assert batches_of(directory) == [(offset, offset, 1) for offset in range(3, RECORDS + 1)]
    third = started(layout, tmp_path, 3)
    assert "lacks" not in third.said
    third.stop()


def _rounds(writer: RealLogWriter, until: Callable[[], bool]) -> None:
    """Retention, second by second, until a condition holds."""
    for _ in range(200):
        writer.seconds(1)
        writer.agent.retention.task.join()
        if until():
            return
    raise AssertionError(writer.said)


def _last(directory: Path) -> Path:
    return directory / f"{9:020d}.log"


@pytest.mark.parametrize("ends_cleanly", [True, False])
@pytest.mark.parametrize(("find", "lost"), [(_first, (0, 3)), (_middle, (3, 6)), (_last, (9, 10))])
def test_a_segment_that_is_removed_while_the_box_runs_is_reported_and_stays_lost_in_the_same_boot(
    layout: BoxLayout, tmp_path: Path, find: Callable[[Path], Path], lost: tuple[int, int], ends_cleanly: bool
) -> None:
    writer = started(layout, tmp_path, 1, {"log.retention.check.interval.ms": 1000})
    assert command(writer, DescriptorKind.CREATE, 0, config=SMALL) == 0
    assert command(writer, DescriptorKind.BECOME_LEADER, 0, config=SMALL) == 0
    produce(writer, RECORDS)
    directory = tmp_path / "d0" / "t-0"
    find(directory).unlink()
    words = f"CRITICAL log-writer: log t-0 lacks {lost[1] - lost[0]} offsets, {lost[0]} to {lost[1] - 1}: {find(directory)} was removed"
    _rounds(writer, lambda: words in writer.said)
    rounds = writer.counters.counter("retention.rounds").value
    _rounds(writer, lambda: writer.counters.counter("retention.rounds").value > rounds + 2)
    assert writer.said.count(words) == 1
    assert [(each.first, each.until, each.is_settled) for each in writer.agent.partitions.lost_offsets()] == [(*lost, False)]
    assert writer.counters.gauge("log_writer.lost_offsets").value == lost[1] - lost[0]
    assert writer.disk_state == DISK_ONLINE
    if ends_cleanly:
        writer.stop()
    else:
        writer.die()
    second = started(layout, tmp_path, 2)
    assert f"lacks {lost[1] - lost[0]} offsets" in second.said and second.agent.describe()["needs_epoch_bump"]
    assert command(second, DescriptorKind.BECOME_LEADER, 1, config=SMALL) == 0
    produce(second, 1)
    second.stop()
    assert [batch for batch in batches_of(directory) if batch[2]] == [(offset, offset, 1) for offset in range(RECORDS + 1) if not lost[0] <= offset < lost[1]]


def test_a_directory_that_is_removed_while_the_box_runs_is_reported_once(layout: BoxLayout, tmp_path: Path) -> None:
    writer = started(layout, tmp_path, 1, {"log.retention.check.interval.ms": 1000})
    assert command(writer, DescriptorKind.CREATE, 0, config=SMALL) == 0
    assert command(writer, DescriptorKind.BECOME_LEADER, 0, config=SMALL) == 0
    produce(writer, RECORDS)
    shutil.rmtree(tmp_path / "d0" / "t-0")
    words = f"CRITICAL log-writer: log t-0 lacks its directory and all {RECORDS} offsets, 0 to {RECORDS - 1}: {tmp_path}/d0/t-0 was removed"
    _rounds(writer, lambda: words in writer.said)
    rounds = writer.counters.counter("retention.rounds").value
    _rounds(writer, lambda: writer.counters.counter("retention.rounds").value > rounds + 2)
    assert writer.said.count(words) == 1 and writer.counters.gauge("log_writer.lost_offsets").value == RECORDS
    assert writer.disk_state == DISK_ONLINE and not (tmp_path / "d0" / "t-0").exists()
    writer.die()


def test_an_empty_segment_that_is_removed_lacks_no_offsets(layout: BoxLayout, tmp_path: Path) -> None:
    writer = started(layout, tmp_path, 1, {"log.retention.check.interval.ms": 1000})
    assert command(writer, DescriptorKind.CREATE, 0, config=SMALL) == 0
    assert command(writer, DescriptorKind.BECOME_LEADER, 0, config=SMALL) == 0
    produce(writer, RECORDS)
    replica = writer.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None
    replica.log.roll()
    (tmp_path / "d0" / "t-0" / f"{RECORDS:020d}.log").unlink()
    rounds = writer.counters.counter("retention.rounds").value
    _rounds(writer, lambda: writer.counters.counter("retention.rounds").value > rounds + 2)
    assert "lacks" not in writer.said and writer.agent.partitions.lost_offsets() == ()
    writer.die()


def test_a_segment_that_was_removed_just_before_a_clean_stop_is_missed_by_the_next_start(layout: BoxLayout, tmp_path: Path) -> None:
    writer = started(layout, tmp_path, 1)
    assert command(writer, DescriptorKind.CREATE, 0, config=SMALL) == 0
    assert command(writer, DescriptorKind.BECOME_LEADER, 0, config=SMALL) == 0
    produce(writer, RECORDS)
    _middle(tmp_path / "d0" / "t-0").unlink()
    writer.stop()
    second = started(layout, tmp_path, 2)
    assert second.agent.boot == "clean" and "lacks 3 offsets between its segments, 3 to 5" in second.said
    second.stop()


def _as_fetcher(writer: RealLogWriter, descriptor: Callable[[int, int, LeaderEpoch], tuple[int, ...]]) -> Completion:
    """What the log-writer answers an order of the replica-fetcher."""
    fetcher = writer.sources.get("replica-fetcher") or writer.source("replica-fetcher")
    replica = writer.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None
    assert fetcher.by_disk[DISK].offer(descriptor(replica.row, replica.row_generation, replica.leader_epoch), 0, ("fetcher", 0))
    _answer(writer)
    return writer.completions[-1]


def _truncate(writer: RealLogWriter, kind: Truncation, offset: int = -1) -> Completion:
    return _as_fetcher(writer, lambda *row: truncate_descriptor(*row, TruncateOrder(kind, NO_LEADER_EPOCH, Offset(offset))))


def _follows_without_its_beginning(layout: BoxLayout, path: Path, ends_cleanly: bool) -> RealLogWriter:
    _first(_segments_written(layout, path, ends_cleanly)).unlink()
    writer = started(layout, path, 2)
    assert command(writer, DescriptorKind.BECOME_FOLLOWER, 1, leader=2, replicas=[2, BROKER_ID], config=SMALL) == 0
    told = _truncate(writer, Truncation.TELL)
    assert (told.log_start_offset, told.log_end_offset, told.leader_epoch) == (0, 0, NO_LEADER_EPOCH), "its fetches do not count yet"
    assert writer.agent.partitions.lost_offsets() != ()
    return writer


@pytest.mark.parametrize("ends_cleanly", [True, False])
@pytest.mark.parametrize(
    ("leaders_start", "start", "end"), [(2, 2, 2), (3, 3, RECORDS), (7, 3, RECORDS), (RECORDS, 3, RECORDS), (RECORDS + 1, RECORDS + 1, RECORDS + 1)]
)
def test_a_follower_that_lacks_what_its_leader_has_not_either_keeps_the_rest(
    layout: BoxLayout, tmp_path: Path, leaders_start: int, start: int, end: int, ends_cleanly: bool
) -> None:
    """The leader answered a fetch from offset 0 that this is out of its range."""
    writer = _follows_without_its_beginning(layout, tmp_path, ends_cleanly)
    told = _truncate(writer, Truncation.START_AT, leaders_start)
    assert (told.error_code, told.log_start_offset, told.log_end_offset) == (0, start, end)
    assert writer.agent.partitions.lost_offsets() == ()
    _end(writer, ends_cleanly)
    third = started(layout, tmp_path, 3)
    assert "CRITICAL" not in third.said
    third.stop()


@pytest.mark.parametrize("ends_cleanly", [True, False])
def test_a_follower_that_lacks_a_beginning_that_its_leader_has_fetches_all_of_it(layout: BoxLayout, tmp_path: Path, ends_cleanly: bool) -> None:
    writer = _follows_without_its_beginning(layout, tmp_path, ends_cleanly)
    fetched = bytearray(_batch(records=2))
    stamp_batch(fetched, 0, Offset(0), LeaderEpoch(0))
    arena = writer.sources["replica-fetcher"].source.arena
    position = arena.allocate(len(fetched))
    arena.memory[position : position + len(fetched)] = fetched
    told = _as_fetcher(writer, lambda *row: replica_append_descriptor(*row, position, len(fetched), ReplicaAppend(Offset(RECORDS), Offset(0))))
    assert (told.error_code, told.log_start_offset, told.log_end_offset) == (0, 0, 2)
    assert batches_of(tmp_path / "d0" / "t-0") == [(0, 1, 2)]
    writer.stop()


@pytest.mark.parametrize(("find", "begins_at"), [(_middle, 3), (_last, 9)])
@pytest.mark.parametrize("ends_cleanly", [True, False])
def test_a_follower_is_cut_where_its_damage_begins(layout: BoxLayout, tmp_path: Path, find: Callable[[Path], Path], begins_at: int, ends_cleanly: bool) -> None:
    directory = _segments_written(layout, tmp_path, ends_cleanly)
    find(directory).unlink()
    writer = started(layout, tmp_path, 2)
    assert command(writer, DescriptorKind.BECOME_FOLLOWER, 1, leader=2, replicas=[2, BROKER_ID], config=SMALL) == 0
    replica = writer.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None and replica.log.log_end_offset == begins_at and replica.log.log_start_offset == 0
    assert not replica.log.damage.ranges and replica.high_watermark <= begins_at
    writer.stop()


@pytest.mark.parametrize("ends_cleanly", [True, False])
def test_of_a_compacted_log_a_missing_segment_is_damage_and_a_gap_of_compaction_is_none(layout: BoxLayout, tmp_path: Path, ends_cleanly: bool) -> None:
    config = {**SMALL, "cleanup.policy": "compact"}
    directory = _segments_written(layout, tmp_path, True, config)
    second = started(layout, tmp_path, 2)
    assert command(second, DescriptorKind.BECOME_LEADER, 0, config=config) == 0
    replica = second.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None
    replica.log.begin_segment(Offset(20))  # as compaction leaves gaps between segments
    produce(second, 1)
    replica.log.roll()
    produce(second, 1)
    _end(second, ends_cleanly)
    third = started(layout, tmp_path, 3)
    assert "lacks" not in third.said
    third.stop()
    _middle(directory).unlink()
    fourth = started(layout, tmp_path, 4)
    assert "lacks 3 offsets between its segments, 3 to 5" in fourth.said
    fourth.stop()


def test_what_kafka_did_to_a_log_between_two_starts_is_no_damage(layout: BoxLayout, tmp_path: Path) -> None:
    directory = _segments_written(layout, tmp_path, True)
    for path in directory.glob(f"{0:020d}.*"):
        path.unlink()
    (tmp_path / "d0" / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":-1}')
    (tmp_path / "d0" / "log-start-offset-checkpoint").write_bytes(b"0\n0\n")
    writer = started(layout, tmp_path, 2)
    assert "lacks" not in writer.said
    writer.stop()
