"""A simulation that does not notice a broken rule proves nothing: each of these is found, by its seed."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import found_by

FOUND_SOON = {
    "truncation by high watermark": 300,
    "no comparison of leader epochs": 300,
    "acks=all before the in-sync set has it": 300,
    "the in-sync set shrinks before it is written": 300,
    "an election outside of the in-sync set": 300,
    "an unclean box stays in sync": 300,
    "an unclean box stays in sync with one that is away": 300,
    "a coordinator answers from memory": 300,
}
"""Mutation → the seeds within which it is found."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND_SOON)
def test_a_rule_that_is_broken_is_found(name: str) -> None:
    assert found_by(name, range(FOUND_SOON[name])) is not None


@pytest.mark.slow
@pytest.mark.deep
def test_a_rule_that_is_broken_subtly_is_found_in_the_end() -> None:
    assert found_by("truncation at the leader's end of the epoch alone", range(3_000)) is not None
