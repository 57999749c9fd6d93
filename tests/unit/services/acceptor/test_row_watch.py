"""Which requests wake when rows change: a few or thousands, of one disk or several, of a running or
a dead log-writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cluster.metadata_cache import LocalReplica, RowAddress
from appliance.shm.partition_table import ROLE_LEADER, PartitionTableReader, PartitionTableWriter, Row
from lab.scratch_layout import scratch_layout
from services.acceptor.row_watch import FEW_ROWS, RowWatch


class Disk:
    """A real table with `rows` rows, and a log-writer's proxy as far as it matters here."""

    def __init__(self, name: str, rows: int) -> None:
        self.writer = PartitionTableWriter.create(name, 1)
        self.proxy = cast(Any, SimpleNamespace(disk="d0", serving=True, table=None))
        self.ends = [0] * rows
        for partition in range(rows):
            self.writer.add_row(Row(bytes(16), partition, 0, ROLE_LEADER, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1))
        self.table = self.proxy.table = PartitionTableReader.attach(name)
        self.placements = [
            LocalReplica("t", bytes(16), partition, self.proxy, RowAddress(self.table, partition, partition + 1), 1000) for partition in range(rows)
        ]
        for placement in self.placements:
            placement.read_words()

    def move(self, row: int) -> None:
        self.ends[row] += 1
        self.writer.store_progress(row, self.ends[row], self.ends[row], 100)

    def close(self) -> None:
        self.table.close()
        self.writer.close()


class Sleeping:
    """A session's partition as `RowWatch` sees it."""

    def __init__(self, ticket: int = 0) -> None:
        self.watched: tuple[str, int] | None = None
        self.ticket = ticket
        self.woken = 0

    def on_row_moved(self) -> int:
        self.woken += 1
        return self.ticket


@pytest.fixture(params=[3, FEW_ROWS * 5])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    with scratch_layout() as layout:
        made = Disk(layout.shared_memory_name("table", "d0", 1), request.param)
        yield made
        made.close()


def _asleep(watch: RowWatch, disk: Disk) -> list[Sleeping]:
    sleeping = [Sleeping(ticket=100 + row) for row in range(len(disk.placements))]
    for placement, sleeper in zip(disk.placements, sleeping, strict=True):
        placement.read_words()
        assert watch.sleep(placement, sleeper)
    return sleeping


def test_a_sleeper_is_woken_once(disk: Disk) -> None:
    watch = RowWatch()
    sleeping = _asleep(watch, disk)
    watch.collect()
    assert not watch.due and not any(sleeper.woken for sleeper in sleeping)
    last = len(sleeping) - 1
    for row in (1, last, last):
        disk.move(row)
        watch.collect()
    assert [row for row, sleeper in enumerate(sleeping) if sleeper.woken] == [1, last]
    assert sleeping[last].woken == 1 and sleeping[last].watched is None
    assert list(watch.due) == [101, 100 + last]
    assert len(watch) == len(sleeping) - 2


def test_a_request_that_read_the_row_before_a_change_does_not_sleep(disk: Disk) -> None:
    watch, sleeper = RowWatch(), Sleeping()
    disk.placements[0].read_words()
    disk.move(0)
    assert not watch.sleep(disk.placements[0], sleeper)
    assert len(watch) == 0


def test_a_waiter_is_due_after_every_change_until_it_leaves(disk: Disk) -> None:
    watch = RowWatch()
    _asleep(watch, disk)
    keys = [watch.watch(placement, 7) for placement in disk.placements[:2]]
    for _ in range(3):
        disk.move(1)
        watch.collect()
        assert 7 in watch.due
        watch.due.clear()
    watch.leave(keys, 7)
    disk.move(0)
    watch.collect()
    assert 7 not in watch.due


