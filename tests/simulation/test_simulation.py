"""Thousands of schedules of faults, each out of one seed, over the shipped rules of replication: every invariant holds after every step.

`MILLRACE_SEED=N` runs that seed alone.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.simulation import run

BLOCK = 100
BLOCKS = 1
"""In a normal run; about two seconds."""
DEEP_BLOCKS = 400

SEED = os.environ.get("MILLRACE_SEED", "")

if SEED:

    def test_the_schedule_of_one_seed_breaks_no_rule() -> None:
        run(int(SEED))


def _run_block(block: int) -> None:
    outcomes = [run(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    # A block in which nothing happens proves nothing.
    assert sum(outcome.faults for outcome in outcomes) > 5 * BLOCK
    assert sum(outcome.leader_epochs for outcome in outcomes) > BLOCK // 2
    assert sum(outcome.acknowledged for outcome in outcomes) > 20 * BLOCK
    assert sum(outcome.consumed for outcome in outcomes) > 50 * BLOCK


@pytest.mark.slow
@pytest.mark.parametrize("block", range(0 if SEED else BLOCKS))
def test_a_block_of_schedules_breaks_no_rule(block: int) -> None:
    _run_block(block)


@pytest.mark.slow
@pytest.mark.deep
def test_many_more_schedules_break_no_rule() -> None:
    for block in range(BLOCKS, BLOCKS + DEEP_BLOCKS):
        _run_block(block)


def test_the_same_seed_is_the_same_run() -> None:
    assert run(7) == run(7)
