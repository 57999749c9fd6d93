"""What the comparison is made of: a row is one figure with a direction, a cell one load that gives some rows, a part the cells that share a set-up.

Values and the order of turns only; loads are in the modules that `parts.py` lists. The ratio of a row says how many times as good ours is, whichever way the
row counts: above 1 is ahead. Weak spot: a ratio of medians hides their spread; the record keeps every round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loadtest.benchmark import Say
from loadtest.beside_kafka.contenders import Contender
from loadtest.generators.replayer import Replayer
from loadtest.librdkafka import LibrdkafkaClient
from loadtest.observation import Observation

EVEN = 0.05
"""Ratios closer to 1 than this are called even: rounds of one contender differ as much."""
OTHERS = "others"


class Row(NamedTuple):
    """One line of the table; its name is its own in the whole comparison."""

    name: str
    unit: str
    more_is_better: bool = False


def ratio_of(row: Row, ours: float, theirs: float) -> float:
    """How many times as good ours is; infinite if the worse of both is nothing at all."""
    better, worse = (ours, theirs) if row.more_is_better else (theirs, ours)
    return better / worse if worse else float("inf")


def verdict(ratio: float) -> str:
    if abs(ratio - 1) < EVEN:
        return "even"
    return "ahead" if ratio > 1 else "behind"


@dataclass(frozen=True)
class Tools:
    """What loads are made with: the same programs for every contender. `scale` is below 1 for a look."""

    directory: Path
    librdkafka: LibrdkafkaClient
    replayer: Replayer
    scale: float
    say: Say

    def scaled(self, count: int) -> int:
        return max(1, int(count * self.scale))


class Turn(NamedTuple):
    """What one contender did in one round of a cell. `others`: cores that neither it nor the load used. `details` are recorded, and not in the table."""

    values: Mapping[str, float]
    others: float
    details: Mapping[str, float] = {}


def turn_of(values: Mapping[str, float], observation: Observation) -> Turn:
    return Turn(values, observation.others / observation.seconds)


class Cell(ABC):
    """One load and its rows."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def rows(self) -> tuple[Row, ...]: ...

    @abstractmethod
    def measure(self, contender: Contender, tools: Tools) -> Turn:
        """One turn. It leaves nothing behind in the contender; raises BenchmarkFailed if what it counts does not add up."""


class Part(ABC):
    """Cells with one set-up. `rounds` are recorded; fewer are not."""

    name: str
    title: str
    rounds: int = 3
    boxes: int = 1
    """Brokers of a contender; with more than one, Kafka is 3.9 with ZooKeeper."""
    idle_cores: float = 0.0
    """What contenders whose turn it is not may use beyond what is allowed to others: six idle brokers are not nothing."""
    has_tls: bool = False
    """Its clients use TLS."""
    lives_are_shared: bool = True
    """Contenders run all the time, next to each other; else a cell starts and stops the one whose turn it is, alone."""

    @property
    @abstractmethod
    def cells(self) -> Sequence[Cell]: ...

    def warm_up(self, contender: Contender, tools: Tools) -> None:
        """Before the first turn: code compiled, caches filled."""
        return None


def order_of(contenders: Sequence[Contender], round_number: int) -> list[Contender]:
    """Turn and turn about: each round begins with another."""
    first = round_number % len(contenders)
    return [*contenders[first:], *contenders[:first]]


class Findings:
    """Values by row and contender, a value a round."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}
        self.details: dict[str, list[Mapping[str, float]]] = {}

    def add(self, contender: str, turn: Turn) -> None:
        if turn.details:
            self.details.setdefault(contender, []).append(turn.details)
        for name, value in {**turn.values}.items():
            self.values.setdefault(name, {}).setdefault(contender, []).append(value)