def test_a_waiter_that_leaves_is_forgotten(disk: Disk) -> None:
    watch = RowWatch()
    sleeping = _asleep(watch, disk)
    keys = [watch.watch(placement, 7) for placement in disk.placements]
    for sleeper in sleeping:
        watch.remove_sleeper(sleeper)
    watch.leave(keys, 7)
    assert len(watch) == 0
    disk.move(0)
    watch.collect()
    assert not watch.due and not any(sleeper.woken for sleeper in sleeping)


def test_all_waiters_are_due_when_their_log_writer_ends(disk: Disk) -> None:
    watch = RowWatch()
    sleeping = _asleep(watch, disk)
    watch.watch(disk.placements[0], 7)
    disk.proxy.serving = False
    watch.collect()
    assert all(sleeper.woken == 1 for sleeper in sleeping)
    assert 7 in watch.due


def test_all_waiters_are_due_when_the_next_incarnation_of_their_table_is_watched(disk: Disk) -> None:
    watch = RowWatch()
    sleeping = _asleep(watch, disk)
    keys = [watch.watch(disk.placements[0], 7)]
    other = PartitionTableReader.attach(disk.writer.shared.name)
    disk.proxy.table = other
    fresh = LocalReplica("t", bytes(16), 0, disk.proxy, RowAddress(other, 0, 1), 1000)
    fresh.read_words()
    assert watch.sleep(fresh, Sleeping())
    watch.collect()
    assert all(sleeper.woken == 1 for sleeper in sleeping)
    assert 7 in watch.due
    watch.leave(keys, 7)
    watch.collect()
    assert 7 not in watch.due
    other.close()


@given(st.lists(st.tuples(st.sampled_from(["move", "collect", "sleep"]), st.integers(0, 99)), max_size=120))
def test_no_move_is_missed(steps: list[tuple[str, int]]) -> None:
    """A sleeping request has read the row as it was at the last collection."""
    with scratch_layout() as layout:
        disk = Disk(layout.shared_memory_name("table", "d0", 1), 100)
        watch = RowWatch()
        sleeping = _asleep(watch, disk)
        seen = [0] * 100
        for kind, row in steps:
            if kind == "move":
                disk.move(row)
            elif kind == "sleep" and sleeping[row].watched is None:
                disk.placements[row].read_words()
                if watch.sleep(disk.placements[row], sleeping[row]):
                    seen[row] = disk.ends[row]
            elif kind == "collect":
                watch.collect()
                assert [sleeper.watched is not None for sleeper in sleeping] == [
                    sleeper.watched is not None and seen[number] == disk.ends[number] for number, sleeper in enumerate(sleeping)
                ]
        disk.close()


def test_a_waiter_wakes_for_a_row_that_changed_after_it_was_read_and_before_it_was_watched(disk: Disk) -> None:
    watch = RowWatch()
    disk.move(1)
    for ticket in (0, 1):
        watch.watch(disk.placements[ticket], ticket)
    assert list(watch.due) == [1]


def test_a_waiter_that_records_changes_receives_the_rows_that_changed(disk: Disk) -> None:
    watch = RowWatch()
    keys = {ticket: [watch.watch(placement, ticket) for placement in disk.placements] for ticket in (1, 2)}
    watch.record_changes(1)
    last = len(disk.placements) - 1
    for row in (0, last, last):
        disk.move(row)
        watch.collect()
    assert watch.take_changes(1) == {("d0", 0): None, ("d0", last): None}
    assert watch.take_changes(1) == {} and watch.take_changes(2) is None
    watch.leave(keys[1], 1)
    disk.move(0)
    watch.collect()
    assert watch.take_changes(1) is None and list(watch.due) == [2]


def test_after_a_new_incarnation_of_the_table_the_changed_rows_are_unknown(disk: Disk) -> None:
    with scratch_layout() as layout:
        watch = RowWatch()
        watch.watch(disk.placements[0], 1)
        watch.record_changes(1)
        new = Disk(layout.shared_memory_name("table", "d0", 2), 1)
        watch.watch(new.placements[0], 2)
        watch.collect()
        assert 1 in watch.due and watch.take_changes(1) is None
        new.close()
