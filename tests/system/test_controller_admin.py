"""Growing topics and altering configs, with a real ZooKeeper, real rings and fake disks: Kafka's nodes and codes, deaths, changes by others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from kazoo.client import KazooClient

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.cluster.broker_configs import DYNAMIC_BROKER_CONFIGS
from appliance.cluster.topic_configs import TOPIC_CONFIG_ROWS
from appliance.cluster.znodes import BoxRecord
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.request_frames import KAFKA_REQUEST, ORPHAN_ORDERS, pack_kafka_request
from appliance.protocol import config_apis, topic_apis
from appliance.protocol.config_apis import (
    AlterConfigsRequest,
    AlteredResource,
    ConfigSource,
    ConfigToAlter,
    ConfigToSet,
    DescribeConfigsRequest,
    DescribedConfig,
    DescribedResource,
    IncrementalAlterConfigsRequest,
    ResourceToAlter,
    ResourceToDescribe,
    ResourceToReplace,
)
from appliance.protocol.schema import Message
from appliance.protocol.topic_apis import CreatableTopic, CreatePartitionsRequest, GrownTopic, PartitionAssignment, ReplicaAssignment, TopicConfig, TopicToGrow
from lab.real_zookeeper import RealZooKeeper
from services.controller.admin import configs as config_requests
from services.controller.zookeeper import config_changes, topic_registry
from tests.support.stepped_controller import Killed, SteppedBox

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def box(tmp_path: Path, zookeeper: RealZooKeeper, tree: KazooClient) -> Iterator[SteppedBox]:
    """A box that serves, with a topic t of two partitions."""
    box = SteppedBox(tmp_path / "box", zookeeper.connect + tree.chroot, settings={"log.segment.bytes": 1_000_000})
    box.start_writers()
    box.start_controller()
    box.until_ready()
    assert box.create(CreatableTopic("t", 2, 1, (), (TopicConfig("segment.ms", "7000"),)))[0].error_code == 0
    yield box
    box.close()


def document(tree: KazooClient, path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = orjson.loads(tree.get(path)[0])
    return loaded


def send(box: SteppedBox, message: Message[Any], body: Any, version: int) -> None:
    box.send(KAFKA_REQUEST, pack_kafka_request(message.api.key, version, "test", "::1", message.encode(version, body)))


def ask(box: SteppedBox, request: Message[Any], response: Message[Any], body: Any, version: int) -> Any:
    send(box, request, body, version)
    answer = box.answer()
    return response.decode(answer, 0, len(answer), version)


def grow(box: SteppedBox, *topics: TopicToGrow, version: int = 3, **options: Any) -> dict[str, GrownTopic]:
    body = CreatePartitionsRequest(topics, **{"timeout_ms": 10_000, **options})
    results = ask(box, topic_apis.CREATE_PARTITIONS_REQUEST, topic_apis.CREATE_PARTITIONS_RESPONSE, body, version).results
    return {result.name: result for result in results}


def alter(box: SteppedBox, *resources: ResourceToAlter, validate_only: bool = False) -> tuple[AlteredResource, ...]:
    body = IncrementalAlterConfigsRequest(resources, validate_only)
    answer: tuple[AlteredResource, ...] = ask(
        box, config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST, config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE, body, 1
    ).responses
    return answer


def alter_t(box: SteppedBox, *configs: ConfigToAlter, validate_only: bool = False) -> AlteredResource:
    return alter(box, ResourceToAlter(TOPIC, "t", configs), validate_only=validate_only)[0]


def describe(box: SteppedBox, *resources: ResourceToDescribe, version: int = 4) -> tuple[DescribedResource, ...]:
    body = DescribeConfigsRequest(resources, True, True)
    answer: tuple[DescribedResource, ...] = ask(box, config_apis.DESCRIBE_CONFIGS_REQUEST, config_apis.DESCRIBE_CONFIGS_RESPONSE, body, version).results
    return answer


def set_configs(box: SteppedBox) -> dict[str, str]:
    """What is described as set on t itself."""
    (described,) = describe(box, ResourceToDescribe(TOPIC, "t"))
    return {config.name: config.value or "" for config in described.configs if config.config_source == 1}


# --- growing -----------------------------------------------------------------------------------------------------------


def test_new_partitions_stand_in_zookeeper_on_the_disks_and_in_the_image(box: SteppedBox, tree: KazooClient) -> None:
    topic_id = str(box.image().topics["t"].topic_id)
    assert grow(box, TopicToGrow("t", 5))["t"].error_code == 0
    assert document(tree, "/brokers/topics/t")["partitions"] == {str(partition): [1] for partition in range(5)}
    assert document(tree, "/brokers/topics/t")["topic_id"] == topic_id
    assert [document(tree, f"/brokers/topics/t/partitions/{partition}/state")["leader"] for partition in range(5)] == [1] * 5
    assert box.on_disks("t") == dict.fromkeys(range(5), topic_id) and box.leading("t") == dict.fromkeys(range(5), 0)
    assert sorted(document(tree, "/millrace/brokers/1/topics/t")["partitions"]) == list("01234")
    assert len({partition.disk for partition in box.image().topics["t"].partitions}) == 2


def test_growth_is_refused_topic_by_topic_with_kafkas_codes(box: SteppedBox) -> None:
    one = (PartitionAssignment((1,)),)
    for name, count, assignments, code in [
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 10_001, None, ErrorCode.INVALID_PARTITIONS),
        ("nowhere", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 4, one, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, (PartitionAssignment((9,)),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, (PartitionAssignment((1, 1)),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, (PartitionAssignment(()),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ]:
        assert grow(box, TopicToGrow(name, count, assignments))[name].error_code == code, (name, count, assignments)
    twice = grow(box, TopicToGrow("t", 3), TopicToGrow("t", 4))
    assert twice["t"].error_code == ErrorCode.INVALID_REQUEST
    assert grow(box, TopicToGrow("t", 3), validate_only=True)["t"].error_code == 0
    assert len(box.image().topics["t"].partitions) == 2
    mixed = grow(box, TopicToGrow("t", 3, one), TopicToGrow("nowhere", 3))
    assert [mixed[name].error_code for name in ("t", "nowhere")] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    for version in range(4):
        assert grow(box, TopicToGrow("t", 4 + version), version=version)["t"].error_code == 0
    assert len(box.image().topics["t"].partitions) == 7


@pytest.mark.parametrize("writes_max", [400, 2])
@pytest.mark.parametrize("sent", [False, True], ids=["before-the-step", "after-the-step"])
def test_a_controller_that_dies_at_any_step_of_a_growth_leaves_all_new_partitions_or_none(
    box: SteppedBox, tree: KazooClient, sent: bool, writes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_registry, "WRITES_MAX", writes_max)
    outcomes = set()
    for step in itertools.count():
        name = f"topic-{step}"
        box.create(CreatableTopic(name, 2, 1))
        topic_id = str(box.image().topics[name].topic_id)
        box.killed_at(step, sent)
        try:
            send(box, topic_apis.CREATE_PARTITIONS_REQUEST, CreatePartitionsRequest((TopicToGrow(name, 5),)), 3)
            box.until(lambda name=name: box.frames or len(box.image().topics[name].partitions) not in (2, 5), "an answer")  # type: ignore[misc]
            died = False
        except Killed:
            died = True
        shown = set()

        def is_ready(name: str = name, shown: set[int] = shown) -> bool:
            shown.add(len(box.image().topics[name].partitions))
            return box.notifier.is_ready

        box.kill_controller()
        box.start_controller()
        box.until(is_ready, "ready")
        assert shown <= {2, 5}
        box.until_quiet()
        count = len(box.image().topics[name].partitions)
        outcomes.add(count)
        assert len(document(tree, f"/brokers/topics/{name}")["partitions"]) == count
        assert box.on_disks(name) == dict.fromkeys(range(count), topic_id)
        assert sorted(box.leading(name)) == list(range(count))
        if not died:
            break
    assert step > 5 and outcomes == {2, 5}


def test_while_a_topic_grows_on_a_hung_disk_clients_see_its_old_partitions(box: SteppedBox) -> None:
    for writer in box.writers.values():
        writer.refuse = lambda kind, payload: None if kind is DescriptorKind.CREATE and payload["topic"] == "t" else 0
    assert grow(box, TopicToGrow("t", 4), timeout_ms=300)["t"].error_code == ErrorCode.REQUEST_TIMED_OUT
    box.create(CreatableTopic("other", 1, 1))
    assert len(box.image().topics["t"].partitions) == 2
    for name in list(box.writers):
        box.kill_writer(name)
    box.start_writers()
    box.until(lambda: len(box.image().topics["t"].partitions) == 4, "the growth goes on")


# --- altering ----------------------------------------------------------------------------------------------------------


def test_altered_configs_stand_in_zookeeper_with_a_notification_and_reach_log_writers_and_image(box: SteppedBox, tree: KazooClient) -> None:
    before = box.image().topics["t"].config_generation
    assert alter_t(box, ConfigToAlter("max.message.bytes", SET, "5000")).error_code == 0
    assert document(tree, "/config/topics/t") == {"version": 1, "config": {"segment.ms": "7000", "max.message.bytes": "5000"}}
    assert tree.get_children("/config/changes") == ["config_change_0000000000"]
    assert document(tree, "/config/changes/config_change_0000000000") == {"version": 2, "entity_path": "topics/t"}
    topic = box.image().topics["t"]
    assert topic.config == {"segment.bytes": "1000000", "segment.ms": "7000", "max.message.bytes": "5000"}
    assert topic.config_generation == tree.get("/config/topics/t")[1].version == before + 1
    told = [payload for writer in box.writers.values() for kind, payload in writer.commands if kind is DescriptorKind.CONFIG]
    assert [(payload["config"], payload["config_generation"]) for payload in told] == [(topic.config, topic.config_generation)] * 2


def test_operations_change_single_configs_and_the_old_way_replaces_all(box: SteppedBox) -> None:
    assert alter_t(box, ConfigToAlter("cleanup.policy", APPEND, "compact"), ConfigToAlter("segment.ms", DELETE)).error_code == 0
    assert set_configs(box) == {"cleanup.policy": "delete,compact"}
    assert alter_t(box, ConfigToAlter("cleanup.policy", APPEND, "compact")).error_code == 0
    assert alter_t(box, ConfigToAlter("cleanup.policy", SUBTRACT, "delete"), ConfigToAlter("retention.ms", SET, "5")).error_code == 0
    assert set_configs(box) == {"cleanup.policy": "compact", "retention.ms": "5"}
    body = AlterConfigsRequest((ResourceToReplace(TOPIC, "t", (ConfigToSet("retention.ms", "6"),)),))
    for version in range(3):
        assert ask(box, config_apis.ALTER_CONFIGS_REQUEST, config_apis.ALTER_CONFIGS_RESPONSE, body, version).responses == (
            AlteredResource(0, None, TOPIC, "t"),
        )
        assert set_configs(box) == {"retention.ms": "6"}


def test_alterations_are_refused_with_kafkas_codes_and_change_nothing(box: SteppedBox, tree: KazooClient) -> None:
    fine = ConfigToAlter("retention.ms", SET, "1")
    for configs, code in [
        ((ConfigToAlter("no.such", SET, "1"), fine), ErrorCode.INVALID_CONFIG),
        ((ConfigToAlter("retention.ms", SET, "soon"),), ErrorCode.INVALID_CONFIG),
        ((ConfigToAlter("retention.bytes", APPEND, "1"),), ErrorCode.INVALID_CONFIG),
        ((ConfigToAlter("no.such", SUBTRACT, "1"),), ErrorCode.INVALID_CONFIG),
        ((ConfigToAlter("retention.bytes", SET, None), fine), ErrorCode.INVALID_REQUEST),
        ((fine, fine), ErrorCode.INVALID_REQUEST),
        ((ConfigToAlter("retention.ms", 7, "1"),), ErrorCode.INVALID_REQUEST),
    ]:
        assert alter_t(box, *configs).error_code == code, configs
    for kind, name, code in [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ErrorCode.INVALID_REQUEST),
        (BROKER, "", ErrorCode.INVALID_REQUEST),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", ErrorCode.INVALID_CONFIG),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ]:
        assert alter(box, ResourceToAlter(kind, name, (fine,)))[0].error_code == code, (kind, name)
    assert "settings file" in (alter(box, ResourceToAlter(BROKER, "1", (fine,)))[0].error_message or "")
    twice = alter(box, ResourceToAlter(TOPIC, "t", (fine,)), ResourceToAlter(TOPIC, "t", (fine,)))
    assert [result.error_code for result in twice] == [ErrorCode.INVALID_REQUEST] * 2
    assert alter_t(box, fine, validate_only=True).error_code == 0
    assert alter_t(box, ConfigToAlter("retention.ms", SET, "soon"), validate_only=True).error_code == ErrorCode.INVALID_CONFIG
    assert document(tree, "/config/topics/t")["config"] == {"segment.ms": "7000"} and tree.get_children("/config/changes") == []


def test_long_names_and_values_are_refused_in_short_words_in_every_version(box: SteppedBox) -> None:
    long = "x" * 32_760
    for version in range(2):
        body = IncrementalAlterConfigsRequest(
            (
                ResourceToAlter(TOPIC, long, (ConfigToAlter("retention.ms", SET, "1"),)),
                ResourceToAlter(BROKER, long, (ConfigToAlter("retention.ms", SET, "1"),)),
                ResourceToAlter(BROKER, "1", (ConfigToAlter(long, SET, long),)),
                ResourceToAlter(TOPIC, "t", (ConfigToAlter("message.format.version", SET, long),)),
            )
        )
        results = ask(box, config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST, config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE, body, version).responses
        assert [result.error_code for result in results] == [17, 42, 42, 40] and max(len(result.error_message or "") for result in results) <= 1000
    for name in (long, "no.such"):
        assert alter_t(box, ConfigToAlter(name, SET, "x" * 9000)).error_code == ErrorCode.INVALID_CONFIG
    many = (ReplicaAssignment(0, (1,) * 20_000),)
    assert box.create(CreatableTopic("many", -1, -1, many))[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    for version in range(4):
        assert grow(box, TopicToGrow(long, 3), version=version)[long].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter_t(box, ConfigToAlter("message.format.version", SET, "x" * 20_000)).error_code == 0
    assert alter_t(box, ConfigToAlter("leader.replication.throttled.replicas", SET, ",".join(["1:1"] * 4_000))).error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("sent", [False, True], ids=["before-the-step", "after-the-step"])
def test_a_controller_that_dies_at_any_step_of_an_alteration_leaves_log_writers_and_image_with_what_zookeeper_holds(
    box: SteppedBox, tree: KazooClient, sent: bool
) -> None:
    for step in itertools.count():
        body = IncrementalAlterConfigsRequest((ResourceToAlter(TOPIC, "t", (ConfigToAlter("retention.ms", SET, str(step)),)),))
        box.killed_at(step, sent)
        try:
            send(box, config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST, body, 1)
            box.until(lambda: box.frames, "an answer")
            died = False
        except Killed:
            died = True
        box.kill_controller()
        box.start_controller()
        box.until_quiet()
        held = document(tree, "/config/topics/t")["config"]
        version = tree.get("/config/topics/t")[1].version
        topic = box.image().topics["t"]
        assert (topic.config, topic.config_generation) == ({"segment.bytes": "1000000", **held}, version)
        for writer in box.writers.values():
            last = [payload for kind, payload in writer.commands if kind in (DescriptorKind.CONFIG, DescriptorKind.BECOME_LEADER)][-1]
            assert (last["config"], last["config_generation"]) == (topic.config, version)
        if not died:
            break
    assert step >= 4 and held["retention.ms"] == str(step)


def test_configs_changed_by_another_client_of_zookeeper_are_applied(box: SteppedBox, tree: KazooClient) -> None:
    """As Kafka's own tools do: the node, then a notification, of either version."""
    for number, notification in enumerate(
        [{"version": 2, "entity_path": "topics/t"}, {"version": 1, "entity_type": "topics", "entity_name": "t"}, {"version": 2, "entity_path": "brokers/1"}, 7]
    ):
        tree.set("/config/topics/t", orjson.dumps({"version": 1, "config": {"retention.ms": str(number)}}))
        tree.create("/config/changes/config_change_", orjson.dumps(notification), sequence=True)
        if number < 2:
            box.until(lambda number=number: box.image().topics["t"].config.get("retention.ms") == str(number), "the other's change")  # type: ignore[misc]
    assert alter_t(box, ConfigToAlter("segment.ms", SET, "9")).error_code == 0
    assert set_configs(box) == {"retention.ms": "3", "segment.ms": "9"}, "a change goes on from what ZooKeeper holds"


