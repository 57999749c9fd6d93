"""A source whose descriptors name bytes outside its arena loses its channel before any of them is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.ipc.descriptors import DescriptorKind
from lab.scratch_layout import scratch_layout
from tests.support.real_log_writer import DISK, RealLogWriter


@pytest.mark.parametrize("kind", [DescriptorKind.CREATE, DescriptorKind.MOVE_BEGIN, DescriptorKind.REPLICA_APPEND, DescriptorKind.REPAIR])
def test_bytes_outside_the_arena_are_never_read(kind: DescriptorKind, tmp_path: Path) -> None:
    with scratch_layout() as layout:
        writer = RealLogWriter(layout, tmp_path, 1)
        writer.recover()
        proxies = writer.source("controller")
        beyond = len(proxies.source.arena.memory) - 100
        assert proxies.by_disk[DISK].offer((kind, 0, 0, 0, 0, 0, 0, 101, beyond, 0, 0, 0, 0, 0), 0, None)
        proxies.flush()
        writer.agent.do_work()
        assert writer.agent.door.channels == [] and f"controller names 101 bytes at {beyond}" in writer.said
        assert writer.counters.counter("log_writer.refused_sources").value == 1
        writer.die()
