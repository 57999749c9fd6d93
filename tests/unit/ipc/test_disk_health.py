"""Hung disks are known by words, not by waiting: the table is real, the clock is the test's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.ipc.box_disks import CHECK_NS, DiskHealth
from appliance.shm.disk_tables import FLUSH_FACTOR, fence_life, give_up_lives, is_held_by_disk, overdue_operation
from appliance.shm.partition_table import (
    APPEND_SINCE_WORD,
    DISK_FULL,
    DISK_ONLINE,
    FENCE_WORD,
    FLUSH_SINCE_WORD,
    PROBE_SINCE_WORD,
    SUSPECT_WORD,
    TURNS_WORD,
    PartitionTableReader,
    PartitionTableWriter,
)
from lab.scratch_layout import scratch_layout

DEADLINE_MS = 3_000
DEADLINE_NS = DEADLINE_MS * 1_000_000
NOW_NS = 1_000_000_000_000


@pytest.fixture
def table() -> Iterator[PartitionTableWriter]:
    with scratch_layout() as layout:
        made = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("word", "name", "factor"), [(APPEND_SINCE_WORD, "append", 1), (PROBE_SINCE_WORD, "probe", 1), (FLUSH_SINCE_WORD, "flush", FLUSH_FACTOR)]
)
def test_an_operation_is_overdue_after_its_deadline_and_not_before(table: PartitionTableWriter, word: int, name: str, factor: int) -> None:
    words = table.shared.words
    assert overdue_operation(words, NOW_NS, DEADLINE_NS) == ""
    words[word] = NOW_NS - factor * DEADLINE_NS
    assert overdue_operation(words, NOW_NS, DEADLINE_NS) == ""
    assert overdue_operation(words, NOW_NS + 1, DEADLINE_NS) == name


def _health(table: PartitionTableWriter) -> tuple[DiskHealth, Any, list[str]]:
    told: list[str] = []
    proxy = SimpleNamespace(disk="d0", table=PartitionTableReader.attach(table.shared.name), is_hung=False, is_full=False)
    health = DiskHealth(
        [proxy],  # type: ignore[list-item]
        DEADLINE_MS,
        lambda disk, operation: told.append(f"{disk} hangs: {operation}"),
        lambda disk: told.append(f"{disk} is well"),
        lambda disk: told.append(f"{disk} is {'' if proxy.is_full else 'not '}full"),
    )
    return health, proxy, told


def test_a_disk_hangs_at_the_second_look_and_is_well_when_it_answers(table: PartitionTableWriter) -> None:
    health, proxy, told = _health(table)
    table.shared.words[APPEND_SINCE_WORD] = NOW_NS - DEADLINE_NS - 1
    assert health.look(NOW_NS) == 0 and not proxy.is_hung
    assert health.look(NOW_NS + CHECK_NS - 1) == 0, "it was looked at a moment ago"
    assert health.look(NOW_NS + CHECK_NS) == 1 and proxy.is_hung
    assert health.look(NOW_NS + 2 * CHECK_NS) == 0, "it is reported once"
    table.shared.words[APPEND_SINCE_WORD] = 0
    assert health.look(NOW_NS + 3 * CHECK_NS) == 1 and not proxy.is_hung
    assert told == ["d0 hangs: append", "d0 is well"]
    proxy.table.close()


def test_a_box_that_was_stopped_as_a_whole_accuses_no_disk(table: PartitionTableWriter) -> None:
    health, proxy, told = _health(table)
    table.shared.words[PROBE_SINCE_WORD] = NOW_NS
    health.look(NOW_NS + 100 * DEADLINE_NS)  # we run again, the log-writer does in a moment
    table.shared.words[PROBE_SINCE_WORD] = 0
    health.look(NOW_NS + 100 * DEADLINE_NS + CHECK_NS)
    assert told == []
    proxy.table.close()


def _check(health: DiskHealth, checks: range, table: PartitionTableWriter | None = None) -> int:
    """Run the checks of these numbers; with `table`, its log-writer makes a turn before each. Returns the changes."""
    changes = 0
    for number in checks:
        if table is not None:
            table.shared.words[TURNS_WORD] += 1
        changes += health.look(NOW_NS + number * CHECK_NS)
    return changes


def test_a_log_writer_that_makes_no_turn_is_hung_after_the_deadline_until_it_makes_one(table: PartitionTableWriter) -> None:
    health, proxy, told = _health(table)
    assert _check(health, range(100), table) == 0, "it makes turns"
    assert _check(health, range(100, 129)) == 0 and not proxy.is_hung, "2.9 s without a turn"
    assert _check(health, range(129, 130)) == 1 and proxy.is_hung
    assert _check(health, range(130, 150)) == 0
    assert _check(health, range(150, 151), table) == 1 and not proxy.is_hung
    assert told == ["d0 hangs: no turn of its log-writer", "d0 is well"]
    proxy.table.close()


def test_a_source_that_does_not_run_either_takes_no_log_writer_for_stopped(table: PartitionTableWriter) -> None:
    health, proxy, told = _health(table)
    for second in range(29):  # one check a second: the machine is busy, and this process gets as little time as the log-writer
        health.look(NOW_NS + second * 1_000_000_000)
    assert told == [] and not proxy.is_hung
    proxy.table.close()


def test_a_log_writer_that_recovers_a_long_log_within_one_turn_is_not_hung(table: PartitionTableWriter) -> None:
    health, proxy, told = _health(table)
    for number in range(100):
        table.set_recovery_progress(number << 20, 100 << 20)
        health.look(NOW_NS + number * CHECK_NS)
    assert told == []
    proxy.table.close()


def test_a_disk_is_full_from_one_check_to_another(table: PartitionTableWriter) -> None:
    health, proxy, told = _health(table)
    table.set_disk_state(DISK_FULL)
    assert _check(health, range(2), table) == 1 and proxy.is_full and not proxy.is_hung
    table.set_disk_state(DISK_ONLINE)
    assert _check(health, range(2, 4), table) == 1 and not proxy.is_full
    assert told == ["d0 is full", "d0 is not full"]
    proxy.table.close()


def test_a_process_is_fenced_in_its_table_and_a_removed_table_needs_no_fence(table: PartitionTableWriter) -> None:
    fence_life(table.shared.name)
    assert table.shared.words[FENCE_WORD] == 1
    fence_life(table.shared.name + "0")


def test_a_process_that_waits_for_its_disk_is_found_by_its_pid(table: PartitionTableWriter) -> None:
    prefix, own = table.shared.name.rpartition(".")[0] + ".", os.getpid()
    assert not is_held_by_disk(prefix, own, NOW_NS, DEADLINE_NS)
    table.shared.words[APPEND_SINCE_WORD] = NOW_NS - DEADLINE_NS - 1
    assert is_held_by_disk(prefix, own, NOW_NS, DEADLINE_NS)
    assert not is_held_by_disk(prefix, own + 1, NOW_NS, DEADLINE_NS), "the row of another incarnation does not count"
    table.shared.words[APPEND_SINCE_WORD] = 0
    fence_life(table.shared.name)
    assert is_held_by_disk(prefix, own, NOW_NS, DEADLINE_NS), "fenced, and not gone: something of it still waits"


def test_giving_up_a_disk_fences_and_marks_all_its_tables(table: PartitionTableWriter) -> None:
    words = table.shared.words
    other = PartitionTableWriter.create(table.shared.name.rpartition(".")[0] + ".b.1", 1)  # of a disk called "d0.b"
    give_up_lives(table.shared.name.rpartition(".")[0] + ".")
    assert (words[FENCE_WORD], words[SUSPECT_WORD]) == (1, 1)
    assert (other.shared.words[FENCE_WORD], other.shared.words[SUSPECT_WORD]) == (0, 0)
    other.close()
