"""A real Kafka 3.9 and a box answer the same requests of the same principals: which parts of which API are denied.

Both read their access control lists from ZooKeeper, where the test writes them once, in our encoding. A principal is
an address of 127.0.0.0/8 (`User:ANONYMOUS` with a host), and has one binding; the first one has all. Compared are the
error codes about rights, the names in the responses, and the bits of allowed operations.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from appliance.base.errors import ErrorCode
from appliance.cluster.acl_znodes import ACL_ROOTS, decode_rules, encode_rules, store_of
from appliance.protocol import (
    acl_apis,
    cluster_apis,
    config_apis,
    group_apis,
    group_offset_apis,
    log_dir_apis,
    offset_apis,
    quota_apis,
    reassignment_apis,
    sasl_apis,
    topic_apis,
    transaction_apis,
)
from appliance.protocol import metadata as metadata_messages
from appliance.protocol.apis import CODED_APIS
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.records.builder import BatchBuilder
from appliance.security.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AccessRule,
    AclBinding,
    AclOperation,
    AclPermission,
    AclResource,
    PatternType,
    ResourcePattern,
)
from lab import kio_adapter
from lab.protocol_messages import kio_element
from lab.raw_client import FETCH, METADATA, PRODUCE, RawClient
from lab.real_kafka import RealKafka, kafka_acls, skip_without_kafka
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, environment, eventually, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]

ADMIN = "127.0.0.1"
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
RIGHTS_CODES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.SECURITY_DISABLED,
}
NAMES = ("name", "topic", "group_id", "transactional_id", "resource_name", "key")
TOPICS = ("logs-a", "logs-b", "other")
NAMED_TOPICS = (*TOPICS, "missing")
EVERYTHING = [
    (AclResource.TOPIC, "*"),
    (AclResource.GROUP, "*"),
    (AclResource.TRANSACTIONAL_ID, "*"),
    (AclResource.CLUSTER, CLUSTER_NAME),
]


def one_record() -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, b"key", b"value")
    return bytes(builder.build())


BATCH = one_record()


class Identity(NamedTuple):
    """An address, and what its principal is allowed or denied."""

    address: str
    bindings: tuple[AclBinding, ...]


def binding(address: str, resource: AclResource, name: str, operation: AclOperation, pattern: PatternType, permission: AclPermission) -> AclBinding:
    return AclBinding(resource, name, pattern, "User:ANONYMOUS", address, operation, permission)


def identities() -> list[Identity]:
    """One for each operation on each kind of resource, literal; topics and groups also by prefix, by wildcard, and with a denial."""
    allow, literal, prefixed = AclPermission.ALLOW, PatternType.LITERAL, PatternType.PREFIXED
    names = {AclResource.TOPIC: "logs-a", AclResource.GROUP: "logs-a", AclResource.TRANSACTIONAL_ID: "logs-a", AclResource.CLUSTER: CLUSTER_NAME}
    found = [Identity(ADMIN, tuple(binding(ADMIN, resource, name, AclOperation.ALL, literal, allow) for resource, name in EVERYTHING))]

    def add(*wanted: tuple[AclResource, str, AclOperation, PatternType, AclPermission]) -> None:
        address = f"127.0.1.{len(found)}"
        found.append(Identity(address, tuple(binding(address, *each) for each in wanted)))

    add()
    for resource, name in names.items():
        for operation in sorted(SUPPORTED_OPERATIONS[resource]):
            add((resource, name, operation, literal, allow))
        add((resource, name, AclOperation.ALL, literal, allow))
    for resource in (AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID):
        add((resource, "logs-", AclOperation.ALL, prefixed, allow))
        everything = (resource, "*", AclOperation.ALL, literal, allow)
        add(everything, (resource, "logs-a", AclOperation.ALL, literal, AclPermission.DENY))
        add(everything, (resource, "logs-", AclOperation.DESCRIBE, prefixed, AclPermission.DENY))
        add(everything, (resource, "*", AclOperation.READ, literal, AclPermission.DENY))
    group_and_topic = [(kind, "logs-a", AclOperation.READ, literal, allow) for kind in (AclResource.GROUP, AclResource.TOPIC)]
    add(*group_and_topic)
    add(*group_and_topic, (AclResource.TRANSACTIONAL_ID, "logs-a", AclOperation.WRITE, literal, allow))
    return found


IDENTITIES = identities()


def write_acls(client: KazooClient) -> None:
    """What our controller writes, before a broker starts."""
    for root in ACL_ROOTS:
        client.ensure_path(root)
    rules: dict[ResourcePattern, set[AccessRule]] = {}
    for each in (binding for identity in IDENTITIES for binding in identity.bindings):
        rules.setdefault(each.resources, set()).add(each.rule)
    for pattern, of_pattern in rules.items():
        client.create(store_of(pattern).path(pattern), encode_rules(of_pattern))


class Brokers(NamedTuple):
    kafka: RealKafka
    box: RunningBox
    box_zookeeper: RealZooKeeper
    kafka_zookeeper: RealZooKeeper


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Both with three topics and without others."""
    skip_without_kafka()
    directory = tmp_path_factory.mktemp("rights")
    zookeepers = [RealZooKeeper(directory / name) for name in ("kafka-zookeeper", "box-zookeeper")]
    kafka = RealKafka(directory / "kafka", directory / "disk", zookeepers[0].connect, settings={"authorizer.class.name": AUTHORIZER})
    box = None
    try:
        for zookeeper in zookeepers:
            client = KazooClient(zookeeper.connect)
            client.start()
            write_acls(client)
            client.stop()
            client.close()
        box = start_box(
            directory / "box",
            disks=1,
            zookeeper=zookeepers[1].connect,
            settings={
                "authorizer.class.name": AUTHORIZER,
                "zookeeper.auth.required": False,
                "auto.create.topics.enable": False,
                "offsets.topic.num.partitions": 1,
                "transaction.state.log.num.partitions": 1,
            },
        )
        kafka.start()
        for address in (("127.0.0.1", kafka.port), address_of(box)):
            admin = RawClient(address, ADMIN)
            for topic in TOPICS:
                admin.create_topic(topic, 1)
            for key_type in (cluster_apis.GROUP_KEY, cluster_apis.TRANSACTION_KEY):
                eventually(lambda admin=admin, kind=key_type: coordinator_is_there(admin, kind), "a coordinator")
            admin.close()
        yield Brokers(kafka, box, zookeepers[1], zookeepers[0])
    finally:
        kafka.stop()
        if box is not None:
            box.stop()
        for zookeeper in zookeepers:
            zookeeper.stop()


