"""Retention in the real log-writer, stepped by hand: what goes, in which order, and what every death and failure in the middle leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicPartition
from appliance.ipc.descriptors import DescriptorKind
from appliance.records.builder import BatchBuilder
from appliance.shm.mapping import list_names, unlink
from appliance.shm.partition_table import DISK_FULL, DISK_OFFLINE, DISK_ONLINE
from appliance.storage import checkpoints, file_io
from lab.scratch_layout import open_descriptors
from services.log_writer.replicas.replica import Replica
from tests.support.real_log_writer import DISK, TOPIC_ID, RealLogWriter
from tests.unit.storage.storage_support import failing_file_calls, stored_records

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

DEEP = bool(os.environ.get("MILLRACE_DEEP"))
SEGMENT = {"segment.bytes": "1000"}
CHECK = {"log.retention.check.interval.ms": 1000, "log.disk.reserve.bytes": 0}


class RetainedPartition:
    """A log-writer with one partition that it leads, four sealed segments and an active one, two
    batches in each.
    """

    def __init__(self, layout: BoxLayout, path: Path, incarnation: int = 1, **settings: Any) -> None:
        self.path = path / "d0"
        self.writer = RealLogWriter(layout, self.path, incarnation, CHECK | settings)
        self.writer.recover()
        self.source = self.writer.source("acceptor@0")

    def fill(self, batches: int = 10, **config: str) -> RetainedPartition:
        controller = self.writer.sources.get("controller") or self.writer.source("controller")
        answered = len(self.writer.answers)
        self.writer.create(controller, 0)
        self.writer.lead(controller, 0)
        controller.flush()
        while len(self.writer.answers) < answered + 2:
            self.writer.turn()
        self.configure(**config)
        for _ in range(batches):
            self.append()
        return self

    def configure(self, **config: str) -> None:
        self.writer.agent.partitions.configure(self.hosted, SEGMENT | {name.replace("_", "."): value for name, value in config.items()})

    def append(self) -> None:
        builder = BatchBuilder()
        builder.append(self.writer.clock.wall_ms(), None, b"v" * 400)
        self.writer.produce(self.source, 0, builder.build())
        self.writer.turn()
        self.writer.clock.advance_ms(10)

    @property
    def hosted(self) -> Replica:
        hosted = self.writer.agent.partitions.find(TOPIC_ID, 0)
        assert hosted is not None
        return hosted

    @property
    def range(self) -> tuple[int, int]:
        return self.hosted.log.log_start_offset, self.hosted.log.log_end_offset

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(self.path / "t-0"))

    @property
    def logs(self) -> list[int]:
        return [int(name[:20]) for name in self.files if name.endswith(".log")]

    def rest(self, seconds: int = 2) -> None:
        """Time goes by, and everything that it makes due is done."""
        for _ in range(seconds):
            self.writer.clock.advance_ms(1001)
            while self.writer.disk_state != DISK_OFFLINE:
                self.writer.turn()
                self.writer.agent.retention.task.join()
                if not self.writer.agent.retention.goes_on:
                    break

    def delete_records(self, offset: int) -> None:
        hosted = self.hosted
        entry = (
            DescriptorKind.DELETE_RECORDS, 0, 0, hosted.row, hosted.row_generation, hosted.leader_epoch, hosted.config_generation, 0, 0, 0, offset, 0, 0, 0,
        )  # fmt: skip
        assert self.source.by_disk[DISK].offer(entry, 0, ("delete", offset))

    def counter(self, name: str) -> int:
        return self.writer.counters.counter(name).value


def test_a_log_writer_that_appends_in_each_turn_goes_on_with_what_it_removes(layout: BoxLayout, tmp_path: Path) -> None:
    partition = RetainedPartition(layout, tmp_path).fill(retention_bytes="2000")
    partition.writer.clock.advance_ms(1001)
    for _ in range(30):
        partition.append()
        partition.writer.agent.retention.task.join()
    assert partition.logs[0] == partition.range[0] > 0
    partition.writer.stop()


def checkpointed(path: Path) -> int:
    return checkpoints.read_offsets(str(path / checkpoints.LOG_START_OFFSETS)).get(TopicPartition("t", 0), 0)


def test_old_segments_go_by_time_and_their_files_after_the_delay(layout: BoxLayout, tmp_path: Path) -> None:
    life = RetainedPartition(layout, tmp_path).fill(retention_ms="60", file_delete_delay_ms="5000")
    descriptors = open_descriptors()
    assert life.range == (0, 10) and life.logs == [0, 2, 4, 6, 8]
    life.configure(retention_ms="1100", file_delete_delay_ms="5000")
    life.rest(1)
    assert life.range == (0, 10)
    life.append()
    life.rest(1)
    assert life.range == (10, 11) and life.logs == [10] and checkpointed(life.path) == 10
    assert sum(name.endswith(".log.deleted") for name in life.files) == 5
    assert life.hosted.log.leader_epochs.entries[0].start_offset == 10
    life.configure(retention_ms="-1")
    life.rest(6)
    assert not any(".deleted" in name for name in life.files) and len(life.files) == 5
    assert life.counter('retention.segments{policy="time"}') == 5
    assert len(open_descriptors()) == len(descriptors) - 3 * 4, "what was not synced yet of deleted segments is closed"
    life.writer.stop()


def test_when_all_is_too_old_a_new_segment_is_rolled_and_the_log_goes_on_where_it_was(layout: BoxLayout, tmp_path: Path) -> None:
    life = RetainedPartition(layout, tmp_path).fill(retention_ms="60")
    life.rest()
    assert life.range == (10, 10) and life.logs == [10]
    life.append()
    assert life.range == (10, 11) and life.writer.codes("produce")[-1] == 0
    life.writer.stop()


def test_nothing_goes_by_time_while_the_clocks_disagree(layout: BoxLayout, tmp_path: Path) -> None:
    life = RetainedPartition(layout, tmp_path).fill(retention_ms="1000000")
    life.writer.clock.jump_wall_ms(40 * 86_400_000)
    life.rest()
    assert life.range == (0, 10) and life.counter("retention.rounds_without_time") > 0 and life.counter("retention.clock_disagreement_ms") > 3_600_000
    assert "nothing is deleted by time" in life.writer.said and "the clock jumped" in life.writer.agent.status_line()
    life.configure(retention_ms="1000000", retention_bytes="1000")
    life.rest()
    assert life.range == (6, 10), "by size all the same"
    life.writer.clock.jump_wall_ms(-40 * 86_400_000)
    life.rest()
    assert "clock" not in life.writer.agent.status_line()
    life.writer.stop()


def test_a_reader_in_the_middle_of_a_deleted_segment_reads_on_until_the_delay_is_over(layout: BoxLayout, tmp_path: Path) -> None:
    life = RetainedPartition(layout, tmp_path).fill(retention_ms="60", file_delete_delay_ms="5000")
    with open(life.path / "t-0" / f"{0:020d}.log", "rb") as reader:
        half = reader.read(300)
        life.rest(2)
        assert life.range == (10, 10)
        whole = half + reader.read()
        assert len(whole) == 2 * (len(whole) // 2) > 800 and whole.count(b"v" * 400) == 2
        life.rest(6)
        assert not reader.read() and reader.seek(0, os.SEEK_END) == 0, "its space is free although it is still open"
    life.writer.stop()


def test_large_files_go_in_slices(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.log_writer.background import retention_rounds

    monkeypatch.setattr(retention_rounds, "DELETE_SLICE_BYTES", 256)
    lengths: list[int] = []
    whole = file_io.ftruncate
    life = RetainedPartition(layout, tmp_path).fill(retention_ms="60", file_delete_delay_ms="0")

    def shorten(fd: int, length: int) -> None:
        lengths.append(length)
        whole(fd, length)

    monkeypatch.setattr(file_io, "ftruncate", shorten)
    life.rest(5)
    assert life.logs == [10] and not any(".deleted" in name for name in life.files)
    assert lengths[:4] == [768, 512, 256, 0] and all(length % 256 == 0 for length in lengths), lengths
    life.writer.stop()


@pytest.mark.parametrize("is_known_from_before", [True, False], ids=["in-the-next-life", "in-the-same-life"])
def test_a_topic_of_a_former_topics_name_keeps_its_records_when_its_log_writer_is_killed(layout: BoxLayout, tmp_path: Path, is_known_from_before: bool) -> None:
    """The former one began at offset 10; nothing of that may be said of the new one, which is shorter."""
    life = RetainedPartition(layout, tmp_path).fill()
    life.delete_records(-1)
    life.writer.turn()
    life.rest(1)
    assert life.range == (10, 10) and checkpointed(life.path) == 10
    if is_known_from_before:
        life.writer.die()
        life = RetainedPartition(layout, tmp_path, 2)
    life.writer.agent.partitions.delete(TopicPartition("t", 0), TOPIC_ID)
    life.fill(batches=3)
    assert life.range == (0, 3)
    life.writer.die()
    again = RetainedPartition(layout, tmp_path, 3)
    assert again.range == (0, 3) and checkpointed(again.path) == 0
    again.writer.stop()


def test_delete_records_is_answered_when_it_is_durable(layout: BoxLayout, tmp_path: Path) -> None:
    life = RetainedPartition(layout, tmp_path).fill()
    for offset, begins in ((5, 5), (3, 5), (-1, 10)):
        life.delete_records(offset)
        life.writer.turn()
        life.rest(1)
        assert life.writer.answers[-1][1:] == (("delete", offset), 0)
        assert life.range == (begins, 10) and checkpointed(life.path) == begins
    assert life.logs == [8], "the active segment stays, as in Kafka"
    for offset in (11, -2):
        life.delete_records(offset)
        life.writer.turn()
        assert life.writer.answers[-1][1:] == (("delete", offset), ErrorCode.OFFSET_OUT_OF_RANGE)
    life.configure(cleanup_policy="compact")
    life.delete_records(10)
    life.writer.turn()
    assert life.writer.answers[-1][2] == ErrorCode.POLICY_VIOLATION
    life.writer.stop()


def test_a_topic_that_is_made_anew_while_the_old_ones_files_go_keeps_its_own(layout: BoxLayout, tmp_path: Path) -> None:
    """Its first segment has the name of the old one's: a path would hit the wrong file."""
    life = RetainedPartition(layout, tmp_path).fill()
    removed = life.hosted.advance_log_start_offset(4)
    assert removed is not None
    partitions = life.writer.agent.partitions
    partitions.delete(TopicPartition("t", 0), TOPIC_ID)
    partitions.create(TopicPartition("t", 0), TOPIC_ID, {})
    before = life.files
    removed.rename()
    removed.close()
    assert life.files == before
    life.writer.stop()


