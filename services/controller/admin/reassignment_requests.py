"""Handle AlterPartitionReassignments and ListPartitionReassignments.

Owned by the controller process. Weak: as of `waiting_request`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from appliance.base.errors import ErrorCode
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
from services.controller.admin.reassignment_administration import ReassignmentAdministration
from services.controller.admin.topic_administration import Result
from services.controller.admin.waiting_request import NOT_CONTROLLER, Answer, ControllerRequest, Key, Wait, WaitingRequest, truncated
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.reassignment import under_way
from services.controller.zookeeper.topic_registry import TopicState

_LISTED = 0
"""The only key of a request to list."""


class ReassignmentRequests:
    """Requests to reassign partitions to other boxes."""

    def __init__(self, cluster: Cluster, administration: ReassignmentAdministration, wait: Wait, answer: Answer, now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._administration = administration
        self._wait = wait
        self._answer = answer
        self._now_ms = now_ms

    # --- altering -----------------------------------------------------------------------------------------------------------

    def on_alter(self, request: ControllerRequest) -> None:
        message = reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST
        decoded = message.decode(request.body, 0, len(request.body), request.version)
        keys = [(index, number) for index, topic in enumerate(decoded.topics) for number in range(len(topic.partitions))]
        waiting = WaitingRequest(
            range(len(keys)),
            self._now_ms() + max(0, decoded.timeout_ms),
            lambda waiting: self._begin_alter(waiting, decoded),
            lambda results: self._answer(request, _altered_body(request.version, decoded, results)),
        )
        self._wait(waiting)

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
        waiting = WaitingRequest(
            [_LISTED],
            self._now_ms() + max(0, decoded.timeout_ms),
            lambda waiting: waiting.record(_LISTED, NOT_CONTROLLER if self._cluster.fence is None else Result(ErrorCode.NONE)),
            lambda results: self._answer(request, self._listed_body(request.version, decoded, results[_LISTED])),
        )
        self._wait(waiting)

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
