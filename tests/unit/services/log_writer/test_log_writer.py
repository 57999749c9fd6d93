"""The log-writer at its limits: no space, no rows, no descriptors, too many commands; and what dead
incarnations leave.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, StepsDown, StorageFailed
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicPartition
from appliance.records.builder import BatchBuilder
from appliance.shm import partition_table
from appliance.shm.mapping import list_names
from appliance.shm.partition_table import DISK_FULL, DISK_OFFLINE, DISK_ONLINE, PartitionTableWriter
from appliance.storage import checkpoints, file_io
from lab.running_box import eventually
from lab.scratch_layout import open_descriptors
from services.log_writer import agent
from services.log_writer.background import flush_rounds
from services.log_writer.previous_incarnations import PreviousTables
from tests.support.real_log_writer import DISK, TOPIC_ID, RealLogWriter, open_files_limit

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


def _batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"value")
    return builder.build()


def _started(layout: BoxLayout, path: Path, incarnation: int = 1, partitions: int = 0, **settings: Any) -> RealLogWriter:
    """Start a log-writer that serves, and leads `partitions` new partitions."""
    writer = RealLogWriter(layout, path / "d0", incarnation, {"log.flush.offset.checkpoint.interval.ms": 1000} | settings)
    writer.recover()
    if partitions:
        controller = writer.source("controller")
        for partition in range(partitions):
            writer.create(controller, partition)
            writer.lead(controller, partition)
        controller.flush()
        while len(writer.answers) < 2 * partitions:
            writer.turn()
        assert {code for _, _, code in writer.answers} == {0}
        writer.answers.clear()
    return writer


def _failing(function: Callable[..., Any], error: int, when: Callable[..., bool]) -> Callable[..., Any]:
    def call(*arguments: Any, **more: Any) -> Any:
        if when(*arguments):
            raise OSError(error, os.strerror(error))
        return function(*arguments, **more)

    return call


def test_produces_are_answered_before_commands_and_commands_end_with_their_time(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = _started(layout, tmp_path, partitions=1)
    acceptor = writer.source("acceptor@0")

    def slow_sync(fd: int) -> None:
        writer.clock.advance_ms(2)

    monkeypatch.setattr(file_io, "fsync", slow_sync)
    for partition in range(1, 101):
        writer.create(writer.sources["controller"], partition)
    writer.produce(acceptor, 0, _batch())
    turns_with_a_produce = []
    while len(writer.codes("create")) < 100:
        before = writer.clock.monotonic_ms()
        writer.turn()
        assert writer.clock.monotonic_ms() - before <= 20
        turns_with_a_produce.append(len(writer.codes("produce")))
        writer.produce(acceptor, 0, _batch())
    assert len(turns_with_a_produce) > 20
    assert turns_with_a_produce == list(range(1, len(turns_with_a_produce) + 1)), "every turn answers the produce that came before it"
    writer.stop()


def test_a_checkpoint_on_a_full_disk_refuses_writes_until_there_is_space(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = _started(layout, tmp_path, partitions=1)
    acceptor = writer.source("acceptor@0")
    whole = file_io.pwritev
    monkeypatch.setattr(file_io, "pwritev", _failing(whole, errno.ENOSPC, lambda *_: True))
    writer.seconds(8)
    assert writer.disk_state == DISK_FULL
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    monkeypatch.setattr(file_io, "pwritev", whole)
    writer.seconds(4)
    assert writer.disk_state == DISK_ONLINE
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    assert writer.codes("produce") == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
    writer.stop()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_of_log_data_is_never_tried_again(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    writer = _started(layout, tmp_path, partitions=1)
    acceptor = writer.source("acceptor@0")
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    whole = file_io.fdatasync
    monkeypatch.setattr(file_io, "fdatasync", _failing(whole, error, lambda *_: True))
    writer.seconds(4)
    monkeypatch.setattr(file_io, "fdatasync", whole)
    with suppress(StepsDown):  # the disk answers again: the next incarnation checks everything
        writer.seconds(8)
    assert writer.disk_state == DISK_OFFLINE
    writer.die()


def test_a_flush_round_goes_in_slices_and_reaches_every_log(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_rounds, "SLICE_LOGS", 4)
    writer = _started(layout, tmp_path, partitions=30)
    acceptor = writer.source("acceptor@0")
    for partition in range(30):
        writer.produce(acceptor, partition, _batch())
    writer.turn()
    held: set[int] = set()
    most = 0
    duplicate, close = file_io.duplicate, file_io.close

    def counting_duplicate(fd: int) -> int:
        nonlocal most
        held.add(made := duplicate(fd))
        most = max(most, len(held))
        return made

    def counting_close(fd: int) -> None:
        held.discard(fd)
        close(fd)

    monkeypatch.setattr(file_io, "duplicate", counting_duplicate)
    monkeypatch.setattr(file_io, "close", counting_close)
    writer.seconds(20)
    saved = checkpoints.read_offsets(str(tmp_path / "d0" / checkpoints.RECOVERY_POINTS))
    assert saved == {TopicPartition("t", partition): 1 for partition in range(30)}
    assert 0 < most <= 12 and not held
    writer.stop()


def test_a_partition_beyond_the_rows_is_refused_and_nothing_stays_of_it(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = _started(layout, tmp_path, partitions=2)
    monkeypatch.setattr(partition_table, "ROWS", 2)
    writer.create(writer.sources["controller"], 2)
    writer.turn()
    assert writer.codes("create") == [ErrorCode.POLICY_VIOLATION]
    assert not (tmp_path / "d0" / "t-2").exists()
    writer.stop()


def test_logs_beyond_the_rows_are_left_alone_and_the_others_served(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _started(layout, tmp_path, partitions=5)
    first.die()
    with monkeypatch.context() as fewer:
        fewer.setattr(partition_table, "ROWS", 3)
        second = _started(layout, tmp_path, incarnation=2)
        assert len(second.agent.partitions) == 3
        assert "opened 3 of 5 logs" in second.said and "2 logs of" in second.said
        second.stop()
    assert not (tmp_path / "d0" / ".kafka_cleanshutdown").exists(), "what was never recovered is not clean"
    third = _started(layout, tmp_path, incarnation=3)
    assert len(third.agent.partitions) == 5
    third.stop()


def test_a_partition_beyond_the_descriptors_is_refused_and_the_disk_goes_on(layout: BoxLayout, tmp_path: Path) -> None:
    writer = _started(layout, tmp_path, partitions=1)
    acceptor, controller = writer.source("acceptor@0"), writer.sources["controller"]
    taken_numbers = open_descriptors()
    free_numbers = [number for number in range(2_000) if number not in taken_numbers]
    with open_files_limit(free_numbers[15] * 4 // 3 + 1):
        for partition in range(1, 30):
            writer.create(controller, partition)
        while len(writer.codes("create")) < 29:
            writer.turn()
        codes = writer.codes("create")
        taken = codes.count(0)
        assert 2 <= taken < 10 and codes == [0] * taken + [ErrorCode.POLICY_VIOLATION] * (29 - taken)
        assert len(list((tmp_path / "d0").glob("t-*"))) == taken + 1
        writer.produce(acceptor, 0, _batch())
        writer.seconds(8)
        assert writer.codes("produce") == [0] and writer.disk_state == DISK_ONLINE
        assert "the limit of" in writer.said
        writer.die()
        second = _started(layout, tmp_path, incarnation=2)
        assert second.disk_state == DISK_ONLINE and len(second.agent.partitions) >= 1
        second.die()


def test_a_log_that_needs_space_to_be_opened_waits_for_it_and_the_others_are_served(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _started(layout, tmp_path, partitions=3).die()
    whole_open, whole_write = file_io.open_file, file_io.pwritev
    monkeypatch.setattr(file_io, "open_file", _failing(whole_open, errno.ENOSPC, lambda path, flags, *_: "/t-1/" in path and flags & os.O_CREAT))
    monkeypatch.setattr(file_io, "pwritev", _failing(whole_write, errno.ENOSPC, lambda *_: True))
    second = _started(layout, tmp_path, incarnation=2)
    assert second.disk_state == DISK_FULL and len(second.agent.partitions) == 2
    assert "opened 2 of 3 logs" in second.said and "1 wait for space" in second.said
    second.seconds(6)
    assert second.disk_state == DISK_FULL
    monkeypatch.setattr(file_io, "open_file", whole_open)
    monkeypatch.setattr(file_io, "pwritev", whole_write)
    while len(second.agent.partitions) < 3:
        second.seconds(1)
    assert second.disk_state == DISK_ONLINE
    second.stop()
    assert (tmp_path / "d0" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("end", ["opened", "stopped", "offline", "fenced"])
def test_a_log_that_waited_for_space_is_recovered_beside_the_turns(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """A scan of gigabytes in one turn would let the box's controller move all leaders of the disk."""
    first = _started(layout, tmp_path, partitions=2)
    first.produce(first.source("acceptor@0"), 1, _batch())
    first.turn()
    first.die()
    whole_open, whole_write = file_io.open_file, file_io.pwritev
    monkeypatch.setattr(file_io, "open_file", _failing(whole_open, errno.ENOSPC, lambda path, flags, *_: "/t-1/" in path and flags & os.O_CREAT))
    monkeypatch.setattr(file_io, "pwritev", _failing(whole_write, errno.ENOSPC, lambda *_: True))
    second = _started(layout, tmp_path, incarnation=2)
    assert second.disk_state == DISK_FULL and len(second.agent.partitions) == 1
    reads, may_read, threads = threading.Event(), threading.Event(), []

    def slow_open(path: str, *arguments: Any, **more: Any) -> int:
        if "/t-1/0" in path and not may_read.is_set():
            assert threading.current_thread() is not threading.main_thread(), "the turn waits for the disk"
            threads.append(threading.get_native_id())
            reads.set()
            may_read.wait()
        return whole_open(path, *arguments, **more)

    monkeypatch.setattr(file_io, "open_file", slow_open)
    monkeypatch.setattr(file_io, "pwritev", whole_write)
    while not reads.is_set():
        second.seconds(1)
    controller, acceptor = second.source("controller"), second.source("acceptor@0")
    second.lead(controller, 0)
    second.create(controller, 1)
    second.turn()
    second.produce(acceptor, 0, _batch())
    second.turn()
    assert (second.codes("lead"), second.codes("create"), second.codes("produce")) == ([0], [ErrorCode.KAFKA_STORAGE_ERROR], [0])
    assert not second.agent.do_work(), "nothing spins while the thread reads"
    if end == "offline":
        second.agent.trouble.go_offline(StorageFailed("it failed"))
    if end == "fenced":
        second.agent.table.shared.words[partition_table.FENCE_WORD] = 1
    if end == "stopped":
        threading.Timer(0.01, may_read.set).start()
    elif end == "opened":
        may_read.set()
        while len(second.agent.partitions) < 2:
            second.turn()
        replica = second.agent.partitions.find(TOPIC_ID, 1)
        assert replica is not None and replica.log.log_end_offset == 1
    else:
        monkeypatch.setattr(agent, "CLOSE_SECONDS", -1)  # no thread can be waited for
    second.stop()
    may_read.set()
    eventually(lambda: not any(os.path.exists(f"/proc/self/task/{thread}") for thread in threads), "the thread has ended")
    assert _open_files_of(tmp_path / "d0" / "t-1") == []
    assert (tmp_path / "d0" / ".kafka_cleanshutdown").exists() == (end == "opened")


