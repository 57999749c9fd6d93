"""The leader's side of a fetch where leader and follower may differ, for worlds in which one function knows the leader's log.

In a box the acceptor asks a log-reader for the end of an epoch and then applies the same rule, `leader_epoch_cache.is_diverging`.
"""

from __future__ import annotations

from appliance.base.model import LeaderEpoch, Offset
from appliance.storage import leader_epoch_cache
from appliance.storage.leader_epoch_cache import UNDEFINED, EndOffsetFor


def diverging_answer(last_fetched_epoch: int, fetch_offset: int, end_offset_for: EndOffsetFor, log_end_offset: int) -> tuple[int, int] | None:
    """(epoch, end offset) with which a fetch at `fetch_offset`, whose log ends under `last_fetched_epoch`, is to be answered instead of records;
    (-1, -1): OFFSET_OUT_OF_RANGE, because the leader knows nothing of that epoch; None: the logs agree up to there."""
    if last_fetched_epoch == UNDEFINED:
        return None
    known_epoch, end_offset = end_offset_for(LeaderEpoch(last_fetched_epoch), Offset(log_end_offset))
    if known_epoch == UNDEFINED or end_offset == UNDEFINED:
        return UNDEFINED, UNDEFINED
    return (
        (known_epoch, end_offset) if leader_epoch_cache.is_diverging(LeaderEpoch(last_fetched_epoch), Offset(fetch_offset), known_epoch, end_offset) else None
    )
