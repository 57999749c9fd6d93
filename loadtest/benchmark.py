"""What a benchmark is: figures with targets, a size, and one method that loads a running box and measures. Values only.

The harness owns everything around it (box, warm memory, repetition, medians, records). Weak spot: a benchmark that does not check what it
counted measures nothing; `BenchmarkFailed` is for that, and a run that raises it leaves no figure behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from lab.running_box import RunningBox
from loadtest.observation import Observation

Say = Callable[[str], None]
"""Reports what happens now."""


class BenchmarkFailed(Exception):
    """The run proves nothing: something was lost, answered with an error, or died."""


class Figure(NamedTuple):
    """One number of a benchmark. Without a target it is there for the reader."""

    name: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:,g}"
        return "" if self.at_most is None else f"≤ {self.at_most:,g}"

    def is_met(self, value: float) -> bool | None:
        """None where there is no target."""
        if self.at_least is not None:
            return value >= self.at_least
        return None if self.at_most is None else value <= self.at_most


class Run(NamedTuple):
    """What one run gave: a value for every figure, what the processes used meanwhile, and words for the report."""

    figures: dict[str, float]
    observation: Observation
    notes: list[str]


@dataclass(frozen=True)
class Benchmark(ABC):
    """A benchmark is a frozen dataclass: its fields are its parameters, their defaults the official ones (`--set NAME=VALUE` changes one)."""

    name: ClassVar[str]
    title: ClassVar[str]
    figures: ClassVar[tuple[Figure, ...]]
    short: ClassVar[dict[str, Any]]
    """Parameters of `--short`: enough to see that it works, too little to believe."""
    box_options: ClassVar[Mapping[str, Any]] = {}
    """What is not as usual with the box: arguments of `start_box`."""
    runs_to_record: ClassVar[int] = 3
    """So many runs at least are recorded; one, where a run repeats what it measures itself."""

    @property
    def written_bytes(self) -> int:
        """About how much one run writes to the log, its warm-up included: so much memory is warmed for its page cache."""
        return 0

    def box_arguments(self, directory: Path) -> Mapping[str, Any]:
        """Arguments of `start_box`; files that the box needs are written to `directory` here."""
        return self.box_options

    def missing(self) -> str | None:
        """What this machine lacks to run it, and what to do; None if nothing."""
        return None

    def picture(self, document: Mapping[str, Any]) -> str | None:
        """An outcome, as it is recorded, as SVG; None if there is nothing to see."""
        return None

    @abstractmethod
    def run(self, box: RunningBox, say: Say) -> Run:
        """Load `box`, which has just started and is idle, and measure. Raises BenchmarkFailed."""
