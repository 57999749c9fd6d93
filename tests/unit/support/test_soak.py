"""The judge of a soak (`lab/soak.py`) finds what grows, and nothing in what comes and goes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lab.soak import WARM_SECONDS, Sample, findings

MINUTE = 60.0


def series(value: Callable[[float], float], minutes: int = 40, measure: str = "pss_kib", incarnation: str = "run 0 box 1 acceptor@0 pid 7") -> list[Sample]:
    chance = random.Random(27)
    return [Sample(incarnation, measure, at, value(at) + chance.uniform(0, 500)) for at in (5.0 * number for number in range(int(minutes * MINUTE / 5)))]


def sawtooth(at: float) -> float:
    return 50_000 + 20_000 * (at % 300) / 300


@pytest.mark.parametrize(
    "samples",
    [
        series(lambda _: 50_000),
        series(sawtooth),
        series(lambda at: 50_000 + min(at, WARM_SECONDS) * 100),  # caches fill at first
        series(lambda at: 50_000 + (30_000 if at > 600 else 0)),  # a larger request came once
        series(lambda at: 50_000 + at, minutes=6),  # ended too soon
        [*series(lambda _: 50_000, incarnation="a"), *series(lambda _: 90_000, incarnation="b")],
    ],
)
def test_what_is_flat_or_comes_and_goes_is_good(samples: list[Sample]) -> None:
    assert findings(samples) == []


@pytest.mark.parametrize("leak", [lambda at: 50_000 + 4 * at, lambda at: sawtooth(at) + 4 * at])
def test_a_leak_is_found_also_below_what_comes_and_goes(leak: Callable[[float], float]) -> None:
    (found,) = findings(series(leak))
    assert found.startswith("run 0 box 1 acceptor@0 pid 7: pss_kib grows by 1.") and "e+04 an hour" in found


@pytest.mark.parametrize("measure", ["descriptors", "shm_kib", "latency_ms", "cpu"])
def test_every_measure_has_a_limit(measure: str) -> None:
    assert len(findings(series(lambda at: 600 + 4 * at, measure=measure))) == 1
