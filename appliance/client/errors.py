"""What can go wrong between us and a broker, and which of Kafka's error codes are worth another try.

Values only. A code that a broker answers becomes `RequestRefused` (appliance.base.errors); what happens to the
connection itself becomes one of the exceptions here. Weak spot: which codes heal is Kafka's convention, not ours.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode, MillraceError, RequestRefused


class ClientFailed(MillraceError):
    """Talking to a broker failed; the text says with whom, at what, and what to do."""


class BrokerUnreachable(ClientFailed):
    """No connection could be made."""


class ConnectionLost(ClientFailed):
    """The connection ended while something was to be said or answered."""


class ReplyTimedOut(ConnectionLost):
    """The broker took longer than allowed; what it did with the request is unknown, so the connection is given up."""


class VersionUnsupported(ClientFailed):
    """The broker does not serve an API, or no version of it that this client speaks."""


COORDINATOR_IS_ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
"""Codes after which the coordinator is looked for again before the next try."""

METADATA_IS_STALE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_CONTROLLER,
    }
)
"""Codes after which metadata is asked for again before the next try."""

RETRIABLE = METADATA_IS_STALE | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""Codes that may heal by themselves: the same request is worth another try."""


def error_code(number: int) -> ErrorCode:
    """The code as we know it; one that a newer broker invented counts as UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def is_retriable(error: Exception) -> bool:
    """Whether the same thing may work a moment later."""
    if isinstance(error, RequestRefused):
        return error.code in RETRIABLE
    return isinstance(error, ClientFailed) and not isinstance(error, VersionUnsupported)


DESCRIBE, ALTER = "Describe on the cluster", "Alter on the cluster"
"""Rights, as `refused` names them."""


def refused(number: int, doing: str, broker_message: str | None = None, right: str = "") -> RequestRefused:
    """The exception for error code `number`, met while `doing` ("create topic 'x'"); the broker's own words go along. `right` is the
    one that it needs ("Alter on the cluster"), which the broker does not say."""
    code = error_code(number)
    name = code.name if code == number else f"error code {number}"
    if right and code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        broker_message = f"the right {right} is missing"
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        broker_message = None  # Kafka's own text, "This server does not host this topic-partition", sends people looking for another server
    reason = (broker_message or PLAIN_WORDS.get(code) or "the broker refused").rstrip(".")
    return RequestRefused(code, f"could not {doing}: {reason} ({name})")


PLAIN_WORDS = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker failed at it; its log says why",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the log has no such offset",
    ErrorCode.CORRUPT_MESSAGE: "the batch arrived damaged",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader at the moment",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the broker does not lead the partition, or its log-writer is just restarting",
    ErrorCode.REQUEST_TIMED_OUT: "it took longer than allowed",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic's max.message.bytes allows",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "that is not a name for a topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas demands",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "fewer replicas are in sync than min.insync.replicas demands",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not allowed on this topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not allowed on this group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not allowed for this transactional id",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not allowed on this cluster",
    ErrorCode.TOPIC_ALREADY_EXISTS: "a topic of that name exists already",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions must be at least 1, and can only grow",
    ErrorCode.INVALID_REPLICATION_FACTOR: "the cluster has fewer brokers than the replication factor asks for",
    ErrorCode.INVALID_CONFIG: "a topic setting is unknown or out of range",
    ErrorCode.NOT_CONTROLLER: "the broker is not the controller at the moment",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not take this compression",
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk that holds the partition is offline",
    ErrorCode.TOPIC_DELETION_DISABLED: "deleting topics is switched off (delete.topic.enable)",
    ErrorCode.BROKER_NOT_AVAILABLE: "the broker is not available",
    ErrorCode.INVALID_RECORD: "the broker found a record that it does not accept",
    ErrorCode.INVALID_TIMESTAMP: "a record's timestamp is outside what the topic accepts",
    ErrorCode.POLICY_VIOLATION: "a policy of the cluster forbids it",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members; only they commit its offsets",
    ErrorCode.INVALID_GROUP_ID: "that is not a name for a group",
    ErrorCode.NOT_COORDINATOR: "the broker does not coordinate it",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "its coordinator is not available at the moment",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is just reading its state",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id",
    ErrorCode.CONCURRENT_TRANSACTIONS: "its last transaction is still being ended",
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer has a newer epoch there",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the transaction time-out is longer than the broker's transaction.max.timeout.ms",
    ErrorCode.PRODUCER_FENCED: "another producer has taken over its transactional id",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "a transaction that commits its offsets is still being ended",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a newer coordinator has decided about it",
}
"""What a code means to the person at the terminal, for brokers that send no text of their own."""
