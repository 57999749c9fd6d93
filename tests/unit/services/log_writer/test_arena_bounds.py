"""Descriptors that name bytes outside their source's arena end the log-writer before it reads any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.invariants import InvariantViolation
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
        with pytest.raises(InvariantViolation, match=f"controller names 101 bytes at {beyond}"):
            writer.turn()
        writer.die()
