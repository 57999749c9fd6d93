"""Appends to the partitions of `__consumer_offsets`: each with its place among all others of its partition, each answer kept for the next turn.

The port tells when an append is done, not at which offset; since appends of a partition are done in the order of calls, a number that goes up with
every call says the same, and begins behind the offsets that were loaded. What follows from an answer is done by `deliver`, with the time of that turn
and never more than a turn's worth. Owned by the group coordinator. Weak spot: positions are offsets only while loading; nobody may compare them across
two loads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import ProducerIdentity, StateLog, StateRecord

OnDone = Callable[[ErrorCode, int, int], None]
"""How the append went, its position, and the time now."""


class GroupLog:
    """The port with positions."""

    def __init__(self, state_log: StateLog, timeout_ms: int) -> None:
        self._state_log = state_log
        self._timeout_ms = timeout_ms
        self._next_positions: dict[int, int] = {}
        self._done: deque[tuple[OnDone, ErrorCode, int]] = deque()

    @property
    def has_answers(self) -> bool:
        return bool(self._done)

    def begin(self, partition: int, position: int) -> None:
        """Appends to this partition come at `position` and behind it."""
        self._next_positions[partition] = position

    def append(self, partition: int, records: Sequence[StateRecord], on_done: OnDone, producer: ProducerIdentity | None = None) -> None:
        position = self._next_positions[partition]
        self._next_positions[partition] = position + len(records)
        done = self._done
        self._state_log.append(partition, records, lambda error: done.append((on_done, error, position)), producer=producer, timeout_ms=self._timeout_ms)

    def deliver(self, now_ms: int, limit: int) -> int:
        """Act on at most `limit` answers; returns how many."""
        delivered = 0
        while self._done and delivered < limit:
            on_done, error, position = self._done.popleft()
            delivered += 1
            on_done(error, position, now_ms)
        return delivered


def ignore_answer(error: ErrorCode, position: int, now_ms: int) -> None:
    """For what is appended again at the next occasion, and does no harm until then."""