def address_of(box: RunningBox) -> tuple[str, int]:
    host, _, port = box.bootstrap.rpartition(":")
    return host, int(port)


def coordinator_is_there(client: RawClient, key_type: int) -> bool:
    request = cluster_apis.FindCoordinatorRequest("logs-a", key_type)
    found = ask(client, cluster_apis.FIND_COORDINATOR_REQUEST, cluster_apis.FIND_COORDINATOR_RESPONSE, 2, request)
    return bool(found.error_code == 0)


def ask(client: RawClient, request: Message[Any], response: Message[Any], version: int, body: Any) -> Any:
    """The decoded response; flexible versions have a tagged section in both headers."""
    key, is_flexible = request.api.key, CODED_APIS[request.api.key].is_flexible(version)
    frame = struct.pack(">hhih3s", key, version, 1, 3, b"raw") + (b"\0" if is_flexible else b"") + request.encode(version, body)
    client.sock.sendall(struct.pack(">i", len(frame)) + frame)
    _, reply = client.receive()
    reply = reply[1:] if is_flexible else reply
    return response.decode(reply, 0, len(reply), version)


def kio_asked(client: RawClient, key: int, version: int, body: Any) -> Any:
    client.send(key, version, kio_adapter.encode(body))
    return kio_adapter.decode_response(key, version, client.receive()[1])


def metadata(client: RawClient, names: tuple[str, ...] | None) -> Any:
    topics = None if names is None else tuple(metadata_messages.MetadataRequestTopic(name=name) for name in names)
    body = metadata_messages.REQUEST.encode(8, metadata_messages.MetadataRequest(topics, True, True, True))
    client.send(METADATA, 8, body)
    return kio_adapter.decode_response(METADATA, 8, client.receive()[1])


def produce(client: RawClient, transactional_id: str | None) -> Any:
    request = kio_adapter.request_class(PRODUCE, 7)
    topic_class = kio_element(request, "topic_data")
    partition_class = kio_element(topic_class, "partition_data")
    data = tuple(topic_class(name=name, partition_data=(partition_class(index=0, records=BATCH),)) for name in NAMED_TOPICS)
    return kio_asked(client, PRODUCE, 7, request(transactional_id=transactional_id, acks=1, timeout=datetime.timedelta(seconds=5), topic_data=data))


def fetch(client: RawClient, replica_id: int, names: tuple[str, ...] = NAMED_TOPICS, session: tuple[int, int] = (0, -1), wait_seconds: int = 0) -> Any:
    """`session`: id and epoch. With a wait, for more bytes than there are."""
    request = kio_adapter.request_class(FETCH, 11)
    topic_class = kio_element(request, "topics")
    partition_class = kio_element(topic_class, "partitions")
    partition = partition_class(partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1000)
    return kio_asked(
        client,
        FETCH,
        11,
        request(
            replica_id=replica_id,
            max_wait=datetime.timedelta(seconds=wait_seconds),
            min_bytes=900 if wait_seconds else 0,
            max_bytes=1000,
            isolation_level=0,
            session_id=session[0],
            session_epoch=session[1],
            topics=tuple(topic_class(topic=name, partitions=(partition,)) for name in names),
            forgotten_topics_data=(),
            rack_id="",
        ),
    )


