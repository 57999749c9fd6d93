"""A partition is deleted, and a topic of its name created anew, between the plan and the act of a background task: the disk stays online and the new
partition untouched. What is missing of a partition that is there is damage and stays loud."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.model import TopicId, TopicPartition
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.disk_reports import NOTHING, FoundDamage, write_report
from appliance.records.builder import BatchBuilder
from appliance.shm.partition_table import DISK_OFFLINE, DISK_ONLINE
from appliance.storage import file_io
from appliance.storage.cleaning_plan import CleaningJob
from appliance.storage.move_record import MOVE_RECORD
from appliance.storage.scrub import INDEX
from lab.running_box import eventually
from services.log_writer.background import index_repairs
from services.log_writer.background.index_repairs import IndexRepairs
from services.log_writer.command_queue import lead
from services.log_writer.helper_processes import CleaningProcess
from services.log_writer.replicas.replica import Replica
from tests.support.real_log_writer import BROKER_ID, DISK, TOPIC_ID, RealLogWriter

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

NAME = TopicPartition("t", 0)
NEXT_ID = TopicId(bytes(range(1, 17)))
CONFIG = {"segment.bytes": "1000", "file.delete.delay.ms": "5000"}
SETTINGS = {"log.flush.offset.checkpoint.interval.ms": 100, "log.retention.check.interval.ms": 1000, "log.disk.reserve.bytes": 0}


class Gate:
    """A file call in which every thread but the test's own waits until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, is_meant: Callable[..., bool] = lambda *_: True) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()
        whole = getattr(file_io, name)

        def call(*arguments: Any, **more: Any) -> Any:
            if threading.current_thread() is not threading.main_thread() and is_meant(*arguments):
                self._reached.set()
                assert self._opened.wait(20)
            return whole(*arguments, **more)

        monkeypatch.setattr(file_io, name, call)

    def reach(self) -> None:
        assert self._reached.wait(20)

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def open(self) -> None:
        self._opened.set()


class LedPartition:
    """A log-writer that leads t-0, of two batches a segment."""

    def __init__(self, layout: BoxLayout, path: Path, **settings: Any) -> None:
        self.path = path / "d0" / "t-0"
        self.writer = RealLogWriter(layout, path / "d0", 1, SETTINGS | settings)
        self.writer.recover()
        self.source = self.writer.source("acceptor@0")
        self.create()

    def create(self, topic_id: TopicId = TOPIC_ID) -> Replica:
        hosted = self.writer.agent.partitions.create(NAME, topic_id, CONFIG)
        lead(hosted, 0, (BROKER_ID,), (BROKER_ID,), 0)
        return hosted

    def append(self, batches: int, topic_id: TopicId = TOPIC_ID) -> None:
        hosted = self.hosted(topic_id)
        for _ in range(batches):
            builder = BatchBuilder()
            builder.append(self.writer.clock.wall_ms(), None, b"v" * 400)
            hosted.log.append_as_leader([memoryview(bytearray(builder.build()))], 0, self.writer.clock.wall_ms())
            hosted.publish_append(self.writer.clock.monotonic_ns())
        self.writer.counters.counter("log_writer.bytes").add(batches)

    def hosted(self, topic_id: TopicId = TOPIC_ID) -> Replica:
        hosted = self.writer.agent.partitions.find(topic_id, 0)
        assert hosted is not None
        return hosted

    def delete(self, topic_id: TopicId = TOPIC_ID) -> None:
        self.writer.agent.partitions.delete(NAME, topic_id)

    def remove(self) -> None:
        """What was deleted is gone from the disk."""
        while self.writer.agent.directory.is_deleting:
            self.writer.agent.directory.delete_some(1 << 30)

    def delete_records(self, offset: int) -> None:
        hosted = self.hosted()
        entry = (
            DescriptorKind.DELETE_RECORDS, 0, 0, hosted.row, hosted.row_generation, hosted.leader_epoch, hosted.config_generation, 0, 0, 0, offset, 0, 0, 0,
        )  # fmt: skip
        assert self.source.by_disk[DISK].offer(entry, 0, ("delete", offset))

    def pass_time(self, ms: int = 1001) -> None:
        self.writer.clock.advance_ms(ms)
        self.writer.turn()

    def rest(self, seconds: int = 2) -> None:
        """Time goes by, and everything that it makes due is done."""
        for _ in range(seconds):
            self.pass_time()
            for _ in range(8):
                for rounds in (self.writer.agent.retention, self.writer.agent.flush_rounds, self.writer.agent.moves.incoming):
                    rounds.task.join()
                if self.writer.disk_state == DISK_OFFLINE:
                    return
                self.writer.turn()

    def is_well(self) -> bool:
        return self.writer.disk_state == DISK_ONLINE and "ERROR " not in self.writer.said and "goes offline" not in self.writer.said


