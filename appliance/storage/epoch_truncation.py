"""Where a follower truncates a log that diverges: by leader epoch, never by high watermark.

Pure. The log-writer uses it with the log's leader epochs and end; the acceptor decides with it
whether a fetch diverges. The high watermark does not serve: a follower learns it one fetch late, and
after a leader change two logs can differ below it (KIP-101). Several rounds may be needed: each
removes at least one epoch that the leader does not have, until the last common one ends at the same
offset in both (KIP-279, KIP-595's fetch). Weak spot: a log without known epochs cannot diverge, so a
log that holds records must hold an epoch for them.
"""

from __future__ import annotations

from collections.abc import Callable

EndOffsetFor = Callable[[int, int], tuple[int, int]]
"""(leader epoch, log end offset) → (largest known epoch ≤ it, where that ends), (-1, -1) when nothing can be said: `LeaderEpochCache.end_offset_for`."""

UNDEFINED = -1


def truncation_offset(diverging_epoch: int, diverging_end_offset: int, end_offset_for: EndOffsetFor, log_end_offset: int) -> int:
    """The offset to cut at (≤ `log_end_offset`) after a leader has said that its epoch `diverging_epoch`, the largest one up to the one under which our
    log ends, ends at `diverging_end_offset`. Epochs of ours that begin at or behind it go, too, even if nothing was written under them: else the same
    question would get the same answer for ever."""
    if diverging_epoch == UNDEFINED or diverging_end_offset == UNDEFINED:
        return log_end_offset  # a leader that knows nothing of our epoch says so by OFFSET_OUT_OF_RANGE
    own_epoch, own_end_offset = end_offset_for(diverging_epoch, log_end_offset)
    if own_epoch == UNDEFINED:
        return min(diverging_end_offset, log_end_offset)
    if own_epoch != diverging_epoch:
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, diverging_end_offset, log_end_offset)


def is_diverging(last_fetched_epoch: int, fetch_offset: int, known_epoch: int, end_offset: int) -> bool:
    """Whether a log that ends at `fetch_offset` under `last_fetched_epoch` parts from the leader's, whose largest epoch up to that one is `known_epoch`, which
    ends at `end_offset`."""
    return known_epoch < last_fetched_epoch or end_offset < fetch_offset