PARTITIONS = tuple(TopicPartitions(name, (0,)) for name in NAMED_TOPICS)
GROUPS = ("logs-a", "other")
A_BINDING = IDENTITIES[0].bindings[0]
_O, _T, _G = offset_apis, transaction_apis, group_offset_apis


def requests(group: str) -> list[tuple[str, Message[Any], Message[Any], int, Any]]:
    """One request of each API that has checks; where it is allowed it changes nothing that another one sees. `group` is also the transactional id."""
    commits = tuple(_G.OffsetCommitTopic(name, (_G.OffsetCommitPartition(0, 1),)) for name in TOPICS)
    txn_commits = tuple(_T.TxnOffsetCommitTopic(name, (_T.TxnOffsetCommitPartition(0, 1),)) for name in TOPICS)
    resources = [(2, name) for name in TOPICS] + [(4, "1")]
    with_loggers = [*resources, (8, "1")]  # AlterConfigs refuses them: Kafka before it checks rights
    return [
        ("ListOffsets", _O.LIST_OFFSETS_REQUEST, _O.LIST_OFFSETS_RESPONSE, 5,
         _O.ListOffsetsRequest(-1, 0, tuple(_O.ListOffsetsTopic(name, (_O.ListOffsetsPartition(0, timestamp=-1),)) for name in NAMED_TOPICS))),
        ("OffsetForLeaderEpoch", _O.OFFSET_FOR_LEADER_EPOCH_REQUEST, _O.OFFSET_FOR_LEADER_EPOCH_RESPONSE, 3,
         _O.OffsetForLeaderEpochRequest(-1, tuple(_O.EpochTopic(name, (_O.EpochPartition(0, leader_epoch=0),)) for name in NAMED_TOPICS))),
        ("DeleteRecords", _O.DELETE_RECORDS_REQUEST, _O.DELETE_RECORDS_RESPONSE, 1,
         _O.DeleteRecordsRequest(tuple(_O.DeleteRecordsTopic(name, (_O.DeleteRecordsPartition(0, 0),)) for name in NAMED_TOPICS))),
        ("FindCoordinator of a group", cluster_apis.FIND_COORDINATOR_REQUEST, cluster_apis.FIND_COORDINATOR_RESPONSE, 2,
         cluster_apis.FindCoordinatorRequest(group, cluster_apis.GROUP_KEY)),
        ("FindCoordinator of a transaction", cluster_apis.FIND_COORDINATOR_REQUEST, cluster_apis.FIND_COORDINATOR_RESPONSE, 2,
         cluster_apis.FindCoordinatorRequest(group, cluster_apis.TRANSACTION_KEY)),
        ("DescribeCluster", cluster_apis.DESCRIBE_CLUSTER_REQUEST, cluster_apis.DESCRIBE_CLUSTER_RESPONSE, 0, cluster_apis.DescribeClusterRequest(True)),
        ("CreateTopics", topic_apis.CREATE_TOPICS_REQUEST, topic_apis.CREATE_TOPICS_RESPONSE, 5,
         topic_apis.CreateTopicsRequest(tuple(topic_apis.CreatableTopic(f"{name}-new", 1, 1) for name in TOPICS)
                                        + (topic_apis.CreatableTopic("logs-a", 1, 1),), validate_only=True)),
        ("DeleteTopics", topic_apis.DELETE_TOPICS_REQUEST, topic_apis.DELETE_TOPICS_RESPONSE, 3,
         topic_apis.DeleteTopicsRequest(topic_names=("logs-missing", "missing"))),
        ("CreatePartitions", topic_apis.CREATE_PARTITIONS_REQUEST, topic_apis.CREATE_PARTITIONS_RESPONSE, 1,
         topic_apis.CreatePartitionsRequest(tuple(topic_apis.TopicToGrow(name, 2) for name in NAMED_TOPICS), validate_only=True)),
        ("DescribeConfigs", config_apis.DESCRIBE_CONFIGS_REQUEST, config_apis.DESCRIBE_CONFIGS_RESPONSE, 3,
         config_apis.DescribeConfigsRequest(tuple(config_apis.ResourceToDescribe(*each, ("retention.ms",)) for each in with_loggers))),
        ("AlterConfigs", config_apis.ALTER_CONFIGS_REQUEST, config_apis.ALTER_CONFIGS_RESPONSE, 1,
         config_apis.AlterConfigsRequest(tuple(config_apis.ResourceToReplace(*each) for each in resources), True)),
        ("IncrementalAlterConfigs", config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST, config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE, 0,
         config_apis.IncrementalAlterConfigsRequest(tuple(config_apis.ResourceToAlter(*each) for each in with_loggers), True)),
        ("DescribeLogDirs", log_dir_apis.DESCRIBE_LOG_DIRS_REQUEST, log_dir_apis.DESCRIBE_LOG_DIRS_RESPONSE, 3, log_dir_apis.DescribeLogDirsRequest(())),
        ("ElectLeaders", reassignment_apis.ELECT_LEADERS_REQUEST, reassignment_apis.ELECT_LEADERS_RESPONSE, 1,
         reassignment_apis.ElectLeadersRequest(0, (reassignment_apis.TopicToElectFor("logs-a", (0,)),))),
        ("AlterPartitionReassignments", reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST, reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_RESPONSE, 0,
         reassignment_apis.AlterPartitionReassignmentsRequest()),
        ("ListPartitionReassignments", reassignment_apis.LIST_PARTITION_REASSIGNMENTS_REQUEST, reassignment_apis.LIST_PARTITION_REASSIGNMENTS_RESPONSE, 0,
         reassignment_apis.ListPartitionReassignmentsRequest()),
        ("OffsetCommit", _G.OFFSET_COMMIT_REQUEST, _G.OFFSET_COMMIT_RESPONSE, 7, _G.OffsetCommitRequest(group, topics=commits)),
        ("OffsetFetch", _G.OFFSET_FETCH_REQUEST, _G.OFFSET_FETCH_RESPONSE, 5, _G.OffsetFetchRequest((_G.OffsetFetchGroup(group, topics=PARTITIONS),))),
        ("OffsetFetch of all", _G.OFFSET_FETCH_REQUEST, _G.OFFSET_FETCH_RESPONSE, 5, _G.OffsetFetchRequest((_G.OffsetFetchGroup(group),))),
        ("OffsetDelete", _G.OFFSET_DELETE_REQUEST, _G.OFFSET_DELETE_RESPONSE, 0,
         _G.OffsetDeleteRequest(f"{group}-missing", (_G.OffsetDeleteTopic("logs-a", (_G.OffsetDeletePartition(0),)),))),
        ("JoinGroup", group_apis.JOIN_GROUP_REQUEST, group_apis.JOIN_GROUP_RESPONSE, 5,
         group_apis.JoinGroupRequest(group, protocol_type="consumer", protocols=(group_apis.JoinGroupProtocol("range"),))),
        ("Heartbeat", group_apis.HEARTBEAT_REQUEST, group_apis.HEARTBEAT_RESPONSE, 3, group_apis.HeartbeatRequest(group)),
        ("SyncGroup", group_apis.SYNC_GROUP_REQUEST, group_apis.SYNC_GROUP_RESPONSE, 3, group_apis.SyncGroupRequest(group)),
        ("LeaveGroup", group_apis.LEAVE_GROUP_REQUEST, group_apis.LEAVE_GROUP_RESPONSE, 3,
         group_apis.LeaveGroupRequest(group, (group_apis.LeavingMember("nobody"),))),
        ("DescribeGroups", group_apis.DESCRIBE_GROUPS_REQUEST, group_apis.DESCRIBE_GROUPS_RESPONSE, 4, group_apis.DescribeGroupsRequest(GROUPS, True)),
        ("ListGroups", group_apis.LIST_GROUPS_REQUEST, group_apis.LIST_GROUPS_RESPONSE, 2, group_apis.ListGroupsRequest()),
        ("DeleteGroups", group_apis.DELETE_GROUPS_REQUEST, group_apis.DELETE_GROUPS_RESPONSE, 1, group_apis.DeleteGroupsRequest((f"{group}-missing",))),
        ("InitProducerId", _T.INIT_PRODUCER_ID_REQUEST, _T.INIT_PRODUCER_ID_RESPONSE, 1, _T.InitProducerIdRequest(None)),
        ("InitProducerId of a transaction", _T.INIT_PRODUCER_ID_REQUEST, _T.INIT_PRODUCER_ID_RESPONSE, 1, _T.InitProducerIdRequest(group)),
        ("AddPartitionsToTxn", _T.ADD_PARTITIONS_TO_TXN_REQUEST, _T.ADD_PARTITIONS_TO_TXN_RESPONSE, 1,
         _T.AddPartitionsToTxnRequest((_T.TransactionToExtend(group, topics=PARTITIONS[:3]),))),
        ("AddOffsetsToTxn", _T.ADD_OFFSETS_TO_TXN_REQUEST, _T.ADD_OFFSETS_TO_TXN_RESPONSE, 1, _T.AddOffsetsToTxnRequest(group, group_id=group)),
        ("EndTxn", _T.END_TXN_REQUEST, _T.END_TXN_RESPONSE, 1, _T.EndTxnRequest(group)),
        ("TxnOffsetCommit", _T.TXN_OFFSET_COMMIT_REQUEST, _T.TXN_OFFSET_COMMIT_RESPONSE, 2,
         _T.TxnOffsetCommitRequest(group, group, topics=txn_commits)),
        ("DescribeTransactions", _T.DESCRIBE_TRANSACTIONS_REQUEST, _T.DESCRIBE_TRANSACTIONS_RESPONSE, 0, _T.DescribeTransactionsRequest(GROUPS)),
        ("ListTransactions", _T.LIST_TRANSACTIONS_REQUEST, _T.LIST_TRANSACTIONS_RESPONSE, 0, _T.ListTransactionsRequest()),
        ("DescribeProducers", _T.DESCRIBE_PRODUCERS_REQUEST, _T.DESCRIBE_PRODUCERS_RESPONSE, 0, _T.DescribeProducersRequest(PARTITIONS)),
        ("DescribeAcls", acl_apis.DESCRIBE_ACLS_REQUEST, acl_apis.DESCRIBE_ACLS_RESPONSE, 1,
         acl_apis.DescribeAclsRequest(2, "logs-b", 2, None, None, 1, 1)),
        ("CreateAcls", acl_apis.CREATE_ACLS_REQUEST, acl_apis.CREATE_ACLS_RESPONSE, 1, acl_apis.CreateAclsRequest((acl_apis.AclCreation(*A_BINDING),))),
        ("DeleteAcls", acl_apis.DELETE_ACLS_REQUEST, acl_apis.DELETE_ACLS_RESPONSE, 1,
         acl_apis.DeleteAclsRequest((acl_apis.DeleteAclsFilter(2, "nothing", 3, None, None, 1, 1),))),
    ]  # fmt: skip


