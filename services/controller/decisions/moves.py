"""Decide the next step of moving a partition to another disk of this box. Pure.

The commit point is the rename of the source's directory: before it the source is the partition,
after it the target is. A restarted controller knows only the log-writers' reports. So each step is
chosen from those, never from what an earlier incarnation intended. `move_operations` carries it
out. Weak: a source that is away delays its moves, because no other process can know whether the
commit took place.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Step(Enum):
    """The next step of a move."""

    WAIT = "wait"
    BEGIN = "begin"
    """Tell the source to keep its segments, and the target to copy."""
    HAND_OVER = "hand over"
    """Freeze, finish, commit, promote, lead."""
    PROMOTE = "promote"
    """The source does not have it and the target has a complete copy: an earlier incarnation
    reached the commit.
    """
    SETTLE = "settle"
    """The target has it in its final directory: let it lead, and record the location."""
    DROP = "drop"
    """The target is no longer a disk of this box: the order is void."""
    LOST = "lost"
    """Neither disk has it complete, or both have it: an operator must decide."""


class MoveFacts(NamedTuple):
    """What is known of one move. A disk `is_there` while its log-writer is connected and the disk
    works.
    """

    source_is_there: bool
    source_holds: bool
    target_is_of_this_box: bool
    target_is_there: bool
    target_holds: bool
    target_is_complete: bool
    """A complete copy waits for its promotion."""
    has_begun: bool
    """The current incarnations of both log-writers know of the move."""
    may_begin: bool
    has_caught_up: bool
    may_freeze: bool
    """No other partition of the source is frozen."""


def next_step(facts: MoveFacts) -> Step:
    """Return the next step; WAIT if nothing can be done, or if the facts are not known."""
    if facts.target_holds and not facts.source_holds:
        return Step.SETTLE if facts.target_is_there else Step.WAIT
    if not facts.source_is_there:
        return Step.WAIT
    if not facts.target_is_of_this_box:
        return Step.DROP if facts.source_holds else Step.LOST
    if not facts.target_is_there:
        return Step.WAIT
    if facts.source_holds:
        return Step.LOST if facts.target_holds else _copying(facts)
    return Step.PROMOTE if facts.target_is_complete else Step.LOST


def _copying(facts: MoveFacts) -> Step:
    if not facts.has_begun:
        return Step.BEGIN if facts.may_begin else Step.WAIT
    return Step.HAND_OVER if facts.has_caught_up and facts.may_freeze else Step.WAIT
