"""Handle CreatePartitions. Owned by the controller process. Weak: as of `waiting_request`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from appliance.base.errors import ErrorCode
from appliance.cluster.placement import TopicGrowth
from appliance.protocol.topic_apis import (
    CREATE_PARTITIONS_REQUEST,
    CREATE_PARTITIONS_RESPONSE,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    GrownTopic,
    TopicToGrow,
)
from services.controller.admin.partition_administration import PartitionAdministration
from services.controller.admin.topic_administration import Result
from services.controller.admin.waiting_request import NOT_CONTROLLER, Answer, ControllerRequest, Key, Wait, WaitingRequest, truncated
from services.controller.decisions.cluster import Cluster


class PartitionRequests:
    """Requests to add partitions to topics."""

    def __init__(self, cluster: Cluster, administration: PartitionAdministration, wait: Wait, answer: Answer, now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._administration = administration
        self._wait = wait
        self._answer = answer
        self._now_ms = now_ms

    def on_create_partitions(self, request: ControllerRequest) -> None:
        decoded = CREATE_PARTITIONS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        counts = Counter(topic.name for topic in decoded.topics)
        waiting = WaitingRequest(
            counts,
            self._now_ms() + max(0, decoded.timeout_ms),
            lambda waiting: self._begin(waiting, decoded, counts),
            lambda results: self._answer(request, _body(request.version, counts, results)),
        )
        self._wait(waiting)

    def _begin(self, waiting: WaitingRequest, decoded: CreatePartitionsRequest, counts: Counter[str]) -> None:
        too_much = self._administration.request_problem((topic.name, topic.partition_count) for topic in decoded.topics if counts[topic.name] == 1)
        for topic in {topic.name: topic for topic in decoded.topics}.values():
            on_result = partial(waiting.record, topic.name)
            if self._cluster.fence is None:
                on_result(NOT_CONTROLLER)
            elif too_much is not None:
                on_result(Result(ErrorCode.POLICY_VIOLATION, too_much))
            elif counts[topic.name] > 1:
                on_result(Result(ErrorCode.INVALID_REQUEST, "Duplicate topic in request."))
            else:
                self._administration.grow(_wanted(topic), decoded.validate_only, on_result)


def _wanted(topic: TopicToGrow) -> TopicGrowth:
    assignments = None if topic.assignments is None else tuple(tuple(assignment.broker_ids) for assignment in topic.assignments)
    return TopicGrowth(topic.name, topic.partition_count, assignments)


def _body(version: int, counts: Counter[str], results: dict[Key, Result]) -> bytes:
    grown = tuple(GrownTopic(name, results[name].code, truncated(results[name].message)) for name in counts)
    return CREATE_PARTITIONS_RESPONSE.encode(version, CreatePartitionsResponse(0, grown))
