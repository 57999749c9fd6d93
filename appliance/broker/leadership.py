"""Whether a partition may be served from here to a client that believes in a certain leader epoch (KIP-320)."""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.shm.partition_table import ROLE_LEADER, ROLE_OFFLINE, Row


def leadership_problem(row: Row, row_generation: int, current_leader_epoch: int) -> ErrorCode | None:
    """Why not, or None. `current_leader_epoch` -1 means that the client does not say.

    A client that knows an older leader epoch is fenced, one that knows a newer has to wait for us.
    """
    if row.row_generation != row_generation or row.role != ROLE_LEADER:
        return ErrorCode.KAFKA_STORAGE_ERROR if row.role == ROLE_OFFLINE else ErrorCode.NOT_LEADER_OR_FOLLOWER
    if current_leader_epoch < 0 or current_leader_epoch == row.leader_epoch:
        return None
    return ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < row.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
