"""Whether a partition may be served from here to a client that believes in a certain leader epoch (KIP-320), by its leader alone or by a follower (KIP-392)."""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, Row


def leadership_problem(row: Row, row_generation: int, current_leader_epoch: int, only_leader: bool = True) -> ErrorCode | None:
    """Why not, or None. `current_leader_epoch` -1 means that the client does not say.

    A client that knows an older leader epoch is fenced, one that knows a newer has to wait for us; only who agrees with us about the epoch is told that
    another box leads in it.
    """
    role = row.role
    if row.row_generation != row_generation or role not in (ROLE_LEADER, ROLE_FOLLOWER):
        return ErrorCode.KAFKA_STORAGE_ERROR if role == ROLE_OFFLINE else ErrorCode.NOT_LEADER_OR_FOLLOWER
    if 0 <= current_leader_epoch != row.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < row.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if only_leader and role == ROLE_FOLLOWER else None
