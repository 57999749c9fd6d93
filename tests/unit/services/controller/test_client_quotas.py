"""Client quotas in the controller: the two APIs, Kafka's znodes, changes by other tools, mutations of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.cluster.quota_image import read_quota_image
from appliance.cluster.user_znodes import entity_of_path, entity_path
from appliance.cluster.znodes import decode_config, encode_config, encode_config_change
from appliance.ipc.frames import connect_unix
from appliance.ipc.request_frames import KAFKA_REQUEST, KAFKA_RESPONSE, pack_kafka_request
from appliance.protocol import config_apis, quota_apis
from appliance.protocol.config_apis import ConfigToAlter, ResourceToAlter, ResourceType
from appliance.protocol.quota_apis import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaEntityPart,
    QuotaFilterComponent,
    QuotaOperation,
    QuotasToAlter,
)
from appliance.protocol.schema import Message
from appliance.protocol.topic_apis import (
    CREATE_PARTITIONS_REQUEST,
    CREATE_PARTITIONS_RESPONSE,
    CREATE_TOPICS_REQUEST,
    CREATE_TOPICS_RESPONSE,
    DELETE_TOPICS_REQUEST,
    DELETE_TOPICS_RESPONSE,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    TopicConfig,
    TopicToGrow,
)
from appliance.security.principals import FROM_BOX, UNAUTHENTICATED
from appliance.security.quotas import CONTROLLER_MUTATION_RATE, QuotaEntity
from appliance.shm.counters import Counters, read_counters
from lab.scratch_layout import scratch_layout
from services.controller.admin import configs, pending_orders
from services.controller.admin.client_quotas import (
    BUCKETS_MAX,
    CREATE_TOPICS,
    QUOTAS_TIMEOUT_MS,
    MutationQuotas,
    QuotaAdministration,
    QuotaRequests,
)
from services.controller.admin.waiting_requests import ControllerRequest, WaitingRequests
from services.controller.decisions import config_operations
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.zookeeper import config_changes
from services.controller.zookeeper.operation import OperationRunner
from services.controller.zookeeper.requests import Create, Get, Multi, NoNode, SetData, ZooKeeperFailed
from services.controller.zookeeper.session import ZooKeeperReply
from tests.support.memory_zookeeper import MemoryZooKeeper
from tests.support.stepped_controller import SteppedBox

CHANGE = "/config/changes/config_change_"


class QuotaBox:
    """One box over a tree in memory; `ask` is an acceptor that forwards a client's request."""

    def __init__(self, directory: Path) -> None:
        self.server = MemoryZooKeeper()
        self.box = box = SteppedBox(directory, self.server, 1, settings={}, kafka_port=9092)
        box.start_writers()
        box.start_controller()
        box.until_ready()

    def ask(self, messages: tuple[Message[Any], Message[Any]], version: int, request: Any, client_id: str = "test") -> Any:
        client = connect_unix(self.box.layout.controller_socket)
        assert client is not None
        body = messages[0].encode(version, request)
        client.send(KAFKA_REQUEST, 7, pack_kafka_request(messages[0].api.key, version, client_id, "127.0.0.1", body))
        frames: list[Any] = []
        self.box.until(lambda: frames.extend(frame for frame in client.receive() if frame.kind == KAFKA_RESPONSE) or frames, "an answer")
        client.close()
        payload = frames[0].payload
        return messages[1].decode(payload, 0, len(payload), version)

    def alter(self, entity: dict[str, str | None], validate_only: bool = False, **values: float | None) -> tuple[int, str | None]:
        parts = tuple(QuotaEntityPart(kind.replace("_", "-"), name) for kind, name in entity.items())
        operations = tuple(QuotaOperation(key, value or 0.0, value is None) for key, value in values.items())
        request = AlterClientQuotasRequest((QuotasToAlter(parts, operations),), validate_only)
        (entry,) = self.ask((quota_apis.ALTER_CLIENT_QUOTAS_REQUEST, quota_apis.ALTER_CLIENT_QUOTAS_RESPONSE), 1, request).entries
        assert entry.entity == parts
        return entry.error_code, entry.error_message

    def described(self, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
        request = DescribeClientQuotasRequest(tuple(QuotaFilterComponent(*each) for each in components), strict)
        response = self.ask((quota_apis.DESCRIBE_CLIENT_QUOTAS_REQUEST, quota_apis.DESCRIBE_CLIENT_QUOTAS_RESPONSE), 0, request)
        if response.error_code:
            return response.error_code, response.error_message
        return {tuple(part.entity_name for part in entry.entity): dict(entry.values) for entry in response.entries}

    def image(self) -> dict[QuotaEntity, Any]:
        found = read_quota_image(self.box.layout.quota_image_file)
        return {} if found is None else dict(found.quotas)

    def config(self, path: str) -> dict[str, str]:
        return decode_config(path, self.server.write(Get(path)).data)


@pytest.fixture
def quotas(tmp_path: Path) -> Iterator[QuotaBox]:
    made = QuotaBox(tmp_path)
    yield made
    made.box.close()


def test_paths_of_entities_are_kafkas() -> None:
    for entity, path in [
        (QuotaEntity("ö b*"), "users/%C3%B6%20b%2A"),
        (QuotaEntity(""), "users/<default>"),
        (QuotaEntity("", ""), "users/<default>/clients/<default>"),
        (QuotaEntity("u", "c/d"), "users/u/clients/c%2Fd"),
        (QuotaEntity(None, "c"), "clients/c"),
        (QuotaEntity(address="10.0.0.1"), "ips/10.0.0.1"),
        (QuotaEntity(address="::1"), "ips/%3A%3A1"),
        (QuotaEntity(address=""), "ips/<default>"),
    ]:
        assert entity_path(entity) == path and entity_of_path(path) == entity
    assert [entity_of_path(path) for path in ("topics/t", "users/", "users/u/c", "users/u/clients/", None)] == [None] * 5


def test_quotas_are_in_kafkas_znodes_and_in_the_image_before_the_answer_and_beside_credentials(quotas: QuotaBox) -> None:
    quotas.server.write(Create("/config/users/alice", encode_config({"SCRAM-SHA-256": "kept"})))
    assert quotas.image() == {}
    assert quotas.alter({"user": "alice"}, producer_byte_rate=1024.0, request_percentage=12.5) == (0, None)
    assert quotas.config("/config/users/alice") == {"SCRAM-SHA-256": "kept", "producer_byte_rate": "1024", "request_percentage": "12.5"}
    assert quotas.alter({"user": "bob", "client_id": None}, consumer_byte_rate=5.0) == (0, None)
    assert quotas.config("/config/users/bob/clients/<default>") == {"consumer_byte_rate": "5"}
    assert quotas.alter({"client_id": "c 1"}, controller_mutation_rate=0.5) == (0, None)
    assert quotas.config("/config/clients/c%201") == {"controller_mutation_rate": "0.5"}
    everything = {
        QuotaEntity("alice"): {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        QuotaEntity("bob", ""): {"consumer_byte_rate": 5.0},
        QuotaEntity(None, "c 1"): {"controller_mutation_rate": 0.5},
    }
    assert quotas.image() == everything
    assert quotas.alter({"user": "alice"}, producer_byte_rate=None, request_percentage=None, consumer_byte_rate=None) == (0, None)
    assert quotas.config("/config/users/alice") == {"SCRAM-SHA-256": "kept"} and QuotaEntity("alice") not in quotas.image()
    assert quotas.alter({"user": "carl"}, validate_only=True, producer_byte_rate=1.0) == (0, None)
    assert QuotaEntity("carl") not in quotas.image()


def test_a_filter_matches_as_kafkas_does(quotas: QuotaBox) -> None:
    for entity in ({"user": "a"}, {"user": None}, {"user": "a", "client_id": "c"}, {"user": "a", "client_id": None}, {"client_id": "c"}):
        assert quotas.alter(entity, producer_byte_rate=1.0) == (0, None)
    one = {"producer_byte_rate": 1.0}
    assert quotas.described() == {("a",): one, (None,): one, ("a", "c"): one, ("a", None): one, ("c",): one}
    assert quotas.described(strict=True) == {}
    assert quotas.described(("user", MATCH_EXACT, "a")) == {("a",): one, ("a", "c"): one, ("a", None): one}
    assert quotas.described(("user", MATCH_EXACT, "a"), strict=True) == {("a",): one}
    assert quotas.described(("user", MATCH_DEFAULT, None)) == {(None,): one}
    assert quotas.described(("user", MATCH_SPECIFIED, None), ("client-id", MATCH_DEFAULT, None)) == {("a", None): one}
    assert quotas.described(("client-id", MATCH_SPECIFIED, None), strict=True) == {("c",): one}
    assert quotas.described(("ip", MATCH_SPECIFIED, None)) == {}
    assert quotas.described(("shoe", MATCH_EXACT, "a")) == (ErrorCode.UNSUPPORTED_VERSION, "Custom entity type 'shoe' not supported")
    assert quotas.described(("", MATCH_EXACT, "a"))[0] == ErrorCode.INVALID_REQUEST
    assert quotas.described(("user", MATCH_EXACT, "a"), ("user", MATCH_EXACT, "b"))[0] == ErrorCode.INVALID_REQUEST


def test_a_credential_is_no_quota_and_cannot_be_removed_as_one(quotas: QuotaBox) -> None:
    quotas.server.write(Create("/config/users/alice", encode_config({"SCRAM-SHA-256": "kept"})))
    code, message = quotas.alter({"user": "alice"}, **{"SCRAM-SHA-256": None})
    assert (code, message) == (ErrorCode.INVALID_REQUEST, "Invalid configuration key SCRAM-SHA-256")
    assert quotas.config("/config/users/alice") == {"SCRAM-SHA-256": "kept"}


def test_removed_quotas_leave_no_nodes_and_those_that_never_were_make_none(quotas: QuotaBox) -> None:
    def nodes() -> list[str]:
        return [path for path in quotas.server.paths() if path.startswith(("/config/users/", "/config/clients/", CHANGE))]

    for entity in ({"user": "u"}, {"user": None, "client_id": "c"}, {"client_id": "c"}):
        assert quotas.alter(entity, producer_byte_rate=None) == (0, None) and nodes() == []
    quotas.server.write(Create("/config/users/alice", encode_config({"SCRAM-SHA-256": "kept"})))
    entities = {"user": "alice", "client_id": "c"}, {"user": "bob"}, {"user": "bob", "client_id": "c"}, {"user": "bob", "client_id": "d"}, {"client_id": "c"}
    for entity in entities:
        assert quotas.alter(entity, producer_byte_rate=1.0, consumer_byte_rate=1.0) == (0, None)
    left = {QuotaEntity(entity.get("user"), entity.get("client_id")) for entity in entities}
    for entity in entities:
        assert quotas.alter(entity, producer_byte_rate=None) == (0, None) and set(quotas.image()) == left
        assert quotas.alter(entity, consumer_byte_rate=None) == (0, None)
        left.remove(QuotaEntity(entity.get("user"), entity.get("client_id")))
        assert set(quotas.image()) == left and "/config/users/alice" in nodes()
    assert [path for path in nodes() if not path.startswith(CHANGE)] == ["/config/users/alice"]
    assert quotas.config("/config/users/alice") == {"SCRAM-SHA-256": "kept"}


def test_impossible_quotas_are_refused(quotas: QuotaBox) -> None:
    for entity, values, text in [
        ({}, {}, "Invalid empty client quota entity"),
        ({"user": ""}, {}, "Empty user not supported"),
        ({"client_id": ".."}, {"producer_byte_rate": 1.0}, "The name of a client-id with quotas has at most 255 characters"),
        ({"user": "u" * 256}, {"producer_byte_rate": 1.0}, "The name of a user with quotas has at most 255 characters"),
        ({"shoe": "a"}, {}, "Unhandled client quota entity type: shoe"),
        ({"ip": "box.example"}, {"connection_creation_rate": 1.0}, "box.example is not a valid IP"),
        ({"ip": "1.2.3.4"}, {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
        ({"ip": "1.2.3.4"}, {"connection_creation_rate": 1.5}, "Configuration connection_creation_rate must be a LONG value"),
        ({"ip": "1.2.3.4", "user": "a"}, {"connection_creation_rate": 1.0}, "Invalid client quota entity: an ip is combined"),
        ({"user": "a"}, {"connection_creation_rate": 1.0}, "Invalid configuration key connection_creation_rate"),
        ({"user": "a"}, {"speed": 1.0}, "Invalid configuration key speed"),
        ({"user": "a"}, {"producer_byte_rate": -1.0}, "Quota producer_byte_rate must be greater than 0"),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "Configuration producer_byte_rate must be a LONG value"),
        ({"user": "a"}, {"request_percentage": float("inf")}, "Quota request_percentage must be greater than 0"),
    ]:
        code, message = quotas.alter(entity, **values)  # type: ignore[arg-type]
        assert code == ErrorCode.INVALID_REQUEST and (message or "").startswith(text), text
    assert quotas.described() == {}


def test_an_address_may_have_a_quota_of_connections(quotas: QuotaBox) -> None:
    assert quotas.alter({"ip": "0:0:0:0:0:0:0:1"}, connection_creation_rate=5.0) == (0, None)
    assert quotas.alter({"ip": None}, connection_creation_rate=50.0) == (0, None)
    assert quotas.config("/config/ips/%3A%3A1") == {"connection_creation_rate": "5"}
    wanted = {QuotaEntity(address="::1"): {"connection_creation_rate": 5.0}, QuotaEntity(address=""): {"connection_creation_rate": 50.0}}
    assert quotas.image() == wanted
    assert quotas.described(("ip", MATCH_DEFAULT, None)) == {(None,): {"connection_creation_rate": 50.0}}
    assert quotas.described(("user", MATCH_SPECIFIED, None)) == {}
    assert quotas.alter({"ip": "::1"}, connection_creation_rate=None) == (0, None)
    assert quotas.image() == {QuotaEntity(address=""): {"connection_creation_rate": 50.0}}


def test_quotas_that_another_tool_writes_are_followed(quotas: QuotaBox) -> None:
    quotas.alter({"client_id": "c"}, producer_byte_rate=1.0)
    quotas.server.write(SetData("/config/clients/c", encode_config({"producer_byte_rate": "7", "consumer_byte_rate": "many"}), -1))
    quotas.server.write(Create(CHANGE, encode_config_change("clients/c"), sequence=True))
    quotas.box.until(lambda: quotas.image() == {QuotaEntity(None, "c"): {"producer_byte_rate": 7.0}}, "the image has it")


def test_mutations_above_the_quota_are_refused_in_new_versions_and_throttled_in_old_ones(quotas: QuotaBox) -> None:
    """KIP-599: eleven seconds' worth may be used at once, and the last request may overdraw it."""
    creation = CREATE_TOPICS_REQUEST, CREATE_TOPICS_RESPONSE

    def create(name: str, partitions: int, version: int, client_id: str = "limited", validate_only: bool = False) -> tuple[int, int]:
        response = quotas.ask(creation, version, CreateTopicsRequest((CreatableTopic(name, partitions, 1),), 10_000, validate_only), client_id)
        return response.topics[0].error_code, response.throttle_time_ms

    quotas.alter({"client_id": "limited"}, controller_mutation_rate=0.01)
    assert create("a", 2, 6) == (0, 0)
    code, throttle_ms = create("b", 1, 6)
    assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED and 150_000 < throttle_ms <= 189_000
    assert create("b", 1, 6, "other") == (0, 0)
    assert create("c", 1, 6, validate_only=True) == (0, 0)
    code, throttle_ms = create("c", 1, 5)
    assert code == 0 and 250_000 < throttle_ms <= 289_000
    growth = CreatePartitionsRequest((TopicToGrow("a", 3),), 10_000, False)
    response = quotas.ask((CREATE_PARTITIONS_REQUEST, CREATE_PARTITIONS_RESPONSE), 3, growth, "limited")
    assert response.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED and response.throttle_time_ms > 0
    for version, is_refused in ((5, True), (4, False)):
        deletion = DeleteTopicsRequest(topic_names=("c",), timeout_ms=10_000)
        deleted = quotas.ask((DELETE_TOPICS_REQUEST, DELETE_TOPICS_RESPONSE), version, deletion, "limited")
        assert deleted.topics[0].error_code == (ErrorCode.THROTTLING_QUOTA_EXCEEDED if is_refused else 0) and deleted.throttle_time_ms > 250_000
    quotas.alter({"client_id": "limited"}, controller_mutation_rate=None)
    assert create("d", 1, 6) == (0, 0)


def test_buckets_are_bounded_and_the_fullest_are_dropped() -> None:
    clock = ManualClock()
    mutations = MutationQuotas(clock, {QuotaEntity(None, ""): {CONTROLLER_MUTATION_RATE: 1.0}})

    def mutate(client_id: str, partitions: int) -> bool:
        """Return whether the client is refused."""
        request = ControllerRequest(cast(Any, None), 1, 6, b"", client_id=client_id)
        return mutations.of(request, CREATE_TOPICS).refusal(partitions) is not None

    assert not mutate("overdrawn", 100) and not mutate("fullest", 1)
    for number in range(BUCKETS_MAX):
        mutate(str(number), 5)
    assert len(mutations.buckets) == BUCKETS_MAX
    assert mutate("overdrawn", 1), "its bucket is kept"
    names = [scope.client_id for scope in mutations.buckets]
    assert "fullest" not in names and "0" not in names
    former = mutations.buckets
    clock.advance_ms(999)
    mutate("new", 1)
    assert mutations.buckets is former, "not put into order again so soon"
    clock.advance_ms(11_000)
    mutate("newer", 1)
    assert [scope.client_id for scope in mutations.buckets] == ["overdrawn", "newer"], "the others are full"


def test_boxes_have_no_quota_of_mutations() -> None:
    """They pass on what they have counted, and create topics with fifty partitions for coordinators."""
    mutations = MutationQuotas(ManualClock(), {QuotaEntity(None, ""): {CONTROLLER_MUTATION_RATE: 1.0}})
    for origin, is_refused in ((UNAUTHENTICATED._replace(flags=FROM_BOX), False), (UNAUTHENTICATED, True)):
        request = ControllerRequest(cast(Any, None), 1, 6, b"", origin, client_id="controller of broker 2")
        assert mutations.of(request, CREATE_TOPICS).refusal(50) is None
        assert (mutations.of(request, CREATE_TOPICS).refusal(50) is not None) == is_refused


@pytest.mark.parametrize("is_loaded", [False, True], ids=["before the quotas are loaded", "behind another change of the entity"])
def test_a_change_whose_client_waits_no_longer_does_not_begin(tmp_path: Path, is_loaded: bool) -> None:
    asked: list[Any] = []
    clock, log, answers = ManualClock(), Logger("controller"), []
    with scratch_layout() as layout:
        counters = Counters.create_or_adopt(layout, "controller", 1)
        runner = OperationRunner(lambda request, on_reply: asked.append((request, on_reply)), lambda *_: None, lambda _: None, lambda *_: None)
        context = ControllerContext(Cluster(1, {}, []), runner, clock, counters, log, lambda failure: None, lambda: True)
        administration = QuotaAdministration(context, str(tmp_path / "image"), lambda: None)
        waiting = WaitingRequests(context, lambda: "", lambda *answer: answers.append(answer))
        alter = QuotaRequests(administration, waiting).by_api[quota_apis.ALTER_CLIENT_QUOTAS_REQUEST.api.key]

        def reply(value: Any, failure: ZooKeeperFailed | None = None) -> None:
            asked.pop(0)[1](ZooKeeperReply(value, failure))

        def send(value: float) -> None:
            entry = QuotasToAlter((QuotaEntityPart("client-id", "c"),), (QuotaOperation("producer_byte_rate", value),))
            body = quota_apis.ALTER_CLIENT_QUOTAS_REQUEST.encode(1, AlterClientQuotasRequest((entry,)))
            alter(ControllerRequest(None, 1, 1, body))  # type: ignore[arg-type]

        def load() -> None:
            for _kind in ("users", "clients", "ips"):
                reply(())

        administration.on_arrived()
        if is_loaded:
            load()
            send(1.0)
        send(2.0)
        clock.advance_ms(QUOTAS_TIMEOUT_MS)
        waiting.do_work()
        assert len(answers) == 1 + is_loaded
        if is_loaded:
            reply(None, NoNode("c"))
            assert isinstance(asked[0][0], Multi)
            reply(("c", "change"))
        else:
            load()
        assert [request for request, _ in asked] == []
        counters.close()


# ---- bounds of the tree


def test_changes_of_configs_end_at_a_bound_until_their_notifications_are_old(quotas: QuotaBox, monkeypatch: pytest.MonkeyPatch) -> None:
    quotas.ask((CREATE_TOPICS_REQUEST, CREATE_TOPICS_RESPONSE), 4, CreateTopicsRequest((CreatableTopic("t", 1, 1),), 30_000))
    monkeypatch.setattr(pending_orders.with_notification, "__defaults__", (3,))
    monkeypatch.setattr(configs, "OWN_CHANGES_MAX", 2)
    monkeypatch.setattr(config_changes, "AGE_MAX_MS", 1 << 60)
    altered = [alter_topic(quotas, "t", "retention.ms", str(time_ms)) for time_ms in range(1, 4)]
    assert altered == [0, 0, ErrorCode.POLICY_VIOLATION]
    rates = [quotas.alter({"user": "a"}, producer_byte_rate=float(rate))[0] for rate in range(1, 4)]
    assert rates == [0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION], "some are left for the administrator"
    counted = read_counters(quotas.box.layout, "controller")
    assert counted is not None and counted.values['controller.refused{bound="config_changes"}'] == 3
    monkeypatch.setattr(config_changes, "AGE_MAX_MS", -1)
    assert quotas.alter({"user": "a"}, producer_byte_rate=9.0)[0] == 0


def test_large_configs_of_topics_end_at_a_bound_and_small_ones_do_not(quotas: QuotaBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may have 32,000 bytes of them, and a cluster 5,000 topics."""
    monkeypatch.setattr(config_operations, "LARGE_CONFIGS_BYTES_MAX", 40_000)
    name, large = "leader.replication.throttled.replicas", ",".join(f"{number}:1" for number in range(2_500))
    topics = tuple(CreatableTopic(f"t{number}", 1, 1, configs=(TopicConfig(name, large),) if number < 3 else ()) for number in range(5))
    created = quotas.ask((CREATE_TOPICS_REQUEST, CREATE_TOPICS_RESPONSE), 4, CreateTopicsRequest(topics, 30_000))
    assert sorted(each.error_code for each in created.topics) == [0, 0, 0, 0, ErrorCode.POLICY_VIOLATION]
    assert alter_topic(quotas, "t3", name, large) == ErrorCode.POLICY_VIOLATION
    assert alter_topic(quotas, "t3", name, "1:1") == alter_topic(quotas, "t0", name, large[:-2] + ":1") == 0
    monkeypatch.setattr(config_operations, "LARGE_CONFIGS_BYTES_MAX", 1_000)
    assert alter_topic(quotas, "t1", name, large + ",9999:1") == ErrorCode.POLICY_VIOLATION
    assert alter_topic(quotas, "t1", name, large[:-7]) == 0, "what is there may become smaller"


def alter_topic(quotas: QuotaBox, topic: str, name: str, value: str) -> int:
    resource = ResourceToAlter(ResourceType.TOPIC, topic, (ConfigToAlter(name, config_changes.SET, value),))
    messages = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST, config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE
    (answer,) = quotas.ask(messages, 1, config_apis.IncrementalAlterConfigsRequest((resource,))).responses
    return int(answer.error_code)
