"""What a process costs, from /proc, and what it publishes about that."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Iterator

import pytest

from appliance.base.layout import BoxLayout
from appliance.runtime.process_cost import (
    COST_NS,
    HEAP_LOOK_NS,
    PSS_AFTER_NS,
    CostReport,
    HeapBound,
    published_cost,
    read_cost,
    read_private_bytes,
    read_pss_bytes,
)
from appliance.shm.counters import Counters, read_counters
from lab.running_box import eventually
from lab.scratch_layout import scratch_layout

NAME = "acceptor@0"


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


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


def test_a_process_publishes_its_processor_time_and_memory(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, NAME, 1)
    report = CostReport(counters)
    now_ns = COST_NS

    def turn() -> tuple[float, int, int | None]:
        nonlocal now_ns
        now_ns += COST_NS
        report.turn(now_ns)
        snapshot = read_counters(layout, NAME)
        assert snapshot is not None
        cost, pss_bytes = published_cost(snapshot.values)
        assert cost is not None
        return cost.cpu_seconds, cost.resident_bytes, pss_bytes

    cpu_seconds, resident_bytes, pss_bytes = turn()
    assert cpu_seconds > 0 and resident_bytes > 1 << 20 and pss_bytes is None, "its page tables are read later"
    now_ns += PSS_AFTER_NS
    eventually(lambda: (turn()[2] or 0) > 1 << 20, "the memory that it shares is divided")
    counters.close()


def test_a_process_that_has_ended_leaves_its_last_figures(layout: BoxLayout) -> None:
    """The supervisor publishes for the JVM."""
    counters = Counters.create_or_adopt(layout, "zookeeper", 1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        report = CostReport(counters, process.pid)
        report.turn(COST_NS)
    seen = read_counters(layout, "zookeeper")
    report.turn(3 * COST_NS)
    assert seen is not None and seen.values == (read_counters(layout, "zookeeper") or seen).values
    cost, _ = published_cost(seen.values)
    assert cost is not None
    assert published_cost({}) == (None, None)
    counters.close()


def test_the_figures_of_an_incarnation_are_its_own(layout: BoxLayout) -> None:
    first = Counters.create_or_adopt(layout, NAME, 1)
    CostReport(first).turn(COST_NS)
    first.gauge("process.pss_bytes").set(7)
    first.close()
    second = Counters.create_or_adopt(layout, NAME, 2)
    CostReport(second).turn(COST_NS)
    assert published_cost({label: second.counter(label).value for label in second.labels()})[1] is None
    second.close()


def test_what_a_process_allocates_is_private_and_what_it_shares_is_not() -> None:
    before = read_private_bytes()
    with mmap.mmap(-1, 64 << 20) as shared:
        for position in range(0, len(shared), mmap.PAGESIZE):
            shared[position] = 1
        assert read_private_bytes() - before < 16 << 20
    held = bytearray(64 << 20)
    assert len(held) == 64 << 20 and read_private_bytes() - before > 48 << 20


def test_a_bound_of_the_heap_is_looked_at_now_and_then() -> None:
    now_ns, used = [0], [10]
    bound = HeapBound(100, lambda: now_ns[0], lambda: used[0])
    assert bound.has_room()
    used[0] = 100
    assert bound.has_room()
    now_ns[0] = HEAP_LOOK_NS
    assert not bound.has_room()
