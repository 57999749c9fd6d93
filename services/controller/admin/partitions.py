"""CreatePartitions: carry out growths of topics, per topic one after another.

Owned by the controller process. As with creations, a pending growth survives a loss of ZooKeeper,
but not another controller. A growth that ZooKeeper has accepted is completed by the controller of
that time (`TopicAdministration.reconsider`). Weak: if every disk refuses the new partitions, the
topic keeps them in ZooKeeper and the disks are asked again; clients see only the old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.placement import CreationDefaults, PlacedReplicas, TopicGrowth, plan_topic_growth, request_problem
from appliance.protocol.topic_apis import (
    CREATE_PARTITIONS_REQUEST,
    CREATE_PARTITIONS_RESPONSE,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    GrownTopic,
    TopicToGrow,
)
from services.controller.admin.client_quotas import CREATE_PARTITIONS, MutationQuota, MutationQuotas
from services.controller.admin.pending_orders import PendingOrders
from services.controller.admin.topic_administration import Bounds, placed_replicas
from services.controller.admin.waiting_requests import NOT_CONTROLLER, ControllerRequest, Key, OnResult, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.decisions.topic_operations import WAITS_FOR_BOXES, Spaces, add_partitions, complete_topic
from services.controller.zookeeper.operation import Operation
from services.controller.zookeeper.topic_registry import TopicState


class Growth:
    """A pending growth. It is planned once, when its turn comes, so that a retry recognises its own
    partitions.
    """

    __slots__ = ("added", "on_result", "wanted")

    def __init__(self, wanted: TopicGrowth, on_result: OnResult) -> None:
        self.wanted = wanted
        self.on_result = on_result
        self.added: dict[int, tuple[int, ...]] = {}

    def answer(self, result: Result) -> None:
        self.on_result(result)


class PartitionAdministration:
    """Growths by topic, one after another."""

    def __init__(self, context: ControllerContext, spaces: Spaces, defaults: CreationDefaults) -> None:
        self._cluster = cluster = context.cluster
        self._spaces = spaces
        self._defaults = defaults
        self._log = context.log
        self._pending = PendingOrders(context, "topic:{}".format, self._grow, self._on_grown, lambda: cluster.fence is not None)
        self.reconsider = self._pending.reconsider
        self._created = context.counters.counter("controller.partitions_created")
        self._bounds = Bounds(context.counters)

    def request_problem(self, wanted: Iterable[tuple[str, int]]) -> str | None:
        """Return why these new numbers of partitions are too much for one request, or None."""
        there = {name: len(topic.replicas) for name, topic in self._cluster.topics.items()}
        added = (count - there[name] for name, count in wanted if name in there and count <= self._defaults.partitions_max)
        return request_problem(added, self._defaults)

    def placed_replicas(self) -> PlacedReplicas:
        """Count topics and replicas, for all topics of one request."""
        return placed_replicas(self._cluster, {}, self._defaults)

    def grow(self, wanted: TopicGrowth, validate_only: bool, placed: PlacedReplicas, on_result: OnResult) -> None:
        """Plan, and unless `validate_only` create.

        `on_result` is called when the partitions are led, or at once if refused.
        """
        try:
            placed.admit(wanted.name, self._plan(wanted), is_new=False)
        except RequestRefused as refused:
            self._bounds.count(refused)
            on_result(Result.of(refused))
            return
        if validate_only:
            on_result(Result(ErrorCode.NONE))
        else:
            self._pending.add(wanted.name, Growth(wanted, on_result))

    def forget_orders(self, result: Result) -> None:
        """Answer pending growths with `result`: another box is, or was, the controller."""
        self._pending.forget(result)

    def _plan(self, wanted: TopicGrowth) -> dict[int, tuple[int, ...]]:
        topic = self._topic(wanted.name)
        if topic.assignment.adding_replicas or topic.assignment.removing_replicas:
            raise RequestRefused(ErrorCode.REASSIGNMENT_IN_PROGRESS, "A partition reassignment is in progress for this topic.")
        return plan_topic_growth(wanted, topic.replicas, self._cluster.broker_pool(), self._defaults)

    def _topic(self, name: str) -> TopicState:
        topic = self._cluster.topics.get(name)
        if name in self._cluster.deleting:
            raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
        if topic is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return topic

    def _grow(self, name: str, growth: Growth) -> Operation[ErrorCode]:
        topic = self._topic(name)
        growth.added = growth.added or self._plan(growth.wanted)
        if not topic.replicas.keys() >= growth.added.keys():
            if not self._spaces():
                return WAITS_FOR_BOXES
            code = yield from add_partitions(self._cluster, topic, growth.added, self._spaces)
        elif topic.is_complete:
            return ErrorCode.NONE
        else:
            code = yield from complete_topic(self._cluster, topic, self._spaces)
        if code is ErrorCode.NONE:
            self._created.add(len(growth.added))
            self._log.info(f"added {len(growth.added)} partitions to topic {name}", topic=name)
        return code

    def _on_grown(self, name: str, growth: Growth, code: ErrorCode) -> bool:
        if code == ErrorCode.NONE:
            growth.answer(Result(ErrorCode.NONE))
        elif code != WAITS_FOR_BOXES and self._all_disks_are_there(name):
            message = "no disk of this broker accepted the new partitions; retrying"
            self._log.warning(f"topic {name}: {message}", topic=name)
            growth.answer(Result(ErrorCode.KAFKA_STORAGE_ERROR, message))
        else:
            return False  # a disk is away, or `TopicAdministration` completes the topic when other boxes' time is over
        return True

    def _all_disks_are_there(self, name: str) -> bool:
        topic = self._cluster.topics.get(name)
        if topic is None:
            return False
        return all(self._cluster.disk_of_partition(topic, partition) in self._cluster.reports for partition in topic.partitions_without_state())


class PartitionRequests:
    """Requests to add partitions to topics."""

    def __init__(self, cluster: Cluster, administration: PartitionAdministration, requests: WaitingRequests, mutations: MutationQuotas) -> None:
        self._cluster = cluster
        self._administration = administration
        self._requests = requests
        self._mutations = mutations

    def on_create_partitions(self, request: ControllerRequest) -> None:
        decoded = CREATE_PARTITIONS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        counts = Counter(topic.name for topic in decoded.topics)
        quota = self._mutations.of(request, CREATE_PARTITIONS)
        self._requests.wait(
            counts,
            decoded.timeout_ms,
            lambda waiting: self._begin(waiting, decoded, counts, quota),
            lambda results: self._requests.answer(request, quota.throttled(_body(request.version, counts, results))),
        )

    def _begin(self, waiting: WaitingRequest, decoded: CreatePartitionsRequest, counts: Counter[str], quota: MutationQuota) -> None:
        too_much = self._administration.request_problem((topic.name, topic.partition_count) for topic in decoded.topics if counts[topic.name] == 1)
        placed = self._administration.placed_replicas()
        for topic in {topic.name: topic for topic in decoded.topics}.values():
            on_result = partial(waiting.record, topic.name)
            if self._cluster.fence is None:
                on_result(NOT_CONTROLLER)
            elif too_much is not None:
                on_result(Result(ErrorCode.POLICY_VIOLATION, too_much))
            elif counts[topic.name] > 1:
                on_result(Result(ErrorCode.INVALID_REQUEST, "Duplicate topic in request."))
            elif not decoded.validate_only and (added := self._added(topic)) > 0 and (refused := quota.refusal(added)) is not None:
                on_result(refused)
            else:
                self._administration.grow(_wanted(topic), decoded.validate_only, placed, on_result)

    def mutations(self, decoded: CreatePartitionsRequest) -> int:
        """Return how many partitions a request adds."""
        return 0 if decoded.validate_only else sum(max(0, self._added(topic)) for topic in {topic.name: topic for topic in decoded.topics}.values())

    def _added(self, topic: TopicToGrow) -> int:
        known = self._cluster.topics.get(topic.name)
        return 0 if known is None else topic.partition_count - len(known.replicas)


def _wanted(topic: TopicToGrow) -> TopicGrowth:
    assignments = None if topic.assignments is None else tuple(tuple(assignment.broker_ids) for assignment in topic.assignments)
    return TopicGrowth(topic.name, topic.partition_count, assignments)


def _body(version: int, counts: Counter[str], results: dict[Key, Result]) -> bytes:
    grown = tuple(GrownTopic(name, results[name].code, truncated(results[name].message)) for name in counts)
    return CREATE_PARTITIONS_RESPONSE.encode(version, CreatePartitionsResponse(0, grown))
