"""A sender must not erase what was written before: a flood on a small disk, which took the oldest records of all topics in release 0.1.0."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.records.builder import BatchBuilder
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

EARLIEST, LATEST = -2, -1
KAFKA_STORAGE_ERROR = 56
SETTINGS = {"log.segment.bytes": 1 << 20, "log.disk.reserve.percent": 25}


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


def _batch() -> bytes:
    builder = BatchBuilder()
    builder.append(time.time_ns() // 1_000_000, None, os.urandom(400_000))
    return builder.build()


def test_a_flood_takes_only_what_is_not_protected_and_is_refused_then(small_disk: Path, start: Callable[..., RunningBox]) -> None:
    box = start(data=[small_disk / "d0"], settings=SETTINGS)
    client = RawClient(box.kafka)
    evidence = NewTopic("evidence", 1, config={"millrace.retention.protected.ms": "3600000"})
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    for created in admin.create_topics([evidence, NewTopic("flood", 1)]).values():
        created.result(60)
    for _ in range(20):
        assert client.produce("evidence", 0, _batch()).error_code == 0
    (small_disk / "ballast").write_bytes(bytes(14 << 20))
    for _ in range(60):
        assert client.produce("flood", 0, _batch()).error_code == 0, "the reserve takes the flood's own segments"
        eventually(lambda: os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize > 2 << 20, "space is freed")
    assert client.list_offset("flood", 0, EARLIEST) > 0
    assert client.list_offset("evidence", 0, EARLIEST) == 0
    eventually(
        lambda: any(client.produce("evidence", 0, _batch()).error_code == KAFKA_STORAGE_ERROR for _ in range(10)), "the flood of a protected topic is refused"
    )
    assert client.list_offset("evidence", 0, EARLIEST) == 0, "the oldest record is still there"
    client.close()
    box.stop()
