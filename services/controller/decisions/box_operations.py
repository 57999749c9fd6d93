"""Remove the record of a box that is gone for good, and its placements. Operations of the cluster's
controller.

Refused while the box is registered, or in sync for any partition. Partitions may still name the box
as a replica: a new box with its id then starts them empty, as a follower, because no placement says
that it ever held them. If the controller dies in between, some placements are gone and the record
remains; a repeated request removes the rest. Weak: a box that is only away can be removed, too; it
adopts what is on its disks when it returns.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.znodes import box_path, placements_path
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.change_log import ClusterChange, change_write
from services.controller.zookeeper.operation import Operation
from services.controller.zookeeper.requests import BadVersion, Delete, GetChildren, MultiFailed, NoNode, NotEmpty, Write
from services.controller.zookeeper.topic_registry import chunks


def forget_box(cluster: Cluster, broker_id: int) -> Operation[None]:
    """Remove a box. Raises RequestRefused with the reason."""
    needed = [
        f"{name}-{partition}"
        for name, topic in sorted(cluster.topics.items())
        for partition, state in sorted(topic.states.items())
        if broker_id in (state.leader, *state.isr)
    ]
    if needed:
        shown = ", ".join(needed[:5]) + (", …" if len(needed) > 5 else "")
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST,
            f"Box {broker_id} is in sync for {len(needed)} partitions: {shown}. Move them; where no other replica is in sync,"
            " elect another leader or delete them.",
        )
    seen = yield from broker_registry.read_boxes(watch=False)
    if broker_id in seen.registrations:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Box {broker_id} runs. Stop it first.")
    node = yield from broker_registry.read(box_path(broker_id))
    if node is None:
        raise RequestRefused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No box {broker_id} is recorded.")
    placements = placements_path(broker_id)
    try:
        names = yield GetChildren(placements)
        above: list[Write] = [Delete(placements)]
    except NoNode:
        names, above = (), []
    fence = cluster.writes_fenced_by()
    try:
        for chunk in chunks([Delete(f"{placements}/{name}") for name in names]):
            yield from fence.guard(chunk)
        yield from fence.guard((*above, Delete(box_path(broker_id), node.version), change_write(ClusterChange(cluster.broker_id, boxes=(broker_id,)))))
    except MultiFailed as refused:
        if isinstance(refused.cause, BadVersion | NoNode | NotEmpty):
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Box {broker_id} has just registered again.") from refused
        raise
    cluster.box_records.pop(broker_id, None)
    cluster.box_versions.pop(broker_id, None)
