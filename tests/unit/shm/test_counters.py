from __future__ import annotations

import os
import subprocess
import sys

import pytest

from appliance.base.layout import BoxLayout
from appliance.shm.counters import DEAD, LABEL_BYTES, SLOTS, USED_WORD, CounterReader, Counters, list_counters, read_counters, unlink_all
from appliance.shm.mapping import BOOT_WORD_LOW, VERSION_WORD, SharedObject
from lab.scratch_layout import purposes_left

NAME = "ingest@0"


def test_any_process_reads_what_the_owner_counts(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, NAME, 5, wall_ms=1_700)
    counters.counter('ingest.received{transport="udp"}').add()
    counters.counter('ingest.received{transport="udp"}').add(41)
    counters.counter("disk.free_bytes").set(7)
    counters.beat(99)
    counters.set_state("serving")
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None
    assert snapshot == (NAME, os.getpid(), 1_700, 99, "serving", {'ingest.received{transport="udp"}': 42, "disk.free_bytes": 7}, {}, True)
    counters.close()


def test_counters_show_whether_a_process_owns_them(layout: BoxLayout) -> None:
    """A lock shows it, so the owner need not be visible in /proc. Two incarnations may overlap while a disk holds the first."""
    reader = CounterReader(layout, NAME)

    def seen() -> list[bool]:
        return [snapshot is not None and snapshot.is_alive for snapshot in (reader.read(), read_counters(layout, NAME))]

    first = Counters.create_or_adopt(layout, NAME, 5)
    second = Counters.create_or_adopt(layout, NAME, 6)
    assert seen() == [True, True]
    first.close()
    assert seen() == [True, True]
    second.set_state(DEAD)
    assert seen() == [False, False], "their owner keeps them for another process, which has ended"
    second.set_state("serving")
    second.close()
    assert seen() == [False, False]
    reader.close()


def test_the_kernel_lets_go_of_counters_whose_owner_is_killed(layout: BoxLayout) -> None:
    program = (
        "import sys; from appliance.base.layout import BoxLayout; from appliance.shm.counters import Counters;"
        f" held = Counters.create_or_adopt(BoxLayout({layout.runtime_directory!r}), {NAME!r}, 1); print('', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline()
        snapshot = read_counters(layout, NAME)
        assert snapshot is not None and snapshot.is_alive
        owner.kill()
        owner.wait()
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None and not snapshot.is_alive


def test_a_process_that_never_counted_has_no_counters(layout: BoxLayout) -> None:
    assert read_counters(layout, "nobody") is None and list_counters(layout) == []


def test_the_next_incarnation_adopts_values_and_starts_its_own_clock(layout: BoxLayout) -> None:
    dead = Counters.create_or_adopt(layout, NAME, 5, wall_ms=1)
    dead.counter("a").add(3)
    dead.beat(1_000)
    dead.set_state("serving")
    dead.close()
    heir = Counters.create_or_adopt(layout, NAME, 6, wall_ms=2)
    assert heir.counter("a").value == 3
    heir.counter("b").add()
    heir.counter("a").add()
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None and snapshot[2:] == (2, 0, "starting", {"a": 4, "b": 1}, {}, True)
    heir.close()


def test_a_gauge_starts_at_zero_in_each_incarnation(layout: BoxLayout) -> None:
    dead = Counters.create_or_adopt(layout, NAME, 5)
    dead.gauge("cleaner.running").set(1)
    dead.close()
    heir = Counters.create_or_adopt(layout, NAME, 6)
    assert heir.gauge("cleaner.running").value == 0
    heir.gauge("cleaner.running").set(2)
    assert heir.gauge("cleaner.running").value == 2 == heir.counter("cleaner.running").value
    heir.close()


def test_a_slot_that_was_not_finished_before_a_death_is_not_adopted(layout: BoxLayout) -> None:
    dead = Counters.create_or_adopt(layout, NAME, 5)
    dead.counter("whole").add(3)
    dead.counter("half").add(9)
    dead.shared.words[USED_WORD] -= 1
    dead.close()
    heir = Counters.create_or_adopt(layout, NAME, 6)
    assert heir.labels() == ["whole"]
    assert heir.counter("another").value == 0
    heir.close()


def test_counters_of_another_boot_begin_at_zero(layout: BoxLayout) -> None:
    dead = Counters.create_or_adopt(layout, NAME, 5)
    dead.counter("a").add(3)
    dead.shared.words[BOOT_WORD_LOW] ^= 1
    dead.close()
    heir = Counters.create_or_adopt(layout, NAME, 6)
    assert heir.counter("a").value == 0
    heir.close()


def test_counters_of_another_release_begin_at_zero(layout: BoxLayout) -> None:
    dead = Counters.create_or_adopt(layout, NAME, 5)
    dead.counter("a").add(3)
    dead.shared.words[VERSION_WORD] += 1
    dead.close()
    heir = Counters.create_or_adopt(layout, NAME, 6)
    assert heir.counter("a").value == 0
    heir.close()


def test_labels_beyond_the_last_slot_share_one_that_says_so(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, NAME, 5)
    for number in range(SLOTS + 20):
        counters.counter(f"label.{number}").add()
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None and len(snapshot.values) == SLOTS
    assert snapshot.values[f"label.{SLOTS - 2}"] == 1 and f"label.{SLOTS - 1}" not in snapshot.values
    assert snapshot.values["counters.overflow"] == 21
    counters.close()
    heir = Counters.create_or_adopt(layout, NAME, 6)
    heir.counter("one more").add()
    assert heir.counter("counters.overflow").value == 22
    heir.close()


@pytest.mark.parametrize("label", ["x" * 200, "é" * LABEL_BYTES, "a" + "é" * LABEL_BYTES, "x" * LABEL_BYTES])
def test_a_label_that_is_too_long_is_cut_and_found_again_by_every_incarnation(label: str, layout: BoxLayout) -> None:
    for incarnation in range(3):
        counters = Counters.create_or_adopt(layout, NAME, incarnation)
        counters.counter(label).add()
        counters.counter(label).add()
        counters.close()
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None and list(snapshot.values.values()) == [6]
    assert label.startswith(next(iter(snapshot.values)))


def test_a_state_that_is_too_long_is_cut(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, NAME, 5)
    counters.set_state("s" * 50)
    counters.counter("a").add()
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None and (snapshot.state, snapshot.values) == ("s" * 24, {"a": 1})
    counters.close()


def test_the_processes_of_a_box_are_listed_and_cleared_with_everything_else(layout: BoxLayout) -> None:
    for name in (NAME, "log-writer@d0"):
        Counters.create_or_adopt(layout, name, 5).close()
    SharedObject.create(layout.shared_memory_name("arena", NAME, 5), b"MLRarena", 4096, 5).close()
    assert list_counters(layout) == [NAME, "log-writer@d0"]
    unlink_all(layout)
    assert purposes_left(layout) == []
