"""Another program deletes everything that a box has in /dev/shm: its processes say so and restart one by one, and no record is lost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from appliance.records.builder import BatchBuilder
from appliance.shm.counters import read_counters
from appliance.shm.mapping import list_names
from lab.raw_client import RawClient
from lab.running_box import eventually, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]


def _batch() -> bytes:
    builder = BatchBuilder()
    builder.append(time.time_ns() // 1_000_000, None, b"value")
    return builder.build()


def test_processes_whose_objects_were_deleted_restart_one_by_one(tmp_path: Path) -> None:
    box = start_box(tmp_path / "box", disks=2)
    client = RawClient(box.kafka)
    client.create_topic("kept", 4)
    eventually(lambda: client.is_served("kept", 4), "the topic is served")
    for partition in range(4):
        assert client.produce("kept", partition, _batch()).error_code == 0
    client.close()
    before = {name: pid for name, pid in box.pids().items() if name not in ("supervisor", "zookeeper")}
    names = list_names(box.layout.shared_memory_prefix)
    assert len(names) > len(before)
    for name in names:
        os.unlink(f"/dev/shm{name}")
    down: list[set[str]] = []

    def have_restarted() -> bool:
        status = box.status()
        down.append({name for name in before if status[name]["state"] != "serving"})
        return not down[-1] and all(status[name]["pid"] != pid for name, pid in before.items())

    eventually(have_restarted, "every process has restarted", 90)
    assert max(map(len, down)) == 1, [each for each in down if len(each) > 1]
    assert {name for each in down for name in each} <= set(before)
    messages = box.messages
    assert "has sent no heartbeat" not in messages and "failed with" not in messages
    for name in before:
        assert f"ERROR {name}: another program deleted" in messages, name
        assert box.counters(name).values["runtime.shared_memory_losses"] == 1, name
    eventually(lambda: "ERROR supervisor: another program deleted" in box.messages, "the supervisor looks, a quarter of the watchdog's time later", 15)
    # The supervisor logs the loss first and creates its counters afterwards.
    eventually(lambda: (found := read_counters(box.layout, "supervisor")) is not None and found.state == "serving", "its counters are there again")
    again = RawClient(box.kafka)
    eventually(lambda: again.is_served("kept", 4), "the topic is served again")
    for partition in range(4):
        assert again.list_offset("kept", partition, -1) == 1
        assert again.produce("kept", partition, _batch()).error_code == 0
    again.close()
    box.stop()
    assert box.leftovers() == []
