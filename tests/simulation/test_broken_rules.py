"""A simulation that does not notice a broken rule proves nothing: each of these is found, by its seed."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, found_by

FOUND_SOON = {
    "truncation by high watermark": 100,
    "no comparison of leader epochs": 100,
    "acks=all before the in-sync set has it": 100,
    "the in-sync set shrinks before it is written": 100,
    "an election outside of the in-sync set": 100,
    "an unclean box stays in sync": 100,
}
"""Mutation → the seeds within which it is found."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND_SOON)
def test_a_rule_that_is_broken_is_found(name: str) -> None:
    assert found_by(name, range(FOUND_SOON[name])) is not None


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(MUTATIONS.keys() - FOUND_SOON.keys()))
def test_a_rule_that_is_broken_subtly_is_found_in_the_end(name: str) -> None:
    assert found_by(name, range(20_000)) is not None
