"""Appends to the partitions of `__consumer_offsets`: each gets a position, and its answer waits for the next turn.

The port reports that an append is done, but not at which offset. Appends of a partition complete in the
order of calls, so a counter that starts at the end of the loaded offsets gives the same order. `deliver`
acts on the answers, a bounded number per turn, with the time of that turn. Owned by the group
coordinator. Weak spot: positions are offsets only during a load; positions of two loads must not be
compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

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


# ---- replies are sent after the change that they answer, a few per turn: a rebalance answers thousands of members


Response = TypeVar("Response")


class Replies:
    """First in, first out; each reply is called once."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Any], None], object]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def say(self, reply: Callable[[Response], None], response: Response) -> None:
        self._waiting.append((reply, response))

    def send(self, limit: int) -> int:
        """Send at most `limit`; returns how many."""
        waiting = self._waiting
        sent = 0
        while waiting and sent < limit:
            reply, response = waiting.popleft()
            sent += 1
            reply(response)
        return sent


# ---- what a refused append means to a client (Kafka's tables): a log that is led elsewhere is a coordinator that is elsewhere


_UNAVAILABLE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}

_OF_GROUPS: Final = _UNAVAILABLE | {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

_OF_CONSUMER_GROUPS: Final = _OF_GROUPS | {ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE}

_OF_COMMITS: Final = _UNAVAILABLE | {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}

_ABORTABLE_SINCE: Final = 4


def group_error(error: ErrorCode) -> ErrorCode:
    """For JoinGroup and SyncGroup, when the group's metadata was not appended."""
    return _OF_GROUPS.get(error, error)


def consumer_group_error(error: ErrorCode) -> ErrorCode:
    """For whatever members of a consumer group ask."""
    return _OF_CONSUMER_GROUPS.get(error, error)


def commit_error(error: ErrorCode) -> ErrorCode:
    """For OffsetCommit, and for whatever deletes offsets."""
    return _OF_COMMITS.get(error, error)


def transactional_commit_error(error: ErrorCode, version: int) -> ErrorCode:
    """For TxnOffsetCommit of `version`: older clients know neither a fenced producer nor a transaction that can only be aborted."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return commit_error(error)
