from __future__ import annotations

from appliance.agents.slow_disks import APPEND_NS, DISTRUST_NS, PATIENCE_NS, SlowDisks


def test_a_disk_is_waited_for_while_it_is_quick() -> None:
    disks = SlowDisks()
    assert not disks.is_waiting and not disks.patience_ends_ns()
    disks.on_offered("d0", 100)
    disks.on_offered("d0", 200)
    assert disks.is_waiting and disks.patience_ends_ns() == 100 + PATIENCE_NS + APPEND_NS
    assert disks.let_go_of(100 + PATIENCE_NS + APPEND_NS - 1) == []
    assert not disks.on_done("d0") and disks.is_waiting
    assert not disks.on_done("d0") and not disks.is_waiting


def test_a_disk_that_takes_long_is_left_out_until_it_has_done() -> None:
    disks = SlowDisks()
    disks.on_offered("d0", 0)
    disks.on_offered("d1", 0)
    disks.on_done("d1")
    assert disks.let_go_of(PATIENCE_NS) == ["d0"] and disks.let_go_of(PATIENCE_NS) == []
    assert disks.is_left_out("d0") and not disks.is_left_out("d1") and not disks.is_waiting
    assert disks.on_done("d0"), "it may be fetched for again"
    assert not disks.is_left_out("d0")


def test_a_disk_that_was_slow_is_not_waited_for_for_a_while() -> None:
    disks = SlowDisks()
    disks.on_offered("d0", 0)
    disks.let_go_of(PATIENCE_NS)
    disks.on_done("d0")
    disks.on_offered("d0", PATIENCE_NS + 1)
    assert disks.let_go_of(PATIENCE_NS + 1) == ["d0"]
    disks.on_done("d0")
    later = PATIENCE_NS + 1 + DISTRUST_NS
    disks.on_offered("d0", later)
    assert disks.let_go_of(later) == [] and disks.is_waiting


def test_many_appends_at_once_have_as_much_more_time() -> None:
    """Else a box with hundreds of partitions would leave its own healthy disk out of every second fetch, and each acks=all would wait for that."""
    disks = SlowDisks()
    for _ in range(500):
        disks.on_offered("d0", 0)
    for _ in range(499):
        disks.on_done("d0")
    assert disks.let_go_of(PATIENCE_NS + 499 * APPEND_NS - 1) == []
    assert disks.let_go_of(PATIENCE_NS + 499 * APPEND_NS) == ["d0"]
    disks.on_done("d0")
    disks.on_offered("d0", later := PATIENCE_NS + 500 * APPEND_NS + DISTRUST_NS)
    assert disks.patience_ends_ns() == later + PATIENCE_NS, "those are past"
