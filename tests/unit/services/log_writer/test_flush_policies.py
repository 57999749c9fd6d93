"""Flush policies of a log-writer that is stepped by hand: what is acknowledged when, what consumers may see, and what a failed sync costs."""

from __future__ import annotations

import _thread
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode, StorageFailed
from appliance.base.layout import BoxLayout
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.cluster.topic_configs import broker_config
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.proxies import LogWriterProxies
from appliance.records.builder import BatchBuilder
from appliance.runtime import background_thread
from appliance.shm.partition_table import DISK_OFFLINE, DISK_ONLINE, FLUSH_SINCE_WORD, PROBE_SINCE_WORD, PartitionTableReader, Row
from appliance.storage import file_io, log_durability
from lab.running_box import eventually
from tests.support.real_log_writer import BROKER_ID, DISK, TOPIC_ID, RealLogWriter

ACK = {"flush.messages": "1"}


class Platter:
    """Stands between the log-writer and the disk: syncs of batch flushes wait for `let_go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs: list[str] = []
        self.at_once: list[str] = []
        self.error = 0
        self._may_go = threading.Semaphore(0)
        monkeypatch.setattr(file_io, "fsync", os.fstat)
        monkeypatch.setattr(file_io, "fdatasync", self._call("fdatasync"))
        monkeypatch.setattr(file_io, "syncfs", self._call("syncfs"))

    def _call(self, name: str) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            if threading.current_thread() is threading.main_thread():  # while it starts or leads
                self.at_once.append(name)
            if threading.current_thread().name != "batch-flush":  # probes, rounds
                return
            self.syncs.append(name)
            assert self._may_go.acquire(timeout=20)
            if self.error:
                raise OSError(self.error, os.strerror(self.error))

        return sync

    def let_go(self, count: int = 1) -> None:
        self._may_go.release(count)

    def waits(self, count: int) -> None:
        eventually(lambda: len(self.syncs) >= count, f"{count} syncs began")


@pytest.fixture
def platter(monkeypatch: pytest.MonkeyPatch) -> Platter:
    return Platter(monkeypatch)


def _batch(records: int = 1) -> bytes:
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(1_700_000_000_000, None, b"value")
    return builder.build()


def _leader(layout: BoxLayout, path: Path, config: dict[str, str], partitions: int = 1, incarnation: int = 1) -> tuple[RealLogWriter, LogWriterProxies]:
    writer = RealLogWriter(layout, path / "d0", incarnation)
    writer.recover()
    controller = writer.source("controller")
    for partition in range(partitions):
        writer.create(controller, partition)
        writer.lead(controller, partition)
    controller.flush()
    eventually(lambda: bool(writer.turn() or 1) and len(writer.answers) == 2 * partitions, "every partition is led")
    assert {code for _, _, code in writer.answers} == {0}
    writer.answers.clear()
    for hosted in writer.agent.partitions.by_row.values():
        writer.agent.partitions.configure(hosted, config)
        hosted.apply_config(0)
    return writer, writer.source("acceptor@0")


def _row(writer: RealLogWriter, partition: int = 0) -> Row:
    hosted = writer.agent.partitions.find(TOPIC_ID, partition)
    assert hosted is not None
    return PartitionTableReader(writer.agent.table.shared).read(hosted.row)


def _until_answered(writer: RealLogWriter, count: int) -> list[int]:
    eventually(lambda: writer.turn() >= 0 and len(writer.codes("produce")) >= count, f"{count} answers")
    return writer.codes("produce")


def test_an_acknowledgement_follows_the_sync_that_covers_it_and_consumers_see_nothing_before(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK)
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    platter.waits(1)
    writer.turn()
    before = _row(writer)
    assert (writer.codes("produce"), before.log_end_offset, before.high_watermark, before.watermark_position) == ([], 1, 0, 0)
    platter.let_go()
    assert _until_answered(writer, 1) == [0]
    after = _row(writer)
    assert (after.high_watermark, after.watermark_position) == (1, before.active_position)
    writer.stop()


def test_what_comes_in_during_a_sync_waits_for_the_next_one_which_covers_all_of_it(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK)
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    platter.waits(1)
    for _ in range(20):
        writer.produce(acceptor, 0, _batch())
        writer.turn()
    platter.let_go()
    assert _until_answered(writer, 1) == [0], "the first sync began before the others were appended"
    assert _row(writer).high_watermark == 1
    platter.waits(2)
    platter.let_go()
    assert _until_answered(writer, 21) == [0] * 21
    assert platter.syncs == ["syncfs", "fdatasync"], "the new log's name is synced once, then its bytes only"
    writer.stop()


def test_many_partitions_are_synced_by_one_call(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK, partitions=8)
    for partition in range(8):
        writer.produce(acceptor, partition, _batch())
    writer.turn()
    platter.let_go()
    assert _until_answered(writer, 8) == [0] * 8
    assert platter.syncs == ["syncfs"]
    writer.stop()


def test_other_topics_bytes_are_not_waited_for(layout: BoxLayout, tmp_path: Path, platter: Platter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK, partitions=3)
    monkeypatch.setattr(log_durability, "FILE_SYSTEM_OTHER_BYTES_MAX", 1000)
    bulk = writer.agent.partitions.find(TOPIC_ID, 2)
    assert bulk is not None
    writer.agent.partitions.configure(bulk, {})
    bulk.apply_config(0)
    for _ in range(10):
        writer.produce(acceptor, 2, _batch(20))
    assert _until_answered(writer, 10) == [0] * 10, "without a policy nothing waits"
    assert platter.syncs == []
    for partition in range(2):
        writer.produce(acceptor, partition, _batch())
    writer.turn()
    platter.let_go(4)
    _until_answered(writer, 12)
    assert platter.syncs == ["fdatasync", "fdatasync"]
    writer.stop()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_fails_the_waiting_requests_and_is_never_repeated(layout: BoxLayout, tmp_path: Path, platter: Platter, error: int) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK)
    platter.error = error
    for _ in range(3):
        writer.produce(acceptor, 0, _batch())
    writer.turn()
    platter.let_go(10)
    assert _until_answered(writer, 3) == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert (writer.disk_state, len(platter.syncs)) == (DISK_OFFLINE, 1)
    writer.die()


def _open_below(path: Path) -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [target for link in links if os.path.lexists(link) and (target := os.readlink(link)).startswith(str(path))]


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_disk_that_fails_during_a_round_is_let_go_of_when_the_round_ends(
    layout: BoxLayout, tmp_path: Path, platter: Platter, monkeypatch: pytest.MonkeyPatch, ends_first: bool
) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK, partitions=8)
    for partition in range(8):
        writer.produce(acceptor, partition, _batch())
    writer.turn()
    platter.waits(1)
    if ends_first:
        platter.let_go()
        eventually(lambda: writer.agent.batch_flushes.is_done, "the round is over, and its result is unread")
    writer.agent.trouble.on_failure(StorageFailed("could not read something else"))
    assert writer.disk_state == DISK_OFFLINE
    platter.let_go()
    eventually(lambda: writer.turn() >= 0 and not _open_below(tmp_path / "d0"), "nothing keeps the disk from being unmounted")
    writer.die()


def test_a_partition_that_is_deleted_meanwhile_ends_its_producers_waiting(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK)
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    platter.waits(1)
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    writer.agent.partitions.delete(hosted.topic_partition, TOPIC_ID)
    platter.let_go()
    assert _until_answered(writer, 1) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    writer.stop()


def test_a_source_that_left_gets_no_answer_and_a_stop_does_not_wait_for_it(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK)
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    platter.waits(1)
    assert not writer.agent.stopped()
    acceptor.close()
    acceptor.source.close()
    del writer.sources["acceptor@0"]
    eventually(lambda: writer.turn() >= 0 and writer.agent.stopped(), "no request is waited for")
    platter.let_go(10)
    writer.stop()


def test_a_killed_log_writer_syncs_what_it_finds_before_anyone_sees_it(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK)
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    platter.waits(1)
    platter.let_go(10)
    writer.die()
    second = RealLogWriter(layout, tmp_path / "d0", 2)
    second.recover()
    hosted = second.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None and hosted.log.log_end_offset == 1 and hosted.log.durable_offset == 0
    assert _row(second).high_watermark == 0
    asked = {"topic": "t", "partition": 0, "topic_id": str(TOPIC_ID), "leader_epoch": 0, "isr": [1], "replicas": [1], "config": ACK}
    assert second.source("controller").offer_command(DISK, DescriptorKind.BECOME_LEADER, asked, ("lead", 0))
    eventually(lambda: second.turn() >= 0 and second.codes("lead") == [0], "it leads")
    assert (hosted.log.durable_offset, _row(second).high_watermark, platter.at_once) == (1, 1, ["fdatasync"])
    second.stop()


def test_a_killed_log_writer_that_leads_again_by_itself_syncs_all_its_logs_at_once(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK, partitions=3)
    for partition in range(3):
        writer.produce(acceptor, partition, _batch())
    writer.turn()
    platter.waits(1)
    platter.let_go(10)
    writer.die()
    partitions = tuple(PartitionImage(BROKER_ID, 0, (BROKER_ID,), (BROKER_ID,), DISK) for _ in range(3))
    image = MetadataImage(1, "c", BROKER_ID, {}, {"t": TopicImage("t", TOPIC_ID, partitions, ACK)})
    Path(layout.image_file).write_bytes(image.encode())
    second = RealLogWriter(layout, tmp_path / "d0", 2)
    second.recover()
    assert [_row(second, partition).high_watermark for partition in range(3)] == [1, 1, 1]
    assert platter.at_once == ["syncfs"]
    second.stop()


def test_a_change_of_the_flush_policy_reverts_nothing_and_delays_no_request(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, {})
    writer.produce(acceptor, 0, _batch())
    assert _until_answered(writer, 1) == [0]
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    position = _row(writer).active_position
    writer.agent.partitions.configure(hosted, ACK)
    hosted.apply_config(0)
    writer.produce(acceptor, 0, _batch())
    writer.turn()
    platter.waits(1)
    assert (_row(writer).high_watermark, _row(writer).watermark_position, _row(writer).log_end_offset) == (1, position, 2)
    writer.agent.partitions.configure(hosted, {})
    hosted.apply_config(0)
    assert _row(writer).high_watermark == 2
    platter.let_go()
    assert _until_answered(writer, 2) == [0, 0]
    writer.stop()


def test_an_interval_in_records_or_time_syncs_beside_the_acknowledgements(layout: BoxLayout, tmp_path: Path, platter: Platter) -> None:
    writer, acceptor = _leader(layout, tmp_path, {"flush.messages": "10", "flush.ms": "5000"})
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    writer.produce(acceptor, 0, _batch(9))
    assert _until_answered(writer, 1) == [0]
    assert platter.syncs == [] and _row(writer).high_watermark == 9
    writer.produce(acceptor, 0, _batch())
    _until_answered(writer, 2)
    platter.waits(1)
    platter.let_go()
    eventually(lambda: writer.turn() >= 0 and hosted.log.durable_offset == 10, "ten records are durable")
    writer.produce(acceptor, 0, _batch())
    _until_answered(writer, 3)
    writer.clock.advance_ms(4990)
    writer.turn()
    assert len(platter.syncs) == 1 and writer.agent.park_ms() <= 11
    writer.clock.advance_ms(20)
    writer.turn()
    platter.waits(2)
    platter.let_go(10)
    eventually(lambda: writer.turn() >= 0 and hosted.log.durable_offset == 11, "its time has come")
    writer.stop()


def test_the_boxs_policy_is_what_topics_get_that_say_nothing() -> None:
    assert broker_config({"log.flush.policy": "ack"}) == ACK
    assert broker_config({"log.flush.policy": "interval", "log.flush.interval.messages": 500, "log.flush.interval.ms": 2**63 - 1}) == {"flush.messages": "500"}
    assert broker_config({"log.flush.policy": "os"}) == {}


def test_without_threads_a_log_writer_serves_on_and_catches_up_when_there_are_some(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, acceptor = _leader(layout, tmp_path, ACK)
    refused = background_thread.REFUSALS.count

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        writer.produce(acceptor, 0, _batch())
        writer.turn()
        writer.clock.advance_ms(120_000)
        writer.seconds(5)
        assert background_thread.REFUSALS.count >= refused + 10
        assert writer.codes("produce") == [] and writer.disk_state == DISK_ONLINE
    assert "could not flush" in writer.said and "could not start thread" in writer.said and "disk d0 is served on" in writer.said
    assert writer.agent.table.shared.words[FLUSH_SINCE_WORD] == writer.agent.table.shared.words[PROBE_SINCE_WORD] == 0, "the disk keeps no thread waiting"
    assert _until_answered(writer, 1) == [0]
    writer.clock.advance_ms(120_000)
    writer.seconds(3)
    hosted = next(iter(writer.agent.partitions.by_row.values()))
    eventually(lambda: writer.turn() >= 0 and hosted.log.recovery_point == 1, "the flush round's thread ends")
    assert writer.disk_state == DISK_ONLINE
    writer.stop()
