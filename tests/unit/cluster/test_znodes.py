"""Documents of the ZooKeeper tree, against what Kafka 3.9 writes."""

from __future__ import annotations

import orjson
import pytest

from appliance.base.model import TopicId
from appliance.cluster.znodes import (
    BoxRecord,
    BrokerRegistration,
    DirectoryAssignment,
    DocumentUnreadable,
    MoveOrder,
    PartitionState,
    TopicAssignment,
    decode_cluster_id,
    decode_config,
    decode_controller,
    encode_cluster_id,
    encode_config,
    encode_controller,
    parents_first,
    partition_state_path,
)

# As Kafka 3.9 in ZooKeeper mode writes them.
BROKER = (
    b'{"version":5,"host":"h1","port":9092,"endpoints":["PLAINTEXT://h1:9092","SSL://h1:9093"],'
    b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","SSL":"SSL"},"rack":"r1","jmx_port":-1,"timestamp":"1700000000000","features":{}}'
)
TOPIC = b'{"version":3,"topic_id":"Uq4JXrGMR8iAdIjOdUX4Fw","partitions":{"0":[1,2,3],"1":[2,3,1]},"adding_replicas":{},"removing_replicas":{}}'
STATE = b'{"version":1,"leader":1,"leader_epoch":4,"controller_epoch":7,"isr":[1,2]}'
CONTROLLER = b'{"version":2,"brokerid":1,"timestamp":"1700000000000","kraftControllerEpoch":-1}'


def same(one: bytes, other: bytes) -> bool:
    return bool(orjson.loads(one) == orjson.loads(other))


def test_a_broker_registration_is_written_and_read_as_kafka_writes_it() -> None:
    registration = BrokerRegistration.decode(1, BROKER)
    assert registration.endpoints == (("PLAINTEXT", "h1", 9092), ("SSL", "h1", 9093))
    assert registration.rack == "r1" and registration.peer_endpoint("") == ("h1", 9092)
    assert registration.peer_endpoint("SSL") == registration.peer_endpoint("BOXES", "SSL") == ("h1", 9093)
    assert same(registration.encode(), BROKER)


def test_a_broker_without_rack_writes_no_rack() -> None:
    registration = BrokerRegistration(1, (("PLAINTEXT", "h", 1),), {"PLAINTEXT": "PLAINTEXT"}, None, 5)
    assert "rack" not in orjson.loads(registration.encode())


def test_a_broker_without_plaintext_has_no_host_for_old_readers() -> None:
    registration = BrokerRegistration(1, (("SSL", "h", 1),), {"SSL": "SSL"}, None, 5)
    document = orjson.loads(registration.encode())
    assert (document["host"], document["port"]) == (None, -1) and registration.peer_endpoint("") is None


def test_old_broker_registrations_are_read() -> None:
    assert BrokerRegistration.decode(3, b'{"version":1,"host":"h","port":9092}').peer_endpoint("") == ("h", 9092)
    without_map = b'{"version":3,"endpoints":["plaintext://[::1]:9092"],"timestamp":"1"}'
    assert BrokerRegistration.decode(3, without_map).peer_endpoint("") == ("::1", 9092)


def test_an_ipv6_address_is_bracketed_and_comes_back() -> None:
    registration = BrokerRegistration(1, (("PLAINTEXT", "::1", 9092),), {"PLAINTEXT": "PLAINTEXT"}, None, 5)
    assert b"PLAINTEXT://[::1]:9092" in registration.encode()
    assert BrokerRegistration.decode(1, registration.encode()) == registration


def test_a_topic_is_written_and_read_as_kafka_writes_it() -> None:
    assignment = TopicAssignment.decode("T", TOPIC)
    assert str(assignment.topic_id) == "Uq4JXrGMR8iAdIjOdUX4Fw"
    assert assignment.partitions == {0: (1, 2, 3), 1: (2, 3, 1)}
    assert same(assignment.encode(), TOPIC)


def test_old_topics_have_no_id() -> None:
    assert TopicAssignment.decode("T", b'{"version":1,"partitions":{"0":[1]}}').topic_id is None


def test_a_partition_state_is_written_and_read_as_kafka_writes_it() -> None:
    state = PartitionState.decode(partition_state_path("T", 0), STATE)
    assert state == PartitionState(1, 4, 7, (1, 2)) and same(state.encode(), STATE)
    recovering = state._replace(leader_recovery_state=1)
    assert PartitionState.decode("p", recovering.encode()) == recovering


def test_controller_config_and_cluster_id_are_written_as_kafka_writes_them() -> None:
    assert same(encode_controller(1, 1_700_000_000_000), CONTROLLER) and decode_controller(CONTROLLER) == 1
    assert same(encode_config({"retention.ms": "1"}), b'{"version":1,"config":{"retention.ms":"1"}}')
    assert decode_config("p", b'{"version":1,"config":{"a":"b"}}') == {"a": "b"} and decode_config("p", b'{"version":1}') == {}
    assert same(encode_cluster_id("abc"), b'{"version":"1","id":"abc"}') and decode_cluster_id(b'{"version":"1","id":"abc"}') == "abc"


def test_our_own_documents_come_back() -> None:
    record = BoxRecord("box", {"dir-a": "d0"})
    assert BoxRecord.decode("p", record.encode()) == record
    placement = DirectoryAssignment(TopicId(bytes(range(16))), {0: "dir-a", 10: "dir-b"})
    assert DirectoryAssignment.decode("p", placement.encode()) == placement
    moving = placement._replace(moves={10: MoveOrder("dir-a", 5_000), 0: MoveOrder("dir-c")})
    assert DirectoryAssignment.decode("p", moving.encode()) == moving
    assert b"moves" not in placement.encode() and b"draining" not in record.encode()
    draining = record._replace(draining=("dir-a",))
    assert BoxRecord.decode("p", draining.encode()) == draining


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'"text"'])
def test_what_is_no_document_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(DocumentUnreadable, match="/brokers/topics/T"):
        TopicAssignment.decode("T", data)
    with pytest.raises(DocumentUnreadable, match="/brokers/ids/1"):
        BrokerRegistration.decode(1, data)


def test_parents_come_before_their_children() -> None:
    assert parents_first(("/a/b/c", "/a/d")) == ["/a", "/a/b", "/a/b/c", "/a/d"]
