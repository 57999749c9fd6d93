"""The machines that clusters of tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.loop_disks import loop_disks
from lab.machine import Namespace

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_a_machine_keeps_no_disk_of_another_test(tmp_path: Path) -> None:
    with loop_disks(tmp_path / "disks") as make:
        disk = make("other", mib=64)
        machine = Namespace()
        try:
            mounted = Path(f"/proc/{machine.pid}/mounts").read_text()
            assert str(disk.path) not in mounted and str(disk.path) in Path("/proc/self/mounts").read_text()
        finally:
            machine.end()
