"""Reassignments of partitions to other boxes: carry out orders, per topic one after another, and
complete those under way.

Owned by the controller process of the box that is the cluster's controller. What is under way is in
the topic documents, so a new controller continues it. A pending order is forgotten with the
process, or when another box becomes controller, and the client retries. Weak: the documents of all
topics are checked after each change, and twice a second (1 ms for 2,000 topics).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.protocol import reassignment_apis
from appliance.protocol.reassignment_apis import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    OngoingTopic,
    ReassignedPartition,
    ReassignedTopic,
)
from services.controller.admin.pending_orders import PendingOrders
from services.controller.admin.waiting_requests import NOT_CONTROLLER, ControllerRequest, Key, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.decisions.reassignment import Target, finish_reassignments, order_reassignments, under_way, whole_reassignments
from services.controller.zookeeper.operation import Operation, OperationOutcome
from services.controller.zookeeper.topic_registry import TopicState

OnPartition = Callable[[int, Result], None]


class Order(NamedTuple):
    """Targets of partitions of one topic. `is_quiet`: the caller logs it itself, in fewer lines."""

    targets: Mapping[int, Target]
    on_result: OnPartition
    is_quiet: bool = False

    def answer(self, result: Result) -> None:
        for partition in self.targets:
            self.on_result(partition, result)


class ReassignmentAdministration:
    """Orders by topic, one after another."""

    def __init__(self, context: ControllerContext) -> None:
        self._cluster = cluster = context.cluster
        self._runner = context.runner
        self._log = context.log
        self._on_failure = context.on_failure
        self._pending = PendingOrders(context, "topic:{}".format, self._write_order, self._on_ordered, lambda: cluster.fence is not None)
        self._quiet: set[str] = set()
        self._under_way_gauge = context.counters.gauge("controller.reassignments_under_way")
        self._finished = context.counters.counter("controller.reassignments_finished")

    def is_busy(self) -> bool:
        """Whether orders are pending or being written."""
        return bool(self._pending)

    def order(self, name: str, targets: Mapping[int, Target], on_result: OnPartition, is_quiet: bool = False) -> None:
        """Order. `on_result` is called for each partition: refused, or written to ZooKeeper."""
        if is_quiet:
            self._quiet.add(name)
        else:
            self._quiet.discard(name)
        self._pending.add(name, Order(targets, on_result, is_quiet))

    def forget_orders(self, result: Result) -> None:
        """Answer pending orders with `result`: another box is, or was, the controller."""
        self._pending.forget(result)

    def reconsider(self) -> None:
        """Start pending orders, and complete reassignments whose targets are in sync."""
        if self._cluster.fence is None:
            self._under_way_gauge.set(0)
            return
        self._pending.reconsider()
        count = 0
        for name, topic in list(self._cluster.topics.items()):
            document = topic.assignment
            if document.adding_replicas or document.removing_replicas:
                count += len(under_way(document))
                if name not in self._cluster.deleting and not self._runner.is_running(f"topic:{name}") and whole_reassignments(self._cluster, topic):
                    self._runner.start(f"topic:{name}", finish_reassignments(self._cluster, name), lambda outcome, name=name: self._on_finished(name, outcome))  # type: ignore[misc]
        self._under_way_gauge.set(count)

    def _write_order(self, name: str, order: Order) -> Operation[dict[int, RequestRefused | None]]:
        return order_reassignments(self._cluster, name, order.targets)

    def _on_ordered(self, name: str, order: Order, results: dict[int, RequestRefused | None]) -> bool:
        topic = self._cluster.topics.get(name)
        for partition, refused in results.items():
            if refused is None and topic is not None and partition in topic.replicas and not order.is_quiet:
                replicas, target = topic.replicas[partition], order.targets[partition]
                what = "cancelled" if target is None else f"ordered to {', '.join(map(str, target))}"
                message = f"reassignment of {name}-{partition} {what}; its replicas are {', '.join(map(str, replicas))}"
                self._log.info(message, topic=name)
            order.on_result(partition, Result.of(refused))
        return True

    def _on_finished(self, name: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        topic = self._cluster.topics.get(name)
        for partition in outcome.value:
            self._finished.add()
            if topic is not None and partition in topic.replicas and name not in self._quiet:
                replicas = ", ".join(map(str, topic.replicas[partition]))
                self._log.info(f"reassignment of {name}-{partition} completed; its replicas are {replicas}", topic=name)
        self._pending.advance(name)


_LISTED = 0
"""The only key of a request to list."""


class ReassignmentRequests:
    """Requests to reassign partitions to other boxes."""

    def __init__(self, cluster: Cluster, administration: ReassignmentAdministration, requests: WaitingRequests) -> None:
        self._cluster = cluster
        self._administration = administration
        self._requests = requests

    # --- altering -----------------------------------------------------------------------------------------------------------

    def on_alter(self, request: ControllerRequest) -> None:
        message = reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST
        decoded = message.decode(request.body, 0, len(request.body), request.version)
        keys = [(index, number) for index, topic in enumerate(decoded.topics) for number in range(len(topic.partitions))]
        self._requests.wait(
            range(len(keys)),
            decoded.timeout_ms,
            lambda waiting: self._begin_alter(waiting, decoded),
            lambda results: self._requests.answer(request, _altered_body(request.version, decoded, results)),
        )

    def _begin_alter(self, waiting: WaitingRequest, decoded: AlterPartitionReassignmentsRequest) -> None:
        counts = Counter((topic.name, each.partition_index) for topic in decoded.topics for each in topic.partitions)
        by_topic: dict[str, dict[int, tuple[int, tuple[int, ...] | None]]] = {}
        key = 0
        for topic in decoded.topics:
            for each in topic.partitions:
                if self._cluster.fence is None:
                    waiting.record(key, NOT_CONTROLLER)
                elif counts[(topic.name, each.partition_index)] > 1:
                    waiting.record(key, Result(ErrorCode.INVALID_REQUEST, "The partition is named twice in the request."))
                else:
                    by_topic.setdefault(topic.name, {})[each.partition_index] = key, each.replicas
                key += 1
        for name, partitions in by_topic.items():
            keys = {partition: key for partition, (key, _) in partitions.items()}
            targets = {partition: replicas for partition, (_, replicas) in partitions.items()}
            self._administration.order(name, targets, lambda partition, result, keys=keys: waiting.record(keys[partition], result))  # type: ignore[misc]

    # --- listing ------------------------------------------------------------------------------------------------------------

    def on_list(self, request: ControllerRequest) -> None:
        decoded = reassignment_apis.LIST_PARTITION_REASSIGNMENTS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        self._requests.wait(
            [_LISTED],
            decoded.timeout_ms,
            lambda waiting: waiting.record(_LISTED, NOT_CONTROLLER if self._cluster.fence is None else Result(ErrorCode.NONE)),
            lambda results: self._requests.answer(request, self._listed_body(request.version, decoded, results[_LISTED])),
        )

    def _listed_body(self, version: int, decoded: ListPartitionReassignmentsRequest, result: Result) -> bytes:
        if result.code is not ErrorCode.NONE:
            refused = ListPartitionReassignmentsResponse(0, result.code, truncated(result.message))
            return reassignment_apis.LIST_PARTITION_REASSIGNMENTS_RESPONSE.encode(version, refused)
        wanted = None if decoded.topics is None else {topic.name: frozenset(topic.partition_indexes) for topic in decoded.topics}
        topics = []
        for name, topic in sorted(self._cluster.topics.items()):
            if wanted is None or name in wanted:
                ongoing = _ongoing(topic, None if wanted is None else wanted[name])
                if ongoing:
                    topics.append(OngoingTopic(name, ongoing))
        return reassignment_apis.LIST_PARTITION_REASSIGNMENTS_RESPONSE.encode(version, ListPartitionReassignmentsResponse(topics=tuple(topics)))


def _ongoing(topic: TopicState, wanted: frozenset[int] | None) -> tuple[OngoingReassignment, ...]:
    document = topic.assignment
    return tuple(
        OngoingReassignment(
            partition, document.partitions[partition], document.adding_replicas.get(partition, ()), document.removing_replicas.get(partition, ())
        )
        for partition in under_way(document)
        if wanted is None or partition in wanted
    )


def _altered_body(version: int, decoded: AlterPartitionReassignmentsRequest, results: dict[Key, Result]) -> bytes:
    """Encode the response; Kafka reports "not controller" once, for all partitions."""
    if results and all(result.code is ErrorCode.NOT_CONTROLLER for result in results.values()):
        refused = AlterPartitionReassignmentsResponse(0, ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER.message)
        return reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_RESPONSE.encode(version, refused)
    key = 0
    topics = []
    for topic in decoded.topics:
        partitions = []
        for each in topic.partitions:
            partitions.append(ReassignedPartition(each.partition_index, results[key].code, truncated(results[key].message)))
            key += 1
        topics.append(ReassignedTopic(topic.name, tuple(partitions)))
    return reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_RESPONSE.encode(version, AlterPartitionReassignmentsResponse(responses=tuple(topics)))