def test_old_notifications_are_removed(box: SteppedBox, tree: KazooClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        assert alter_t(box, ConfigToAlter("retention.ms", SET, str(number))).error_code == 0
    box.until_quiet()
    assert len(tree.get_children("/config/changes")) == 3
    monkeypatch.setattr(config_changes, "AGE_MAX_MS", -1_000_000)
    assert alter_t(box, ConfigToAlter("retention.ms", SET, "9")).error_code == 0
    box.until(lambda: tree.get_children("/config/changes") == [], "the notifications go")


# --- describing --------------------------------------------------------------------------------------------------------


def test_topics_are_described_with_sources_synonyms_types_and_texts(box: SteppedBox) -> None:
    (described,) = describe(box, ResourceToDescribe(TOPIC, "t"))
    configs = {config.name: config for config in described.configs}
    assert len([name for name in configs if not name.startswith("millrace.")]) == 36 and not any(
        config.read_only or config.is_sensitive for config in described.configs
    )
    own, broker, default = configs["segment.ms"], configs["segment.bytes"], configs["cleanup.policy"]
    assert (own.value, own.config_source, own.config_type) == ("7000", 1, 5)
    assert [tuple(synonym) for synonym in own.synonyms] == [("segment.ms", "7000", 1), ("log.roll.hours", "168", 5)]
    assert (broker.value, broker.config_source, broker.config_type) == ("1000000", 4, 3)
    assert [tuple(synonym) for synonym in broker.synonyms] == [("log.segment.bytes", "1000000", 4), ("log.segment.bytes", "1073741824", 5)]
    assert (default.value, default.config_source, default.config_type) == ("delete", 5, 7)
    assert all(config.documentation for config in described.configs)
    assert "no effect" in (configs["preallocate"].documentation or "") and "no effect" not in (own.documentation or "")


def test_only_requested_keys_are_described_and_version_zero_knows_defaults(box: SteppedBox) -> None:
    asked = ResourceToDescribe(TOPIC, "t", ("segment.ms", "segment.bytes", "cleanup.policy", "no.such"))
    (described,) = describe(box, asked, version=0)
    assert {config.name: config.is_default for config in described.configs} == {"segment.ms": False, "segment.bytes": False, "cleanup.policy": True}
    for version in range(5):
        for keys in (None, ()):
            (everything,) = describe(box, ResourceToDescribe(TOPIC, "t", keys), version=version)
            assert {config.name for config in everything.configs} == set(TOPIC_CONFIG_ROWS) - {"internal.segment.bytes"}
    twice = describe(box, ResourceToDescribe(TOPIC, "t"), ResourceToDescribe(TOPIC, "t"))
    assert [(described.error_code, described.configs) for described in twice] == [(ErrorCode.INVALID_REQUEST, ())] * 2


@pytest.mark.parametrize(("limit", "codes"), [("ROWS_MAX", [0, 42]), ("ANSWER_BYTES_MAX", [42, 42])])
def test_an_answer_that_would_be_too_long_is_refused(box: SteppedBox, monkeypatch: pytest.MonkeyPatch, limit: str, codes: list[int]) -> None:
    monkeypatch.setattr(config_requests, limit, 30)
    results = describe(box, ResourceToDescribe(TOPIC, "t"), ResourceToDescribe(BROKER, "1"))
    assert [result.error_code for result in results] == codes


def test_resources_that_cannot_be_described_have_kafkas_error_codes(box: SteppedBox) -> None:
    for kind, name, code in [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER, "01", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
    ]:
        (described,) = describe(box, ResourceToDescribe(kind, name))
        assert (described.error_code, described.configs) == (code, ()), (kind, name)
    broker, everywhere = describe(box, ResourceToDescribe(BROKER, "1"), ResourceToDescribe(BROKER, ""))
    assert everywhere == DescribedResource(0, None, BROKER, "", ())
    segment = next(config for config in broker.configs if config.name == "log.segment.bytes")
    assert (segment.value, segment.config_source, segment.read_only) == ("1000000", 4, False)
    assert all(config.read_only != (config.name in DYNAMIC_BROKER_CONFIGS) and config.documentation for config in broker.configs)


# --- configs of brokers, set while they run ---------------------------------------------------------------------------------


def alter_broker(box: SteppedBox, name: str, *configs: ConfigToAlter) -> AlteredResource:
    return alter(box, ResourceToAlter(BROKER, name, configs))[0]


def described_of(box: SteppedBox, kind: int, name: str, config: str) -> DescribedConfig:
    (described,) = describe(box, ResourceToDescribe(kind, name, (config,)))
    return described.configs[0]


def sent_configs(box: SteppedBox) -> list[dict[str, Any]]:
    """The payloads of CONFIG at each log-writer."""
    return [payload for writer in box.writers.values() for kind, payload in writer.commands if kind is DescriptorKind.CONFIG]


def test_a_brokers_altered_defaults_reach_log_writers_and_image_and_are_described_with_their_sources(box: SteppedBox, tree: KazooClient) -> None:
    before = box.image().topics["t"].config_generation
    assert alter_broker(box, "", ConfigToAlter("log.retention.ms", SET, "9000"), ConfigToAlter("min.insync.replicas", SET, "2")).error_code == 0
    assert alter_broker(box, "1", ConfigToAlter("log.retention.ms", SET, "8000"), ConfigToAlter("log.segment.bytes", SET, "2000000")).error_code == 0
    assert document(tree, "/config/brokers/<default>")["config"] == {"log.retention.ms": "9000", "min.insync.replicas": "2"}
    assert document(tree, "/config/brokers/1")["config"] == {"log.retention.ms": "8000", "log.segment.bytes": "2000000"}
    topic = box.image().topics["t"]
    assert topic.config == {"segment.bytes": "2000000", "segment.ms": "7000", "min.insync.replicas": "2", "retention.ms": "8000"}
    assert topic.config_generation > before
    last = sent_configs(box)[-1]
    assert (last["config"], last["config_generation"]) == (topic.config, topic.config_generation)

    retention = described_of(box, BROKER, "1", "log.retention.ms")
    assert (retention.value, retention.config_source, retention.read_only) == ("8000", ConfigSource.DYNAMIC_BROKER, False)
    assert [synonym[1:] for synonym in retention.synonyms] == [("8000", ConfigSource.DYNAMIC_BROKER), ("9000", ConfigSource.DYNAMIC_DEFAULT_BROKER)]
    segment = described_of(box, BROKER, "1", "log.segment.bytes")
    assert [synonym[1:] for synonym in segment.synonyms] == [("2000000", 2), ("1000000", 4), ("1073741824", 5)]
    of_topic = described_of(box, TOPIC, "t", "min.insync.replicas")
    assert (of_topic.value, of_topic.config_source) == ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert described_of(box, BROKER, "", "min.insync.replicas").value == "2"

    assert alter_broker(box, "1", ConfigToAlter("log.retention.ms", DELETE), ConfigToAlter("log.segment.bytes", DELETE)).error_code == 0
    assert alter_broker(box, "", ConfigToAlter("log.cleanup.policy", APPEND, "compact"), ConfigToAlter("min.insync.replicas", DELETE)).error_code == 0
    config = box.image().topics["t"].config
    assert config == {"segment.bytes": "1000000", "segment.ms": "7000", "retention.ms": "9000", "cleanup.policy": "delete,compact"} or config == {
        "segment.bytes": "1000000",
        "segment.ms": "7000",
        "retention.ms": "9000",
        "cleanup.policy": "compact,delete",
    }
    assert sent_configs(box)[-1]["config"] == config


def test_values_of_brokers_that_are_out_of_bounds_are_refused_and_change_nothing(box: SteppedBox, tree: KazooClient) -> None:
    for name, value in [("log.segment.bytes", "65536"), ("message.max.bytes", str(1 << 30)), ("log.retention.ms", "0"), ("log.cleanup.policy", "no")]:
        refused = alter_broker(box, "1", ConfigToAlter(name, SET, value))
        assert refused.error_code == ErrorCode.INVALID_CONFIG and name in (refused.error_message or ""), name
    assert alter_broker(box, "1", ConfigToAlter("max.connections.per.ip", SET, "5")).error_code == ErrorCode.INVALID_REQUEST
    assert alter_broker(box, "1", ConfigToAlter("max.connections", SET, "0")).error_code == ErrorCode.INVALID_CONFIG
    assert not tree.exists("/config/brokers/1") and sent_configs(box) == []


def test_a_config_of_all_brokers_that_another_program_wrote_reaches_the_log_writers(box: SteppedBox, tree: KazooClient) -> None:
    tree.create("/config/brokers/<default>", orjson.dumps({"version": 1, "config": {"log.retention.ms": "7000", "log.segment.bytes": "no number"}}))
    tree.create("/config/changes/config_change_", orjson.dumps({"version": 2, "entity_path": "brokers/<default>"}), sequence=True)
    box.until(lambda: box.image().topics["t"].config.get("retention.ms") == "7000", "the image has it")
    assert box.image().topics["t"].config["segment.bytes"] == "1000000"
    assert sent_configs(box)[-1]["config"] == box.image().topics["t"].config


def alter_group(box: SteppedBox, name: str, *configs: ConfigToAlter) -> AlteredResource:
    return alter(box, ResourceToAlter(GROUP, name, configs))[0]


def test_configs_of_groups_stand_in_zookeeper_and_in_the_image_and_are_described_with_their_sources(box: SteppedBox, tree: KazooClient) -> None:
    isolation, reset, lock = "share.isolation.level", "share.auto.offset.reset", "share.record.lock.duration.ms"
    assert alter_group(box, "workers", ConfigToAlter(isolation, 0, "read_committed"), ConfigToAlter(lock, 0, "20000")).error_code == 0
    assert alter_group(box, "a/b", ConfigToAlter(reset, 0, "earliest")).error_code == 0
    assert document(tree, "/config/groups")["groups"] == {"a/b": {reset: "earliest"}, "workers": {isolation: "read_committed", lock: "20000"}}
    assert box.image().group_configs["workers"] == {isolation: "read_committed", lock: "20000"}
    own, inherited = described_of(box, GROUP, "workers", isolation), described_of(box, GROUP, "workers", reset)
    assert (own.value, own.config_source) == ("read_committed", ConfigSource.GROUP)
    assert (inherited.value, inherited.config_source, described_of(box, GROUP, "none", isolation).value) == ("latest", 5, "read_uncommitted")
    for name, value in ((isolation, "serializable"), (lock, "14999"), ("retention.ms", "1"), (reset, "by_duration:PT1H")):
        assert alter_group(box, "workers", ConfigToAlter(name, 0, value)).error_code == ErrorCode.INVALID_CONFIG
    assert alter_group(box, "", ConfigToAlter(lock, 0, "20000")).error_code == ErrorCode.INVALID_REQUEST
    assert alter_group(box, "a/b", ConfigToAlter(reset, 1)).error_code == 0
    assert box.image().group_configs.keys() == {"workers"}
    # what another box has altered is followed
    tree.set("/config/groups", orjson.dumps({"version": 1, "groups": {"others": {lock: "30000"}}}))
    tree.create("/config/changes/config_change_", orjson.dumps({"version": 2, "entity_path": "groups"}), sequence=True)
    box.until(lambda: box.image().group_configs == {"others": {lock: "30000"}}, "the configs are followed")
    # what cannot be read changes nothing, and is not written over
    tree.set("/config/groups", b"torn")
    tree.create("/config/changes/config_change_", orjson.dumps({"version": 2, "entity_path": "groups"}), sequence=True)
    refused = alter_group(box, "workers", ConfigToAlter(lock, SET, "20000"))
    assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR and "/config/groups" in (refused.error_message or "")
    box.until(lambda: describe(box, ResourceToDescribe(GROUP, "others"))[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR, "it is noticed")
    assert (box.image().group_configs, tree.get("/config/groups")[0]) == ({"others": {lock: "30000"}}, b"torn")


def test_levels_of_loggers_are_set_on_their_own_box_and_described(box: SteppedBox) -> None:
    acceptor = "millrace.acceptor"
    to_debug = ResourceToAlter(BROKER_LOGGER, "1", (ConfigToAlter(acceptor, SET, "DEBUG"),))
    assert alter(box, to_debug, validate_only=True)[0].error_code == 0 and described_of(box, BROKER_LOGGER, "1", acceptor).value == "INFO"
    assert alter(box, to_debug)[0].error_code == 0
    described = described_of(box, BROKER_LOGGER, "1", acceptor)
    assert (described.value, described.config_source, described.is_sensitive) == ("DEBUG", ConfigSource.DYNAMIC_BROKER_LOGGER, False)
    for refused in (to_debug._replace(resource_name="2"), to_debug._replace(resource_name=""), to_debug._replace(configs=to_debug.configs * 2)):
        assert alter(box, refused)[0].error_code == ErrorCode.INVALID_REQUEST
    assert alter(box, to_debug._replace(configs=(ConfigToAlter("kafka", SET, "DEBUG"),)))[0].error_code == ErrorCode.INVALID_CONFIG
    (elsewhere,) = describe(box, ResourceToDescribe(BROKER_LOGGER, "2", None))
    assert (elsewhere.error_code, elsewhere.error_message) == (ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 2")
    replacing = AlterConfigsRequest((ResourceToReplace(BROKER_LOGGER, "1", (ConfigToSet(acceptor, "INFO"),)),))
    answer = ask(box, config_apis.ALTER_CONFIGS_REQUEST, config_apis.ALTER_CONFIGS_RESPONSE, replacing, 2).responses[0]
    assert answer.error_code == ErrorCode.INVALID_REQUEST and "IncrementalAlterConfigs" in (answer.error_message or "")
    assert described_of(box, BROKER_LOGGER, "1", acceptor).value == "DEBUG"


def test_what_would_take_the_controller_away_is_refused_whole(box: SteppedBox) -> None:
    (huge,) = box.create(CreatableTopic("huge", 2**31 - 1, 1))
    assert huge.error_code == ErrorCode.INVALID_PARTITIONS
    many = box.create(*(CreatableTopic(f"v{index}", 10_000, 1) for index in range(400)), validate_only=True)
    assert {topic.error_code for topic in many} == {ErrorCode.POLICY_VIOLATION} and len(many) == 400
    grown = grow(box, TopicToGrow("t", 10_000), validate_only=True)
    assert grown["t"].error_code == 0
    assert box.create(CreatableTopic("u", 2, 1))[0].error_code == 0
    grown = grow(box, TopicToGrow("t", 6_000), TopicToGrow("u", 6_000), validate_only=True)
    assert {result.error_code for result in grown.values()} == {ErrorCode.POLICY_VIOLATION}


# --- logs that no topic owns -------------------------------------------------------------------------------------------


def order_orphans(box: SteppedBox, **orders: object) -> list[list[Any]]:
    box.send(ORPHAN_ORDERS, orjson.dumps(orders))
    refused: list[list[Any]] = orjson.loads(box.answer())["refused"]
    return refused


@pytest.fixture
def orphans(box: SteppedBox) -> str:
    """Two logs of a topic that ZooKeeper does not know, led under epoch 7 before, and a third of an
    earlier topic t; their id.
    """
    topic_id = str(TopicId(bytes(range(16))))
    for disk, partition, epoch in (("d0", 0, 7), ("d1", 2, 3)):
        box.directories[disk].partitions[("lost", partition)] = topic_id
        box.directories[disk].leader_epochs[("lost", partition)] = epoch
    box.directories["d0"].partitions[("t", 5)] = topic_id
    for disk in ("d0", "d1"):
        box.kill_writer(disk)
        box.start_writer(disk, needs_epoch_bump=True)
    agent = box.agent
    assert agent is not None
    box.until(
        lambda: {key for report in agent.cluster.reports.values() for key in report.partitions} >= {("lost", 0), ("lost", 2), ("t", 5)}, "all is reported"
    )
    box.until_quiet()
    return topic_id


def test_logs_of_an_unknown_topic_are_adopted_where_they_lie_under_larger_leader_epochs(box: SteppedBox, orphans: str, tree: KazooClient) -> None:
    assert order_orphans(box, adopt={"topic": "lost", "topic_id": orphans, "config": {"retention.ms": "-1"}}) == []
    image = box.image().topics["lost"]
    assert (str(image.topic_id), image.config["retention.ms"]) == (orphans, "-1")
    assert [partition.leader_epoch for partition in image.partitions] == [8, 0, 4]
    assert (image.partitions[0].disk, image.partitions[2].disk) == ("d0", "d1")
    led = {key: epoch for writer in box.writers.values() for key, epoch in writer.leading.items() if key[0] == "lost"}
    assert led == {("lost", 0): 8, ("lost", 1): 0, ("lost", 2): 4}
    again = {"topic": "lost", "topic_id": orphans, "config": {}}
    assert order_orphans(box, adopt=again) == [], "an order that is repeated after a death is done"
    ((_, code, words),) = order_orphans(box, adopt={"topic": "t", "topic_id": orphans, "config": {}})
    assert code == ErrorCode.TOPIC_ALREADY_EXISTS and "already exists" in words
    ((_, code, _),) = order_orphans(box, adopt={"topic": "none", "topic_id": orphans, "config": {}})
    assert code == ErrorCode.UNKNOWN_TOPIC_ID


def test_only_logs_that_no_topic_owns_are_removed(box: SteppedBox, orphans: str) -> None:
    own_id = str(box.image().topics["t"].topic_id)
    own = next(name for name, directory in box.directories.items() if directory.partitions.get(("t", 0)) == own_id)
    wanted = [["d0", "lost", 0, orphans], ["d1", "lost", 2, own_id], ["d0", "t", 5, orphans], [own, "t", 0, own_id]]
    refused = {what: words for what, _, words in order_orphans(box, remove=wanted)}
    assert refused == {
        "d1/lost-2": f"Disk d1 has no log lost-2 with topic id {own_id}.",
        f"{own}/t-0": f"The cluster places t-0 on disk {own}.",
    }
    left = {name: set(directory.partitions) for name, directory in box.directories.items()}
    assert ("lost", 0) not in left["d0"] and ("t", 5) not in left["d0"] and ("lost", 2) in left["d1"] and ("t", 0) in left[own]
    assert order_orphans(box, remove=[["d1", "lost", 2, orphans]]) == []


def test_a_directory_without_an_id_is_kept_where_its_name_is_served_or_placed(box: SteppedBox, orphans: str) -> None:
    own_id = str(box.image().topics["t"].topic_id)
    own = next(name for name, directory in box.directories.items() if directory.partitions.get(("t", 0)) == own_id)
    refused = {what: words for what, _, words in order_orphans(box, remove=[[own, "t", 0, None], ["d0", "lost", 0, None], ["d0", "torn", 0, None]])}
    assert refused == {
        f"{own}/t-0": f"Disk {own} serves t-0, with topic id {own_id}.",
        "d0/lost-0": f"Disk d0 serves lost-0, with topic id {orphans}.",
    }
    (removed,) = [payload for kind, payload in box.writers["d0"].commands if kind is DescriptorKind.DELETE]
    assert (removed["topic"], removed["topic_id"]) == ("torn", str(NO_TOPIC_ID))
    assert box.agent is not None
    box.agent.cluster.reports[own].forget(("t", 0))  # as after a start that could not open it
    ((_, _, words),) = order_orphans(box, remove=[[own, "t", 0, None]])
    assert words == f"The cluster places t-0 on disk {own}."


def test_what_may_be_the_only_copy_is_not_removed(box: SteppedBox) -> None:
    own_id = str(box.image().topics["t"].topic_id)
    own = next(name for name, directory in box.directories.items() if directory.partitions.get(("t", 0)) == own_id)
    other = "d1" if own == "d0" else "d0"
    box.directories[other].partitions[("t", 0)] = own_id
    for disk in (own, other):
        box.kill_writer(disk)
    box.start_writer(other)
    agent = box.agent
    assert agent is not None
    box.until(lambda: other in agent.cluster.reports and own not in agent.cluster.reports, "one disk serves")
    ((_, _, words),) = order_orphans(box, remove=[[other, "t", 0, own_id]])
    assert words == f"The cluster places t-0 on disk {own}, which does not serve it: this may be the only copy."
    box.start_writer(own)
    box.until(lambda: own in agent.cluster.reports, "both disks serve")
    box.until_quiet()
    assert order_orphans(box, remove=[[other, "t", 0, own_id]]) == []
    assert ("t", 0) not in box.directories[other].partitions and ("t", 0) in box.directories[own].partitions


def test_a_topic_with_missing_partitions_is_adopted_in_a_cluster_only_if_that_is_allowed(box: SteppedBox, orphans: str) -> None:
    assert box.agent is not None
    box.agent.cluster.box_records[2] = BoxRecord("", {})
    adopt = {"topic": "lost", "topic_id": orphans, "config": {}}
    ((_, code, words),) = order_orphans(box, adopt=adopt)
    assert code == ErrorCode.INVALID_REQUEST and "has partitions 1 of 'lost', and another box may" in words and "--allow-missing" in words
    assert "lost" not in box.image().topics
    assert order_orphans(box, adopt={**adopt, "allow_missing": True}) == []
    assert len(box.image().topics["lost"].partitions) == 3