CONFIGS_OF_GROUPS = 1 << AclOperation.DESCRIBE_CONFIGS | 1 << AclOperation.ALTER_CONFIGS
"""Groups have configs since Kafka 4: a Kafka 3.9 never allows these two on one."""


def seen(value: Any) -> list[str]:
    """Names, denials and bits of each struct of a response, sorted; what one has and the other lacks for other reasons is left out."""
    found: list[str] = []

    def walk(struct_or_tuple: Any) -> None:
        fields = {}
        if dataclasses.is_dataclass(struct_or_tuple):
            fields = {field.name: getattr(struct_or_tuple, field.name) for field in dataclasses.fields(struct_or_tuple)}
        elif hasattr(struct_or_tuple, "_asdict"):
            fields = struct_or_tuple._asdict()
        elif isinstance(struct_or_tuple, tuple | list):
            for each in struct_or_tuple:
                walk(each)
            return
        name = next((str(fields[field]) for field in NAMES if isinstance(fields.get(field), str)), "")
        if name.startswith("__") or name == "syslog":
            return  # state topics come when they are needed, and the box has a topic of its own
        shown = ""
        for field, each in fields.items():
            if field.endswith("error_code"):
                shown += f" {ErrorCode(int(each)).name if int(each) in RIGHTS_CODES else 'not denied'}"
            elif field.endswith("authorized_operations"):
                of_group = "Group" in type(struct_or_tuple).__name__ and each >= 0
                shown += f" operations {int(each) & ~CONFIGS_OF_GROUPS if of_group else int(each):b}"
        if shown:
            found.append(f"{type(struct_or_tuple).__name__} {name}{shown}")
        for each in fields.values():
            walk(each)

    walk(value)
    return sorted(found)


