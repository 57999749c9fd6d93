from __future__ import annotations

from services.replica_fetcher.slow_disks import APPEND_NS, DISTRUST_NS, PATIENCE_NS, STUCK_NS, SlowDisks

HELD_BYTES_MAX = 1 << 20


class Slot:
    """What an append holds of the arena."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


SMALL = Slot(1024)


def test_a_disk_is_waited_for_while_it_is_quick() -> None:
    disks = SlowDisks(HELD_BYTES_MAX)
    assert not disks.is_waiting and not disks.patience_ends_ns()
    disks.on_offered("d0", SMALL, 100)
    disks.on_offered("d0", SMALL, 200)
    assert disks.is_waiting and disks.patience_ends_ns() == 100 + PATIENCE_NS + APPEND_NS
    assert disks.leave_out(100 + PATIENCE_NS + APPEND_NS - 1) == [] and disks.is_waiting
    assert not disks.on_done("d0", SMALL, 300) and disks.is_waiting
    assert not disks.on_done("d0", SMALL, 300) and not disks.is_waiting


def test_a_disk_that_takes_long_is_not_waited_for_and_its_other_partitions_are_fetched() -> None:
    disks = SlowDisks(HELD_BYTES_MAX)
    disks.on_offered("d0", SMALL, 0)
    disks.on_offered("d1", SMALL, 0)
    disks.on_done("d1", SMALL, 1)
    assert disks.leave_out(PATIENCE_NS) == []
    assert not disks.is_waiting and not disks.is_left_out("d0") and not disks.patience_ends_ns()
    assert not disks.on_done("d0", SMALL, PATIENCE_NS + 1)


def test_a_slow_disk_that_holds_much_of_the_arena_is_left_out_until_it_has_done() -> None:
    disks = SlowDisks(HELD_BYTES_MAX)
    large = Slot(HELD_BYTES_MAX)
    disks.on_offered("d0", large, 0)
    disks.on_offered("d0", SMALL, 0)
    disks.on_offered("d1", SMALL, 0)
    assert disks.leave_out(PATIENCE_NS - 1) == [], "it has its time for that, too"
    assert disks.leave_out(PATIENCE_NS + APPEND_NS) == ["d0"] and disks.leave_out(PATIENCE_NS + APPEND_NS) == []
    assert disks.is_left_out("d0") and not disks.is_left_out("d1") and not disks.is_waiting
    assert not disks.on_done("d0", large, PATIENCE_NS) and disks.is_left_out("d0"), "until all is done"
    assert disks.on_done("d0", SMALL, PATIENCE_NS), "it may be fetched for again"
    assert not disks.is_left_out("d0")


def test_what_many_appends_hold_together_counts_once_and_until_the_last_of_them_is_done() -> None:
    disks = SlowDisks(HELD_BYTES_MAX)
    shared, other = Slot(HELD_BYTES_MAX), Slot(1024)
    for _ in range(3):
        disks.on_offered("d0", shared, 0)
    disks.on_offered("d0", None, 0)
    late = PATIENCE_NS + 4 * APPEND_NS
    assert disks.leave_out(late) == []
    for _ in range(2):
        disks.on_done("d0", shared, late)
    disks.on_offered("d0", other, late)
    assert disks.leave_out(late + PATIENCE_NS) == ["d0"], "one record of it is enough"


def test_a_disk_that_completes_nothing_is_left_out_and_one_that_goes_on_is_not() -> None:
    disks = SlowDisks(HELD_BYTES_MAX)
    for disk in ("d0", "d1"):
        disks.on_offered(disk, SMALL, 0)
        disks.on_offered(disk, SMALL, 0)
    disks.on_done("d1", SMALL, STUCK_NS - 1)
    assert disks.leave_out(STUCK_NS - 1) == []
    assert disks.leave_out(STUCK_NS) == ["d0"]
    assert disks.leave_out(2 * STUCK_NS - 2) == []
    assert disks.leave_out(2 * STUCK_NS - 1) == ["d1"]


def test_a_disk_that_was_slow_is_not_waited_for_for_a_while() -> None:
    disks = SlowDisks(HELD_BYTES_MAX)
    disks.on_offered("d0", SMALL, 0)
    disks.leave_out(PATIENCE_NS)
    disks.on_done("d0", SMALL, PATIENCE_NS)
    disks.on_offered("d0", SMALL, PATIENCE_NS + 1)
    assert disks.leave_out(PATIENCE_NS + 1) == [] and not disks.is_waiting
    disks.on_done("d0", SMALL, PATIENCE_NS + 1)
    later = PATIENCE_NS + 1 + DISTRUST_NS
    disks.on_offered("d0", SMALL, later)
    disks.leave_out(later)
    assert disks.is_waiting


def test_a_disk_that_is_quick_again_is_waited_for_again_however_busy_it_is() -> None:
    disks = SlowDisks(HELD_BYTES_MAX)
    disks.on_offered("d0", SMALL, 0)
    disks.leave_out(PATIENCE_NS)
    disks.on_done("d0", SMALL, PATIENCE_NS)
    now_ns = PATIENCE_NS
    while now_ns < PATIENCE_NS + DISTRUST_NS:
        disks.on_offered("d0", SMALL, now_ns)
        disks.leave_out(now_ns)
        assert not disks.is_waiting
        disks.on_done("d0", SMALL, now_ns + 1_000_000)
        now_ns += 10_000_000
    disks.on_offered("d0", SMALL, now_ns)
    disks.leave_out(now_ns)
    assert disks.is_waiting


def test_a_disk_that_was_slow_again_is_not_waited_for_for_as_long_again() -> None:
    disks = SlowDisks(HELD_BYTES_MAX)
    disks.on_offered("d0", SMALL, 0)
    disks.leave_out(PATIENCE_NS)
    disks.on_done("d0", SMALL, PATIENCE_NS)
    disks.on_offered("d0", SMALL, DISTRUST_NS)
    disks.leave_out(DISTRUST_NS)
    disks.on_done("d0", SMALL, DISTRUST_NS + PATIENCE_NS)
    disks.on_offered("d0", SMALL, 2 * DISTRUST_NS)
    disks.leave_out(2 * DISTRUST_NS)
    assert not disks.is_waiting


def test_many_appends_at_once_have_as_much_more_time() -> None:
    """Else a box with hundreds of partitions would not wait for its own healthy disk, and each acks=all would take another fetch."""
    disks = SlowDisks(HELD_BYTES_MAX)
    for _ in range(500):
        disks.on_offered("d0", SMALL, 0)
    for _ in range(499):
        disks.on_done("d0", SMALL, 1)
    disks.leave_out(PATIENCE_NS + 499 * APPEND_NS - 1)
    assert disks.is_waiting
    disks.leave_out(PATIENCE_NS + 499 * APPEND_NS)
    assert not disks.is_waiting
    disks.on_done("d0", SMALL, PATIENCE_NS + 499 * APPEND_NS)
    disks.on_offered("d0", SMALL, later := PATIENCE_NS + 500 * APPEND_NS + DISTRUST_NS)
    assert disks.patience_ends_ns() == later + PATIENCE_NS, "those are past"
