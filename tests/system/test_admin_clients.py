"""Admin clients as users have them (librdkafka's, kafka-python's): partitions, configs, the cluster; and that configs take effect without a restart."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType

from appliance.cluster.broker_configs import DYNAMIC_BROKER_CONFIGS
from lab.running_box import RunningBox, eventually
from tests.support.stored_batches import stored_batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Python's own, raised while kafka-python reads its schemas
    from kafka.admin import AlterConfigOp, ConfigFilterType, ConfigResourceType, KafkaAdminClient
    from kafka.admin import ConfigResource as PythonConfigResource

pytestmark = [pytest.mark.system, pytest.mark.slow]

SECONDS = 20


@pytest.fixture
def admin(shared_box: RunningBox) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_box.bootstrap})


@pytest.fixture
def python_admin(shared_box: RunningBox) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=shared_box.bootstrap)
    yield client
    client.close()


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    admin.create_topics([NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})])[name].result(SECONDS)


def describe(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    described: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(SECONDS)
    return described


def alter(admin: AdminClient, topic: str, validate_only: bool = False, operation: AlterConfigOpType = AlterConfigOpType.SET, **config: str | None) -> None:
    entries = [ConfigEntry(name.replace("_", "."), value, incremental_operation=operation) for name, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource], validate_only=validate_only)[resource].result(SECONDS)


def refusal(code: int, *arguments: object, **options: object) -> str:
    """What `alter` is refused with."""
    with pytest.raises(KafkaException) as refused:
        alter(*arguments, **options)  # type: ignore[arg-type]
    assert refused.value.args[0].code() == code
    return str(refused.value.args[0].str())


def producer(box: RunningBox, **options: object) -> Producer:
    return Producer({"bootstrap.servers": box.bootstrap, "acks": "all", "linger.ms": 0, **{name.replace("_", "."): value for name, value in options.items()}})


def send(box: RunningBox, topic: str, *values: bytes, partition: int = 0, **options: object) -> list[int | None]:
    """Error codes of single records, each in a batch of its own."""
    codes: list[int | None] = []
    sender = producer(box, **options)
    for value in values:
        sender.produce(topic, value, partition=partition, on_delivery=lambda error, _message: codes.append(error.code() if error is not None else None))
        assert sender.flush(SECONDS) == 0
    return codes


# --- partitions --------------------------------------------------------------------------------------------------------


def test_a_topic_grows_and_producers_use_its_new_partitions(shared_box: RunningBox, admin: AdminClient) -> None:
    create(admin, "grows", 2)
    assert send(shared_box, "grows", b"before") == [None]
    admin.create_partitions([NewPartitions("grows", 5)], validate_only=True)["grows"].result(SECONDS)
    assert len(admin.list_topics("grows", SECONDS).topics["grows"].partitions) == 2
    admin.create_partitions([NewPartitions("grows", 5)])["grows"].result(SECONDS)
    metadata = admin.list_topics("grows", SECONDS).topics["grows"]
    assert {number: (partition.leader, partition.error) for number, partition in metadata.partitions.items()} == dict.fromkeys(range(5), (1, None))
    for partition in range(5):
        assert send(shared_box, "grows", b"after", partition=partition) == [None]
    directories = sorted(path.name for disk in shared_box.disks for path in disk.glob("grows-*"))
    assert directories == [f"grows-{partition}" for partition in range(5)]
    assert {len(list(disk.glob("grows-*"))) for disk in shared_box.disks} == {2, 3}


def test_growth_is_refused_with_kafkas_codes(admin: AdminClient) -> None:
    create(admin, "stays", 2)

    def code(*wanted: NewPartitions) -> int:
        with pytest.raises(KafkaException) as refused:
            admin.create_partitions(list(wanted))[wanted[0].topic].result(SECONDS)
        return int(refused.value.args[0].code())

    assert code(NewPartitions("stays", 2)) == KafkaError.INVALID_PARTITIONS
    assert code(NewPartitions("stays", 1)) == KafkaError.INVALID_PARTITIONS
    assert code(NewPartitions("nowhere", 1)) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert code(NewPartitions("stays", 3, [[7]])) == KafkaError.INVALID_REPLICA_ASSIGNMENT
    admin.create_partitions([NewPartitions("stays", 4, [[1], [1]])])["stays"].result(SECONDS)
    assert len(admin.list_topics("stays", SECONDS).topics["stays"].partitions) == 4


def test_the_running_ingest_uses_new_partitions(shared_box: RunningBox, admin: AdminClient) -> None:
    admin.create_partitions([NewPartitions("syslog", 6)])["syslog"].result(SECONDS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:

        def new_partitions_have_lines() -> bool:
            for host in range(50):
                sender.sendto(f"<13>1 2026-11-21T02:00:00Z host{host} app - - - line".encode(), tuple(shared_box.syslog))
            ends = [len(stored_batches(shared_box, "syslog", partition)) for partition in (4, 5)]
            return all(ends)

        eventually(new_partitions_have_lines, "lines in the new partitions", SECONDS)


# --- configs -----------------------------------------------------------------------------------------------------------


def test_every_topic_config_is_described_with_source_and_synonyms(admin: AdminClient, python_admin: KafkaAdminClient) -> None:
    create(admin, "described", retention_ms="1000")
    configs = describe(admin, ResourceType.TOPIC, "described")
    assert len([name for name in configs if not name.startswith("millrace.")]) == 36
    retention, segment = configs["retention.ms"], configs["segment.bytes"]
    assert (retention.value, retention.source, retention.is_default, retention.is_read_only) == ("1000", 1, False, False)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in retention.synonyms.values()][-1:] == [("log.retention.hours", "168", 5)]
    assert (segment.value, segment.source, segment.is_default) == ("1073741824", 5, True)


def test_the_brokers_configs_are_what_the_box_runs_with_and_read_only(shared_box: RunningBox, admin: AdminClient) -> None:
    configs = describe(admin, ResourceType.BROKER, "1")
    assert configs["broker.id"].value == "1"
    assert configs["log.dirs"].value == ",".join(map(str, shared_box.disks))
    assert configs["advertised.listeners"].value == f"PLAINTEXT://{shared_box.bootstrap}"
    assert (configs["num.partitions"].value, configs["num.partitions"].source) == ("1", 5)
    assert configs["ssl.keystore.password"].is_sensitive and configs["ssl.keystore.password"].value is None
    assert {name for name, config in configs.items() if not config.is_read_only} == set(DYNAMIC_BROKER_CONFIGS)
    with pytest.raises(KafkaException) as unknown:
        describe(admin, ResourceType.TOPIC, "nowhere")
    assert unknown.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_configs_are_set_deleted_appended_to_and_subtracted_from(admin: AdminClient) -> None:
    create(admin, "altered", segment_ms="5000")

    def value(name: str) -> tuple[str, int]:
        config = describe(admin, ResourceType.TOPIC, "altered")[name]
        return config.value, config.source

    alter(admin, "altered", retention_ms="7")
    assert value("retention.ms") == ("7", 1) and value("segment.ms") == ("5000", 1)
    alter(admin, "altered", operation=AlterConfigOpType.APPEND, cleanup_policy="compact")
    assert value("cleanup.policy") == ("delete,compact", 1)
    alter(admin, "altered", operation=AlterConfigOpType.SUBTRACT, cleanup_policy="delete")
    assert value("cleanup.policy") == ("compact", 1)
    alter(admin, "altered", operation=AlterConfigOpType.DELETE, cleanup_policy=None)
    assert value("cleanup.policy") == ("delete", 5)
    alter(admin, "altered", validate_only=True, retention_ms="8")
    assert value("retention.ms") == ("7", 1)
    assert "no.such" in refusal(KafkaError.INVALID_CONFIG, admin, "altered", no_such="1")
    assert "soon" in refusal(KafkaError.INVALID_CONFIG, admin, "altered", retention_ms="soon")
    assert refusal(KafkaError.INVALID_CONFIG, admin, "altered", operation=AlterConfigOpType.APPEND, retention_ms="1")
    assert refusal(KafkaError.UNKNOWN_TOPIC_OR_PART, admin, "nowhere", retention_ms="1")
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[ConfigEntry("num.partitions", "3", incremental_operation=AlterConfigOpType.SET)])
    with pytest.raises(KafkaException) as refused:
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST and "num.partitions" in refused.value.args[0].str()


def test_the_old_way_of_altering_replaces_everything(admin: AdminClient) -> None:
    create(admin, "replaced", segment_ms="5000", retention_ms="6")
    resource = ConfigResource(ResourceType.TOPIC, "replaced", {"retention.ms": "9"})
    with pytest.deprecated_call():
        admin.alter_configs([resource])[resource].result(SECONDS)
    configs = describe(admin, ResourceType.TOPIC, "replaced")
    assert (configs["retention.ms"].value, configs["segment.ms"].source) == ("9", 5)


# --- effects, without a restart ----------------------------------------------------------------------------------------


def test_a_new_largest_batch_holds_at_the_next_produce(shared_box: RunningBox, admin: AdminClient) -> None:
    create(admin, "sizes")
    record = b"x" * 5000
    assert send(shared_box, "sizes", record) == [None]
    alter(admin, "sizes", max_message_bytes="2000")
    assert send(shared_box, "sizes", record) == [KafkaError.MSG_SIZE_TOO_LARGE]
    alter(admin, "sizes", max_message_bytes="6000")
    assert send(shared_box, "sizes", record) == [None]


def test_a_new_segment_size_holds_at_the_next_roll(shared_box: RunningBox, admin: AdminClient) -> None:
    create(admin, "segments")

    def segments() -> list[Path]:
        return sorted(path for disk in shared_box.disks for path in disk.glob("segments-0/*.log"))

    record = b"x" * 5000
    assert send(shared_box, "segments", *[record] * 8) == [None] * 8
    assert len(segments()) == 1
    alter(admin, "segments", internal_segment_bytes="12000")
    assert send(shared_box, "segments", *[record] * 4) == [None] * 4
    assert [path.name for path in segments()] == [f"{offset:020}.log" for offset in (0, 8, 10)]


def test_a_new_timestamp_type_holds_at_the_next_batch(shared_box: RunningBox, admin: AdminClient) -> None:
    create(admin, "stamps")
    assert send(shared_box, "stamps", b"one") == [None]
    alter(admin, "stamps", message_timestamp_type="LogAppendTime")
    assert send(shared_box, "stamps", b"two") == [None]
    alter(admin, "stamps", operation=AlterConfigOpType.DELETE, message_timestamp_type=None)
    assert send(shared_box, "stamps", b"three") == [None]
    assert [header.uses_log_append_time for header in stored_batches(shared_box, "stamps", 0)] == [False, True, False]


@pytest.mark.parametrize(("acks", "retries"), [("all", 10), ("all", 0), ("0", 0)])
def test_no_producer_sees_an_error_while_configs_change(shared_box: RunningBox, admin: AdminClient, acks: str, retries: int) -> None:
    topic = f"busy-{acks}-{retries}"
    create(admin, topic)
    codes: list[int] = []
    sent = 0
    stop = threading.Event()
    sender = producer(shared_box, acks=acks, retries=retries, linger_ms=1)

    def offered_again() -> int:
        return sum(shared_box.counters(name).values["produce.offered_again"] for name in shared_box.box.process_names() if name.startswith("acceptor"))

    before = offered_again()

    def change() -> None:
        for round_number in range(400):
            alter(admin, topic, segment_ms=str(100_000 + round_number))
            if round_number >= 20 and offered_again() > before:
                break  # some batches did meet a change
        stop.set()

    changing = threading.Thread(target=change)
    changing.start()
    while not stop.is_set():
        try:
            sender.produce(topic, b"line", on_delivery=lambda error, _message: codes.append(error.code()) if error is not None else None)
            sent += 1
        except BufferError:
            sender.poll(0.1)  # the box has no processor: librdkafka's queue is full
        sender.poll(0.0002)
    changing.join()
    assert offered_again() > before, "no batch met a change: the test has seen nothing"
    assert sender.flush(SECONDS) == 0
    assert codes == []
    eventually(lambda: sum(header.records_count for header in stored_batches(shared_box, topic, 0)) == sent, f"{sent} records are stored")


# --- the cluster -------------------------------------------------------------------------------------------------------


def test_the_cluster_is_described(shared_box: RunningBox, admin: AdminClient, python_admin: KafkaAdminClient) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(SECONDS)
    assert (cluster.controller.id, [f"{node.host}:{node.port}" for node in cluster.nodes]) == (1, [shared_box.bootstrap])
    described = python_admin.describe_cluster()
    assert described["cluster_id"] == cluster.cluster_id and described["controller_id"] == 1
    create(admin, "shown", 3)
    page = python_admin.describe_topic_partitions(["shown", "nowhere"], response_partition_limit=2)
    assert [(topic["name"], topic["error_code"], len(topic["partitions"])) for topic in page["topics"]] == [("nowhere", 3, 0), ("shown", 0, 2)]
    assert page["next_cursor"] == {"topic_name": "shown", "partition_index": 2}
    rest = python_admin.describe_topic_partitions(["shown"], cursor=page["next_cursor"])
    assert [partition["partition_index"] for partition in rest["topics"][0]["partitions"]] == [2] and rest["next_cursor"] is None
    shown = admin.describe_topics(TopicCollection(["shown"]), include_authorized_operations=True)["shown"].result(SECONDS)
    assert [partition.leader.id for partition in shown.partitions] == [1, 1, 1]
    # Every client may do everything; the operations are returned if requested.
    assert (len(cluster.authorized_operations), len(shown.authorized_operations)) == (7, 8)
    assert not admin.describe_topics(TopicCollection(["shown"]))["shown"].result(SECONDS).authorized_operations


def test_log_directories_are_described_with_their_space_and_partitions(shared_box: RunningBox, admin: AdminClient, python_admin: KafkaAdminClient) -> None:
    admin.create_topics([NewTopic("lies-somewhere", 4)])["lies-somewhere"].result(SECONDS)
    eventually(lambda: all(_log_dirs(python_admin)[str(path)]["total_bytes"] > 0 for path in shared_box.disks), "the space of each disk is counted")
    found = _log_dirs(python_admin)
    assert set(found) == {str(path) for path in shared_box.disks}
    for path, directory in found.items():
        space = os.statvfs(path)
        assert directory["error_code"] == 0 and directory["total_bytes"] == space.f_blocks * space.f_frsize
        assert 0 < directory["usable_bytes"] < directory["total_bytes"]
        topics = {topic["name"]: topic["partitions"] for topic in directory["topics"]}
        there = {name for name in os.listdir(path) if name.startswith("lies-somewhere-")}
        assert {f"lies-somewhere-{partition['partition_index']}" for partition in topics.get("lies-somewhere", [])} == there


def _log_dirs(python_admin: KafkaAdminClient) -> dict[str, Any]:
    (broker,) = python_admin.describe_log_dirs()
    return {directory["log_dir"]: directory for directory in broker["log_dirs"]}


def test_kafka_python_grows_describes_and_alters(python_admin: KafkaAdminClient, admin: AdminClient) -> None:
    create(admin, "python", 1)
    python_admin.create_partitions({"python": {"count": 3, "assignments": [[1], [1]]}})
    assert [len(topic["partitions"]) for topic in python_admin.describe_topics(["python"])] == [3]
    resource = PythonConfigResource(ConfigResourceType.TOPIC, "python", {"retention.ms": "5", "segment.ms": "6"})
    python_admin.alter_configs([resource])
    python_admin.alter_configs([PythonConfigResource(ConfigResourceType.TOPIC, "python", {"segment.ms": (AlterConfigOp.DELETE, None)})])
    asked = PythonConfigResource(ConfigResourceType.TOPIC, "python", ["retention.ms", "segment.ms"])
    described = python_admin.describe_configs([asked], include_synonyms=True, config_filter=ConfigFilterType.ALL)
    configs = described["topic"]["python"]
    assert sorted(configs) == ["retention.ms", "segment.ms"]
    assert (configs["retention.ms"]["value"], configs["segment.ms"]["value"]) == ("5", "604800000")
