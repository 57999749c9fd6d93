"""More ways in which one disk fails: those that take long, or that smaller tests hold as well. Run by ./install.sh test --deep."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from lab.loop_disks import LoopDisk, why_not
from lab.raw_client import RawClient
from lab.running_box import eventually, start_box
from tests.faults.hurt_box import KAFKA_STORAGE_ERROR, TOPIC, HurtBox, SteadyProducer, batch, p99

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.deep,
    pytest.mark.skipif(bool(why_not(needs_fuse=True)), reason=why_not(needs_fuse=True)),
]

MIB = {"ext4": 64, "xfs": 320}
"""mkfs.xfs wants no less."""
each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.skipif(bool(why_not(kind=kind)), reason=why_not(kind=kind))) for kind in MIB])
QUICK = {"log.disk.deadline.ms": 1000, "log.disk.probe.interval.ms": 200}
TOLD_SECONDS = 5.0
P99_NOISE_SECONDS = 0.02
FLUSHES = {"log.flush.offset.checkpoint.interval.ms": 100}


def test_a_slow_disk_is_served_slowly_and_the_other_one_as_before(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box(is_faulty=True, settings=FLUSHES)
    pids = hurt.box.pids()
    steady = SteadyProducer(hurt.box, hurt.well)
    try:
        time.sleep(2)
        before = p99(steady.take())
        hurt.disk.drive("slow 0.1")  # a hundred times what a disk takes for a write
        for number in range(50):
            assert hurt.produce(f"slow {number}") in (0, KAFKA_STORAGE_ERROR)
            time.sleep(0.1)
        during = p99(steady.take())
    finally:
        hurt.disk.drive("ok")
        steady.stop()
    assert during <= max(2 * before, P99_NOISE_SECONDS)
    hurt.await_return()
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


def test_a_drive_that_hangs_is_answered_for_although_the_page_cache_takes_every_append(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box(is_faulty=True)
    pids = hurt.box.pids()
    assert hurt.produce("before") == 0
    hurt.disk.drive("hang")
    assert hurt.seconds_until_refused(time.monotonic()) < TOLD_SECONDS  # the probe notices
    hurt.disk.drive("ok")
    hurt.await_return()
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


def test_a_disk_that_cannot_be_read_refuses_its_readers_and_serves_them_again(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box(is_faulty=True, settings=FLUSHES)
    pids = hurt.box.pids()
    for number in range(200):
        assert hurt.produce(f"record {number} " + "x" * 5000) == 0
    hurt.await_flushed()
    Path("/proc/sys/vm/drop_caches").write_text("1\n")
    hurt.disk.drive("eio_read")
    started = time.monotonic()
    fetched = hurt.client.fetch(TOPIC, hurt.hurt, 0)
    assert fetched.error_code != 0 or not fetched.records
    assert time.monotonic() - started < TOLD_SECONDS
    other = RawClient(hurt.box.kafka)
    assert other.produce(TOPIC, hurt.well, batch("well")).error_code == 0
    other.close()
    hurt.disk.drive("ok")
    hurt.await_return(30)
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


@each_kind
def test_a_file_system_that_is_shut_down_is_refused_and_what_was_flushed_survives_the_power_cut(hurt_box: Callable[..., HurtBox], kind: str) -> None:
    hurt = hurt_box(kind=kind, mib=MIB[kind], settings={"log.flush.offset.checkpoint.interval.ms": 100, **QUICK})
    pids = hurt.box.pids()
    for number in range(20):
        assert hurt.produce(f"record {number}") == 0
    hurt.await_flushed()
    flushed = dict(hurt.acknowledged)
    hurt.disk.shut_down()
    assert hurt.seconds_until_refused(time.monotonic()) < TOLD_SECONDS
    hurt.disk.power_cycle()
    hurt.acknowledged = flushed
    hurt.await_return()
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


@each_kind
def test_a_power_cut_of_the_drive_loses_nothing_that_was_flushed(hurt_box: Callable[..., HurtBox], kind: str) -> None:
    hurt = hurt_box(is_faulty=True, kind=kind, mib=MIB[kind], settings=FLUSHES)
    hurt.disk.drive("volatile")
    for number in range(50):
        assert hurt.produce(f"record {number}") == 0
    hurt.await_flushed()
    flushed = dict(hurt.acknowledged)
    hurt.produce("perhaps lost")
    hurt.disk.drive("cut")
    assert hurt.seconds_until_refused(time.monotonic()) < TOLD_SECONDS
    hurt.disk.drive("ok")
    hurt.disk.power_cycle()
    hurt.acknowledged = flushed
    hurt.await_return()
    hurt.check_nothing_lost()


@each_kind
def test_a_full_disk_is_read_on_and_takes_writes_again_when_there_is_space(hurt_box: Callable[..., HurtBox], kind: str) -> None:
    hurt = hurt_box(kind=kind, mib=MIB[kind])
    pids = hurt.box.pids()
    assert hurt.produce("before") == 0
    ballast = hurt.disk.fill()
    assert hurt.seconds_until_refused(time.monotonic(), 60) < TOLD_SECONDS
    assert hurt.client.produce(TOPIC, hurt.well, batch("well")).error_code == 0
    hurt.check_nothing_lost()  # it is read while it is full
    ballast.unlink()
    hurt.await_return()
    hurt.check_nothing_lost()
    assert hurt.box.pids() == pids, "no process was started again, not even its own"


@pytest.mark.parametrize("kind", [pytest.param("xfs", marks=pytest.mark.skipif(bool(why_not(kind="xfs")), reason=why_not(kind="xfs")))])
def test_a_frozen_file_system_of_another_kind_is_answered_for_and_replaced_while_it_hangs(
    hurt_box: Callable[..., HurtBox], make_disk: Callable[..., LoopDisk], kind: str
) -> None:
    hurt = hurt_box(kind=kind, mib=MIB[kind], settings=QUICK)
    pids = hurt.box.pids()
    assert hurt.produce("before") == 0
    hurt.disk.freeze()
    assert hurt.seconds_until_refused(time.monotonic()) < TOLD_SECONDS
    hurt.disk.thaw()
    hurt.await_return()
    hurt.check_nothing_lost()
    hurt.disk.freeze()
    assert hurt.seconds_until_refused(time.monotonic()) < TOLD_SECONDS
    replaced = hurt.command("replace", "hurt", str(make_disk("new", kind=kind, mib=MIB[kind]).log), "--accept-data-loss", "--force", "missing")
    assert replaced.returncode == 0, replaced.stderr
    hurt.acknowledged.clear()
    assert hurt.await_return() < TOLD_SECONDS
    hurt.disk.thaw()
    eventually(lambda: not any("(detached)" in name for name in hurt.box.status()), "it is gone")
    hurt.disk.unmount()
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


def test_a_disk_that_is_fenced_again_and_again_waits_longer_each_time_and_says_so(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box(settings=QUICK)
    pids = hurt.box.pids()
    assert hurt.produce("before") == 0
    writer = f"log-writer@{hurt.box.disks[0].name}"
    fenced, known = f"{writer} is fenced", f"controller: {writer} is there"
    for times in (1, 2, 3):
        eventually(lambda times=times: hurt.box.messages.count(known) == times, "the controller, which fences, knows this incarnation")  # type: ignore[misc]
        hurt.disk.freeze()
        assert hurt.seconds_until_refused(time.monotonic()) < TOLD_SECONDS
        eventually(lambda times=times: hurt.box.messages.count(fenced) == times, f"the controller fences it\n{hurt.box.messages}")  # type: ignore[misc]
        hurt.disk.thaw()
        if times < 3:
            hurt.await_return()
    eventually(lambda: "fenced 3 times" in hurt.command("list").stdout, f"the list says why it is not served\n{hurt.box.messages}")
    assert hurt.await_return() > 2
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


def test_a_disk_that_hangs_and_holds_nothing_is_removed(hurt_box: Callable[..., HurtBox], make_disk: Callable[..., LoopDisk]) -> None:
    hurt = hurt_box(settings=QUICK)
    pids = hurt.box.pids()
    third = make_disk("third", mib=32)
    assert hurt.command("add", str(third.log / "third"), "--force", "missing").returncode == 0
    eventually(lambda: hurt.box.status().get("log-writer@third", {}).get("state") == "serving", "it serves")
    third.freeze()
    try:
        eventually(lambda: "hung" in hurt.command("list").stdout, "its probe hangs", 20)
        removed = hurt.command("remove", "third")
        assert removed.returncode == 0, removed.stderr
        assert "log-writer@third" not in hurt.box.status()
        assert hurt.produce("the others are served") == 0
    finally:
        third.thaw()
    eventually(lambda: not any("(detached)" in name for name in hurt.box.status()), "it is gone")
    third.unmount()
    assert hurt.box.pids() == pids


def test_flipped_bits_in_a_segment_reach_no_consumer_unnoticed_and_stop_no_other_partition(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box()
    for number in range(20):
        assert hurt.produce(f"record {number} " + "x" * 500) == 0
    segment = hurt.directory / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[data.index(b"record 10 ") + 20] ^= 0x10  # behind the checksum: base offset and leader epoch stand before it, and no client could tell
    with open(segment, "r+b") as file:
        file.write(data)
    consumer = Consumer({"bootstrap.servers": hurt.box.bootstrap, "group.id": "none", "check.crcs": True, "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, hurt.hurt, 0)])
    told: list[int] = []
    deadline = time.monotonic() + 10
    while not told and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        error, value = message.error(), message.value()
        if error is not None:
            told.append(error.code())
        else:
            assert value is not None and value.startswith(f"record {message.offset()} ".encode())
    consumer.close()
    assert told == [KafkaError._BAD_MSG]
    assert hurt.client.produce(TOPIC, hurt.well, batch("well")).error_code == 0


def test_a_box_starts_with_a_dead_disk_and_serves_the_other(make_disk: Callable[..., LoopDisk], tmp_path: Path) -> None:
    dead, well = make_disk("dead"), make_disk("well")
    data = [dead.path / "log", well.path / "log2"]
    start_box(tmp_path / "box", data=data).stop()
    dead.shut_down()
    box = start_box(tmp_path / "box", data=data)
    try:
        client = RawClient(box.kafka)
        client.create_topic("lives", 1)
        assert client.produce("lives", 0, batch("served")).error_code == 0
        assert "stays offline" in box.messages
        pid = box.pid("log-writer@log")
        dead.power_cycle()
        box.await_restart("log-writer@log", pid, 40)
        eventually(lambda: "opened" in box.messages.split("stays offline")[-1], "it is opened")
        client.close()
    finally:
        box.stop()
    assert box.leftovers() == []


def test_a_box_stops_although_a_disk_hangs(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box()
    assert hurt.produce("before") == 0
    hurt.disk.freeze()
    try:
        hurt.client.send_produce(TOPIC, hurt.hurt, batch("hangs"), timeout_seconds=30)
        assert hurt.client.receive_produce().error_code == KAFKA_STORAGE_ERROR
        started = time.monotonic()
        hurt.box.stop()
        assert time.monotonic() - started < 40
        assert "cannot be killed" in hurt.box.messages
    finally:
        hurt.disk.thaw()
    eventually(lambda: hurt.box.leftovers() == [], "what was left behind ends when the disk answers")


def test_a_dead_disk_is_replaced_by_one_at_another_path_and_the_next_start_knows_it(
    hurt_box: Callable[..., HurtBox], make_disk: Callable[..., LoopDisk]
) -> None:
    hurt = hurt_box()
    box, new = hurt.box, make_disk("new")
    new.log.mkdir()
    assert hurt.produce("lost with its disk") == 0
    hurt.disk.shut_down()
    hurt.seconds_until_refused(time.monotonic())
    replaced = hurt.command("replace", "hurt", str(new.log), "--accept-data-loss")
    assert replaced.returncode == 0, replaced.stderr
    hurt.acknowledged.clear()
    hurt.await_return()
    assert (new.log / f"{TOPIC}-{hurt.hurt}").is_dir()
    hurt.check_nothing_lost()
    hurt.client.close()
    box.stop()
    again = start_box(box.directory, data=[Path(str(path)) for path in box.disks])
    try:
        assert [disk.path for disk in again.box.disks] == [str(new.log), str(box.disks[1])]
        hurt.client = RawClient(again.kafka)
        hurt.check_nothing_lost()
    finally:
        again.stop()
