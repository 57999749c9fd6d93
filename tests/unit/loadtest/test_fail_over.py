"""What is made of the pauses of all faults, and that none of them is left out."""

from __future__ import annotations

from lab.cluster import SETTINGS
from loadtest.benchmarks.fail_over import FAULTS, STOCK, FailOver, percentile


def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    values = [float(value) for value in range(20, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.95, 1.0)] == [10.0, 19.0, 20.0]
    assert percentile([3.0], 0.5) == 3.0


def test_every_fault_has_a_figure_and_the_promises_have_targets() -> None:
    names = {figure.name: figure for figure in FailOver.figures}
    assert all(f"{fault}, longest" in names for fault in FAULTS)
    assert {name: figure.at_most for name, figure in names.items() if figure.target} == {
        "killed or cut off, p95": 3, "clean stop, longest": 0.5, "dead disk, longest": 5, "hung disk, longest": 5, "false expiries": 0
    }  # fmt: skip


def test_boxes_have_stock_settings_where_those_of_the_tests_have_others() -> None:
    assert STOCK.keys() == SETTINGS.keys() and STOCK["log.disk.deadline.ms"] == 3000
