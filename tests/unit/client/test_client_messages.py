from __future__ import annotations

import struct

import pytest
from kio.serial import entity_reader

from appliance.base.errors import ProtocolViolation
from appliance.client import messages
from appliance.client.messages import Api, decode_response, encode_request
from tests.unit.client.fake_kafka_broker import APIS, encode_response

TOPIC = {"name": "numbers"}
REQUESTS = {
    messages.INIT_PRODUCER_ID: {"transactional_id": "numbers", "transaction_timeout": 1500},
    messages.PRODUCE: {"transactional_id": None, "acks": -1, "timeout": 1500, "topic_data": [{**TOPIC, "partition_data": [{"index": 2, "records": b"xyz"}]}]},
    messages.FETCH: {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 9,
        "topics": [{"topic": "numbers", "partitions": [{"partition": 2, "fetch_offset": 77, "partition_max_bytes": 5}]}],
        "forgotten_topics_data": [],
    },
    messages.LIST_OFFSETS: {"replica_id": -1, "isolation_level": 0, "topics": [{**TOPIC, "partitions": [{"partition_index": 2, "timestamp": -2}]}]},
    messages.METADATA: {
        "topics": [{**TOPIC, "topic_id": None}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    },
    messages.API_VERSIONS: {"client_software_name": "millrace", "client_software_version": "1"},
    messages.CREATE_TOPICS: {
        "topics": [{**TOPIC, "num_partitions": 3, "replication_factor": -1, "assignments": [], "configs": [{"name": "a", "value": "b"}]}],
        "timeout": 1500,
        "validate_only": False,
    },
    messages.DELETE_TOPICS: {"topic_names": ["numbers"], "timeout": 1500},
    messages.DELETE_RECORDS: {"topics": [{**TOPIC, "partitions": [{"partition_index": 2, "offset": 5}]}], "timeout": 1500},
    messages.DESCRIBE_CONFIGS: {"resources": [{"resource_type": 2, "resource_name": "numbers", "configuration_keys": None}]},
    messages.CREATE_PARTITIONS: {"topics": [{**TOPIC, "count": 3, "assignments": None}], "timeout": 1500, "validate_only": False},
    messages.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": "numbers", "configs": [{"name": "a", "config_operation": 0, "value": "b"}]}],
        "validate_only": False,
    },
}


@pytest.mark.parametrize(("api", "version"), [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)])
def test_every_version_of_every_request_is_read_back_by_kio_with_the_same_header(api: Api, version: int) -> None:
    frame = encode_request(api, version, 7, "me", REQUESTS[api])
    size, key, sent_version, correlation_id, client_length = struct.unpack_from(">ihhih", frame)
    assert (size, key, sent_version, correlation_id) == (len(frame) - 4, api.key, version, 7)
    position = 14 + client_length + (1 if version >= api.first_flexible_version else 0)
    request, read_bytes = entity_reader(messages._message_class(api, version, "request"))(frame, position)
    assert position + read_bytes == len(frame)
    assert api is messages.API_VERSIONS or "numbers" in repr(request)


def test_kio_agrees_where_messages_become_flexible() -> None:
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            assert messages._message_class(api, version, "request").__flexible__ == api.is_flexible(version), f"{api.name} {version}"


def test_a_duration_is_given_in_milliseconds() -> None:
    frame = encode_request(messages.FETCH, 12, 7, "", REQUESTS[messages.FETCH])
    request, _ = entity_reader(messages._message_class(messages.FETCH, 12, "request"))(frame, 15)
    assert request.max_wait.total_seconds() == 0.5


def test_a_response_that_ends_too_early_is_a_protocol_violation() -> None:
    whole = encode_response(messages.DELETE_TOPICS, 5, 7, {"throttle_time": 0, "responses": [{**TOPIC, "error_code": 0, "error_message": None}]})[4:]
    assert decode_response(messages.DELETE_TOPICS, 5, whole).responses[0].name == "numbers"
    for end in range(4, len(whole)):
        with pytest.raises(ProtocolViolation):
            decode_response(messages.DELETE_TOPICS, 5, whole[:end])


@pytest.mark.parametrize(("version", "head"), [(1, b""), (9, b"\0" + bytes(4))], ids=["plain", "flexible"])
def test_a_response_that_claims_more_than_it_has_does_not_end_the_process(version: int, head: bytes) -> None:
    """kio would reserve 34 GB for it, and abort."""
    claim = b"\xff\xff\xff\xff\x0f" if version == 9 else b"\x7f\xff\xff\xff"
    with pytest.raises(ProtocolViolation, match="too long"):
        decode_response(messages.METADATA, version, bytes(4) + head + claim)


def test_tagged_fields_of_a_response_header_are_skipped() -> None:
    plain = encode_response(messages.DELETE_TOPICS, 5, 7, {"throttle_time": 0, "responses": []})[4:]
    tagged = plain[:4] + b"\x01\x05\x02hi" + plain[5:]
    assert decode_response(messages.DELETE_TOPICS, 5, tagged) == decode_response(messages.DELETE_TOPICS, 5, plain)
    with pytest.raises(ProtocolViolation):
        decode_response(messages.DELETE_TOPICS, 5, plain[:4] + b"\x01\x05\x7f")
