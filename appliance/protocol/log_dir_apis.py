"""APIs of log directories: messages as data.

DescribeLogDirs 0-4 (KIP-113, KIP-827) and AlterReplicaLogDirs 0-2 (KIP-113). kio begins at version 1
of both; version 0 has the same bytes (a test compares them).
"""

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT16, INT32, INT64, STRING, ArrayOf, Field, Message

# -- DescribeLogDirs: the log directories of a broker, their partitions and free space.

UNKNOWN_BYTES: Final = -1


class LogDirTopicToDescribe(NamedTuple):
    """Requested partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class DescribeLogDirsRequest(NamedTuple):
    """`topics` None: all of them."""

    topics: Annotated[tuple[LogDirTopicToDescribe, ...] | None, Field(ArrayOf(LogDirTopicToDescribe), nullable_since=0)] = None


class LogDirPartition(NamedTuple):
    """One log. `is_future_key`: it is being moved here and will replace the one that is served now."""

    partition_index: Annotated[int, Field(INT32)]
    partition_size: Annotated[int, Field(INT64)]
    offset_lag: Annotated[int, Field(INT64)] = 0
    is_future_key: Annotated[bool, Field(BOOL)] = False


class LogDirTopic(NamedTuple):
    """Logs of one topic."""

    name: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[LogDirPartition, ...], Field(ArrayOf(LogDirPartition))]


class LogDirResult(NamedTuple):
    """One directory; one that is offline has an error and no topics."""

    error_code: Annotated[int, Field(INT16)]
    log_dir: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[LogDirTopic, ...], Field(ArrayOf(LogDirTopic))] = ()
    total_bytes: Annotated[int, Field(INT64, since=4)] = UNKNOWN_BYTES
    usable_bytes: Annotated[int, Field(INT64, since=4)] = UNKNOWN_BYTES


class DescribeLogDirsResponse(NamedTuple):
    """Every directory of the broker."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16, since=3)] = 0
    results: Annotated[tuple[LogDirResult, ...], Field(ArrayOf(LogDirResult))] = ()


DESCRIBE_LOG_DIRS_REQUEST: Final = Message(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs request", DescribeLogDirsRequest)
DESCRIBE_LOG_DIRS_RESPONSE: Final = Message(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs response", DescribeLogDirsResponse)


# -- AlterReplicaLogDirs: move partitions to another log directory of the same broker.


class LogDirTopicToMove(NamedTuple):
    """Partitions of one topic."""

    name: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class LogDirToFill(NamedTuple):
    """One directory, by its absolute path, and the partitions to move there."""

    path: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[LogDirTopicToMove, ...], Field(ArrayOf(LogDirTopicToMove))]


class AlterReplicaLogDirsRequest(NamedTuple):
    """Directories and the partitions to move there."""

    dirs: Annotated[tuple[LogDirToFill, ...], Field(ArrayOf(LogDirToFill))] = ()


class MovedPartition(NamedTuple):
    """The result for one partition; the move itself continues after the response."""

    partition_index: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0


class MovedTopic(NamedTuple):
    """Results of one topic."""

    topic_name: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[MovedPartition, ...], Field(ArrayOf(MovedPartition))]


class AlterReplicaLogDirsResponse(NamedTuple):
    """Results by topic."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    results: Annotated[tuple[MovedTopic, ...], Field(ArrayOf(MovedTopic))] = ()


ALTER_REPLICA_LOG_DIRS_REQUEST: Final = Message(ApiKey.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs request", AlterReplicaLogDirsRequest)
ALTER_REPLICA_LOG_DIRS_RESPONSE: Final = Message(
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    "AlterReplicaLogDirs response",
    AlterReplicaLogDirsResponse,
    error=lambda _version, request, code, _text: AlterReplicaLogDirsResponse(
        0,
        tuple(MovedTopic(topic.name, tuple(MovedPartition(number, code) for number in topic.partitions)) for each in request.dirs for topic in each.topics),
    ),
)
