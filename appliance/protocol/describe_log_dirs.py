"""DescribeLogDirs 0-4: the log directories of a broker, what lies in them and how much room there is (KIP-113, KIP-827).

Owned by nobody; messages as data. Weak spot: kio begins at version 1; version 0 has the same bytes, which a test holds.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT16, INT32, INT64, STRING, ArrayOf, Field, Message

UNKNOWN_BYTES: Final = -1


class LogDirTopicToDescribe(NamedTuple):
    """Partitions of one topic that are wanted."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class DescribeLogDirsRequest(NamedTuple):
    """`topics` None: all of them."""

    topics: Annotated[tuple[LogDirTopicToDescribe, ...] | None, Field(ArrayOf(LogDirTopicToDescribe), nullable_since=0)] = None


class LogDirPartition(NamedTuple):
    """One log. `is_future_key`: it is being moved here, and will take the place of the one that is served now."""

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


REQUEST: Final = Message(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs request", DescribeLogDirsRequest)
RESPONSE: Final = Message(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs response", DescribeLogDirsResponse)
