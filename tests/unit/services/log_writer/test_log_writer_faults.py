"""A log-writer whose disk fails under it, stepped by hand: fenced, offline, back again; and what
its next incarnation trusts.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, StepsDown, StorageFailed
from appliance.base.layout import BoxLayout
from appliance.records.builder import BatchBuilder
from appliance.runtime.known_disks import KnownDisk, give_up, read_known_disk, write_known_disk
from appliance.shm.counters import Counters, unlink_all
from appliance.shm.histogram import BUCKETS, Histogram
from appliance.shm.partition_table import APPEND_SINCE_WORD, DISK_OFFLINE, FENCE_WORD, PROBE_SINCE_WORD, PROBED_WORD, SUSPECT_WORD
from appliance.storage import checkpoints, file_io
from appliance.storage.directory_identity import CLEAN_SHUTDOWN_MARKER
from lab.running_box import eventually
from services.log_writer.background import disk_probe
from services.log_writer.background.disk_trouble import FAILURES_LABEL, FORGOTTEN_NS, DiskFences, DiskReturn, DiskSwapped
from services.log_writer.log_writer_startup import SAME_BOOT, UNCLEAN_BOOT
from services.log_writer.offline_log_writer import OfflineLogWriter, open_log_writer
from tests.support import real_log_writer
from tests.support.real_log_writer import RealLogWriter

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


def _batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"value")
    return builder.build()


def _started(layout: BoxLayout, path: Path, incarnation: int) -> RealLogWriter:
    writer = RealLogWriter(layout, path / "d0", incarnation)
    writer.recover()
    return writer


def _leading(layout: BoxLayout, path: Path, partitions: int = 1) -> RealLogWriter:
    writer = _started(layout, path, 1)
    controller = writer.source("controller")
    for partition in range(partitions):
        writer.create(controller, partition)
        writer.lead(controller, partition)
    while len(writer.answers) < 2 * partitions:
        writer.turn()
    return writer


def _words(writer: RealLogWriter) -> memoryview:
    return writer.agent.table.shared.words


def _offset(writer: RealLogWriter) -> int:
    return next(iter(writer.agent.partitions.by_row.values())).log.log_end_offset


def test_a_fenced_log_writer_publishes_nothing_and_its_next_incarnation_finds_what_it_wrote(
    layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = _leading(layout, tmp_path)
    words, since = _words(writer), []
    pwritev = file_io.pwritev

    def hangs(*arguments: Any) -> int:
        since.append(words[APPEND_SINCE_WORD])
        words[FENCE_WORD] = 1  # as the controller does while we wait here
        return pwritev(*arguments)

    monkeypatch.setattr(file_io, "pwritev", hangs)
    writer.produce(writer.sources["controller"], 0, _batch())
    sequences = writer.agent.table.shared.memory[512:520].tobytes()
    writer.turn()
    assert since[0] > 0 and writer.codes("produce") == [ErrorCode.KAFKA_STORAGE_ERROR]
    words[PROBE_SINCE_WORD] = 1  # a thread that the disk still holds keeps the process
    writer.produce(writer.sources["controller"], 0, _batch())
    writer.turn()
    assert writer.codes("produce") == [ErrorCode.KAFKA_STORAGE_ERROR] * 2 and len(since) == 1
    words[PROBE_SINCE_WORD] = 0
    with pytest.raises(StepsDown, match="fenced"):
        writer.turn()
    assert writer.agent.table.shared.memory[512:520].tobytes() == sequences, "the row did not move"
    monkeypatch.undo()
    writer.die()
    following = _started(layout, tmp_path, 2)
    assert following.agent.boot == SAME_BOOT and _offset(following) == 1
    following.stop()


def test_a_failed_probe_takes_the_disk_offline_and_the_next_incarnation_trusts_only_the_disk(
    layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = _leading(layout, tmp_path)
    writer.produce(writer.sources["controller"], 0, _batch())
    writer.turn()
    _probe(writer)
    assert _words(writer)[PROBED_WORD] and not _words(writer)[PROBE_SINCE_WORD]

    def refuses(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file_io, "fdatasync", refuses)
    writer.produce(writer.sources["controller"], 0, _batch())
    writer.turn()
    _probe(writer)
    assert writer.disk_state == DISK_OFFLINE and _words(writer)[SUSPECT_WORD]
    assert writer.agent.trouble.returning is not None
    writer.agent.trouble.returning.task.join()
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    assert not [name for name in held if name.startswith(f"{tmp_path}/d0/")], "nothing of the disk stays open"
    with pytest.raises(StepsDown, match="answers again"):
        monkeypatch.setattr(file_io, "fdatasync", os.fstat)
        for _ in range(20):
            _look_for_return(writer)
    writer.die()
    following = _started(layout, tmp_path, 2)
    assert following.agent.boot == UNCLEAN_BOOT
    assert all(hosted.needs_epoch_bump for hosted in following.agent.partitions.by_row.values())
    following.stop()


def _probe(writer: RealLogWriter) -> None:
    """A probe is started, ends, and is looked at."""
    for _ in range(3):
        writer.clock.advance_ms(1001)
        writer.turn()
        writer.agent.probe.task.join()


def _look_for_return(writer: RealLogWriter) -> None:
    writer.clock.advance_ms(1001)
    writer.turn()
    assert writer.agent.trouble.returning is not None
    writer.agent.trouble.returning.task.join()


def test_a_directory_that_cannot_be_opened_is_an_offline_disk_and_no_crash(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_log_writer, "LogWriterAgent", open_log_writer)
    monkeypatch.setattr(file_io, "mkdir", _no_space)
    writer = RealLogWriter(layout, tmp_path / "d0", 1)
    agent: Any = writer.agent
    assert isinstance(agent, OfflineLogWriter) and "no space left" in agent.status_line()
    proxies = writer.source("controller")
    assert proxies.offer_command("d0", 5, {"topic": "t", "partition": 0}, ("create", 0))  # type: ignore[arg-type]
    agent.do_work()
    writer.look()
    assert writer.codes("create") == [ErrorCode.KAFKA_STORAGE_ERROR]
    monkeypatch.setattr(file_io, "mkdir", os.mkdir)
    with pytest.raises(StepsDown):
        for _ in range(20):
            writer.clock.advance_ms(1001)
            agent.do_work()
            agent.disk_return.task.join()
    agent.close()
    for source in writer.sources.values():
        source.close()
        source.source.close()
    agent.doorbell.close()
    writer.poller.close()
    writer.close_log()


def _started_offline(layout: BoxLayout, path: Path, incarnation: int, monkeypatch: pytest.MonkeyPatch) -> tuple[RealLogWriter, OfflineLogWriter]:
    monkeypatch.setattr(real_log_writer, "LogWriterAgent", open_log_writer)
    writer = RealLogWriter(layout, path / "d0", incarnation, {"log.disk.deadline.ms": 50})
    agent: Any = writer.agent
    assert isinstance(agent, OfflineLogWriter)
    return writer, agent


def _seconds_until_it_steps_down(writer: RealLogWriter, agent: OfflineLogWriter) -> int:
    for seconds in range(200):
        try:
            agent.do_work()
        except StepsDown:
            return seconds
        if agent.disk_return.task.is_running or agent.disk_return.task.has_ended:
            agent.disk_return.task.join(0.05)
        else:
            writer.clock.advance_ms(1000)
    raise AssertionError("it never stepped down")


def _end(writer: RealLogWriter, agent: OfflineLogWriter) -> None:
    agent.close()
    agent.doorbell.close()
    writer.poller.close()
    writer.close_log()


def test_a_disk_that_does_not_answer_at_the_start_is_offline_until_it_does_and_its_state_is_trusted(
    layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _leading(layout, tmp_path)
    _probe(first)
    first.produce(first.sources["controller"], 0, _batch())
    first.turn()
    first.die()
    answers = threading.Event()
    monkeypatch.setattr(file_io, "fdatasync", lambda _fd: answers.wait(20))
    with monkeypatch.context() as patch:
        writer, agent = _started_offline(layout, tmp_path, 2, patch)
    assert "does not answer within 0.05 s" in agent.status_line() and not agent.table.shared.words[SUSPECT_WORD]
    agent.do_work()
    assert agent.disk_return.task.is_running, "it waits for the disk from the first turn on"
    answers.set()
    assert _seconds_until_it_steps_down(writer, agent) <= 2
    _end(writer, agent)
    following = _started(layout, tmp_path, 3)
    assert (following.agent.boot, _offset(following)) == (SAME_BOOT, 1), "nothing has failed"
    following.stop()


def test_a_disk_that_is_fenced_again_and_again_is_looked_at_after_longer_and_longer(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    for incarnation in range(1, 9):
        fences = DiskFences(Counters.create_or_adopt(layout, "log-writer@d0", incarnation), 0)
        if not fences.wait_ns():
            fences.add()  # an incarnation that served
            continue
        with monkeypatch.context() as patch:
            writer, agent = _started_offline(layout, tmp_path, incarnation, patch)
        assert f"fenced {fences.count} times" in agent.status_line() and not agent.table.shared.words[SUSPECT_WORD]
        waited.append(_seconds_until_it_steps_down(writer, agent))
        _end(writer, agent)
        assert not fences.wait_ns(), "the next incarnation serves"
    assert [seconds // 2 for seconds in waited] == [1, 2, 4]
    fences.maybe_forget(FORGOTTEN_NS + 1)
    assert (fences.count, fences.words(), fences.wait_ns()) == (0, "", 0)


def test_a_disk_that_takes_a_write_too_slowly_is_not_back(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d0").mkdir()
    fences = DiskFences(Counters.create_or_adopt(layout, "log-writer@d0", 1), 0)
    fences.add()
    fences.add()
    with monkeypatch.context() as patch:
        writer, agent = _started_offline(layout, tmp_path, 1, patch)
        patch.setattr(file_io, "fdatasync", lambda _fd: writer.clock.advance_ms(4_100))
        for _ in range(8):
            agent.do_work()
            agent.disk_return.task.join()  # before time goes by: it reads the same clock
            writer.clock.advance_ms(500)
    assert agent.disk_return.reason == "too slow: 4 KiB took 4.1 s"
    _end(writer, agent)


def _no_space(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_empty_directory_where_a_known_one_was_is_a_swapped_disk_until_it_is_given_up(layout: BoxLayout, tmp_path: Path) -> None:
    _started(layout, tmp_path, 1).stop()
    state, path = str(tmp_path / "d0") + ".state", str(tmp_path / "d0")
    known = read_known_disk(state, path)
    assert known.directory_id
    shutil.rmtree(path)
    os.mkdir(path)
    with pytest.raises(DiskSwapped, match=known.directory_id):
        RealLogWriter(layout, tmp_path / "d0", 2)
    assert os.listdir(path) == []
    give_up(state, path)
    writer = _started(layout, tmp_path, 3)
    assert writer.agent.describe()["replaces"] == (known.directory_id,)
    assert read_known_disk(state, path).directory_id not in ("", known.directory_id)
    writer.stop()


def test_recent_failures_end_with_their_directory_or_ten_minutes_of_service(layout: BoxLayout, tmp_path: Path) -> None:
    def recent(writer: RealLogWriter) -> int:
        return writer.agent.context.counters.counter(FAILURES_LABEL).value

    writer = _started(layout, tmp_path, 1)
    writer.agent.trouble.on_failure(StorageFailed("it is broken"))
    assert recent(writer) == 1
    writer.die()
    writer = _started(layout, tmp_path, 2)
    assert recent(writer) == 1, "it is the same disk"
    writer.clock.advance_ms(FORGOTTEN_NS // 1_000_000 + 1)
    eventually(lambda: (writer.turn(), writer.clock.advance_ms(1_000), recent(writer) == 0)[-1], "it has served for ten minutes")
    writer.agent.trouble.on_failure(StorageFailed("it is broken"))
    writer.die()
    shutil.rmtree(tmp_path / "d0")
    os.mkdir(tmp_path / "d0")
    give_up(f"{tmp_path}/d0.state", str(tmp_path / "d0"))
    writer = _started(layout, tmp_path, 3)
    assert recent(writer) == 0, "it is another one"
    writer.stop()


def test_what_is_remembered_of_a_directory_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = str(tmp_path)
    assert read_known_disk(state, "/a") == KnownDisk("/a")
    write_known_disk(state, KnownDisk("/a", "id", ("older",)))
    assert read_known_disk(state, "/a") == KnownDisk("/a", "id", ("older",))
    assert give_up(state, "/a") == read_known_disk(state, "/a") == KnownDisk("/a", "", ("older", "id"))
    (only,) = (tmp_path / "disks").iterdir()
    only.write_text("{")
    assert read_known_disk(state, "/a") == KnownDisk("/a")


def test_an_idle_disk_is_probed_ten_times_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = []
    monkeypatch.setattr(disk_probe, "probe_once", lambda path: probes.append(path))
    took = Histogram(memoryview(bytearray(8 * BUCKETS)).cast("Q"))
    probe = disk_probe.DiskProbe(str(tmp_path), memoryview(bytearray(1024)).cast("Q"), 1000, ManualClock(), took)
    for second in range(100):
        probe.turn(second * 1_000_000_000 + 1, appended=7)
        probe.task.join()
    assert 10 <= len(probes) <= 11
    for second in range(100, 200):
        probe.turn(second * 1_000_000_000 + 1, appended=second)
        probe.task.join()
    assert len(probes) >= 109
    assert took.read().samples == len(probes)


def test_attempts_to_reopen_a_disk_back_off_over_the_incarnations_of_a_log_writer(layout: BoxLayout, tmp_path: Path) -> None:
    writer = _started(layout, tmp_path, 1)
    context, disk = writer.agent.context, writer.agent.disk
    waits = []
    for _ in range(8):
        waits.append(DiskReturn(context, disk, 0).wait_ns // 1_000_000_000)
        context.counters.counter("disk.reopen_attempts").add()
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    writer.stop()


def _refusing_in(*threads: str) -> Any:
    """A sync that fails in these threads alone, and is reported to no other descriptor: the threads
    share theirs with the loop.
    """

    def sync(fd: int) -> None:
        if threading.current_thread().name in threads:
            raise OSError(errno.EIO, "Input/output error")

    return sync


def _stop_in_vain(writer: RealLogWriter) -> None:
    """The end of a process that could not close its directory."""
    writer.agent.begin_stop()
    writer.agent.close()
    assert "could not be closed cleanly" in writer.said
    writer.die()


def _next_start_distrusts_the_page_cache(layout: BoxLayout, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fdatasync", "syncfs"):
        monkeypatch.setattr(file_io, name, os.fstat)
    assert not (path / "d0" / CLEAN_SHUTDOWN_MARKER).exists()
    following = _started(layout, path, 2)
    assert following.agent.boot == UNCLEAN_BOOT
    assert all(hosted.needs_epoch_bump for hosted in following.agent.partitions.by_row.values())
    following.stop()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("thread", ["flush-round", "batch-flush"])
def test_a_failed_sync_is_known_to_the_next_incarnation_even_if_its_result_was_not_read(
    layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: str, is_killed: bool
) -> None:
    writer = _leading(layout, tmp_path)
    (hosted,) = writer.agent.partitions.by_row.values()
    writer.agent.partitions.configure(hosted, {"flush.ms": "1"})
    hosted.apply_config(0)
    for name in ("fdatasync", "syncfs"):
        monkeypatch.setattr(file_io, name, _refusing_in(thread))
    writer.produce(writer.sources["controller"], 0, _batch())
    writer.turn()
    writer.clock.advance_ms(120_000)
    writer.turn()
    rounds, flushes = writer.agent.flush_rounds, writer.agent.batch_flushes
    assert flushes.under_way is not None if thread == "batch-flush" else rounds.task.is_running or rounds.task.has_ended
    eventually(lambda: rounds.task.has_ended if thread == "flush-round" else flushes.failure, "the disk has refused")
    if is_killed:
        writer.die()
    else:
        _stop_in_vain(writer)
    _next_start_distrusts_the_page_cache(layout, tmp_path, monkeypatch)


@pytest.mark.parametrize("partitions", [1, 9])
def test_after_a_failed_sync_of_the_clean_stop_the_next_incarnation_distrusts_the_page_cache(
    layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    writer = _leading(layout, tmp_path, partitions)
    writer.produce(writer.sources["controller"], 0, _batch())
    writer.turn()
    for name in ("fdatasync", "syncfs"):
        monkeypatch.setattr(file_io, name, _refusing_in(threading.current_thread().name))
    _stop_in_vain(writer)
    _next_start_distrusts_the_page_cache(layout, tmp_path, monkeypatch)


def test_a_disk_that_was_fenced_and_then_answers_with_an_error_is_doubted(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = _leading(layout, tmp_path)
    writer.produce(writer.sources["controller"], 0, _batch())
    writer.turn()
    answers = threading.Event()

    def hangs(_fd: int) -> None:
        if threading.current_thread().name == "flush-round":
            assert answers.wait(20)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file_io, "fdatasync", hangs)
    writer.clock.advance_ms(120_000)
    writer.turn()
    _words(writer)[FENCE_WORD] = 1
    writer.turn()
    assert writer.agent.flush_rounds.task.is_running
    answers.set()
    writer.agent.flush_rounds.task.join()
    writer.agent.probe.task.join()
    with pytest.raises(StepsDown, match="fenced"):
        for _ in range(100):
            writer.turn()
    writer.die()
    _next_start_distrusts_the_page_cache(layout, tmp_path, monkeypatch)


def test_after_the_end_of_a_box_whose_disk_had_failed_what_was_not_synced_is_read_from_the_disk(
    layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box that ends leaves no table that could tell; the machine may still be up."""
    writer = _leading(layout, tmp_path)
    (hosted,) = writer.agent.partitions.by_row.values()
    for _ in range(3):
        writer.produce(writer.sources["controller"], 0, _batch())
        writer.turn()
        hosted.log.roll()
    writer.agent.directory.checkpoints.save(checkpoints.RECOVERY_POINTS, lambda: {hosted.topic_partition: 2})
    writer.die()
    unlink_all(layout)
    forgotten: list[str] = []
    monkeypatch.setattr(file_io, "forget_pages", forgotten.append)
    following = _started(layout, tmp_path, 2)
    assert following.agent.boot == UNCLEAN_BOOT
    assert [os.path.basename(path) for path in forgotten] == [f"{base:020d}.log" for base in (2, 3)]
    following.stop()
