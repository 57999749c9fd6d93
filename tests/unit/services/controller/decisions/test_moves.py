"""What a move does next: every combination of what can be known of both disks."""

from __future__ import annotations

import itertools

import pytest

from services.controller.decisions.move_operations import MoveFacts, Step, next_step

COPYING = MoveFacts(
    source_is_there=True,
    source_holds=True,
    target_is_of_this_box=True,
    target_is_there=True,
    target_holds=False,
    target_is_complete=False,
    has_begun=True,
    may_begin=True,
    has_caught_up=False,
    may_freeze=True,
)
EVERY = [MoveFacts(*values) for values in itertools.product((False, True), repeat=len(MoveFacts._fields))]


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({"has_begun": False}, Step.BEGIN),
        ({"has_begun": False, "may_begin": False}, Step.WAIT),
        ({}, Step.WAIT),
        ({"has_caught_up": True}, Step.HAND_OVER),
        ({"has_caught_up": True, "may_freeze": False}, Step.WAIT),
        # A report of a former incarnation does not count.
        ({"has_caught_up": True, "has_begun": False}, Step.BEGIN),
        ({"source_is_there": False}, Step.WAIT),
        ({"target_is_there": False}, Step.WAIT),
        ({"target_is_of_this_box": False, "target_is_there": False}, Step.DROP),
        ({"source_holds": False, "target_is_complete": True}, Step.PROMOTE),
        ({"source_holds": False, "target_is_complete": True, "source_is_there": False}, Step.WAIT),
        ({"source_holds": False}, Step.LOST),
        ({"source_holds": False, "target_holds": True}, Step.SETTLE),
        ({"source_holds": False, "target_holds": True, "source_is_there": False}, Step.SETTLE),
        ({"target_holds": True}, Step.LOST),
    ],
)
def test_the_next_step_follows_from_what_the_disks_say(change: dict[str, bool], step: Step) -> None:
    assert next_step(COPYING._replace(**change)) is step


def test_nothing_is_promoted_while_the_source_has_it_or_may_have_it() -> None:
    for facts in EVERY:
        if next_step(facts) is Step.PROMOTE:
            assert facts.source_is_there and not facts.source_holds and facts.target_is_complete


def test_nothing_is_copied_or_frozen_that_the_target_has_or_that_the_source_has_not() -> None:
    for facts in EVERY:
        if next_step(facts) in (Step.BEGIN, Step.HAND_OVER):
            assert facts.source_is_there and facts.source_holds and facts.target_is_there and not facts.target_holds


def test_an_order_is_only_dropped_while_the_source_has_the_partition() -> None:
    assert all(facts.source_holds for facts in EVERY if next_step(facts) is Step.DROP)
