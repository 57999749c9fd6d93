"""Handle the requests on `controller.sock`: Kafka's admin requests and automatic creation.

CreateTopics, DeleteTopics and automatic creation are here, the others in their own modules. Owned
by the controller process. While ZooKeeper is away, requests that have begun wait until their
deadline, the others for `UNREACHED_MS`; then they are refused with the reason, and nothing was
changed. Weak: a response is encoded when the last topic of a request is done or its deadline has
passed; there is no partial response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import orjson

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.cluster.broker_configs import BrokerConfig
from appliance.cluster.placement import TopicCreation
from appliance.ipc.controller_frames import AUTO_CREATE, AUTO_CREATE_DONE, MOVE_ORDERS, MOVE_ORDERS_DONE
from appliance.ipc.frames import Frame
from appliance.ipc.request_frames import KAFKA_REQUEST, KAFKA_RESPONSE, unpack_kafka_request
from appliance.protocol.apis import ApiKey
from appliance.protocol.topic_apis import (
    CreatableTopic,
    CreatedTopic,
    CreatedTopicConfig,
    DeletedTopic,
    TopicToDelete,
    decode_create_topics,
    decode_delete_topics,
    encode_create_topics_body,
    encode_delete_topics_body,
)
from appliance.runtime.request_server import RequestClient
from appliance.shm.counters import Counters
from services.controller.admin.box_requests import BoxRequests
from services.controller.admin.cluster_administration import ClusterAdministration
from services.controller.admin.config_descriptions import BrokerSide, describe_topic
from services.controller.admin.configs import ConfigRequests
from services.controller.admin.elections import ElectionRequests
from services.controller.admin.move_requests import MoveRequests
from services.controller.admin.partitions import PartitionRequests
from services.controller.admin.reassignments import ReassignmentRequests
from services.controller.admin.topic_administration import CreationElsewhere, Result
from services.controller.admin.waiting_requests import NOT_CONTROLLER, Answer, ControllerRequest, Key, Wait, WaitingRequest, truncated
from services.controller.decisions.cluster import Cluster

AUTO_CREATE_TIMEOUT_MS = 30_000
UNREACHED_MS = 5_000
"""An ensemble elects a leader within one second. If it is away longer, it may stay away, and an
operator is waiting at a prompt.
"""

Respond = Callable[[RequestClient, int, int, bytes], None]


class ControllerRequests:
    """Decode, wait, respond.

    `can_begin()` returns whether the tree is loaded; `unreached()` names ZooKeeper servers whose
    connection is lost; `respond(client, kind, token, payload)` sends a response.
    """

    def __init__(
        self,
        cluster: Cluster,
        administration: ClusterAdministration,
        make_box_requests: Callable[[Wait, Answer], BoxRequests],
        elsewhere: CreationElsewhere,
        make_move_requests: Callable[[Wait, Answer], MoveRequests],
        broker_configs: Mapping[str, BrokerConfig],
        can_begin: Callable[[], bool],
        unreached: Callable[[], str],
        respond: Respond,
        counters: Counters,
        now_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._topics = administration.topics
        self._elsewhere = elsewhere
        self._broker_configs = broker_configs
        self._can_begin = can_begin
        self._unreached = unreached
        self._unreached_since_ms: int | None = None
        self._respond = respond
        self._now_ms = now_ms
        self._waiting: list[WaitingRequest] = []
        self._move_requests = make_move_requests(self._wait, self._answer)
        configs = ConfigRequests(cluster, administration.configs, broker_configs, self._wait, self._answer, now_ms)
        reassignments = ReassignmentRequests(cluster, administration.reassignments, self._wait, self._answer, now_ms)
        self._by_api: dict[int, Callable[[ControllerRequest], None]] = {
            ApiKey.CREATE_TOPICS: self._on_create_topics,
            ApiKey.DELETE_TOPICS: self._on_delete_topics,
            ApiKey.CREATE_PARTITIONS: PartitionRequests(cluster, administration.partitions, self._wait, self._answer, now_ms).on_create_partitions,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self._move_requests.on_alter,
            ApiKey.DESCRIBE_CONFIGS: configs.on_describe,
            ApiKey.ALTER_CONFIGS: configs.on_replace,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.on_alter,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.on_alter,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.on_list,
            ApiKey.ELECT_LEADERS: ElectionRequests(cluster, administration.elections, self._wait, self._answer, now_ms).on_elect,
            ApiKey.UNREGISTER_BROKER: make_box_requests(self._wait, self._answer).on_unregister,
        }
        self._received = counters.counter("controller.requests")
        self._refused = counters.counter("controller.requests_unreadable")
        self._timed_out = counters.counter("controller.requests_timed_out")

    def on_frame(self, client: RequestClient, frame: Frame) -> None:
        """Handle a frame. An unreadable request gets an empty response, so that the acceptor closes
        its client's connection.
        """
        self._received.add()
        if frame.kind == AUTO_CREATE:
            self._on_auto_create(client, frame)
        elif frame.kind == MOVE_ORDERS:
            self._on_move_orders(client, frame)
        elif frame.kind == KAFKA_REQUEST:
            try:
                self._on_kafka_request(client, frame)
            except (ProtocolViolation, ValueError):
                self._refused.add()
                self._respond(client, KAFKA_RESPONSE, frame.token, b"")
        else:
            self._refused.add()

    def _on_kafka_request(self, client: RequestClient, frame: Frame) -> None:
        api_key, version, _client_id, _client_host, body = unpack_kafka_request(frame.payload)
        action = self._by_api.get(api_key)
        if action is None:
            raise ProtocolViolation("unknown_api", f"the controller does not answer API {api_key}")
        action(ControllerRequest(client, frame.token, version, body))

    def _answer(self, request: ControllerRequest, body: bytes) -> None:
        self._respond(request.client, KAFKA_RESPONSE, request.token, body)

    def _on_move_orders(self, client: RequestClient, frame: Frame) -> None:
        try:
            self._move_requests.on_orders(frame.payload, lambda document: self._respond(client, MOVE_ORDERS_DONE, frame.token, document))
        except ValueError:
            self._refused.add()

    # --- the wait -----------------------------------------------------------------------------------------------------------

    def _wait(self, waiting: WaitingRequest) -> None:
        self._waiting.append(waiting)
        self.do_work()

    def do_work(self) -> int:
        """Begin requests, answer those that are done or have timed out; return how many were
        answered.
        """
        servers = self._unreached()
        if not servers:
            self._unreached_since_ms = None
        elif self._unreached_since_ms is None:
            self._unreached_since_ms = self._now_ms()
        if not self._waiting:
            return 0
        now_ms = self._now_ms()
        can_begin = self._can_begin()
        away_ms = now_ms - self._unreached_since_ms if self._unreached_since_ms is not None else 0
        finished = []
        for waiting in list(self._waiting):
            if can_begin and not waiting.begun:
                waiting.begun = True
                waiting.begin(waiting)
            if not waiting.begun and away_ms >= UNREACHED_MS:
                seconds = away_ms // 1_000
                waiting.time_out(f"ZooKeeper ({servers}) has been unreachable for {seconds} s, so nothing was changed. Check that most of its servers run.")
            elif not waiting.is_done and now_ms >= waiting.deadline_ms:
                waiting.time_out()
                self._timed_out.add()
            if waiting.is_done:
                finished.append(waiting)
        for waiting in finished:
            self._waiting.remove(waiting)
            waiting.finish(waiting.results)
        return len(finished)

    # --- CreateTopics -------------------------------------------------------------------------------------------------------

    def _on_create_topics(self, request: ControllerRequest) -> None:
        decoded = decode_create_topics(request.body, 0, len(request.body), request.version)
        counts = Counter(topic.name for topic in decoded.topics)
        waiting = WaitingRequest(
            counts,
            self._now_ms() + max(0, decoded.timeout_ms),
            lambda waiting: self._begin_create(waiting, decoded.topics, counts, decoded.validate_only),
            lambda results: self._answer(request, self._created_body(request.version, decoded.topics, results)),
        )
        self._wait(waiting)

    def _begin_create(self, waiting: WaitingRequest, topics: tuple[CreatableTopic, ...], counts: Counter[str], validate_only: bool) -> None:
        too_much = self._topics.request_problem((topic.num_partitions, len(topic.assignments)) for topic in topics if counts[topic.name] == 1)
        for topic in _once(topics):
            on_result = partial(waiting.record, topic.name)
            if self._cluster.fence is None:
                on_result(NOT_CONTROLLER)
            elif too_much is not None:
                on_result(Result(ErrorCode.POLICY_VIOLATION, too_much))
            elif counts[topic.name] > 1:
                on_result(Result(ErrorCode.INVALID_REQUEST, "Create topics request from client contains multiple entries for this topic."))
            else:
                self._topics.create(_wanted(topic), validate_only, on_result)

    def _created_body(self, version: int, topics: tuple[CreatableTopic, ...], results: dict[Key, Result]) -> bytes:
        return encode_create_topics_body(version, tuple(self._created(topic, results) for topic in _once(topics)))

    def _created(self, topic: CreatableTopic, results: dict[Key, Result]) -> CreatedTopic:
        result = results[topic.name]
        if result.code is not ErrorCode.NONE or result.plan is None:
            return CreatedTopic(topic.name, NO_TOPIC_ID, result.code, truncated(result.message))
        plan = result.plan
        configs = tuple(self._described_configs(plan.config))
        return CreatedTopic(topic.name, result.topic_id or NO_TOPIC_ID, 0, None, len(plan.assignment), plan.replication_factor, configs)

    def _described_configs(self, config: dict[str, str]) -> Iterable[CreatedTopicConfig]:
        for described in describe_topic(config, BrokerSide(self._cluster.broker_config, self._broker_configs), False, False):
            yield CreatedTopicConfig(described.name, described.value, False, described.config_source)

    # --- DeleteTopics -------------------------------------------------------------------------------------------------------

    def _on_delete_topics(self, request: ControllerRequest) -> None:
        decoded = decode_delete_topics(request.body, 0, len(request.body), request.version)
        named: dict[int, tuple[str, TopicId]] = {}
        waiting = WaitingRequest(
            range(len(decoded.topics)),
            self._now_ms() + max(0, decoded.timeout_ms),
            lambda waiting: self._begin_delete(waiting, decoded.topics, named, request.version),
            lambda results: self._answer(request, _deleted_body(request.version, decoded.topics, named, results)),
        )
        self._wait(waiting)

    def _begin_delete(self, waiting: WaitingRequest, topics: tuple[TopicToDelete, ...], named: dict[int, tuple[str, TopicId]], version: int) -> None:
        for index, topic in enumerate(topics):
            on_result = partial(waiting.record, index)
            refused = self._deletion_refused(topic, version)
            if refused is not None:
                on_result(refused)
                continue
            name = topic.name or self._name_of(topic) or ""
            named[index] = name, self._cluster.topics[name].topic_id
            self._topics.delete(name, on_result)

    def _deletion_refused(self, topic: TopicToDelete, version: int) -> Result | None:
        if self._cluster.fence is None:
            return NOT_CONTROLLER
        if not self._topics.deletion_enabled:
            code = ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
            return Result(code, "Topic deletion is disabled.")
        if topic.name is not None and topic.topic_id != NO_TOPIC_ID:
            return Result(ErrorCode.INVALID_REQUEST, "Topic name and topic id cannot both be given.")
        if topic.name is None and self._name_of(topic) is None:
            return Result(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        if topic.name is not None and topic.name not in self._cluster.topics:
            return Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return None

    def _name_of(self, topic: TopicToDelete) -> str | None:
        return next((state.name for state in self._cluster.topics.values() if state.topic_id == topic.topic_id), None)

    # --- automatic creation -------------------------------------------------------------------------------------------------

    def _on_auto_create(self, client: RequestClient, frame: Frame) -> None:
        try:
            asked: Any = orjson.loads(frame.payload)["topics"]
            topics = {str(name): int(partitions) for name, partitions in asked.items()} if isinstance(asked, dict) else {str(name): -1 for name in asked}
        except (ValueError, KeyError, TypeError, AttributeError):
            self._refused.add()
            return
        waiting = WaitingRequest(
            topics,
            self._now_ms() + AUTO_CREATE_TIMEOUT_MS,
            lambda waiting: self._begin_ensure(waiting, topics),
            lambda results: self._respond(client, AUTO_CREATE_DONE, frame.token, _errors_document(results)),
        )
        self._wait(waiting)

    def _begin_ensure(self, waiting: WaitingRequest, topics: dict[str, int]) -> None:
        affordable = self._topics.affordable(topics)

        def record(name: str, result: Result) -> None:
            """Ask the client to retry: automatic creation is no request to a controller, so
            NOT_CONTROLLER would mislead it.
            """
            waiting.record(name, Result(ErrorCode.LEADER_NOT_AVAILABLE) if result.code is ErrorCode.NOT_CONTROLLER else result)

        for name, partitions in topics.items():
            if self._cluster.fence is None:
                self._elsewhere.ensure(name, partitions, partial(record, name))
            elif name not in affordable:
                waiting.record(name, Result(ErrorCode.LEADER_NOT_AVAILABLE))
            else:
                self._topics.ensure(name, partitions, partial(record, name))


def _errors_document(results: dict[Key, Result]) -> bytes:
    return orjson.dumps({"errors": {str(name): int(result.code) for name, result in results.items()}})


def _once(topics: tuple[CreatableTopic, ...]) -> list[CreatableTopic]:
    """Return each name once; Kafka refuses duplicates once, under their name."""
    return list({topic.name: topic for topic in topics}.values())


def _wanted(topic: CreatableTopic) -> TopicCreation:
    return TopicCreation(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((assignment.partition, tuple(assignment.broker_ids)) for assignment in topic.assignments),
        tuple((config.name, config.value) for config in topic.configs),
    )


def _deleted_body(version: int, topics: tuple[TopicToDelete, ...], named: dict[int, tuple[str, TopicId]], results: dict[Key, Result]) -> bytes:
    """Encode name and id of every topic that was found, whichever of them the request had."""
    deleted = tuple(
        DeletedTopic(*named.get(index, (topic.name, topic.topic_id)), results[index].code, results[index].message) for index, topic in enumerate(topics)
    )
    return encode_delete_topics_body(version, deleted)