def everything_seen(address: tuple[str, int], identity: Identity) -> dict[str, list[str]]:
    """What one principal sees of all APIs."""
    client = RawClient(address, identity.address)
    found = {
        "Metadata of all": seen(metadata(client, None)),
        "Metadata by name": seen(metadata(client, NAMED_TOPICS)),
        "Produce": seen(produce(client, None)),
        "Fetch": seen(fetch(client, -1)),
    }
    for group in GROUPS:
        for what, request, response, version, body in requests(group):
            try:
                found[f"{what} ({group})"] = seen(ask(client, request, response, version, body))
            except AssertionError:
                found[f"{what} ({group})"] = ["the connection was closed"]
                client = RawClient(address, identity.address)
    client.close()
    return found


def test_every_api_denies_what_kafka_denies(brokers: Brokers) -> None:
    different = []
    compared = denied = 0
    for identity in IDENTITIES:
        theirs = everything_seen(("127.0.0.1", brokers.kafka.port), identity)
        ours = everything_seen(address_of(brokers.box), identity)
        rights = [f"{each.permission.name} {each.operation.name} {each.resource.name} {each.name} {each.pattern.name}" for each in identity.bindings]
        for what, expected in theirs.items():
            compared += 1
            denied += "AUTHORIZATION" in str(expected)
            if ours[what] != expected:
                different.append(f"{rights}: {what}\n  Kafka {expected}\n  box   {ours[what]}")
    assert not different, f"{len(different)} of {compared}\n" + "\n".join(different[:12])
    assert compared > 2_500 and denied > 1_000, (compared, denied)


