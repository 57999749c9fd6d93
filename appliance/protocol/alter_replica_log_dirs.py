"""AlterReplicaLogDirs 0-2: move partitions to another log directory of the same broker (KIP-113).

Owned by nobody; messages as data. Weak spot: kio begins at version 1; version 0 has the same bytes, which a test holds.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, ArrayOf, Field, Message


class LogDirTopicToMove(NamedTuple):
    """Partitions of one topic."""

    name: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class LogDirToFill(NamedTuple):
    """One directory, by its absolute path, and what shall lie in it."""

    path: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[LogDirTopicToMove, ...], Field(ArrayOf(LogDirTopicToMove))]


class AlterReplicaLogDirsRequest(NamedTuple):
    """Everything that is wanted."""

    dirs: Annotated[tuple[LogDirToFill, ...], Field(ArrayOf(LogDirToFill))] = ()


class MovedPartition(NamedTuple):
    """What became of one order; the move itself goes on behind the answer."""

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


REQUEST: Final = Message(ApiKey.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs request", AlterReplicaLogDirsRequest)
RESPONSE: Final = Message(ApiKey.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs response", AlterReplicaLogDirsResponse)
