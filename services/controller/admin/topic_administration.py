"""CreateTopics, DeleteTopics, automatic creation: carry out creations and deletions.

Owned by the controller process. A pending creation or deletion survives a loss of ZooKeeper: its
operation is dropped and started again until ZooKeeper and the disks have done their part, whether
or not a client still waits. A request that has not started by its deadline is forgotten; a started
one is answered REQUEST_TIMED_OUT and continues. When another box becomes controller, pending orders
are forgotten: that controller completes what ZooKeeper has accepted, and the name may be another
topic's before this box is controller again. Weak: pending orders are forgotten with the process,
too; the client gets no answer and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from appliance.base.errors import ErrorCode, RequestRefused, known_error
from appliance.base.model import INTERNAL_TOPICS, TopicId
from appliance.client.peers import CONTROLLER_CLIENT, UNAUTHORIZED, OnBody, Peers
from appliance.cluster.metadata_image import MetadataImage
from appliance.cluster.placement import (
    DEFAULT,
    PARTITIONS_PER_REQUEST_MAX,
    BoundReached,
    CreationDefaults,
    PlacedReplicas,
    TopicCreation,
    TopicPlan,
    plan_topic_creation,
    request_problem,
    wanted_partitions,
)
from appliance.ipc.request_frames import KafkaRequest
from appliance.protocol.topic_apis import CREATE_TOPICS_REQUEST, CREATE_TOPICS_RESPONSE, CreatableTopic, CreateTopicsRequest, CreateTopicsResponse, TopicConfig
from appliance.shm.counters import Counters
from services.controller.admin.waiting_requests import OnResult, Result
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.decisions.config_operations import LargeConfigs
from services.controller.decisions.topic_operations import WAITS_FOR_BOXES, Spaces, complete_topic, create_topic, delete_topic
from services.controller.zookeeper.operation import OperationOutcome
from services.controller.zookeeper.requests import ZooKeeperFailed
from services.controller.zookeeper.topic_registry import TopicState

BOXES_TIME_MS, PARTITION_TIME_MS = 2_000, 20
"""How long other boxes have to create the directories of a new topic, and how much longer per
partition.

