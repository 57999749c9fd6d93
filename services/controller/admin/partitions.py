"""CreatePartitions: carry out growths of topics, per topic one after another.

Owned by the controller process. As with creations, a pending growth survives a loss of ZooKeeper,
but not another controller. A growth that ZooKeeper has accepted is completed by the controller of
that time (`TopicAdministration.reconsider`). Weak: if every disk refuses the new partitions, the
topic keeps them in ZooKeeper and the disks are asked again; clients see only the old ones.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.logging import Logger
from appliance.cluster.placement import CreationDefaults, DiskSpace, TopicGrowth, plan_topic_growth, request_problem
from appliance.protocol.topic_apis import (
    CREATE_PARTITIONS_REQUEST,
    CREATE_PARTITIONS_RESPONSE,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    GrownTopic,
    TopicToGrow,
)
from appliance.shm.counters import Counters
from services.controller.admin.topic_administration import OnResult, Result
from services.controller.admin.waiting_requests import NOT_CONTROLLER, Answer, ControllerRequest, Key, Wait, WaitingRequest, truncated
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.topic_operations import WAITS_FOR_BOXES, add_partitions, complete_topic
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner
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


class PartitionAdministration:
    """Growths by topic. `on_failure` gets what ZooKeeper refused or lost."""

    def __init__(
        self,
        cluster: Cluster,
        runner: OperationRunner,
        spaces: Callable[[], list[DiskSpace]],
        defaults: CreationDefaults,
        counters: Counters,
        log: Logger,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._cluster = cluster
        self._runner = runner
        self._spaces = spaces
        self._defaults = defaults
        self._log = log
        self._on_failure = on_failure
        self._growing: dict[str, deque[Growth]] = {}
        self._created = counters.counter("controller.partitions_created")

    def request_problem(self, wanted: Iterable[tuple[str, int]]) -> str | None:
        """Return why these new numbers of partitions are too much for one request, or None."""
        there = {name: len(topic.replicas) for name, topic in self._cluster.topics.items()}
        added = (count - there[name] for name, count in wanted if name in there and count <= self._defaults.partitions_max)
        return request_problem(added, self._defaults)

    def grow(self, wanted: TopicGrowth, validate_only: bool, on_result: OnResult) -> None:
        """Plan, and unless `validate_only` create. `on_result` is called when the partitions are
        led, or at once if refused.
        """
        try:
            self._plan(wanted)
        except RequestRefused as refused:
            on_result(Result(refused.code, refused.message))
            return
        if validate_only:
            on_result(Result(ErrorCode.NONE))
            return
        self._growing.setdefault(wanted.name, deque()).append(Growth(wanted, on_result))
        self._go_on(wanted.name)

    def forget_orders(self, result: Result) -> None:
        """As `TopicAdministration.forget_orders`."""
        for name in [name for name in self._growing if not self._runner.is_running(f"topic:{name}")]:
            for growth in self._growing.pop(name):
                growth.on_result(result)

    def _plan(self, wanted: TopicGrowth) -> dict[int, tuple[int, ...]]:
        topic = self._topic(wanted.name)
        if topic.assignment.adding_replicas or topic.assignment.removing_replicas:
            raise RequestRefused(ErrorCode.REASSIGNMENT_IN_PROGRESS, "A partition reassignment is in progress for this topic.")
        cluster = self._cluster
        return plan_topic_growth(wanted, topic.replicas, cluster.live_brokers(), self._defaults, cluster.racks(), cluster.closed_brokers())

    def _topic(self, name: str) -> TopicState:
        topic = self._cluster.topics.get(name)
        if name in self._cluster.deleting:
            raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
        if topic is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return topic

    def reconsider(self) -> None:
        """Start what is due and not running."""
        for name in sorted(self._growing):
            self._go_on(name)

    def _go_on(self, name: str) -> None:
        """Bring the first growth of a topic forward, unless something else is done to the topic now."""
        while self._growing.get(name) and self._cluster.fence is not None and not self._runner.is_running(f"topic:{name}"):
            growth = self._growing[name][0]
            try:
                topic = self._topic(name)
                growth.added = growth.added or self._plan(growth.wanted)
            except RequestRefused as refused:
                self._finish(name, Result(refused.code, refused.message))
                continue
            if not topic.replicas.keys() >= growth.added.keys():
                if not self._spaces():
                    return
                operation = add_partitions(self._cluster, topic, growth.added, self._spaces)
            elif topic.is_complete:
                self._finish(name, Result(ErrorCode.NONE))
                continue
            else:
                operation = complete_topic(self._cluster, topic, self._spaces)
            self._runner.start(f"topic:{name}", operation, lambda outcome: self._on_grown(name, outcome))
            return

    def _on_grown(self, name: str, outcome: OperationOutcome) -> None:
        if isinstance(outcome.failure, RequestRefused):
            self._finish(name, Result(outcome.failure.code, outcome.failure.message))
        elif outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        elif outcome.value == ErrorCode.NONE:
            added = len(self._growing[name][0].added)
            self._created.add(added)
            self._log.info(f"topic {name} has {added} more partitions", topic=name)
            self._finish(name, Result(ErrorCode.NONE))
        elif outcome.value == WAITS_FOR_BOXES:
            return  # `TopicAdministration` goes on with it, and knows how long others have had
        elif self._all_disks_are_there(name):
            message = "no disk of this broker took the new partitions; they are tried again"
            self._log.warning(f"topic {name}: {message}", topic=name)
            self._finish(name, Result(ErrorCode.KAFKA_STORAGE_ERROR, message))
            return  # not at once: the disks have just refused
        else:
            return  # a disk is away: again when it has come back
        self._go_on(name)

    def _all_disks_are_there(self, name: str) -> bool:
        topic = self._cluster.topics.get(name)
        if topic is None:
            return False
        return all(self._cluster.disk_of_partition(topic, partition) in self._cluster.reports for partition in topic.partitions_without_state())

    def _finish(self, name: str, result: Result) -> None:
        growths = self._growing[name]
        growth = growths.popleft()
        if not growths:
            del self._growing[name]
        growth.on_result(result)


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
