"""The page of results: medians against targets, the latest first, earlier ones as history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.harness import Outcome
from loadtest.machine import Machine
from loadtest.observation import Observation
from loadtest.results import outcome_document, results_page

MACHINE = Machine("a CPU", 2, 8.0, "6.1", "3.11", "ext4", "0.1.0")


@dataclass(frozen=True)
class Sample(Benchmark):
    name: ClassVar[str] = "sample"
    title: ClassVar[str] = "A sample."
    figures: ClassVar[tuple[Figure, ...]] = (Figure("speed", "/s", at_least=100), Figure("cost", "µs", at_most=5), Figure("size", "B"))
    short: ClassVar[dict[str, Any]] = {}

    seconds: float = 1.0

    def run(self, box: RunningBox, say: Say) -> Run:
        raise NotImplementedError


def document(speeds: list[float], day: int = 1) -> dict[str, Any]:
    observation = Observation(10.0, 2, {"acceptor@0": 9.9}, {"replayer": 1.0}, 11.0, 0.0)
    runs = [Run({"speed": speed, "cost": 4.0, "size": 7.0}, observation, ["a note"]) for speed in speeds]
    return outcome_document(Outcome(Sample(), runs, [], 0.1), MACHINE, datetime(2026, 1, day, tzinfo=UTC))


def test_the_median_counts_against_the_target() -> None:
    page = results_page([document([90.0, 300.0, 95.0])], [Sample()])
    assert "| speed (/s) | ≥ 100 | 95 | 90 – 300 | **no** |" in page
    assert "| cost (µs) | ≤ 5 | 4 | 4 – 4 | yes |" in page
    assert "| size (B) |  | 7 | 7 – 7 |  |" in page


def test_an_outcome_says_what_limits_and_on_which_machine() -> None:
    page = results_page([document([100.0])], [Sample()])
    assert "acceptor@0 has no core left" in page
    assert "a CPU, 2 cores" in page
    assert "a note" in page


def test_earlier_outcomes_are_kept_as_a_line_each() -> None:
    page = results_page([document([100.0], day=1), document([200.0], day=2), document([300.0], day=3)], [Sample()])
    table, _, history = page.partition("Earlier:")
    assert "| 300 |" in table
    assert history.index("2026-01-02") < history.index("2026-01-01")
    assert "speed 200 /s" in history


def test_a_benchmark_that_was_never_run_has_no_section() -> None:
    assert "## sample" not in results_page([], [Sample()])
