"""The comparison of two checkouts: what is read out of a page of results, and the ratio of the medians."""

from __future__ import annotations

from loadtest.turns import comparison, figures_of

PAGE = """
## replay_small

| figure | target | median | lowest – highest | met |
|---|---|---|---|---|
| requests (/s) | ≥ 40,000 | 28,030 | 28,030 – 28,030 | **no** |
| broker CPU (µs a request) | ≤ 25 | 26 | 26 – 26 | **no** |
| latency p99 (µs) |  | 6.55e+04 | 65,539 – 65,539 |  |

limit: all 2 cores are busy
"""


def test_the_medians_of_a_page_are_read_by_figure() -> None:
    assert figures_of(PAGE) == {"requests (/s)": 28030, "broker CPU (µs a request)": 26, "latency p99 (µs)": 65500}
    assert figures_of("done in 3 s") == {}


def test_medians_are_compared_and_figures_of_one_side_only_are_left_out() -> None:
    here = {"CPU": [10.0, 12.0, 11.0], "new": [1.0]}
    assert comparison("load", here, {"CPU": [22.0, 20.0, 30.0]})[-1] == "| CPU | 11 (10 – 12) | 22 (20 – 30) | 0.500 |"