def test_kafka_acls_adds_lists_and_removes_entries(brokers: Brokers) -> None:
    """Its JVM connects from 127.0.0.1, which has all rights. Java's AdminClient speaks; ZooKeeper has what a Kafka would read."""
    box = brokers.box
    entry = ("--topic", "by-tool", "--resource-pattern-type", "prefixed")
    added = kafka_acls(box.bootstrap, "--add", "--allow-principal", "User:alice", "--operation", "Read", "--operation", "AlterConfigs", *entry)
    assert "ResourcePattern(resourceType=TOPIC, name=by-tool, patternType=PREFIXED)" in added
    listed = kafka_acls(box.bootstrap, "--list", *entry)
    assert listed.count("principal=User:alice, host=*, operation=") == 2 and "operation=ALTER_CONFIGS, permissionType=ALLOW" in listed
    client = KazooClient(brokers.box_zookeeper.connect)
    client.start()
    try:
        rules = decode_rules("", client.get("/kafka-acl-extended/prefixed/Topic/by-tool")[0])
        assert {rule.operation for rule in rules} == {AclOperation.READ, AclOperation.ALTER_CONFIGS}
        kafka_acls(box.bootstrap, "--remove", "--force", *entry)
        assert client.exists("/kafka-acl-extended/prefixed/Topic/by-tool") is None
    finally:
        client.stop()
        client.close()


def test_a_parked_incremental_fetch_is_answered_when_its_permission_is_revoked(brokers: Brokers) -> None:
    """Its partition sleeps in a fetch session: nothing but the revocation wakes it within the wait."""
    address = "127.0.2.1"
    admin, consumer = RawClient(address_of(brokers.box), ADMIN), RawClient(address_of(brokers.box), address)
    allowed = binding(address, AclResource.TOPIC, "other", AclOperation.READ, PatternType.LITERAL, AclPermission.ALLOW)
    body = acl_apis.CreateAclsRequest((acl_apis.AclCreation(*allowed),))
    created = ask(admin, acl_apis.CREATE_ACLS_REQUEST, acl_apis.CREATE_ACLS_RESPONSE, 1, body)
    assert {result.error_code for result in created.results} == {0}

    def session() -> int:
        begun = fetch(consumer, -1, ("other",), (0, 0))
        return int(begun.session_id) if begun.responses[0].partitions[0].error_code == 0 else 0

    session_id = eventually(session, "the permission is there")
    fetch(consumer, -1, (), (session_id, 1))
    answers: list[Any] = []
    consumer.sock.settimeout(120)
    waiting = threading.Thread(target=lambda: answers.append(fetch(consumer, -1, (), (session_id, 2), wait_seconds=90)))
    waiting.start()
    eventually(lambda: brokers.box.counters("acceptor@0").values.get("fetch.parked", 0) > 0, "the fetch is parked")
    revoked = acl_apis.DeleteAclsRequest((acl_apis.DeleteAclsFilter(2, "other", 3, None, address, 1, 1),))
    ask(admin, acl_apis.DELETE_ACLS_REQUEST, acl_apis.DELETE_ACLS_RESPONSE, 1, revoked)
    waiting.join(60)
    assert answers, "the fetch still waits"
    assert answers[0].responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    admin.close()
    consumer.close()


def user_config(zookeeper: RealZooKeeper, node: str) -> dict[str, Any] | None:
    """The document of a user, each credential by its parts; None without a node."""
    client = KazooClient(zookeeper.connect)
    client.start()
    try:
        path = f"/config/users/{node}"
        if client.exists(path) is None:
            return None
        document = json.loads(client.get(path)[0])
        return {**document, "config": {name: sorted(text.split(",")) for name, text in document["config"].items()}}
    finally:
        client.stop()
        client.close()


def test_scram_users_are_altered_and_described_as_by_kafka_and_kept_in_the_same_znodes(brokers: Brokers) -> None:
    upsertion = sasl_apis.ScramCredentialUpsertion("User ü*", 1, 4096, b"0123456789abcdef", bytes(range(32)))
    alterations = [
        sasl_apis.AlterUserScramCredentialsRequest((), (upsertion, upsertion._replace(mechanism=2, iterations=8192, salted_password=bytes(64)))),
        sasl_apis.AlterUserScramCredentialsRequest(
            (sasl_apis.ScramCredentialDeletion("nobody", 1), sasl_apis.ScramCredentialDeletion("unknown", 9)),
            (
                upsertion._replace(name="few", iterations=4095),
                upsertion._replace(name="many", iterations=16385),
                upsertion._replace(name=""),
                upsertion._replace(name="twice"),
                upsertion._replace(name="twice"),
            ),
        ),
        sasl_apis.AlterUserScramCredentialsRequest((sasl_apis.ScramCredentialDeletion("User ü*", 1),), ()),
    ]
    names = tuple(map(sasl_apis.ScramUserName, ("User ü*", "nobody", "twice", "twice")))
    seen = []
    for address, zookeeper in ((("127.0.0.1", brokers.kafka.port), brokers.kafka_zookeeper), (address_of(brokers.box), brokers.box_zookeeper)):
        admin, found = RawClient(address, ADMIN), []
        for request in alterations:
            answered = ask(admin, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE, 0, request)
            found += [sorted(answered.results), user_config(zookeeper, "User%20%C3%BC%2A"), user_config(zookeeper, "few")]
        for users in (names, None):
            wanted = sasl_apis.DescribeUserScramCredentialsRequest(users)
            described = ask(admin, sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE, 0, wanted)
            found.append((described.error_code, sorted(described.results)))
        client = RawClient(address, "127.0.1.1")
        request = sasl_apis.AlterUserScramCredentialsRequest((), (upsertion._replace(name="denied"),))
        answered = ask(client, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE, 0, request)
        wanted = sasl_apis.DescribeUserScramCredentialsRequest(names[:1])  # Kafka does not answer null here
        described = ask(client, sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE, 0, wanted)
        found.append(([(each.user, each.error_code) for each in answered.results], described.error_code, user_config(zookeeper, "denied")))
        client.close()
        admin.close()
        seen.append(found)
    different = [(ours, theirs) for theirs, ours in zip(*seen, strict=True) if ours != theirs]
    assert not different


