"""Forgetting a box that is gone for good: its record, and what it had said of where its partitions lie. Operations of the cluster's controller.

Refused while the box is registered, or is in sync anywhere. Partitions may still name it as a replica: a new box under the same id then begins them anew,
empty, as a follower, because nothing says that it ever held them. Killed in the middle, some placements are gone and the record stands: asked again, the
rest goes. Weak spot: a box that is only away is forgotten as well; what lies on its disks is adopted when it comes back.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.znodes import box_path, placements_path
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.change_log import Change, change_write
from services.controller.zookeeper.operation import Operation
from services.controller.zookeeper.requests import BadVersion, Delete, GetChildren, MultiFailed, NoNode, NotEmpty, Write
from services.controller.zookeeper.topic_registry import chunks


def forget_box(cluster: Cluster, broker_id: int) -> Operation[None]:
    """`RequestRefused` says why not."""
    needed = [
        f"{name}-{partition}"
        for name, topic in sorted(cluster.topics.items())
        for partition, state in sorted(topic.states.items())
        if broker_id in (state.leader, *state.isr)
    ]
    if needed:
        shown = ", ".join(needed[:5]) + (", …" if len(needed) > 5 else "")
        words = (
            f"Box {broker_id} is in sync for {len(needed)} partitions: {shown}. Move them, or where nobody else is in sync elect another leader or delete them."
        )
        raise RequestRefused(ErrorCode.INVALID_REQUEST, words)
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
        yield from fence.guard((*above, Delete(box_path(broker_id), node.version), change_write(Change(cluster.broker_id, boxes=(broker_id,)))))
    except MultiFailed as refused:
        if isinstance(refused.cause, BadVersion | NoNode | NotEmpty):
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Box {broker_id} came back at this moment.") from refused
        raise
    cluster.box_records.pop(broker_id, None)
    cluster.box_versions.pop(broker_id, None)