@pytest.fixture
def led(layout: BoxLayout, tmp_path: Path) -> LedPartition:
    return LedPartition(layout, tmp_path)


# -- flush rounds


@pytest.mark.parametrize("is_removed", [False, True], ids=["renamed", "removed"])
def test_a_flush_round_of_a_partition_that_is_deleted_meanwhile_leaves_the_disk_online(
    led: LedPartition, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    led.append(5)
    gate = Gate(monkeypatch, "fdatasync")
    led.pass_time()
    gate.reach()
    led.delete()
    if is_removed:
        led.remove()
    gate.open()
    led.rest()
    assert led.is_well()
    led.create(NEXT_ID)
    led.append(3, NEXT_ID)
    led.rest()
    assert led.hosted(NEXT_ID).log.recovery_point == 3 and led.is_well()
    led.writer.stop()


def test_a_directory_that_is_missing_and_was_not_deleted_takes_the_disk_offline(led: LedPartition) -> None:
    led.append(5)
    os.rename(led.path, led.path.with_name("elsewhere"))
    led.pass_time()
    assert led.writer.disk_state == DISK_OFFLINE and "flush log t-0: no such file or directory" in led.writer.said
    led.writer.die()


# -- removal of deleted partitions


def test_a_directory_that_is_removed_may_have_its_files_renamed_by_retention(led: LedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    led.append(6)
    removed = led.hosted().advance_log_start_offset(4)
    assert removed is not None
    led.delete()
    whole = os.listdir

    def listdir(path: str) -> list[str]:
        names = whole(path)
        if path.endswith("-delete"):
            removed.rename()
        return names

    monkeypatch.setattr(file_io, "listdir", listdir)
    led.remove()
    assert not [name for name in os.listdir(led.path.parent) if name.startswith("t-0")]
    removed.close()
    led.writer.stop()


def test_a_directory_that_is_removed_may_get_a_last_file_from_a_task_that_is_being_ended(led: LedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    led.delete()
    written = []
    whole = os.rmdir

    def rmdir(path: str) -> None:
        if not written:
            written.append(Path(path, "00000000000000000000.log.cleaned"))
            written[0].write_bytes(b"late")
        whole(path)

    monkeypatch.setattr(file_io, "rmdir", rmdir)
    led.remove()
    assert written and not [name for name in os.listdir(led.path.parent) if name.startswith("t-0")]
    led.writer.stop()


# -- retention


def test_files_that_wait_for_their_removal_are_not_those_of_a_new_topic_of_that_name(led: LedPartition) -> None:
    led.append(5)
    led.delete_records(4)
    led.rest(1)
    assert led.writer.answers[-1][1:] == (("delete", 4), ErrorCode.NONE)
    gone = sorted(name for name in os.listdir(led.path) if name.endswith(".log.deleted"))
    assert gone == [f"{base:020d}.log.deleted" for base in (0, 2)]
    led.delete()
    led.create(NEXT_ID)
    led.append(1, NEXT_ID)
    other = led.path / gone[0]
    os.link(led.path / "00000000000000000000.log", other)  # in the middle of a swap
    content = other.read_bytes()
    led.rest(6)
    assert other.exists() and other.read_bytes() == content and led.hosted(NEXT_ID).log.log_end_offset == 1
    assert led.writer.counters.gauge("retention.departing_files").value == 0
    led.writer.stop()


def test_a_deletion_of_records_whose_checkpoint_is_being_written_is_answered_if_the_disk_fails(led: LedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    led.append(5)
    led.writer.turn()
    gate = Gate(monkeypatch, "rename", lambda _, target, **__: target.endswith("log-start-offset-checkpoint"))
    led.delete_records(4)
    led.pass_time()
    gate.reach()
    led.writer.agent.let_go_of_disk()
    led.writer.agent.completions.publish(led.writer.agent.door)
    led.writer.look()
    assert led.writer.answers == [("acceptor@0", ("delete", 4), ErrorCode.KAFKA_STORAGE_ERROR)]
    gate.open()
    led.writer.die()


def test_what_a_thread_could_not_write_down_is_taken_back_by_the_loop_alone(led: LedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    led.append(9)
    rounds = led.writer.agent.retention
    full = OSError(errno.ENOSPC, "no space left on device")
    whole = file_io.rename

    def rename(source: str, target: str, **more: Any) -> None:
        if target.endswith(("log-start-offset-checkpoint", ".deleted")) and threading.current_thread() is not threading.main_thread():
            raise full
        whole(source, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(file_io, "rename", rename)
        led.delete_records(4)
        led.pass_time()
        lists = rounds.removals, rounds.waiting
        rounds.task.join()
        assert (rounds.removals, rounds.waiting) == ([], []) and rounds.removals is lists[0] and rounds.waiting is lists[1]
        led.writer.turn()
    led.rest(4)
    assert [code for _, _, code in led.writer.answers] == [ErrorCode.NONE] and not (led.path / "00000000000000000000.log").exists()
    led.writer.stop()


# -- compaction


def test_a_cleaning_run_writes_nothing_into_a_new_topic_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    for base in (0, 2):
        builder = BatchBuilder(base)
        for _ in range(2):
            builder.append(1_700_000_000_000, b"k", b"v" * 100)
        (path / f"{base:020d}.log").write_bytes(builder.build())
        for suffix in (".index", ".timeindex"):
            (path / f"{base:020d}{suffix}").write_bytes(b"")
    run = CleaningProcess(CleaningJob(str(path), [(0, 2), (2, 4)], 0, 1_700_000_000_000, 0, 1 << 20, 1 << 20, 4096, 1 << 20, []), DISK)
    os.kill(run.pid, signal.SIGSTOP)
    was = tmp_path / "t-0.0-delete"
    os.rename(path, was)
    shutil.copytree(was, path)
    before = sorted(os.listdir(path))
    os.kill(run.pid, signal.SIGCONT)
    eventually(lambda: run.poll() is None or run.status is not None, "the run ends")
    assert run.status == 0
    assert sorted(os.listdir(path)) == before
    assert [name for name in os.listdir(was) if name.endswith(".log.cleaned")] == ["00000000000000000000.log.cleaned"]
    run.close()


# -- moves


def _unsettled(led: LedPartition, *partitions: int) -> list[Replica]:
    """Logs that came from another disk, whose records of the move are still there."""
    made = []
    for partition in partitions:
        hosted = led.writer.agent.partitions.create(TopicPartition("moved", partition), TOPIC_ID, {})
        Path(hosted.log.directory, MOVE_RECORD).write_text("record")
        made.append(hosted)
    led.writer.agent.moves.incoming.unsettled += made
    return made


def test_a_moved_log_that_is_deleted_leaves_no_other_unsettled(led: LedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    led.delete()
    one, two = _unsettled(led, 1, 2)
    gate = Gate(monkeypatch, "rename", lambda _, target, **__: target.endswith("checkpoint"))
    led.pass_time()
    gate.reach()
    led.writer.agent.partitions.delete(one.topic_partition, TOPIC_ID)
    gate.open()
    led.rest()
    assert not Path(two.log.directory, MOVE_RECORD).exists() and led.is_well()
    led.writer.stop()


def test_a_moved_log_is_not_settled_in_the_name_of_a_former_one(led: LedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    led.delete()
    (one,) = _unsettled(led, 1)
    gate = Gate(monkeypatch, "rename", lambda _, target, **__: target.endswith("checkpoint"))
    led.pass_time()
    gate.reach()
    led.writer.agent.partitions.delete(one.topic_partition, TOPIC_ID)
    os.mkdir(one.log.directory)
    record = Path(one.log.directory, MOVE_RECORD)
    record.write_text("of the new one")
    gate.open()
    led.rest()
    assert record.read_text() == "of the new one" and led.is_well()
    led.writer.die()


def test_a_moved_log_whose_directory_is_missing_takes_the_disk_offline(led: LedPartition) -> None:
    led.delete()
    (one,) = _unsettled(led, 1)
    os.rename(one.log.directory, one.log.directory + "x")
    led.rest()
    assert led.writer.disk_state == DISK_OFFLINE and "could not settle moved log moved-1" in led.writer.said
    led.writer.die()


# -- indexes


class Rebuild:
    """A segment of t-0 whose index leads astray, as the scrubber has reported."""

    def __init__(self, led: LedPartition, path: Path) -> None:
        self.led = led
        report = str(path / "scrub.json")
        where = Path(led.path, f"{0:020d}.index")
        where.write_bytes(b"astray")
        damage = FoundDamage("t", 0, INDEX, where.name, 0, 0, 0, "astray", -1, -1, 1, True)
        write_report(report, NOTHING._replace(damages=(damage,)))
        writer = led.writer
        self.said_reader, writing = os.pipe()
        log = Logger("log-writer", descriptor=writing)
        self.repairs = IndexRepairs(report, writer.agent.partitions, writer.clock, writer.counters, log)

    def finish(self) -> int:
        self.repairs.task.join()
        self.repairs.turn()
        return self.led.writer.counters.counter("log_writer.indexes_rebuilt").value


def test_an_index_that_was_rebuilt_is_not_put_into_a_new_topic_of_that_name(led: LedPartition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    led.append(5)
    rebuild = Rebuild(led, tmp_path)
    gate = Gate(monkeypatch, "open_file")
    rebuild.repairs.turn()
    gate.reach()
    led.delete()
    led.create(NEXT_ID)
    led.append(1, NEXT_ID)
    gate.open()
    rebuild.repairs.task.join()
    assert not [name for name in os.listdir(led.path) if name.endswith(".tmp")]
    led.append(4, NEXT_ID)
    kept = {name: Path(led.path, name).read_bytes() for name in sorted(os.listdir(led.path))}
    assert rebuild.finish() == 0
    assert {name: Path(led.path, name).read_bytes() for name in sorted(os.listdir(led.path))} == kept
    led.writer.stop()


def test_half_an_index_is_not_put_in_place_whatever_ended_its_rebuild(led: LedPartition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    led.append(5)
    rebuild = Rebuild(led, tmp_path)

    def breaks(directory: str, base_offset: int, *_: Any) -> None:
        for suffix in (".index.tmp", ".timeindex.tmp"):
            Path(directory, f"{base_offset:020d}{suffix}").write_bytes(b"half")
        raise ValueError("a batch that is none")

    monkeypatch.setattr(index_repairs, "rebuild_beside", breaks)
    rebuild.repairs.turn()
    assert rebuild.finish() == 0
    assert Path(led.path, f"{0:020d}.index").read_bytes() == b"astray" and not [name for name in os.listdir(led.path) if name.endswith(".tmp")]
    assert b"could not be made anew: ValueError: a batch that is none" in os.read(rebuild.said_reader, 65536)
    led.writer.stop()


def test_a_file_that_retention_misses_is_reported_if_its_partition_was_not_deleted(led: LedPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    led.append(5)
    agent = led.writer.agent
    agent.partitions.configure(led.hosted(), CONFIG | {"retention.ms": "3600000"})
    index = led.path / "00000000000000000000.timeindex"
    index.unlink()
    gate = Gate(monkeypatch, "open_file", lambda path, *_: path.endswith(".timeindex"))

    def is_examined() -> bool:
        led.pass_time(200)
        return gate.is_reached

    eventually(is_examined, "retention checks it")
    led.delete()
    gate.open()
    led.rest()
    assert led.is_well(), "it was deleted"
    hosted = led.create(NEXT_ID)
    agent.partitions.configure(hosted, CONFIG | {"retention.ms": "3600000"})
    led.append(5, NEXT_ID)
    index.unlink()
    led.rest(3)
    assert led.writer.said.count(f"ERROR log-writer: {index} is missing, so nothing of log t-0 is deleted by its retention") == 1
    assert led.writer.disk_state == DISK_ONLINE
    led.writer.die()
