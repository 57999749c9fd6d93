"""AlterReplicaLogDirs: what kio does not know."""

from __future__ import annotations

from appliance.protocol.log_dir_apis import (
    ALTER_REPLICA_LOG_DIRS_REQUEST,
    ALTER_REPLICA_LOG_DIRS_RESPONSE,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    LogDirToFill,
    LogDirTopicToMove,
    MovedPartition,
    MovedTopic,
)


def test_version_0_has_the_bytes_of_version_1() -> None:
    request = AlterReplicaLogDirsRequest((LogDirToFill("/srv/d0", (LogDirTopicToMove("t", (0, 1)),)),))
    assert ALTER_REPLICA_LOG_DIRS_REQUEST.encode(0, request) == ALTER_REPLICA_LOG_DIRS_REQUEST.encode(1, request)
    response = AlterReplicaLogDirsResponse(7, (MovedTopic("t", (MovedPartition(0, 56),)),))
    assert ALTER_REPLICA_LOG_DIRS_RESPONSE.encode(0, response) == ALTER_REPLICA_LOG_DIRS_RESPONSE.encode(1, response)
