"""What a refused append means to the client whose request it was part of: Kafka's tables.

Clients know a coordinator's errors, not those of a log: a log that is led elsewhere is a coordinator that is elsewhere. Owned by nobody. Weak spot:
REQUEST_TIMED_OUT leaves open whether the append is in the log; the client asks again, and what it asks is the same then.
"""

from __future__ import annotations

from typing import Final

from appliance.base.errors import ErrorCode

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
