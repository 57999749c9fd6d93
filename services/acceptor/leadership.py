"""Whether this broker serves a partition to a client with a certain leader epoch (KIP-320): as leader, or also as follower (KIP-392)."""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.base.model import LeaderEpoch
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, Row


def leadership_problem(row: Row, row_generation: int, current_leader_epoch: LeaderEpoch, only_leader: bool = True) -> ErrorCode | None:
    """Return the error, or None if it may. `current_leader_epoch` -1: the client did not send one.

    A client with an older leader epoch is fenced, one with a newer has to wait until this broker knows it.
    Only a client with the same epoch gets NOT_LEADER_OR_FOLLOWER, because another box leads in that epoch.
    """
    role = row.role
    if row.row_generation != row_generation or role not in (ROLE_LEADER, ROLE_FOLLOWER):
        return ErrorCode.KAFKA_STORAGE_ERROR if role == ROLE_OFFLINE else ErrorCode.NOT_LEADER_OR_FOLLOWER
    if 0 <= current_leader_epoch != row.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < row.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if only_leader and role == ROLE_FOLLOWER else None