A later box starts out of sync and leads nothing at first. A box creates a directory in 2 ms; this
is ten times as long, for a topic of 2,000 partitions that three boxes on one small machine create
at once.
"""


class Creation:
    """A pending creation. Its id is chosen once, so that a retry recognises its own topic."""

    __slots__ = ("listeners", "plan", "topic_id")

    def __init__(self, plan: TopicPlan, topic_id: TopicId) -> None:
        self.plan = plan
        self.topic_id = topic_id
        self.listeners: list[OnResult] = []


class Bounds:
    """Counts the refusals of topics and partitions beyond the bounds of the cluster."""

    def __init__(self, counters: Counters) -> None:
        self._refused = {bound: counters.counter(f'controller.refused{{bound="{bound}"}}') for bound in ("topics", "partitions")}

    def count(self, refused: RequestRefused) -> None:
        if isinstance(refused, BoundReached):
            self._refused[refused.bound].add()


def placed_replicas(cluster: Cluster, creating: Mapping[str, TopicPlan], defaults: CreationDefaults) -> PlacedReplicas:
    """Count the topics of the cluster with those that are being created."""
    planned = {name: plan.assignment for name, plan in creating.items()}
    return PlacedReplicas({**planned, **{name: topic.replicas for name, topic in cluster.topics.items()}}, defaults)


class TopicAdministration:
    """Pending creations and deletions, and their operations."""

    def __init__(
        self,
        context: ControllerContext,
        spaces: Spaces,
        new_topic_id: Callable[[], TopicId],
        defaults: CreationDefaults,
        deletion_enabled: bool,
        internal_topic: Callable[[str], TopicCreation | None],
    ) -> None:
        self._cluster = context.cluster
        self._runner = context.runner
        self._spaces = spaces
        self._now_ms = context.clock.monotonic_ms
        self._incomplete_since_ms: dict[str, int] = {}
        """Topics that wait for other boxes to create their directories."""
        self._new_topic_id = new_topic_id
        self._defaults = defaults
        self.deletion_enabled = deletion_enabled
        self._internal_topic = internal_topic
        self._log = context.log
        self._on_failure = context.on_failure
        self.creating: dict[str, Creation] = {}
        self.deletions: dict[str, list[OnResult]] = {}
        self._created = context.counters.counter("controller.topics_created")
        self._deleted = context.counters.counter("controller.topics_deleted")
        self._bounds = Bounds(context.counters)
        self._large_configs = LargeConfigs(self._cluster, self._now_ms, lambda: (creation.plan.config for creation in self.creating.values()))

    # --- what is wanted -----------------------------------------------------------------------------------------------------

    def request_problem(self, counts: Iterable[tuple[int, int]]) -> str | None:
        """Return why so many partitions, default or assigned, are too much for one request, or
        None.
        """
        return request_problem((self.partitions_of(partitions, assigned) for partitions, assigned in counts), self._defaults)

    def partitions_of(self, partitions: int, assigned: int) -> int:
        """Return how many partitions a new topic will have, if it is valid."""
        return wanted_partitions(partitions, assigned, self._defaults)

    def affordable(self, topics: Mapping[str, int]) -> set[str]:
        """Return those of the topics to create automatically that one turn can plan; clients retry
        the others.
        """
        left, chosen = PARTITIONS_PER_REQUEST_MAX, set()
        for name, num_partitions in topics.items():
            cost = 0 if name in self._cluster.topics else wanted_partitions(num_partitions, 0, self._defaults)
            if cost <= left:
                left -= max(1, cost)
                chosen.add(name)
        return chosen

    def placed_replicas(self) -> PlacedReplicas:
        """Count topics and replicas, for all topics of one request."""
        return placed_replicas(self._cluster, {name: creation.plan for name, creation in self.creating.items()}, self._defaults)

    def create(self, wanted: TopicCreation, validate_only: bool, placed: PlacedReplicas, on_result: OnResult, topic_id: TopicId | None = None) -> None:
        """Plan, and unless `validate_only` create. `on_result` is called when the topic is
        complete, or at once if refused. `topic_id`: None for a new one.
        """
        wanted = self._with_internal_defaults(wanted)
        try:
            cluster = self._cluster
            plan = plan_topic_creation(wanted, self._names(), cluster.broker_pool(), self._defaults, len(cluster.topics))
            placed.admit(wanted.name, plan.assignment, is_new=True)
            if not validate_only:
                self._large_configs.admit(plan.config)
        except RequestRefused as refused:
            self._bounds.count(refused)
            on_result(Result.of(refused))
            return
        if validate_only:
            on_result(Result(ErrorCode.NONE, None, plan))
            return
        creation = Creation(plan, topic_id or self._new_topic_id())
        creation.listeners.append(on_result)
        self.creating[wanted.name] = creation
        self._start_creation(wanted.name)

    def _with_internal_defaults(self, wanted: TopicCreation) -> TopicCreation:
        """An internal topic has, for what a client leaves open, what it would have if it were created automatically."""
        internal = self._internal_topic(wanted.name) if wanted.name in INTERNAL_TOPICS else None
        if internal is None:
            return wanted
        configs = tuple({**dict(internal.configs), **dict(wanted.configs)}.items())
        if wanted.assignments:
            return wanted._replace(configs=configs)
        count = internal.num_partitions if wanted.num_partitions == DEFAULT else wanted.num_partitions
        copies = internal.replication_factor if wanted.replication_factor == DEFAULT else wanted.replication_factor
        return wanted._replace(num_partitions=count, replication_factor=copies, configs=configs)

    def adopt(self, name: str, topic_id: TopicId, configs: dict[str, str], allow_missing: bool, on_result: OnResult) -> None:
        """Create a topic with the id, and from the logs, that lie on this box's disks and that no
        topic owns. A partition without a log starts empty; if the cluster has other boxes, which
        may have that log, only with `allow_missing`.
        """
        creation, topic = self.creating.get(name), self._cluster.topics.get(name)
        if creation is not None and creation.topic_id == topic_id:  # the order again, after a controller that ended over it
            creation.listeners.append(on_result)
            return
        if topic is not None and topic.topic_id == topic_id and name not in self._cluster.deleting:
            on_result(Result(ErrorCode.NONE))
            return
        lying = [key[1] for report in self._cluster.reports.values() for key, known in report.partitions.items() if key[0] == name and known == str(topic_id)]
        count = max(lying, default=-1) + 1
        if not lying:
            on_result(Result(ErrorCode.UNKNOWN_TOPIC_ID, f"No disk of this box has a log of '{name}' with topic id {topic_id}."))
        elif len(set(lying)) < len(lying):
            on_result(Result(ErrorCode.INVALID_REQUEST, f"A partition of '{name}' lies on two disks; remove one of the two first."))
        elif (missing := sorted(set(range(count)) - set(lying))) and self._cluster.has_other_boxes and not allow_missing:
            words = f"No disk of this box has partitions {', '.join(map(str, missing[:10]))}{', ...' if missing[10:] else ''} of '{name}', and another box may:"
            on_result(Result(ErrorCode.INVALID_REQUEST, f"{words} a replica that is added there later loses its records. --allow-missing makes them empty."))
        elif (problem := self.request_problem([(0, count)])) is not None:
            on_result(Result(ErrorCode.POLICY_VIOLATION, problem))
        else:
            assignments = tuple((partition, (self._cluster.broker_id,)) for partition in range(count))
            wanted = TopicCreation(name, assignments=assignments, configs=tuple(configs.items()))
            self.create(wanted, False, self.placed_replicas(), on_result, topic_id)

    def ensure(self, name: str, num_partitions: int, placed: PlacedReplicas, on_result: OnResult) -> None:
        """Create automatically: an existing topic, or one being created, is as good as a new one."""
        creation = self.creating.get(name)
        topic = self._cluster.topics.get(name)
        if creation is not None:
            creation.listeners.append(on_result)
        elif name in self._cluster.deleting:
            on_result(Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' is not created automatically now."))
        elif topic is None:
            wanted = self._internal_topic(name) if name in INTERNAL_TOPICS else TopicCreation(name, num_partitions)
            if wanted is None:
                on_result(Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' is not created automatically."))
            else:
                self.create(wanted, False, placed, on_result)
        elif topic.visible_count:
            on_result(Result(ErrorCode.NONE))
        else:
            creation = Creation(TopicPlan(name, topic.replicas, topic.config), topic.topic_id)
            creation.listeners.append(on_result)
            self.creating[name] = creation

    def delete(self, name: str, on_result: OnResult) -> None:
        """Delete a known topic; `on_result` is called when it is gone."""
        self.deletions.setdefault(name, []).append(on_result)
        self._start_deletion(name)

    def forget_orders(self, result: Result) -> None:
        """Answer pending orders with `result`, or with success if they are done: another box is, or
        was, the controller.
        """
        topics = self._cluster.topics
        for name in [name for name in self.creating if not self._runner.is_running(f"topic:{name}")]:
            creation, topic = self.creating[name], topics.get(name)
            is_done = topic is not None and topic.topic_id == creation.topic_id and topic.is_complete
            self._finish_creation(name, Result(ErrorCode.NONE, None, creation.plan, creation.topic_id) if is_done else result)
        for name in [name for name in self.deletions if not self._runner.is_running(f"topic:{name}")]:
            for on_result in self.deletions.pop(name):
                on_result(result if name in topics else Result(ErrorCode.NONE))
        self._cluster.to_delete.clear()

    def _names(self) -> set[str]:
        return self._cluster.topics.keys() | self._cluster.deleting | self.creating.keys()

    # --- carrying it out ----------------------------------------------------------------------------------------------------

    def reconsider(self) -> None:
        """Start what is due: after an arrival, when a disk has connected, and from time to time."""
        if self._cluster.fence is None:
            return
        for name in sorted(self.deletions.keys() | self._cluster.deleting):
            self._start_deletion(name)
        for name in sorted(self.creating):
            self._start_creation(name)
        for name, topic in sorted(self._cluster.topics.items()):
            if not topic.is_complete and name not in self._cluster.deleting and name not in self.creating:
                self._start_completion(topic)

    def _start_creation(self, name: str) -> None:
        creation = self.creating[name]
        topic = self._cluster.topics.get(name)
        if self._runner.is_running(f"topic:{name}") or self._cluster.fence is None:
            return
        if topic is not None and topic.topic_id != creation.topic_id:
            self._finish_creation(name, Result(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."))
        elif topic is not None:
            self._start_completion(topic)
        elif self._spaces():
            self._incomplete_since_ms[name] = self._now_ms()
            operation = create_topic(self._cluster, creation.plan, creation.topic_id, self._spaces)
            self._runner.start(f"topic:{name}", operation, lambda outcome: self._on_created(name, outcome))

    def _start_completion(self, topic: TopicState) -> None:
        since_ms = self._incomplete_since_ms.setdefault(topic.name, self._now_ms())
        is_overdue = self._now_ms() - since_ms >= BOXES_TIME_MS + PARTITION_TIME_MS * len(topic.partitions_without_state())
        operation = complete_topic(self._cluster, topic, self._spaces, is_overdue)
        self._runner.start(f"topic:{topic.name}", operation, lambda outcome: self._on_created(topic.name, outcome))

    def _on_created(self, name: str, outcome: OperationOutcome) -> None:
        creation = self.creating.get(name)
        if isinstance(outcome.failure, RequestRefused):
            self._finish_creation(name, Result.of(outcome.failure))
        elif outcome.failure is not None:
            self._on_failure(outcome.failure)
        elif outcome.value == ErrorCode.NONE:
            self._incomplete_since_ms.pop(name, None)
            self._created.add()
            self._log.info(f"topic {name} is complete", topic=name)
            if creation is not None:
                self._finish_creation(name, Result(ErrorCode.NONE, None, creation.plan, creation.topic_id))
        elif outcome.value != WAITS_FOR_BOXES and creation is not None and self._was_refused(name):
            self._log.warning(f"could not create topic {name}: no disk accepted it; deleting its parts", topic=name)
            self._finish_creation(name, Result(ErrorCode.KAFKA_STORAGE_ERROR, "no disk of this broker took the partitions"))
            self.delete(name, lambda _result: None)

    def _was_refused(self, name: str) -> bool:
        """Whether all disks that the topic needs have refused it, and no other box has a part of
        it: then a retry would not help.
        """
        topic = self._cluster.topics.get(name)
        if topic is None or any(set(replicas) != {self._cluster.broker_id} for replicas in topic.replicas.values()):
            return False
        disks = {self._cluster.disk_of_partition(topic, partition) for partition in topic.local_partitions(self._cluster.broker_id)}
        return all(disk in self._cluster.reports for disk in disks)

    def _finish_creation(self, name: str, result: Result) -> None:
        creation = self.creating.pop(name, None)
        if creation is not None:
            for on_result in creation.listeners:
                on_result(result)

    def _start_deletion(self, name: str) -> None:
        if self._cluster.fence is None:
            return
        self._cluster.to_delete.add(name)
        if self._runner.is_running(f"topic:{name}") or name in self._cluster.handing_over:
            return
        self._cluster.to_delete.discard(name)
        self._finish_creation(name, Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted before it was complete"))
        operation = delete_topic(self._cluster, name)
        self._runner.start(f"topic:{name}", operation, lambda outcome: self._on_deleted(name, outcome))

    def _on_deleted(self, name: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure if isinstance(outcome.failure, ZooKeeperFailed) else ZooKeeperFailed(str(outcome.failure)))
        elif outcome.value == ErrorCode.NONE:
            self._incomplete_since_ms.pop(name, None)
            self._deleted.add()
            self._log.info(f"topic {name} is deleted", topic=name)
            for on_result in self.deletions.pop(name, []):
                on_result(Result(ErrorCode.NONE))


TIMEOUT_MS = 10_000
NO_CONTROLLER = -1
PASSED_ON_MAX = 8
"""Requests of clients under way to the controller, each on a connection of its own."""
PASSED_ON_MS_MAX = 50_000
MARGIN_MS = 2_000
"""The controller answers by the time-out of the request. With both, before the acceptor gives up (`FORWARD_TIMEOUT_MS`)."""
_VERSION_MIN = 4
"""From this version on, −1 means the defaults."""


class OtherController:
    """What the controller on another box has to do: automatic creations, and requests of clients that have not noticed that the controller moved.

    Only the cluster's controller creates topics. An automatic creation starts at any box that a
    client uses. Owned by the controller process of a box that is not the controller; without a
    controller nothing is created, and clients retry. `internal_topic(name)` returns how to create a
    coordinator's topic. `has_authorizer` says whether this box authorizes its clients.
    """

    def __init__(
        self,
        broker_id: int,
        peers: Peers,
        image: Callable[[], MetadataImage],
        internal_topic: Callable[[str], TopicCreation | None],
        has_authorizer: bool,
    ) -> None:
        self._broker_id = broker_id
        self._peers = peers
        self._image = image
        self._internal_topic = internal_topic
        self._passes_on_as = f"{CONTROLLER_CLIENT}{broker_id}{'' if has_authorizer else UNAUTHORIZED}"
        self._refreshed = MetadataImage.empty()
        self._channels = set(range(1, PASSED_ON_MAX + 1))
        """Those without a request: an acceptor answers the requests of a connection one after the other."""

    def may_pass_on(self, request: KafkaRequest) -> bool:
        """Return False if no other box is the controller, if the request was passed on before (two
        boxes may each take the other one for the controller), or if too many are under way.
        """
        is_elsewhere = self._image().controller_id not in (self._broker_id, NO_CONTROLLER)
        return is_elsewhere and not request.client_id.startswith(CONTROLLER_CLIENT) and bool(self._channels)

    def pass_on(self, request: KafkaRequest, timeout_ms: int, on_body: OnBody) -> None:
        """Send a client's request to the controller, if `may_pass_on` allows it."""
        channel = min(self._channels)
        self._channels.remove(channel)

        def answered(body: bytes | None, is_sent: bool) -> None:
            self._channels.add(channel)
            on_body(body, is_sent)

        self._refresh()
        timeout_ms = min(max(timeout_ms, 0), PASSED_ON_MS_MAX) + MARGIN_MS
        self._peers.pass_on(self._image().controller_id, request, answered, timeout_ms, channel=channel, client_id=self._passes_on_as)

    def ensure(self, name: str, num_partitions: int, on_result: OnResult) -> None:
        """As `TopicAdministration.ensure`: an existing topic is as good as a new one."""
        wanted = self._internal_topic(name) if name in INTERNAL_TOPICS else TopicCreation(name, num_partitions)
        if wanted is None:
            on_result(Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' is not created automatically."))
            return
        configs = tuple(TopicConfig(key, value) for key, value in wanted.configs)
        topic = CreatableTopic(name, wanted.num_partitions, wanted.replication_factor, (), configs)

        def on_answer(response: CreateTopicsResponse | None) -> None:
            if response is None or not response.topics:
                on_result(Result(ErrorCode.LEADER_NOT_AVAILABLE, "The controller did not answer."))
                return
            code = known_error(response.topics[0].error_code)
            on_result(Result(ErrorCode.NONE if code is ErrorCode.TOPIC_ALREADY_EXISTS else code, response.topics[0].error_message))

        self._refresh()
        request = CreateTopicsRequest((topic,), TIMEOUT_MS)
        self._peers.ask(self._image().controller_id, CREATE_TOPICS_REQUEST, CREATE_TOPICS_RESPONSE, request, on_answer, TIMEOUT_MS, version_min=_VERSION_MIN)

    def do_work(self, now_ns: int) -> int:
        self._refresh()
        return self._peers.do_work(now_ns)

    def _refresh(self) -> None:
        image = self._image()
        if image is not self._refreshed:
            self._refreshed = image
            self._peers.refresh(image.brokers)

    def close(self) -> None:
        self._peers.close()
