"""Handle the requests on `controller.sock`: Kafka's admin requests and automatic creation.

CreateTopics, DeleteTopics and automatic creation are here, the others in their own modules. Owned
by the controller process. Weak: as of `waiting_requests`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.base.settings import Box
from appliance.cluster.broker_configs import broker_configs
from appliance.cluster.placement import TopicCreation
from appliance.ipc.frames import Frame, is_trusted_user
from appliance.ipc.request_frames import (
    AUTO_CREATE,
    AUTO_CREATE_DONE,
    KAFKA_REQUEST,
    KAFKA_RESPONSE,
    MOVE_ORDERS,
    MOVE_ORDERS_DONE,
    ORPHAN_ORDERS,
    KafkaRequest,
    unpack_kafka_request,
)
from appliance.protocol.apis import ApiKey
from appliance.protocol.topic_apis import (
    CreatableTopic,
    CreatedTopic,
    CreatedTopicConfig,
    CreateTopicsRequest,
    DeletedTopic,
    DeleteTopicsRequest,
    TopicToDelete,
    decode_create_topics,
    decode_delete_topics,
    encode_create_topics_body,
    encode_delete_topics_body,
    topics_to_delete,
)
from appliance.runtime.request_server import RequestClient
from services.controller.admin.acls import AclAdministration, AclRequests
from services.controller.admin.box_requests import BoxRequests
from services.controller.admin.client_quotas import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    MutatingApi,
    MutationQuota,
    QuotaAdministration,
    QuotaRequests,
)
from services.controller.admin.cluster_administration import ClusterAdministration
from services.controller.admin.config_descriptions import describe_topic
from services.controller.admin.configs import ConfigRequests, broker_side
from services.controller.admin.elections import ElectionRequests
from services.controller.admin.move_orders import MoveOrders
from services.controller.admin.move_requests import MoveRequests
from services.controller.admin.orphans import OrphanRequests
from services.controller.admin.partitions import PartitionRequests
from services.controller.admin.reassignments import ReassignmentRequests
from services.controller.admin.tokens import TokenAdministration, TokenRequests
from services.controller.admin.topic_administration import TIMEOUT_MS, OtherController
from services.controller.admin.users import UserAdministration, UserRequests
from services.controller.admin.waiting_requests import NOT_CONTROLLER, ControllerRequest, Key, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.cluster import ControllerContext

AUTO_CREATE_TIMEOUT_MS = 30_000
NOT_ALLOWED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
CONTROLLER_ALONE = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
        ApiKey.UNREGISTER_BROKER,
    }
)
"""What other boxes answer with NOT_CONTROLLER."""
NOT_ANSWERED = Result(ErrorCode.REQUEST_TIMED_OUT, "The controller on another box sent no response; whether the request was carried out is not known.")


class ControllerRequests:
    """Decode requests, start them, encode their responses."""

    def __init__(
        self,
        context: ControllerContext,
        administration: ClusterAdministration,
        elsewhere: OtherController,
        move_orders: MoveOrders,
        box: Box,
        requests: WaitingRequests,
        acls: AclAdministration | None,
        users: UserAdministration,
        quotas: QuotaAdministration,
        tokens: TokenAdministration,
    ) -> None:
        self._cluster = cluster = context.cluster
        self._topics = administration.topics
        self._elsewhere = elsewhere
        self._requests = requests
        self._mutations = quotas.mutations
        self._broker_configs = broker_configs(box)
        self._box = box
        self._move_requests = MoveRequests(move_orders, administration.draining, box.disks, requests)
        self._orphans = OrphanRequests(context, administration.topics, requests, move_orders.is_online)
        configs = ConfigRequests(cluster, administration.configs, administration.loggers, self._broker_configs, requests)
        reassignments = ReassignmentRequests(cluster, administration.reassignments, requests)
        partitions = PartitionRequests(cluster, administration.partitions, requests, quotas.mutations)
        self._mutating: dict[int, tuple[MutatingApi, Callable[[Any], int]]] = {
            ApiKey.CREATE_TOPICS: (CREATE_TOPICS, self._created_partitions),
            ApiKey.DELETE_TOPICS: (DELETE_TOPICS, self._deleted_partitions),
            ApiKey.CREATE_PARTITIONS: (CREATE_PARTITIONS, partitions.mutations),
        }
        """APIs with a quota, and what counts how many partitions a request creates or deletes"""
        self._by_api: dict[int, Callable[[ControllerRequest], None]] = {
            ApiKey.CREATE_TOPICS: self._on_create_topics,
            ApiKey.DELETE_TOPICS: self._on_delete_topics,
            ApiKey.CREATE_PARTITIONS: partitions.on_create_partitions,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self._move_requests.on_alter,
            ApiKey.DESCRIBE_CONFIGS: configs.on_describe,
            ApiKey.ALTER_CONFIGS: configs.on_replace,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.on_alter,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.on_alter,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.on_list,
            ApiKey.ELECT_LEADERS: ElectionRequests(cluster, administration.elections, requests).on_elect,
            ApiKey.UNREGISTER_BROKER: BoxRequests(context, requests).on_unregister,
            **AclRequests(acls, requests).by_api,
            **UserRequests(users, requests).by_api,
            **QuotaRequests(quotas, requests).by_api,
            **TokenRequests(tokens, context, requests).by_api,
        }
        self._can_begin = context.can_begin
        self._received = context.counters.counter("controller.requests")
        self._passed_on = context.counters.counter("controller.requests_passed_on")
        self._refused = context.counters.counter("controller.requests_unreadable")
        self._forbidden = context.counters.counter("controller.requests_forbidden")
        self._log = context.log

    def on_reloaded(self) -> None:
        """Describe the reloaded settings."""
        self._broker_configs.update(broker_configs(self._box))

    def on_frame(self, client: RequestClient, frame: Frame) -> None:
        """Handle a frame. An unreadable request gets an empty response, so that the acceptor closes
        its client's connection.
        """
        self._received.add()
        if frame.kind == AUTO_CREATE:
            self._on_auto_create(client, frame)
        elif frame.kind in (MOVE_ORDERS, ORPHAN_ORDERS):
            self._on_disk_orders(client, frame)
        elif frame.kind == KAFKA_REQUEST:
            try:
                self._on_kafka_request(client, frame)
            except (ProtocolViolation, ValueError):
                self._refused.add()
                self._requests.respond(client, KAFKA_RESPONSE, frame.token, b"")
        else:
            self._refused.add()

    def _on_kafka_request(self, client: RequestClient, frame: Frame) -> None:
        asked = unpack_kafka_request(frame.payload)
        action = self._by_api.get(asked.api_key)
        if action is None:
            raise ProtocolViolation("unknown_api", f"the controller does not answer API {asked.api_key}")
        request = ControllerRequest(client, frame.token, asked.api_version, asked.body, asked.origin, asked.client_host, asked.client_id)
        is_elsewhere = asked.api_key in CONTROLLER_ALONE and self._can_begin() and self._cluster.fence is None
        if is_elsewhere and self._elsewhere.may_pass_on(asked):
            self._pass_on(request, frame.payload, asked)
        else:
            action(request)

    def _pass_on(self, request: ControllerRequest, payload: bytes, asked: KafkaRequest) -> None:
        """Pass a request on to the controller, if the client's quota allows it. There it counts as this box's, which has none.

        librdkafka asks for the controller once and after five minutes, and Kafka 4's brokers pass
        on (KIP-590). The acceptor has authorized the client; the controller's box authorizes this
        box, which may do everything, and refuses what a box without an authorizer passes on. NOT_CONTROLLER means that the request was not carried out, so
        what was sent and not answered is answered with REQUEST_TIMED_OUT.
        """
        from appliance.protocol.forwarded_apis import CONTROLLER_APIS, error_answer  # all schemas, rarely needed

        decoded = CONTROLLER_APIS[asked.api_key][0].decode(asked.body, 0, len(asked.body), asked.api_version)

        quota: MutationQuota | None = None

        def answer(body: bytes | None) -> None:
            self._requests.answer(request, quota.throttled(body) if quota is not None and body else body or b"")

        def refuse(result: Result) -> None:
            answer(error_answer(payload, result.code, result.message))

        def on_body(body: bytes | None, is_sent: bool) -> None:
            if body:
                answer(body)
            else:
                refuse(NOT_ANSWERED if is_sent else NOT_CONTROLLER)

        if asked.api_key in self._mutating:
            api, partitions_of = self._mutating[asked.api_key]
            quota, partitions = self._mutations.of(request, api), partitions_of(decoded)
            if partitions and (refused := quota.refusal(partitions)) is not None:
                refuse(refused)
                return
        self._elsewhere.pass_on(asked, getattr(decoded, "timeout_ms", TIMEOUT_MS), on_body)
        self._passed_on.add()

    def _on_disk_orders(self, client: RequestClient, frame: Frame) -> None:
        if not is_trusted_user(client.user):  # the command runs as root or as the user of the box
            self._forbidden.add()
            self._log.warning(f"a process of user {client.user} sent an order about disks, which only root and user {os.geteuid()} may; it is refused")
            self._requests.respond(client, MOVE_ORDERS_DONE, frame.token, orjson.dumps({"refused": [["orders", int(NOT_ALLOWED), "Not authorized."]]}))
            return
        handler = self._move_requests if frame.kind == MOVE_ORDERS else self._orphans
        try:
            handler.on_orders(frame.payload, lambda document: self._requests.respond(client, MOVE_ORDERS_DONE, frame.token, document))
        except ValueError:
            self._refused.add()

    # --- CreateTopics -------------------------------------------------------------------------------------------------------

    def _on_create_topics(self, request: ControllerRequest) -> None:
        decoded = decode_create_topics(request.body, 0, len(request.body), request.version)
        counts = Counter(topic.name for topic in decoded.topics)
        quota = self._mutations.of(request, CREATE_TOPICS)
        self._requests.wait(
            counts,
            decoded.timeout_ms,
            lambda waiting: self._begin_create(waiting, decoded.topics, counts, decoded.validate_only, quota),
            lambda results: self._requests.answer(request, quota.throttled(self._created_body(request.version, decoded.topics, results))),
        )

    def _begin_create(
        self, waiting: WaitingRequest, topics: tuple[CreatableTopic, ...], counts: Counter[str], validate_only: bool, quota: MutationQuota
    ) -> None:
        too_much = self._topics.request_problem((topic.num_partitions, len(topic.assignments)) for topic in topics if counts[topic.name] == 1)
        placed = self._topics.placed_replicas()
        for topic in _once(topics):
            on_result = partial(waiting.record, topic.name)
            if self._cluster.fence is None:
                on_result(NOT_CONTROLLER)
            elif too_much is not None:
                on_result(Result(ErrorCode.POLICY_VIOLATION, too_much))
            elif counts[topic.name] > 1:
                on_result(Result(ErrorCode.INVALID_REQUEST, "Create topics request from client contains multiple entries for this topic."))
            elif (
                topic.name not in self._cluster.topics
                and not validate_only
                and (refused := quota.refusal(self._topics.partitions_of(topic.num_partitions, len(topic.assignments)))) is not None
            ):
                on_result(refused)
            else:
                self._topics.create(_wanted(topic), validate_only, placed, on_result)

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
        for described in describe_topic(config, broker_side(self._cluster, self._broker_configs), False, False):
            yield CreatedTopicConfig(described.name, described.value, False, described.config_source)

    def _created_partitions(self, decoded: CreateTopicsRequest) -> int:
        new = [topic for topic in _once(decoded.topics) if topic.name not in self._cluster.topics and not decoded.validate_only]
        return sum(max(0, self._topics.partitions_of(topic.num_partitions, len(topic.assignments))) for topic in new)

    # --- DeleteTopics -------------------------------------------------------------------------------------------------------

    def _on_delete_topics(self, request: ControllerRequest) -> None:
        decoded = decode_delete_topics(request.body, 0, len(request.body), request.version)
        named: dict[int, tuple[str, TopicId]] = {}
        quota = self._mutations.of(request, DELETE_TOPICS)
        self._requests.wait(
            range(len(decoded.topics)),
            decoded.timeout_ms,
            lambda waiting: self._begin_delete(waiting, decoded.topics, named, request.version, quota),
            lambda results: self._requests.answer(request, quota.throttled(_deleted_body(request.version, decoded.topics, named, results))),
        )

    def _begin_delete(
        self, waiting: WaitingRequest, topics: tuple[TopicToDelete, ...], named: dict[int, tuple[str, TopicId]], version: int, quota: MutationQuota
    ) -> None:
        for index, topic in enumerate(topics):
            on_result = partial(waiting.record, index)
            refused = self._deletion_refused(topic, version)
            if refused is not None:
                on_result(refused)
                continue
            name = topic.name or self._name_of(topic) or ""
            named[index] = name, self._cluster.topics[name].topic_id
            refused = quota.refusal(len(self._cluster.topics[name].replicas))
            if refused is not None:
                on_result(refused)
                continue
            self._topics.delete(name, on_result)

    def _deleted_partitions(self, decoded: DeleteTopicsRequest) -> int:
        names = {topic.name or self._name_of(topic) for topic in topics_to_delete(decoded)}
        return sum(len(topic.replicas) for name, topic in self._cluster.topics.items() if name in names)

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
        self._requests.wait(
            topics,
            AUTO_CREATE_TIMEOUT_MS,
            lambda waiting: self._begin_ensure(waiting, topics),
            lambda results: self._requests.respond(client, AUTO_CREATE_DONE, frame.token, _errors_document(results)),
        )

    def _begin_ensure(self, waiting: WaitingRequest, topics: dict[str, int]) -> None:
        affordable = self._topics.affordable(topics)
        placed = self._topics.placed_replicas()

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
                self._topics.ensure(name, partitions, placed, partial(record, name))


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
