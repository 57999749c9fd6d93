"""A follower's log-writer in trouble: flushes and truncations at the same time, a full disk, a
fence, and its next incarnations.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage, write_image
from appliance.ipc.descriptors import DescriptorKind, ReplicaAppend, Truncation
from appliance.records.batch import stamp_batch
from appliance.shm.lease import LeaseWriter
from appliance.shm.partition_table import DISK_FULL, FENCE_WORD, ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE
from appliance.storage import checkpoints, file_io
from lab.running_box import eventually
from tests.support.real_log_writer import TOPIC_ID
from tests.support.replicas import SteppedReplica, batch, check_watermark, fetch, replicas

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_waiting_for_the_disk")]

ACK = {"flush.messages": "1"}


class SlowThread:
    """Syncs of one thread wait until they may go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
        self.begun = 0
        self._thread = thread
        self.may_go = threading.Semaphore(0)
        for name in ("fsync", "fdatasync", "syncfs"):
            monkeypatch.setattr(file_io, name, self._sync)

    def _sync(self, fd: int) -> None:
        os.fstat(fd)
        if threading.current_thread().name == self._thread:
            self.begun += 1
            assert self.may_go.acquire(timeout=20)

    def let_go(self) -> None:
        self.may_go.release(1000)


def _sent(records: int, offset: int, leader_epoch: int, value: bytes = b"value") -> bytes:
    content = bytearray(batch(records, value))
    stamp_batch(content, 0, offset, leader_epoch)
    return bytes(content)


def _turns_until(replica: SteppedReplica, condition: Any, what: str) -> None:
    eventually(lambda: replica.writer.turn() >= 0 and condition(), what)