def test_the_controller_learns_of_a_recovered_log_while_others_are_recovered(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unclean boot a log has no role before the controller has heard of it."""
    _started(layout, tmp_path, partitions=4).die()
    whole_open, whole_write = file_io.open_file, file_io.pwritev
    waits = _failing(whole_open, errno.ENOSPC, lambda path, flags, *_: "/t-" in path and "/t-0/" not in path and flags & os.O_CREAT)
    monkeypatch.setattr(file_io, "open_file", waits)
    monkeypatch.setattr(file_io, "pwritev", _failing(whole_write, errno.ENOSPC, lambda *_: True))
    second = _started(layout, tmp_path, incarnation=2)
    controller = second.source("controller")
    assert second.disk_state == DISK_FULL and len(controller.writer_info(DISK)["partitions"]) == 1
    may_read, opened = threading.Event(), set[str]()

    def slow_open(path: str, *arguments: Any, **more: Any) -> int:
        if threading.current_thread().name == "late-log" and os.path.basename(os.path.dirname(path)).startswith("t-"):
            opened.add(os.path.dirname(path))
            if len(opened) == 3:
                may_read.wait()
        return whole_open(path, *arguments, **more)

    monkeypatch.setattr(file_io, "open_file", slow_open)
    monkeypatch.setattr(file_io, "pwritev", whole_write)
    eventually(lambda: second.seconds(1) is None and len(controller.writer_info(DISK).get("partitions", ())) == 3, "the controller knows three logs")
    assert len(opened) == 3 and len(second.agent.partitions) == 3, "the fourth is not open yet"
    invitations = second.said.count("controller is gone")
    second.seconds(3)
    assert second.said.count("controller is gone") == invitations <= 2, "once for each log, at most once a second"
    may_read.set()
    while len(second.agent.partitions) < 4:
        second.turn()
    second.stop()


def _open_files_of(directory: Path) -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(f"{directory}/")]


def _tables(layout: BoxLayout) -> list[str]:
    return [name.rpartition(".")[2] for name in list_names(layout.shared_memory_name("table", DISK) + ".")]


def test_a_log_writer_that_keeps_dying_at_start_leaves_one_table_and_what_it_knew(layout: BoxLayout, tmp_path: Path) -> None:
    first = _started(layout, tmp_path, partitions=2)
    first.die()
    for incarnation in range(2, 8):
        RealLogWriter(layout, tmp_path / "d0", incarnation).die()  # before its first log
        assert len(_tables(layout)) <= 2
    last = RealLogWriter(layout, tmp_path / "d0", 9)
    assert last.agent.boot == "same"
    last.recover()
    assert _tables(layout) == ["9"] and len(last.agent.partitions) == 2
    last.stop()


def test_a_death_during_recovery_does_not_make_an_unclean_boot_look_clean(layout: BoxLayout, tmp_path: Path) -> None:
    first = _started(layout, tmp_path, partitions=2)
    first.die()
    first.agent.table.close()  # as a reboot does
    second = RealLogWriter(layout, tmp_path / "d0", 2)
    assert second.agent.boot == "unclean"
    second.agent.do_work()
    second.die()
    third = _started(layout, tmp_path, incarnation=3)
    assert third.agent.boot == "unclean" and all(hosted.needs_epoch_bump for hosted in third.agent.partitions.by_row.values())
    third.stop()


def test_a_death_before_any_leadership_passes_the_unclean_boot_on(layout: BoxLayout, tmp_path: Path) -> None:
    first = _started(layout, tmp_path, partitions=2)
    for partition in range(2):
        first.produce(first.sources["controller"], partition, _batch())
    first.turn()
    first.die()
    first.agent.table.close()  # as a reboot does
    _started(layout, tmp_path, incarnation=2).die()
    third = _started(layout, tmp_path, incarnation=3)
    assert third.agent.boot == "same" and all(hosted.needs_epoch_bump for hosted in third.agent.partitions.by_row.values())
    third.stop()


def test_a_disk_whose_name_begins_like_another_keeps_its_tables(layout: BoxLayout) -> None:
    tables = [PartitionTableWriter.create(layout.shared_memory_name("table", disk, 5), 5) for disk in ("d", "d.1")]
    for table in tables:
        table.set_disk_state(DISK_ONLINE)
    PreviousTables(layout, "d", "").forget()
    assert list_names(layout.shared_memory_name("table", "d.1") + ".") != []
    assert PreviousTables(layout, "d.1", "").is_same_boot
    for table in tables:
        table.close()
