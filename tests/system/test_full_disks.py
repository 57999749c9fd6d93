"""Disks that fill up, and limits that are reached: what is refused, what goes on, what heals by itself.

The disks are small file systems in memory: a full one is really full.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.records.builder import BatchBuilder
from appliance.shm.mapping import list_names
from appliance.shm.partition_table import DISK_FULL, DISK_ONLINE, PartitionTableReader
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

KAFKA_STORAGE_ERROR = 56


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """40 MiB of memory as a file system."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(path)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def box_on_small_disk(small_disk: Path, start: Callable[..., RunningBox]) -> RunningBox:
    """Its only disk is the small one. Asked for after it, so that the box ends before the disk goes."""
    return start(data=[small_disk / "d0"])


def _batch(text: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, text)
    return builder.build()


def _fill(path: Path) -> Path:
    """A stranger's file that takes all there is."""
    ballast = path / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    return ballast


def _disk_state(box: RunningBox) -> int:
    (name,) = list_names(box.layout.shared_memory_name("table", box.box.disks[0].name) + ".")
    table = PartitionTableReader.attach(name)
    try:
        return table.disk_state
    finally:
        table.close()


def _produce_until_refused(client: RawClient, topic: str) -> int:
    produced = 0
    while (code := client.produce(topic, 0, _batch(os.urandom(16_384))).error_code) == 0:
        produced += 1
    assert code == KAFKA_STORAGE_ERROR
    return produced


def test_a_full_disk_is_read_from_and_takes_writes_again_when_there_is_space(box_on_small_disk: RunningBox, small_disk: Path) -> None:
    box = box_on_small_disk
    client = RawClient(box.kafka)
    client.create_topic("full", 1)
    assert client.produce("full", 0, _batch(b"kept")).base_offset == 0
    ballast = _fill(small_disk)
    # long enough for the checkpoints of an idle disk to be due: nothing is appended meanwhile
    eventually(lambda: _disk_state(box) == DISK_FULL, "an idle disk notices that it is full", 15)
    _produce_until_refused(client, "full")
    fetched = client.fetch("full", 0, 0)
    assert fetched.error_code == 0 and b"kept" in fetched.records
    ballast.unlink()
    eventually(lambda: _disk_state(box) == DISK_ONLINE, "an idle disk notices that it has space", 15)
    assert client.produce("full", 0, _batch(b"more")).error_code == 0
    assert "offline" not in box.messages
    client.close()


def test_a_log_writer_that_is_killed_on_a_full_disk_comes_back_and_serves_what_it_has(box_on_small_disk: RunningBox, small_disk: Path) -> None:
    box = box_on_small_disk
    client = RawClient(box.kafka)
    client.create_topic("full", 1)
    assert client.produce("full", 0, _batch(b"kept")).base_offset == 0
    ballast = _fill(small_disk)
    _produce_until_refused(client, "full")
    end = client.list_offset("full", 0, -1)
    victim = f"log-writer@{box.box.disks[0].name}"
    for _ in range(3):
        box.await_restart(victim, box.kill(victim), 15)
    fetched = eventually(lambda: (found := client.fetch("full", 0, 0)).error_code == 0 and found, "reads go on", 10)
    assert b"kept" in fetched.records
    assert client.list_offset("full", 0, -1) == end
    assert "goes offline" not in box.messages
    ballast.unlink()
    produced = eventually(lambda: (found := client.produce("full", 0, _batch(b"more"))).error_code == 0 and found, "it heals", 15)
    assert produced.base_offset == end
    client.close()
