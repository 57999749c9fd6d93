"""Elections on request, and the periodic return to preferred leaders.

Owned by the controller process of the box that is the cluster's controller. A pending order is
forgotten with the process, or when another box becomes controller: an unclean election that is no
longer wanted would lose records. The client retries. The return to preferred leaders is checked
every `leader.imbalance.check.interval.seconds`, first a few seconds after this box has become
controller. Weak: orders are carried out one after another, all partitions of an order in one
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
from services.controller.admin.pending_orders import PendingOrders
from services.controller.admin.waiting_requests import NOT_CONTROLLER, ControllerRequest, Key, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.decisions.elections import LedPartition, Refusals, hold_elections, plan_leadership_return
from services.controller.decisions.reassignment import Reassignment
from services.controller.zookeeper.operation import Operation

FIRST_CHECK_MS = 5_000
"""Delay after a box has become controller, as in Kafka: boxes that start at the same time are
registered by then.
"""

OnElected = Callable[[tuple[str, int], Result], None]


class ElectionOrder(NamedTuple):
    """Partitions by topic and number."""

    partitions: tuple[tuple[str, int], ...]
    is_unclean: bool
    on_result: OnElected

    def answer(self, result: Result) -> None:
        for partition in self.partitions:
            self.on_result(partition, result)


class LeadershipReturn(NamedTuple):
    """Whether, how often, and above which imbalance preferred leaders return."""

    is_enabled: bool = True
    interval_ms: int = 300_000
    imbalance_percentage_max: int = 10


class ElectionAdministration:
    """Elections, one order after another."""

    def __init__(self, context: ControllerContext, leadership_return: LeadershipReturn) -> None:
        self._cluster = cluster = context.cluster
        self._clock = context.clock
        self._log = context.log
        self._return = leadership_return
        self._pending = PendingOrders(context, str, self._hold, self._on_held, lambda: cluster.fence is not None)
        self._check_at_ms: int | None = None
        self._held = context.counters.counter("controller.elections_ordered")
        self._returned = context.counters.counter("controller.leaderships_returned")

    def elect(self, partitions: Sequence[tuple[str, int]], is_unclean: bool, on_result: OnElected) -> None:
        """Order elections. `on_result` is called for each partition: refused, or written and published."""
        self._pending.add("elections", ElectionOrder(tuple(partitions), is_unclean, on_result))

    def forget_orders(self, result: Result) -> None:
        """Answer pending orders with `result`: another box is, or was, the controller."""
        self._pending.forget(result)

    def reconsider(self) -> None:
        """Start what is due, and check the preferred leaders from time to time."""
        if self._cluster.fence is None:
            self._check_at_ms = None
            return
        self._pending.reconsider()
        now_ms = self._clock.monotonic_ms()
        if self._check_at_ms is None:
            self._check_at_ms = now_ms + FIRST_CHECK_MS
        elif now_ms >= self._check_at_ms:
            self._check_at_ms = now_ms + self._return.interval_ms
            if self._return.is_enabled:
                self._return_leadership()

    def _return_leadership(self) -> None:
        led = (
            LedPartition(name, partition, topic.replicas[partition], state, Reassignment.of(topic.assignment, partition).is_under_way)
            for name, topic in self._cluster.topics.items()
            if name not in self._cluster.deleting
            for partition, state in topic.states.items()
        )
        partitions = plan_leadership_return(led, self._cluster.eligible_brokers(), self._return.imbalance_percentage_max)
        if partitions:
            self._log.info(f"returning {len(partitions)} partitions to their preferred leaders")
            self.elect(partitions, False, self._on_returned)

    def _on_returned(self, _partition: tuple[str, int], result: Result) -> None:
        if result.code is ErrorCode.NONE:
            self._returned.add()

    def _hold(self, _key: str, order: ElectionOrder) -> Operation[Refusals]:
        return hold_elections(self._cluster, order.partitions, order.is_unclean)

    def _on_held(self, _key: str, order: ElectionOrder, refusals: Refusals) -> bool:
        for (name, number), refused in refusals.items():
            if refused is None:
                self._held.add()
                if order.is_unclean:
                    message = f"{name}-{number}: an operator ordered an unclean election; acknowledged records may be lost"
                    self._log.warning(message, topic=name)
            order.on_result((name, number), Result.of(refused))
        return True


_ALL = "all"
"""The key of a request for all partitions, until these are known."""


class ElectionRequests:
    """Requests to elect other leaders."""

    def __init__(self, cluster: Cluster, administration: ElectionAdministration, requests: WaitingRequests) -> None:
        self._cluster = cluster
        self._administration = administration
        self._requests = requests

    def on_elect(self, request: ControllerRequest) -> None:
        decoded = ELECT_LEADERS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        if decoded.election_type not in (PREFERRED, UNCLEAN):
            self._requests.answer(request, ELECT_LEADERS_RESPONSE.encode(request.version, ElectLeadersResponse(0, ErrorCode.INVALID_REQUEST)))
            return
        partitions = _named(decoded)
        self._requests.wait(
            range(len(partitions)) if decoded.topic_partitions is not None else [_ALL],
            decoded.timeout_ms,
            lambda waiting: self._begin(waiting, decoded, partitions),
            lambda results: self._requests.answer(request, _body(request.version, decoded, partitions, results)),
        )

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
