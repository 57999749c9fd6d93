"""Kafka's election of the controller through `/controller` and `/controller_epoch`.

Owned by the controller process of each box. The winner holds an ephemeral node, and each of its
later writes is fenced by the version of `/controller_epoch` (`Fence.guard`): a replaced controller
that has not noticed can write nothing. Can be restarted after any step. Weak: no other process of
this box learns of a new controller before its watch fires or its write fails.
"""

from __future__ import annotations

from appliance.cluster.znodes import CONTROLLER, CONTROLLER_EPOCH, decode_controller, encode_controller
from services.controller.zookeeper.broker_registry import read
from services.controller.zookeeper.operation import Fence, Operation
from services.controller.zookeeper.requests import Create, Delete, Multi, MultiFailed, NodeExists, SetData, Write

ATTEMPTS = 5


def become_controller(broker_id: int, session_id: int, timestamp_ms: int) -> Operation[tuple[int, Fence | None]]:
    """Try to become controller; return the controller's broker id, and our fence if it is this box.

    Call it only as the registered owner of `broker_id`: a node that an earlier session of this
    broker id left is then replaced.
    """
    for _ in range(ATTEMPTS):
        existing = yield from read(CONTROLLER, watch=True)
        epoch_node = yield from read(CONTROLLER_EPOCH)
        if epoch_node is None:
            try:
                yield Create(CONTROLLER_EPOCH, b"0")
            except NodeExists:
                pass
            continue
        epoch = int(epoch_node.data)
        if existing is not None and existing.owner == session_id:
            return broker_id, Fence(epoch, epoch_node.version)
        if existing is not None and decode_controller(existing.data) != broker_id:
            return decode_controller(existing.data), None
        writes: list[Write] = [] if existing is None else [Delete(CONTROLLER, existing.version)]
        writes += [
            Create(CONTROLLER, encode_controller(broker_id, timestamp_ms), ephemeral=True),
            SetData(CONTROLLER_EPOCH, str(epoch + 1).encode(), epoch_node.version),
        ]
        try:
            results = yield Multi(tuple(writes))
        except MultiFailed:
            continue  # another box wrote between our read and our write: read again
        return broker_id, Fence(epoch + 1, results[-1])
    existing = yield from read(CONTROLLER, watch=True)
    return (decode_controller(existing.data) if existing is not None else -1), None
