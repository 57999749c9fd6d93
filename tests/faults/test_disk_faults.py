"""One disk fails in one way, each on a real file system; the box has another one. Users of the
failing disk receive errors in time, and no others are affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from appliance.runtime.disk_orders import kept_disks
from lab.loop_disks import LoopDisk, why_not
from lab.raw_client import RawClient
from lab.running_box import eventually, start_box
from tests.faults.hurt_box import KAFKA_STORAGE_ERROR, TOPIC, HurtBox, SteadyProducer, batch, p99

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
needs_faulty_drive = pytest.mark.skipif(bool(why_not(needs_fuse=True)), reason=why_not(needs_fuse=True))

TOLD_SECONDS = 5.0
QUICK = {"log.disk.deadline.ms": 1000, "log.disk.probe.interval.ms": 200}
P99_NOISE_SECONDS = 0.02
"""Two cores serve clients, box, kernel and other tests: a shorter delay is no fault. A hung disk delays a
request by seconds.
"""


@pytest.mark.alone
def test_requests_to_a_hung_disk_fail_in_time_and_no_others_wait(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box()
    pids = hurt.box.pids()
    assert hurt.produce("before") == 0
    steady = SteadyProducer(hurt.box, hurt.well)
    try:
        time.sleep(1.5)
        before = p99(steady.take())
        hurt.disk.freeze()
        fault_at = time.monotonic()
        hurt.client.send_produce(TOPIC, hurt.hurt, batch("in flight"), timeout_seconds=30)
        assert hurt.client.receive_produce().error_code == KAFKA_STORAGE_ERROR
        assert time.monotonic() - fault_at < TOLD_SECONDS
        asked_at = time.monotonic()
        assert hurt.produce("refused") == KAFKA_STORAGE_ERROR
        assert hurt.client.fetch(TOPIC, hurt.hurt, 0).error_code == KAFKA_STORAGE_ERROR
        assert time.monotonic() - asked_at < 0.5
        during = p99(steady.take())
    finally:
        hurt.disk.thaw()
        steady.stop()
    assert during <= max(2 * before, P99_NOISE_SECONDS)
    hurt.await_return()
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


@needs_faulty_drive
@pytest.mark.alone  # within how many seconds
def test_a_disk_that_refuses_writes_goes_offline_and_comes_back_when_it_is_mounted_again(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box(is_faulty=True, settings={"log.flush.offset.checkpoint.interval.ms": 100})
    pids = hurt.box.pids()
    assert hurt.produce("before") == 0
    hurt.await_flushed()
    hurt.disk.drive("eio_write")
    assert hurt.seconds_until_refused(time.monotonic()) < TOLD_SECONDS
    flushed = {offset: text for offset, text in hurt.acknowledged.items() if text == "before"}
    hurt.disk.drive("ok")
    # A file system with an aborted journal must be mounted again: no file on it may be open.
    hurt.disk.power_cycle()
    hurt.acknowledged = flushed
    hurt.await_return()
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


def test_a_swapped_disk_is_recognised_and_replaced_by_an_explicit_order(hurt_box: Callable[..., HurtBox]) -> None:
    hurt = hurt_box(settings=QUICK)
    pids = hurt.box.pids()
    assert hurt.produce("lost with its disk") == 0
    assert hurt.command("replace", "hurt", "--accept-data-loss").returncode == 1  # it is online
    hurt.disk.shut_down()
    hurt.seconds_until_refused(time.monotonic())
    hurt.disk.swap()
    hurt.box.disks[0].mkdir(parents=True)
    eventually(lambda: "disk was swapped" in hurt.box.messages, "the log-writer sees another disk", 15)
    assert hurt.produce("refused") == KAFKA_STORAGE_ERROR
    assert not (hurt.box.disks[0] / "meta.properties").exists()  # an empty mount point is not written to
    assert hurt.command("replace", "hurt").returncode == 2
    replaced = hurt.command("replace", "hurt", "--accept-data-loss")
    assert replaced.returncode == 0, replaced.stderr
    hurt.acknowledged.clear()
    hurt.await_return()
    assert min(hurt.acknowledged) == 0  # begun anew
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


@pytest.mark.alone
def test_a_disk_that_still_hangs_is_replaced_at_once_and_its_log_writer_is_gone_when_it_answers(
    hurt_box: Callable[..., HurtBox], make_disk: Callable[..., LoopDisk]
) -> None:
    hurt = hurt_box(settings=QUICK)
    pids = hurt.box.pids()
    new = make_disk("new")
    new.log.mkdir()
    assert hurt.produce("lost with its disk") == 0
    assert hurt.command("replace", "hurt", str(new.log), "--accept-data-loss").returncode == 1  # it is online
    hurt.disk.freeze()
    hurt.client.send_produce(TOPIC, hurt.hurt, batch("in flight"), timeout_seconds=30)
    assert hurt.client.receive_produce().error_code == KAFKA_STORAGE_ERROR

    def given() -> int:
        return hurt.box.counters("acceptor@0").values["acceptor.arena_used_bytes"]

    eventually(given, "what the log-writer was given is its own")
    refused = hurt.command("remove", "hurt")
    assert refused.returncode == 1 and f"{TOPIC}-{hurt.hurt}" in refused.stderr
    replaced = hurt.command("replace", "hurt", str(new.log), "--accept-data-loss")
    assert replaced.returncode == 0, replaced.stderr
    hurt.acknowledged.clear()
    assert hurt.await_return() < TOLD_SECONDS
    assert min(hurt.acknowledged) == 0  # begun anew
    assert hurt.box.pid("log-writer@hurt (detached)") == pids["log-writer@hurt"]  # no process waited for it
    assert given()
    hurt.disk.thaw()
    eventually(lambda: not any("(detached)" in name for name in hurt.box.status()), "it is gone")
    eventually(lambda: not given(), "its memory is given back")
    hurt.disk.unmount()
    hurt.check_nothing_lost()
    hurt.check_others_untouched(pids)


def test_a_box_starts_with_a_disk_that_hangs_and_takes_it_in_when_it_answers(make_disk: Callable[..., LoopDisk], tmp_path: Path) -> None:
    hung, well = make_disk("hung"), make_disk("well")
    data = [hung.path / "log" / "hung", well.path / "log" / "well"]
    first = start_box(tmp_path / "box", data=data)
    client = RawClient(first.kafka)
    client.create_topic(TOPIC, 2)
    partition = 0 if (data[0] / f"{TOPIC}-0").is_dir() else 1
    assert client.produce(TOPIC, partition, batch("before")).error_code == 0
    client.close()
    first.stop()
    hung.freeze()
    box = start_box(tmp_path / "box", data=data, settings=QUICK)
    client = RawClient(box.kafka)
    try:
        assert f"{data[0]} does not answer" in box.messages
        assert client.produce(TOPIC, 1 - partition, batch("served")).error_code == 0
        assert client.produce(TOPIC, partition, batch("refused")).error_code == KAFKA_STORAGE_ERROR
        assert box.counters("log-writer@hung").state == "offline"
        pid = box.pid("log-writer@hung")
        hung.thaw()
        box.await_restart("log-writer@hung", pid, 20)
        eventually(lambda: client.produce(TOPIC, partition, batch("back")).error_code == 0, "it is served")
        assert b"before" in client.fetch(TOPIC, partition, 0).records
        eventually(lambda: not any("(detached)" in name for name in box.status()), "processes that read it before the start are gone")
    finally:
        hung.thaw()
        client.close()
        box.stop()
    assert box.leftovers() == []


def test_a_directory_that_is_no_empty_disk_of_its_own_is_refused_for_every_reason_at_once_and_nothing_is_created(
    hurt_box: Callable[..., HurtBox], make_disk: Callable[..., LoopDisk]
) -> None:
    hurt = hurt_box()
    pids = hurt.box.pids()
    typo = hurt.box.directory / "typo"
    refused = hurt.command("add", str(typo))
    assert refused.returncode == 2 and not typo.exists()
    for words in (f"{typo} does not exist", f"{typo} is on the same device as the state directory", "--force missing", "--force same-device"):
        assert words in refused.stderr, refused.stderr
    beside = hurt.disk.path / "beside"
    beside.mkdir()
    (beside / "holiday.jpg").touch()
    refused = hurt.command("add", str(beside))
    assert refused.returncode == 2 and "disk hurt" in refused.stderr and "holiday.jpg" in refused.stderr
    assert hurt.command("add", str(beside), "--force", "same-device").returncode == 2, "one reason is not the other"
    assert "there is no such reason" in hurt.command("add", str(beside), "--force", "all").stderr
    new = make_disk("new")
    refused = hurt.command("replace", "hurt", str(new.log), "--accept-data-loss")
    assert refused.returncode == 2 and f"{new.log} does not exist" in refused.stderr and not new.log.exists()
    assert hurt.box.pids() == pids
    added = hurt.command("add", str(beside), "--force", "same-device,other-files")
    assert added.returncode == 0, added.stderr
    eventually(lambda: hurt.box.status().get("log-writer@beside", {}).get("state") == "serving", "it serves")


def test_disks_are_added_and_removed_while_the_box_runs_and_the_next_start_knows_it(
    hurt_box: Callable[..., HurtBox], make_disk: Callable[..., LoopDisk]
) -> None:
    hurt = hurt_box()
    pids = hurt.box.pids()
    new = make_disk("new", mib=128)  # more free space than the others: partitions go there
    added = hurt.command("add", str(new.log / "third"), "--force", "missing")
    assert added.returncode == 0, added.stderr
    eventually(lambda: hurt.box.status().get("log-writer@third", {}).get("state") == "serving", "it serves")
    assert "third" in hurt.command("list").stdout
    eventually(lambda: hurt.box.counters("log-writer@third").values.get("disk.free_bytes", 0) > 0, "its free space is known")
    eventually(lambda: "log-writer@third connected" in hurt.box.messages, "the controller has learned of it")
    hurt.client.create_topic("later", 1)
    assert (new.log / "third" / "later-0").is_dir()
    eventually(lambda: hurt.client.produce("later", 0, batch("on the new disk")).error_code == 0, "acceptors have learned of it")
    assert b"on the new disk" in hurt.client.fetch("later", 0, 0).records
    refused = hurt.command("remove", "third")
    assert refused.returncode == 1 and "later-0" in refused.stderr
    admin = AdminClient({"bootstrap.servers": hurt.box.bootstrap})
    admin.delete_topics(["later"])["later"].result(20)
    eventually(lambda: hurt.command("remove", "third").returncode == 0, "an empty disk is removed")
    eventually(lambda: "log-writer@third" not in hurt.box.status(), "no log-writer serves it")
    assert {name: pid for name, pid in hurt.box.pids().items() if name in pids} == pids
    assert hurt.command("add", str(new.log / "third")).returncode == 0
    assert [disk.path for disk in kept_disks(str(hurt.box.directory / "state"), [str(path) for path in hurt.box.disks]) or []] == [
        *map(str, hurt.box.disks),
        str(new.log / "third"),
    ]
