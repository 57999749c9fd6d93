"""Which partition of a drained disk goes where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.cluster.box_balance import KEPT_FREE_BYTES_MAX, FreeSpace, PartitionOnDisk, plan_drain

GIB = 1 << 30


def targets(sizes: list[int], rooms: list[FreeSpace]) -> list[str]:
    plan = plan_drain([PartitionOnDisk("t", number, size) for number, size in enumerate(sizes)], rooms)
    by_number = {move.partition: move.target_disk for move in plan.moves}
    return [by_number.get(number, "") for number in range(len(sizes))]


def test_the_largest_partition_goes_first_to_the_disk_with_the_most_free_space() -> None:
    rooms = [FreeSpace("d1", 100 * GIB, 1000 * GIB), FreeSpace("d2", 160 * GIB, 1000 * GIB)]
    assert targets([10 * GIB, 90 * GIB, 50 * GIB], rooms) == ["d2", "d2", "d1"]


def test_small_partitions_are_shared_out_among_disks_that_are_alike() -> None:
    assert sorted(targets([0] * 4, [FreeSpace("d1", 500 * GIB, GIB), FreeSpace("d2", 501 * GIB, GIB)])) == ["d1", "d1", "d2", "d2"]


def test_what_fits_nowhere_is_named_and_the_rest_is_planned() -> None:
    plan = plan_drain([PartitionOnDisk("big", 0, 20 * GIB), PartitionOnDisk("small", 0, GIB)], [FreeSpace("d1", 10 * GIB, 1000 * GIB)])
    assert [placed.topic for placed in plan.unplaced] == ["big"]
    assert [(move.topic, move.target_disk) for move in plan.moves] == [("small", "d1")]
    assert plan_drain([PartitionOnDisk("small", 0, 0)], []).moves == ()


def test_space_promised_to_other_moves_or_kept_free_is_not_used() -> None:
    assert targets([5 * GIB], [FreeSpace("d1", 6 * GIB, 1000 * GIB, promised_bytes=GIB)]) == [""]
    assert targets([5 * GIB], [FreeSpace("d1", 6 * GIB, 1000 * GIB)]) == ["d1"]


@given(
    st.lists(st.integers(0, 50 * GIB), max_size=20),
    st.lists(st.tuples(st.integers(0, 200 * GIB), st.integers(0, 20 * GIB)), max_size=4),
)
def test_no_disk_is_given_more_than_its_free_space_and_every_partition_is_in_the_plan(sizes: list[int], free: list[tuple[int, int]]) -> None:
    rooms = [FreeSpace(f"d{index}", each, 1000 * GIB, promised) for index, (each, promised) in enumerate(free)]
    placed = [PartitionOnDisk("t", number, size) for number, size in enumerate(sizes)]
    plan = plan_drain(placed, rooms)
    assert sorted([move.partition for move in plan.moves] + [each.partition for each in plan.unplaced]) == list(range(len(sizes)))
    for room in rooms:
        given_bytes = sum(move.size_bytes for move in plan.moves if move.target_disk == room.disk)
        assert given_bytes == 0 or given_bytes + room.promised_bytes + KEPT_FREE_BYTES_MAX <= room.free_bytes
