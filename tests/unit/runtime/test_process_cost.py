"""What a process costs, from /proc."""

from __future__ import annotations

import os

from appliance.runtime.process_cost import read_cost, read_pss_bytes


def ended_pid() -> int:
    """The pid of a process that is gone."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    return pid


def test_a_living_process_has_time_and_memory_and_a_dead_one_has_none() -> None:
    cost, pss_bytes = read_cost(os.getpid()), read_pss_bytes(os.getpid())
    assert cost is not None and pss_bytes is not None
    assert cost.cpu_seconds > 0 and 1 << 20 < pss_bytes <= cost.resident_bytes * 1.5
    assert read_cost(ended_pid()) is None and read_pss_bytes(ended_pid()) is None
