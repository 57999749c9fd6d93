"""A disk as its table shows it: state, fence, recovery, rows that moved."""

from __future__ import annotations

from appliance.base.clock import ManualClock
from appliance.shm.partition_table import APPEND_SINCE_WORD, DISK_FULL, DISK_ONLINE, FENCE_WORD, PROBED_WORD, PartitionTableWriter
from lab.pretended_box import PretendedBox
from services.console.disk_sample import DiskReader

DEADLINE_MS = 1_000


def test_state_fence_probe_and_recovery_are_those_of_the_table(box: PretendedBox, clock: ManualClock) -> None:
    watch, table = DiskReader(box.layout, "d0", DEADLINE_MS), box.tables["d0"]
    assert watch.look(clock.monotonic_ns())[:3] == ("online", False, None)
    table.set_disk_state(DISK_FULL)
    table.set_recovery_progress(30, 100)
    table.shared.words[FENCE_WORD] = 1
    table.shared.words[PROBED_WORD] = clock.monotonic_ns()
    clock.advance_ms(250)
    assert watch.look(clock.monotonic_ns())[:5] == ("full", True, 250_000_000, 30, 100)
    watch.close()


def test_a_disk_that_keeps_an_append_waiting_is_hung_until_it_answers(box: PretendedBox, clock: ManualClock) -> None:
    watch, words = DiskReader(box.layout, "d0", DEADLINE_MS), box.tables["d0"].shared.words
    words[APPEND_SINCE_WORD] = clock.monotonic_ns()
    clock.advance_ms(DEADLINE_MS)
    assert watch.look(clock.monotonic_ns()).state == "online"
    clock.advance_ms(1)
    assert watch.look(clock.monotonic_ns()).state == "hung"
    words[APPEND_SINCE_WORD] = 0
    assert watch.look(clock.monotonic_ns()).state == "online"
    watch.close()


def test_only_what_moved_is_read_again(box: PretendedBox, clock: ManualClock) -> None:
    watch = DiskReader(box.layout, "d0", DEADLINE_MS)
    first = watch.look(0).partitions
    assert [(held.row.topic_id[-1], held.row.partition) for held in first] == [(1, 0), (1, 2), (2, 0)]
    assert watch.look(0).partitions is first
    box.append("logs", 2, records=5, size_bytes=300)
    second = watch.look(0).partitions
    assert (second[1].row.log_end_offset, second[1].size_bytes) == (5, 300)
    assert second[0].row is first[0].row
    box.tables["d0"].store_sealed_bytes(box.rows["logs", 2][1], 1_000)
    assert watch.look(0).partitions[1].size_bytes == 1_300
    watch.close()


def test_a_removed_row_goes_and_its_place_is_taken_again(box: PretendedBox, clock: ManualClock) -> None:
    watch = DiskReader(box.layout, "d0", DEADLINE_MS)
    table, index, row = box.rows["logs", 2]
    watch.look(0)
    table.remove_row(index)
    assert len(watch.look(0).partitions) == 2
    table.add_row(row._replace(partition=9))
    assert [held.row.partition for held in watch.look(0).partitions] == [0, 9, 0]
    watch.close()


def test_a_reader_follows_the_next_incarnation_of_a_log_writer_and_without_one_the_disk_is_down(box: PretendedBox, clock: ManualClock) -> None:
    watch = DiskReader(box.layout, "d0", DEADLINE_MS)
    assert len(watch.look(0).partitions) == 3
    following = PartitionTableWriter.create(box.layout.shared_memory_name("table", "d0", 2), 2)
    following.set_disk_state(DISK_ONLINE)
    assert watch.look(0).state == "online" and watch.look(0).partitions == ()
    following.close()
    box.tables["d0"].shared.unlink()
    assert watch.look(0).state == "down"
    watch.close()