def test_a_flush_that_was_under_way_when_the_log_was_cut_says_nothing_of_what_came_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with replicas(tmp_path, 1, ACK) as (one,):
        assert one.follow(2, 1, [1, 2], [1, 2]) == 0
        slow = SlowThread(monkeypatch, "batch-flush")
        one.offer_append(_sent(3, 0, 1), ReplicaAppend(0, 0))
        _turns_until(one, lambda: slow.begun, "a sync is under way")
        assert one.follow(2, 2, [1, 2], [1, 2]) == 0
        before = len(one.writer.answers)
        assert one.truncate(Truncation.TO_OFFSET, 0).log_end_offset == 0
        assert (("append", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER) in [each[1:] for each in one.writer.answers[before:]], "what was cut is not acknowledged"
        one.offer_append(_sent(3, 0, 2, b"other"), ReplicaAppend(0, 0))
        one.turn()
        flushes = one.writer.agent.batch_flushes
        begun = slow.begun
        slow.may_go.release(begun)
        _turns_until(one, lambda: slow.begun > begun, "the next sync is under way")
        assert (one.hosted.log.durable_offset, one.log_end) == (0, 3)
        slow.let_go()
        _turns_until(one, lambda: one.writer.answers[-1][1:] == (("append", 0), 0), "the append is answered")
        assert one.hosted.log.durable_offset == 3 and not flushes.is_under_way


def test_a_recovery_point_does_not_pass_what_was_cut_while_its_round_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with replicas(tmp_path, 1) as (one,):
        assert one.follow(2, 1, [1, 2], [1, 2]) == 0
        assert one.append(_sent(5, 0, 1), ReplicaAppend(2, 0)).error_code == 0
        rounds = one.writer.agent.flush_rounds
        slow = SlowThread(monkeypatch, "flush-round")
        rounds.start_round(one.writer.clock.monotonic_ns())
        eventually(lambda: slow.begun, "the round is under way")
        assert one.follow(2, 2, [1, 2], [1, 2]) == 0
        assert one.truncate(Truncation.TO_OFFSET, 0).log_end_offset == 0
        assert one.append(_sent(5, 0, 2), ReplicaAppend(2, 0)).error_code == 0
        slow.let_go()
        rounds.task.join()
        rounds.turn()
        assert one.hosted.log.recovery_point == 0
        one.writer.seconds(70)
        assert one.hosted.log.recovery_point == 5


def test_before_a_log_that_was_cut_grows_again_no_checkpoint_says_more_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with replicas(tmp_path, 1) as (one,):
        assert one.follow(2, 1, [1, 2], [1, 2]) == 0
        assert one.append(_sent(5, 0, 1), ReplicaAppend(0, 0)).error_code == 0
        one.writer.seconds(70)
        directory = one.writer.agent.directory
        name = TopicPartition("t", 0)
        assert checkpoints.read_offsets(f"{directory.path}/{checkpoints.RECOVERY_POINTS}") == {name: 5}
        whole = checkpoints.write_offsets

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(checkpoints, "write_offsets", full)
        assert one.truncate(Truncation.TO_OFFSET, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert one.hosted.needs_checkpoints and one.log_end == 0
        one.writer.agent.trouble.on_space()
        assert one.append(_sent(1, 0, 1), ReplicaAppend(0, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert one.log_end == 0, "nothing is appended before it is written down"
        monkeypatch.setattr(checkpoints, "write_offsets", whole)
        one.writer.agent.trouble.on_space()
        assert one.append(_sent(1, 0, 1), ReplicaAppend(0, 0)).error_code == 0
        assert checkpoints.read_offsets(f"{directory.path}/{checkpoints.RECOVERY_POINTS}") == {name: 0}


def test_a_full_disk_takes_no_batches_and_hears_how_far_the_leader_is(tmp_path: Path) -> None:
    with replicas(tmp_path, 1) as (one,):
        assert one.follow(2, 1, [1, 2], [1, 2]) == 0
        assert one.append(_sent(2, 0, 1) + _sent(2, 2, 1), ReplicaAppend(0, 0)).error_code == 0
        one.writer.agent.trouble.on_failure(file_io.storage_failure("test", OSError(errno.ENOSPC, "full")))
        assert one.writer.disk_state == DISK_FULL
        assert one.append(_sent(1, 4, 1), ReplicaAppend(2, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert one.append(b"", ReplicaAppend(2, 0)).error_code == 0
        assert (one.row.high_watermark, one.log_end) == (2, 4)
        check_watermark(one)


def test_a_fenced_follower_publishes_nothing(tmp_path: Path) -> None:
    with replicas(tmp_path, 1) as (one,):
        assert one.follow(2, 1, [1, 2], [1, 2]) == 0
        entry = one.hosted.row, one.hosted.row_generation
        one.offer_append(_sent(2, 0, 1), ReplicaAppend(2, 0))
        replicas_ = one.writer.agent.replicas
        take = replicas_.read_batches

        def fenced(*arguments: Any) -> Any:
            one.writer.agent.table.shared.words[FENCE_WORD] = 1
            return take(*arguments)

        replicas_.read_batches = fenced  # type: ignore[method-assign]
        one.writer.turn()
        assert (one.row.log_end_offset, one.row.high_watermark, one.row.row_generation) == (0, 0, entry[1])
        assert one.writer.answers[-1][1:] == (("append", 0), ErrorCode.KAFKA_STORAGE_ERROR)
        one.die()


def _image(leader: int, leader_epoch: int, replica: SteppedReplica, isr: tuple[int, ...] = (1, 2), assigned: tuple[int, ...] = (1, 2)) -> None:
    partition = PartitionImage(leader, leader_epoch, assigned, isr, replica.writer.disk, None, 7)
    topic = TopicImage("t", TOPIC_ID, (partition,), {})
    write_image(replica.writer.layout.image_file, MetadataImage(3, "", -1, {}, {"t": topic}))


def _lease(replica: SteppedReplica, seconds: int) -> None:
    """Its box's registration stands for so long from now on; 0: it is over."""
    lease = LeaseWriter(replica.writer.layout, 1)
    lease.end(0)
    if seconds:
        lease.extend(SystemClock().boottime_ns() + seconds * 1_000_000_000)
    lease.close()


def test_the_next_incarnation_of_the_same_boot_leads_and_follows_without_an_order(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _lease(one, 60)
        assert one.lead(4, [1, 2], [1, 2], 7) == 0 and two.follow(1, 4, [1, 2], [1, 2]) == 0
        one.produce(batch(2))
        one.turn()
        fetch(two, one)
        fetch(two, one)
        for each, leader_epoch in ((one, 4), (two, 4)):
            _image(1, leader_epoch, each)
            each.die()
            each.start()
        assert (one.row.role, two.row.role) == (ROLE_LEADER, ROLE_FOLLOWER)
        assert one.row.high_watermark == two.row.high_watermark == 2
        one.produce(batch(1))
        one.turn()
        assert fetch(two, one) == "appended"
        assert one.row.high_watermark == 2
        fetch(two, one)
        assert one.row.high_watermark == 3
        _image(1, 5, two)
        two.die()
        two.start()
        assert two.row.role == ROLE_NONE, "the image is of another epoch"


@pytest.mark.parametrize("had_a_lease", [True, False])
def test_a_log_writer_that_starts_after_the_lease_of_its_box_leads_replicated_partitions_only_on_order(tmp_path: Path, had_a_lease: bool) -> None:
    """The whole box was away: another box may have been elected."""
    with replicas(tmp_path, 2) as (one, two):
        assert one.lead(4, [1, 2], [1, 2], 7) == 0 and two.follow(1, 4, [1, 2], [1, 2]) == 0
        if had_a_lease:
            _lease(one, 0)
        for each in (one, two):
            _image(1, 4, each)
            each.die()
            each.start()
        assert (one.row.role, two.row.role) == (ROLE_NONE, ROLE_FOLLOWER)
        assert one.lead(4, [1, 2], [1, 2], 7) == 0 and one.row.role == ROLE_LEADER


def test_what_no_other_box_holds_is_led_again_without_a_lease(tmp_path: Path) -> None:
    with replicas(tmp_path, 1) as (one,):
        assert one.lead(4, [1], [1], 7) == 0
        _image(1, 4, one, isr=(1,), assigned=(1,))
        one.die()
        one.start()
        assert one.row.role == ROLE_LEADER


def test_the_next_incarnation_counts_every_replica_until_the_first_order_of_the_controller(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _lease(one, 60)
        assert one.lead(4, [1, 2], [1, 2], 8) == 0 and two.follow(1, 4, [1, 2], [1, 2]) == 0
        _image(1, 4, one, isr=(1,))  # older than what the dead incarnation received
        one.die()
        one.start()
        one.produce(batch(2))
        one.turn()
        assert (one.row.log_end_offset, one.row.high_watermark) == (2, 0)
        fetch(two, one)
        fetch(two, one)
        assert one.row.high_watermark == 2
        assert one.lead(4, [1], [1, 2], 9) == 0
        one.produce(batch(1))
        one.turn()
        assert one.row.high_watermark == 3


def test_a_follower_is_not_asked_for_an_epoch_bump_any_more(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, _two):
        one.hosted.needs_epoch_bump = True
        assert one.writer.agent.describe()["needs_epoch_bump"]
        assert one.lead(0, [1, 2], [1, 2]) == 0
        one.hosted.needs_epoch_bump = True
        assert one.lead(0, [1, 2], [1, 2]) == ErrorCode.FENCED_LEADER_EPOCH
        assert one.follow(2, 1, [1, 2], [1, 2]) == 0
        assert not one.writer.agent.describe()["needs_epoch_bump"]


def test_delete_records_and_descriptions_are_the_leaders(tmp_path: Path) -> None:
    with replicas(tmp_path, 1) as (one,):
        assert one.follow(2, 1, [1, 2], [1, 2]) == 0
        hosted = one.hosted
        for kind in (DescriptorKind.DELETE_RECORDS, DescriptorKind.DESCRIBE_PRODUCERS):
            entry = (kind, 0, 0, hosted.row, hosted.row_generation, hosted.leader_epoch, hosted.config_generation, 0, 0, 0, 0, 0, 0, 0)
            assert one.acceptor.by_disk[one.writer.disk].offer(entry, 0, ("asked", 0))
        _turns_until(one, lambda: len(one.writer.codes("asked")) == 2, "both are answered")
        assert one.writer.codes("asked") == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
