"""Moving a partition to another disk of this box: what its next step is, from what is known of both disks. Pure.

The one commit point is the rename of the source's directory: before it the source is the partition, after it the target is. A controller that has just
come knows only what the log-writers say of their disks, so every step is chosen anew from that, never from what a former life meant to do.
Owned by nobody; `move_operations` carries out what is chosen here. Weak spot: a source that is away holds its moves up, because nobody else can say
whether the commit took place.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Step(Enum):
    """What is to be done for a move now."""

    WAIT = "wait"
    BEGIN = "begin"
    """Tell the source not to compact, and the target to copy."""
    HAND_OVER = "hand over"
    """Freeze, finish, commit, promote, lead."""
    PROMOTE = "promote"
    """The source does not have it and the target has all of it: a former life got as far as the commit."""
    SETTLE = "settle"
    """The target has it in its proper place: let it lead there, and write that down."""
    DROP = "drop"
    """The target is no disk of this box any more: the order means nothing."""
    LOST = "lost"
    """Neither disk has it whole, or both say that they have it: somebody must look."""


class MoveFacts(NamedTuple):
    """What is known of one move. A disk `is_there` while its log-writer is connected and says that it can be read and written."""

    source_is_there: bool
    source_holds: bool
    target_is_of_this_box: bool
    target_is_there: bool
    target_holds: bool
    target_is_complete: bool
    """A whole copy waits for its promotion."""
    has_begun: bool
    """These lives of both log-writers know of the move."""
    may_begin: bool
    has_caught_up: bool
    may_freeze: bool
    """No other partition of the source is frozen, and the last attempt is long enough ago."""


def next_step(facts: MoveFacts) -> Step:
    """What is to be done now; WAIT where nothing can be, or where it is not known what is true."""
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
