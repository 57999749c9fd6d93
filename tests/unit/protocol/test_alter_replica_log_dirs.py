"""AlterReplicaLogDirs: what kio does not know."""

from __future__ import annotations

from appliance.protocol.alter_replica_log_dirs import (
    REQUEST,
    RESPONSE,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    LogDirToFill,
    LogDirTopicToMove,
    MovedPartition,
    MovedTopic,
)


def test_version_0_has_the_bytes_of_version_1() -> None:
    request = AlterReplicaLogDirsRequest((LogDirToFill("/srv/d0", (LogDirTopicToMove("t", (0, 1)),)),))
    assert REQUEST.encode(0, request) == REQUEST.encode(1, request)
    response = AlterReplicaLogDirsResponse(7, (MovedTopic("t", (MovedPartition(0, 56),)),))
    assert RESPONSE.encode(0, response) == RESPONSE.encode(1, response)
