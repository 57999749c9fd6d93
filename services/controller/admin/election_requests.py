"""Handle ElectLeaders. Owned by the controller process. Weak: as of `waiting_request`."""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.protocol.reassignment_apis import (
    ELECT_LEADERS_REQUEST,
    ELECT_LEADERS_RESPONSE,
    PREFERRED,
    UNCLEAN,
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from services.controller.admin.election_administration import ElectionAdministration
from services.controller.admin.topic_administration import Result
from services.controller.admin.waiting_request import NOT_CONTROLLER, Answer, ControllerRequest, Key, Wait, WaitingRequest, truncated
from services.controller.decisions.cluster import Cluster

_ALL = "all"
"""The key of a request for all partitions, until these are known."""


class ElectionRequests:
    """Requests to elect other leaders."""

    def __init__(self, cluster: Cluster, administration: ElectionAdministration, wait: Wait, answer: Answer, now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._administration = administration
        self._wait = wait
        self._answer = answer
        self._now_ms = now_ms

    def on_elect(self, request: ControllerRequest) -> None:
        decoded = ELECT_LEADERS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        if decoded.election_type not in (PREFERRED, UNCLEAN):
            self._answer(request, ELECT_LEADERS_RESPONSE.encode(request.version, ElectLeadersResponse(0, ErrorCode.INVALID_REQUEST)))
            return
        partitions = _named(decoded)
        waiting = WaitingRequest(
            range(len(partitions)) if decoded.topic_partitions is not None else [_ALL],
            self._now_ms() + max(0, decoded.timeout_ms),
            lambda waiting: self._begin(waiting, decoded, partitions),
            lambda results: self._answer(request, _body(request.version, decoded, partitions, results)),
        )
        self._wait(waiting)

    def _begin(self, waiting: WaitingRequest, decoded: ElectLeadersRequest, partitions: list[tuple[str, int]]) -> None:
        if self._cluster.fence is None:
            for key in waiting.keys:
                waiting.record(key, NOT_CONTROLLER)
            return
        if decoded.topic_partitions is None:
            partitions += [(name, partition) for name, topic in sorted(self._cluster.topics.items()) for partition in sorted(topic.states)]
            waiting.keys[:] = range(len(partitions))
        keys: dict[tuple[str, int], list[int]] = {}
        for key, partition in enumerate(partitions):
            keys.setdefault(partition, []).append(key)

        def record(partition: tuple[str, int], result: Result) -> None:
            for key in keys[partition]:
                waiting.record(key, result)

        if keys:
            self._administration.elect(list(keys), decoded.election_type == UNCLEAN, record)


def _named(decoded: ElectLeadersRequest) -> list[tuple[str, int]]:
    return [(topic.topic, partition) for topic in decoded.topic_partitions or () for partition in topic.partitions]


def _body(version: int, decoded: ElectLeadersRequest, partitions: list[tuple[str, int]], results: dict[Key, Result]) -> bytes:
    """Encode the response.

    If all partitions were requested, those that need no election are left out, as in Kafka. "Not
    controller" goes into the response's own error code, too.
    """
    if _ALL in results:
        return ELECT_LEADERS_RESPONSE.encode(version, ElectLeadersResponse(0, results[_ALL].code))
    topics: dict[str, list[ElectedPartition]] = {}
    for key, (name, partition) in enumerate(partitions):
        result = results[key]
        if decoded.topic_partitions is not None or result.code is not ErrorCode.ELECTION_NOT_NEEDED:
            topics.setdefault(name, []).append(ElectedPartition(partition, result.code, truncated(result.message)))
    not_controller = bool(results) and all(result.code is ErrorCode.NOT_CONTROLLER for result in results.values())
    answers = tuple(ElectedTopic(name, tuple(elected)) for name, elected in topics.items())
    return ELECT_LEADERS_RESPONSE.encode(version, ElectLeadersResponse(0, ErrorCode.NOT_CONTROLLER if not_controller else 0, answers))