ALTER_QUOTAS = quota_apis.ALTER_CLIENT_QUOTAS_REQUEST, quota_apis.ALTER_CLIENT_QUOTAS_RESPONSE, 1
DESCRIBE_QUOTAS = quota_apis.DESCRIBE_CLIENT_QUOTAS_REQUEST, quota_apis.DESCRIBE_CLIENT_QUOTAS_RESPONSE, 0
CREATE_TOPICS = topic_apis.CREATE_TOPICS_REQUEST, topic_apis.CREATE_TOPICS_RESPONSE, 6


def alter_quotas(admin: RawClient, entity: dict[str, str | None], **values: float | None) -> list[tuple[Any, ...]]:
    """Set quotas, and remove those that are None; return codes, texts and entities."""
    parts = tuple(quota_apis.QuotaEntityPart(kind.replace("_", "-"), name) for kind, name in entity.items())
    operations = tuple(quota_apis.QuotaOperation(key, value or 0.0, value is None) for key, value in values.items())
    altered = ask(admin, *ALTER_QUOTAS, quota_apis.AlterClientQuotasRequest((quota_apis.QuotasToAlter(parts, operations),)))
    return [(each.error_code, each.error_message, sorted(map(repr, each.entity))) for each in altered.entries]


def quota_nodes(zookeeper: RealZooKeeper, *paths: str) -> list[Any]:
    client = KazooClient(zookeeper.connect)
    client.start()
    try:
        return [json.loads(client.get(f"/config/{path}")[0]) if client.exists(f"/config/{path}") else None for path in paths]
    finally:
        client.stop()
        client.close()


def produce_40_kb(address: tuple[str, int], client_id: str) -> datetime.timedelta:
    """Produce by a new connection; return the throttle time."""
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, b"key", bytes(40_000))
    client = RawClient(address, ADMIN, client_id)
    client.send_produce("other", 0, bytes(builder.build()), 1)
    throttled: datetime.timedelta = kio_adapter.decode_response(0, 7, client.receive()[1]).throttle_time
    client.close()
    return throttled


def wait_for_quotas(admin: RawClient, address: tuple[str, int]) -> None:
    """Kafka answers an alteration before its broker has read it from ZooKeeper; it reads alterations in their order, so one more shows that."""
    alter_quotas(admin, {"client_id": "last"}, producer_byte_rate=1.0)
    assert eventually(lambda: produce_40_kb(address, "last"), "the quotas are in effect")
    alter_quotas(admin, {"client_id": "last"}, producer_byte_rate=None)


def throttle_times(address: tuple[str, int]) -> list[int]:
    """Of produces and fetches of 40 kB, each by a new connection, and of creations of topics, each above the quota from some point on."""
    times = [produce_40_kb(address, "raw") for _ in range(4)]
    for number in range(3):
        client = RawClient(address, ADMIN)
        client.send_fetch("other", 0, client.list_offset("other", 0, -1) - 1)
        answer = kio_adapter.decode_response(1, 11, client.receive()[1])
        times.append(answer.throttle_time)
        assert any(part.records for topic in answer.responses for part in topic.partitions) == (number == 0)
        client.close()
    found = [round(each.total_seconds() * 1_000) for each in times]
    for number in range(2):
        client = RawClient(address, ADMIN)
        wanted = topic_apis.CreateTopicsRequest((topic_apis.CreatableTopic(f"mutated-{number}", 3, 1),), 20_000, False)
        created = ask(client, *CREATE_TOPICS, wanted)
        found += [created.throttle_time_ms, created.topics[0].error_code]
        client.close()
    return found