def test_for_the_reserve_the_oldest_segments_go_loudly_and_the_active_one_stays(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = [file_io.Space(1 << 20, 1 << 19)]
    monkeypatch.setattr(file_io, "space", lambda _: space[0])
    life = RetainedPartition(layout, tmp_path, **{"log.disk.reserve.bytes": 100_000}).fill(retention_ms="-1")
    life.rest()
    assert life.range == (0, 10)
    space[0] = file_io.Space(1 << 20, (1 << 20) * 5 // 100 - 1500)
    life.rest(1)
    assert life.range == (4, 10), "1500 bytes are two segments"
    assert "deleted before their time" in life.writer.said and life.counter('retention.segments{policy="free_space_reserve"}') == 2
    life.rest(4)
    assert life.logs == [8] and life.range == (8, 10) and "no closed segment is left" in life.writer.said
    assert "reserve are missing" in life.writer.agent.status_line()
    life.writer.stop()


def test_for_the_reserve_nothing_protected_goes_and_a_shortened_log_is_reported(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = [file_io.Space(1 << 20, (1 << 20) * 5 // 100 - 1500)]
    monkeypatch.setattr(file_io, "space", lambda _: space[0])
    life = RetainedPartition(layout, tmp_path, **{"log.disk.reserve.bytes": 100_000})
    life.fill(retention_ms="1000000", millrace_retention_protected_ms="1000000")
    life.rest(3)
    assert life.range == (0, 10) and "no closed segment is left" in life.writer.said
    assert not life.counter("retention.shortened_partitions")
    life.configure(retention_ms="1000000")
    life.rest(3)
    assert life.range[0] > 0 and life.counter("retention.shortened_partitions") == 1
    life.writer.stop()


def test_a_full_disk_on_which_no_checkpoint_can_be_written_gets_space_all_the_same(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = RetainedPartition(layout, tmp_path).fill(retention_bytes="1000", retention_ms="-1", file_delete_delay_ms="0")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    whole = file_io.pwritev
    monkeypatch.setattr(file_io, "pwritev", full)
    life.writer.agent.trouble.on_failure(file_io.storage_failure("test", OSError(errno.ENOSPC, "full")))
    life.delete_records(3)
    life.rest(4)
    assert life.range == (6, 10) and life.logs == [6, 8] and life.writer.disk_state == DISK_FULL and not any("deleted" in name for name in life.files)
    assert life.counter("retention.removals_without_checkpoint") > 0 and "delete" not in {asked[0] for _, asked, _ in life.writer.answers}
    monkeypatch.setattr(file_io, "pwritev", whole)
    life.rest(3)
    assert life.writer.answers[-1][1:] == (("delete", 3), 0) and checkpointed(life.path) == 6
    life.writer.seconds(4)
    assert life.writer.disk_state == DISK_ONLINE
    life.writer.stop()


def _no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "no space")


def _short_of_space(layout: BoxLayout, path: Path, monkeypatch: pytest.MonkeyPatch) -> RetainedPartition:
    """Retention has removed three segments, and no checkpoint says so."""
    life = RetainedPartition(layout, path).fill(retention_ms="-1")
    life.writer.agent.flush_rounds.start_round(life.writer.clock.monotonic_ns())
    life.writer.seconds(3)
    life.writer.agent.partitions.save_checkpoints()
    life.configure(retention_bytes="1000", retention_ms="-1", file_delete_delay_ms="0")
    monkeypatch.setattr(file_io, "pwritev", _no_space)
    life.writer.agent.trouble.on_failure(file_io.storage_failure("test", OSError(errno.ENOSPC, "full")))
    life.rest(4)
    assert life.range == (6, 10) and life.logs == [6, 8] and checkpointed(life.path) == 0
    return life


def _lose_power(life: RetainedPartition, layout: BoxLayout) -> None:
    life.writer.die()
    for name in list_names(layout.shared_memory_prefix + "table"):
        unlink(name)


def test_a_power_cut_after_a_removal_without_checkpoint_leaves_no_log_damaged(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = file_io.pwritev
    life = _short_of_space(layout, tmp_path, monkeypatch)
    _lose_power(life, layout)
    monkeypatch.setattr(file_io, "pwritev", whole)
    second = RetainedPartition(layout, tmp_path, 2)
    assert second.range == (6, 10) and "lacks" not in second.writer.said and not second.hosted.log.damage.ranges
    second.hosted.log.truncate_fully_and_start_at(3)
    assert not any(name.endswith(".start") for name in second.files), "a log that begins anew may begin lower"
    second.writer.die()


def test_the_start_of_a_log_on_a_full_disk_is_checkpointed_once_there_is_space(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = file_io.pwritev
    life = _short_of_space(layout, tmp_path, monkeypatch)
    assert [name for name in life.files if name.endswith(".start")] == [f"{6:020d}.start"]
    monkeypatch.setattr(file_io, "pwritev", whole)
    life.writer.seconds(5)
    assert life.writer.disk_state == DISK_ONLINE and checkpointed(life.path) == 6
    _lose_power(life, layout)
    second = RetainedPartition(layout, tmp_path, 2)
    assert second.range == (6, 10) and "lacks" not in second.writer.said
    assert not any(name.endswith(".start") for name in second.files), "the checkpoint says it"
    second.writer.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "boot", "error", "forever"),
    [(0, "same", errno.EIO, False), (12, "unclean", errno.EIO, True), (24, "same", errno.ENOSPC, True), (36, "unclean", errno.ENOSPC, False)],
)
def test_whatever_file_call_of_a_deletion_fails_the_next_incarnation_finds_one_whole_log(
    layout: BoxLayout, tmp_path: Path, first: int, boot: str, error: int, forever: bool
) -> None:
    """The file calls of time retention, DeleteRecords and the removal fail in turn (every one in a deep run); then the process is killed."""
    for fail_at in range(0 if DEEP else first, 400, 1 if DEEP else 48):
        path = tmp_path / f"{fail_at}"
        path.mkdir()
        life = RetainedPartition(layout, path, 2 * fail_at + 1).fill(file_delete_delay_ms="0")
        life.configure(retention_ms="1055", file_delete_delay_ms="0")
        life.append()
        life.delete_records(7)
        failed = _until_it_fails(life, fail_at, forever, error)
        told = [code for _, (asked, _), code in life.writer.answers if asked == "delete"]
        shown, was_offline = life.hosted.log.log_start_offset, life.writer.disk_state == DISK_OFFLINE
        life.writer.die()
        if boot == "unclean":
            for name in os.listdir("/dev/shm"):
                if "table" in name and layout.shared_memory_prefix.lstrip("/") in name:
                    os.unlink(f"/dev/shm/{name}")
        next_life = RetainedPartition(layout, path, 2 * fail_at + 2)
        start, end = next_life.range
        logs = next_life.logs
        assert end == 11 and start in (0, 7, 10, 11) and logs[0] <= start and (len(logs) == 1 or logs[1] > start), (fail_at, start, logs)
        assert [offset for offset, _ in stored_records(next_life.path / "t-0")] == list(range(logs[0], 11)), "nothing is missing in the middle"
        if told == [0]:
            assert start >= 7, "what was answered is durable"
        if boot == "same" and not was_offline:
            assert start >= shown
        assert not any("deleted" in name for name in next_life.files)
        next_life.writer.die()
        if not failed:
            assert fail_at > 40
            return
    raise AssertionError("the sweep did not end")


def _until_it_fails(life: RetainedPartition, fail_at: int, forever: bool, error: int) -> bool:
    with failing_file_calls(fail_at + 1, forever, error) as faults:
        life.rest(3)
    return bool(faults.failed)


def test_a_step_of_a_stepped_log_writer_is_small(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is renamed, shortened, removed or synced in the loop: that is the thread's."""
    import threading

    life = RetainedPartition(layout, tmp_path).fill(retention_ms="60", file_delete_delay_ms="0")
    loop = threading.get_ident()
    in_loop: list[str] = []

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if threading.get_ident() == loop:
                in_loop.append(f"{name} {arguments[0]}")
            return function(*arguments, **more)

        return call

    for name in ("rename", "unlink", "ftruncate", "fsync", "fdatasync", "stat", "statvfs"):
        monkeypatch.setattr(file_io, name, watched(name, getattr(file_io, name)))
    life.rest(5)
    assert life.logs == [10]
    assert [call for call in in_loop if "leader-epoch-checkpoint" not in call] == []
    life.writer.stop()
