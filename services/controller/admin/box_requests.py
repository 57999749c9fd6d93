"""Handle UnregisterBroker: remove the record of a box that is gone for good, and its placements.

Owned by the controller process of the cluster's controller. Refused while the box is registered, or
in sync for any partition. Partitions may still name the box as a replica: a new box with its id
then starts them empty, as a follower, because no placement says that it ever held them. If the
controller dies in between, some placements are gone and the record remains; the client retries and
the rest is removed. Weak: a box that is only away can be removed, too; it adopts what is on its
disks when it returns.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.znodes import box_path, placements_path
from appliance.protocol.cluster_apis import UNREGISTER_BROKER_REQUEST, UNREGISTER_BROKER_RESPONSE, UnregisterBrokerResponse
from services.controller.admin.waiting_requests import NOT_CONTROLLER, ControllerRequest, Key, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.change_log import ClusterChange, change_write
from services.controller.zookeeper.operation import Operation, OperationOutcome
from services.controller.zookeeper.requests import BadVersion, Delete, GetChildren, MultiFailed, NoNode, NotEmpty, Write
from services.controller.zookeeper.topic_registry import chunks

UNREGISTER_TIMEOUT_MS = 30_000
"""The request has no time-out of its own."""


class BoxRequests:
    """Requests to remove boxes."""

    def __init__(self, context: ControllerContext, requests: WaitingRequests) -> None:
        self._context = context
        self._requests = requests

    def on_unregister(self, request: ControllerRequest) -> None:
        broker_id = UNREGISTER_BROKER_REQUEST.decode(request.body, 0, len(request.body), request.version).broker_id

        def finish(results: dict[Key, Result]) -> None:
            result = results[broker_id]
            body = UNREGISTER_BROKER_RESPONSE.encode(request.version, UnregisterBrokerResponse(0, result.code, truncated(result.message)))
            self._requests.answer(request, body)

        self._requests.wait([broker_id], UNREGISTER_TIMEOUT_MS, lambda waiting: self._begin(waiting, broker_id), finish)

    def _begin(self, waiting: WaitingRequest, broker_id: int) -> None:
        cluster, runner = self._context.cluster, self._context.runner
        if cluster.fence is None:
            waiting.record(broker_id, NOT_CONTROLLER)
        elif not runner.start(f"forget:{broker_id}", forget_box(cluster, broker_id), lambda outcome: self._on_end(waiting, broker_id, outcome)):
            waiting.record(broker_id, Result(ErrorCode.INVALID_REQUEST, f"Box {broker_id} is already being removed."))

    def _on_end(self, waiting: WaitingRequest, broker_id: int, outcome: OperationOutcome) -> None:
        if isinstance(outcome.failure, RequestRefused):
            waiting.record(broker_id, Result.of(outcome.failure))
        elif outcome.failure is not None:
            waiting.record(broker_id, Result(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper failed: {outcome.failure}"))
            self._context.on_failure(outcome.failure)
        else:
            self._context.log.info(f"removed box {broker_id}: its record and placements are deleted")
            waiting.record(broker_id, Result(ErrorCode.NONE))


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