def test_client_quotas_are_altered_described_and_enforced_as_by_kafka(brokers: Brokers) -> None:
    seen, times = [], []
    filters: list[tuple[tuple[Any, ...], bool]] = [
        ((), False),
        ((), True),
        ((("user", 0, "q u*"),), False),
        ((("user", 0, "q u*"),), True),
        ((("user", 1, None), ("client-id", 2, None)), True),
        ((("client-id", 2, None),), True),
        ((("client-id", 2, None),), False),
        ((("ip", 2, None),), False),
        ((("shoe", 0, "a"),), False),
        ((("", 0, "a"),), False),
    ]
    entities: list[dict[str, str | None]] = [
        {"user": "q u*"},
        {"user": None},
        {"user": "q u*", "client_id": "c/d"},
        {"user": None, "client_id": None},
        {"client_id": "c"},
    ]
    for address, zookeeper in ((("127.0.0.1", brokers.kafka.port), brokers.kafka_zookeeper), (address_of(brokers.box), brokers.box_zookeeper)):
        admin, found = RawClient(address, ADMIN), []
        for number, entity in enumerate(entities):
            found.append(alter_quotas(admin, entity, producer_byte_rate=1e6 + number, request_percentage=150.5))
        for wrong in (
            alter_quotas(admin, {}),
            alter_quotas(admin, {"user": ""}),
            alter_quotas(admin, {"shoe": "a"}),
            alter_quotas(admin, {"user": "a"}, speed=1.0),
        ):
            found.append(wrong)
        found.append(alter_quotas(admin, {"user": "q u*"}, producer_byte_rate=None, consumer_byte_rate=None))
        for components, strict in filters:
            wanted = quota_apis.DescribeClientQuotasRequest(tuple(quota_apis.QuotaFilterComponent(*each) for each in components), strict)
            described = ask(admin, *DESCRIBE_QUOTAS, wanted)
            entries = described.entries and sorted((sorted(map(repr, each.entity)), sorted(each.values)) for each in described.entries)
            found.append((described.error_code, entries or []))
        found.append(
            quota_nodes(zookeeper, "users/q%20u%2A", "users/<default>", "users/q%20u%2A/clients/c%2Fd", "users/<default>/clients/<default>", "clients/c")
        )
        for entity in entities:
            alter_quotas(admin, entity, producer_byte_rate=None, request_percentage=None)
        denied = RawClient(address, "127.0.1.1")
        found.append([code for code, *_ in alter_quotas(denied, {"user": "u"}, producer_byte_rate=1.0)])
        found.append(ask(denied, *DESCRIBE_QUOTAS, quota_apis.DescribeClientQuotasRequest()).error_code)
        denied.close()
        alter_quotas(admin, {"client_id": "raw"}, producer_byte_rate=10_000.0, consumer_byte_rate=5_000.0, controller_mutation_rate=0.01)
        wait_for_quotas(admin, address)
        admin.close()
        times.append(throttle_times(address))
        admin = RawClient(address, ADMIN)
        alter_quotas(admin, {"client_id": "raw"}, producer_byte_rate=None, consumer_byte_rate=None, controller_mutation_rate=None)
        admin.close()
        seen.append(found)
    different = [(ours, theirs) for theirs, ours in zip(*seen, strict=True) if ours != theirs]
    assert not different
    theirs, ours = times
    print(f"throttle times of Kafka {theirs}, of the box {ours}")
    assert theirs[2] > 1_000 and theirs[5] > 1_000 and theirs[10] == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    for kafkas, our in zip(theirs, ours, strict=True):
        assert abs(our - kafkas) <= 0.05 * kafkas + 1_000, "the window is between 10 and 11 s, whatever the requests took"


def acl_command(box: RunningBox, *arguments: str) -> str:
    command = [sys.executable, "-m", "appliance.command.main", "acl", *arguments, "--bootstrap", box.bootstrap]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment())
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_millrace_acl_adds_lists_and_removes(brokers: Brokers) -> None:
    box = brokers.box
    entry = ("--principal", "User:carol", "--topic", "by-command")
    assert "2 ACLs would be added" in acl_command(box, "add", *entry, "--operation", "Read", "--operation", "alter-configs", "--dry-run")
    assert json.loads(acl_command(box, "list", "--principal", "User:carol", "--json")) == []
    assert "2 ACLs added" in acl_command(box, "add", *entry, "--operation", "Read", "--operation", "alter-configs")
    assert "1 ACL added, 1 there already" in acl_command(box, "add", *entry, "--operation", "Read", "--operation", "All")
    listed = json.loads(acl_command(box, "list", "--principal", "User:carol", "--json"))
    assert {each["operation"] for each in listed} == {"Read", "AlterConfigs", "All"}
    assert listed[0] | {"operation": ""} == {
        "resource": "topic", "name": "by-command", "pattern": "literal", "principal": "User:carol", "host": "*", "operation": "", "permission": "allow"
    }  # fmt: skip
    assert "3 ACLs would be removed" in acl_command(box, "remove", *entry, "--dry-run")
    assert "1 ACL removed" in acl_command(box, "remove", *entry, "--operation", "All", "--yes")
    assert "2 ACLs removed" in acl_command(box, "remove", "--principal", "User:carol", "--yes")
    assert json.loads(acl_command(box, "list", "--principal", "User:carol", "--json")) == []
