"""A damaged disk under a running box: flipped bits in closed segments are reported by position, and
a bad index is rebuilt.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.foreign_clients import Refused, open_client
from lab.running_box import ROOT, RunningBox, environment, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

RECORDS = 2_000


def status(box: RunningBox) -> dict[str, Any]:
    command = [str(ROOT / ".venv/bin/millrace"), "status", "--json", "--data", str(box.disks[0])]
    document: dict[str, Any] = json.loads(subprocess.run(command, env=environment(), capture_output=True, check=True).stdout)
    return document


def flip(path: Path, at: int) -> None:
    """As a disk does it: the file's times stay as they are."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    with open(path, "r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_flipped_bits_are_reported_by_position_and_an_index_is_rebuilt(start: Callable[..., RunningBox]) -> None:
    box = start(
        disks=1,
        settings={"log.segment.bytes": 65536, "log.scrub.bytes.per.second": 8 << 20, "log.scrub.interval.ms": 200, "log.retention.check.interval.ms": 1000},
    )
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 5, "batch.size": 4000})
    for number in range(RECORDS):
        producer.produce("t", b"%0200d" % number, partition=0)
    assert producer.flush(60) == 0
    directory = box.disks[0] / "t-0"
    closed = sorted(directory.glob("*.log"))[:-1]
    assert len(closed) >= 4
    passes = box.counters("log-reader@d0").values["scrub.passes"]
    eventually(lambda: box.counters("log-reader@d0").values["scrub.passes"] > passes + 1, "a pass ends")
    assert status(box)["damages"] == []

    index = closed[2].with_suffix(".index")
    good = index.read_bytes()
    flip(index, len(good) - 2)
    eventually(lambda: box.counters("log-writer@d0").values["log_writer.indexes_rebuilt"], "the index is made anew")
    assert index.read_bytes() == good
    flip(closed[1], closed[1].stat().st_size // 2)
    (damage,) = eventually(lambda: [one for one in status(box)["damages"] if not one["is_rebuildable"]], "the damage is reported")
    base, end = int(closed[1].stem), int(closed[2].stem)
    assert (damage["disk"], damage["topic"], damage["partition"], damage["file"]) == ("d0", "t", 0, closed[1].name)
    assert base <= damage["offset"] < end
    assert f"t-0 at offset {damage['offset']}" in box.messages

    reader = open_client("librdkafka", box.bootstrap)
    assert reader.offset("t", "latest") == RECORDS, "everything else goes on"
    assert [record.offset for record in reader.fetch("t", 10, end)] == list(range(end, end + 10))

    java = open_client("kafka-clients", box.bootstrap)
    with pytest.raises(Refused, match="seek past the record"):
        java.fetch("t", end - base, base)
    assert [record.offset for record in java.fetch("t", 10, end)][:10] == list(range(end, end + 10)), "a consumer may seek behind it"

    gone, behind = int(closed[3].stem), int(sorted(directory.glob("*.log"))[4].stem)
    closed[3].unlink()
    lost = {"disk": "d0", "topic": "t", "partition": 0, "first": gone, "until": behind, "is_settled": False}
    eventually(lambda: status(box)["lost_offsets"] == [lost], "a segment that is removed while the box runs is reported")
    assert f"CRITICAL log-writer@d0: log t-0 lacks {behind - gone} offsets, {gone} to {behind - 1}" in box.messages
    old_pid = box.kill("log-writer@d0")
    box.await_restart("log-writer@d0", old_pid)
    eventually(lambda: status(box)["lost_offsets"] == [lost | {"is_settled": True}], "consumers go on behind the offsets")
    for client in (java, reader):
        assert [record.offset for record in client.fetch("t", 10, gone - 5)][:10] == [*range(gone - 5, gone), *range(behind, behind + 5)], client.name
    java.close()
