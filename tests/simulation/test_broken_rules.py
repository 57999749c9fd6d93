"""A simulation that does not notice a broken rule proves nothing: each of these is found, by its seed."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import found_by

FOUND_BY = {
    "truncation by high watermark": 55,
    "no comparison of leader epochs": 0,
    "acks=all before the in-sync set has it": 3,
    "the in-sync set shrinks before it is written": 17,
    "an election outside of the in-sync set": 0,
    "an unclean box stays in sync": 26,
    "an unclean box stays in sync with one that is away": 77,
    "a coordinator answers from memory": 5,
}
"""Mutation → the first seed that found it when this was written; it is tried first."""
FOUND_WITHIN = 300


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_rule_that_is_broken_is_found(name: str) -> None:
    assert found_by(name, (FOUND_BY[name], *range(FOUND_WITHIN))) is not None


@pytest.mark.slow
@pytest.mark.deep
def test_a_rule_that_is_broken_subtly_is_found_in_the_end() -> None:
    assert found_by("truncation at the leader's end of the epoch alone", range(3_000)) is not None
