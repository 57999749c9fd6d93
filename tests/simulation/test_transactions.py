"""Schedules of transactions, each out of one seed, over the shipped gate, coordinator, guards and producer state; and rules broken on purpose, which are found.

`MILLRACE_SEED=N` runs that seed alone.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.transactions.mutations import MUTATIONS, found_by
from tests.simulation.transactions.simulation import run

BLOCK = 100
BLOCKS = 1
"""In a normal run; less than two seconds."""
DEEP_BLOCKS = 400
FOUND_WITHIN = 600
FOUND_BY = {"a guard knows no lowest sequence": 130, "a late marker ends what has its epoch": 234}
"""Seeds that find those mutations that most do not; they are tried first."""

SEED = os.environ.get("MILLRACE_SEED", "")

if SEED:

    def test_the_schedule_of_one_seed_breaks_no_rule_of_transactions() -> None:
        run(int(SEED))


def _run_block(block: int) -> None:
    ended = [run(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    # A block in which nothing happens proves nothing.
    assert sum(each.committed for each in ended) > 10 * BLOCK
    assert sum(each.aborted for each in ended) > BLOCK
    assert sum(each.deaths for each in ended) > 10 * BLOCK


@pytest.mark.slow
@pytest.mark.parametrize("block", range(0 if SEED else BLOCKS))
def test_a_block_of_schedules_breaks_no_rule_of_transactions(block: int) -> None:
    _run_block(block)


@pytest.mark.slow
@pytest.mark.deep
def test_many_more_schedules_break_no_rule_of_transactions() -> None:
    for block in range(BLOCKS, BLOCKS + DEEP_BLOCKS):
        _run_block(block)


def test_the_same_seed_is_the_same_run_of_transactions() -> None:
    assert run(7) == run(7)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_of_transactions_that_is_broken_is_found(name: str) -> None:
    assert found_by(name, (FOUND_BY.get(name, 0), *range(FOUND_WITHIN))) is not None
