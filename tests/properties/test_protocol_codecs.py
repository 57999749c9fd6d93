"""Every codec of ours against kio's, both ways, in every version that both know."""

from __future__ import annotations

import dataclasses
import datetime
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.client import messages as client_messages
from appliance.protocol import (
    acl_apis,
    api_versions,
    cluster_apis,
    config_apis,
    consumer_group_apis,
    group_apis,
    group_offset_apis,
    log_dir_apis,
    metadata,
    offset_apis,
    quota_apis,
    reassignment_apis,
    sasl_apis,
    share_apis,
    share_state_apis,
    streams_apis,
    token_apis,
    topic_apis,
    transaction_apis,
)
from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResult,
    ForgottenPartition,
    decode_fetch,
    encode_fetch_response,
)
from appliance.protocol.leader_hints import CurrentLeader, NodeEndpoint
from appliance.protocol.produce import ProduceResult, RecordError, decode_produce, encode_produce_response
from appliance.protocol.schema import Message
from lab import kio_adapter
from lab.protocol_messages import (
    ERROR_CODE,
    FAILURE,
    INT16,
    INT32,
    INT64,
    NAME,
    TEXT,
    TOPIC_ID,
    WALL_MS,
    bodies,
    kio_element,
    kio_message,
    plain_kio,
    plain_ours,
    tagged_kio,
    tagged_ours,
)

few = settings(max_examples=max(8, settings().max_examples // 6), deadline=None)
"""Examples for each version: there are some 350 of them."""


def versions_of(api_key: ApiKey, first: int = 0) -> range:
    """What we have codecs for of an API; what kio does not know comes before `first`."""
    api = CODED_APIS[api_key]
    return range(max(first, api.version_min), api.version_max + 1)


def body_of(frame: bytes, version: int, api_key: ApiKey, correlation_id: int) -> bytes:
    """The body of a response frame whose size, correlation id and header were found right."""
    size, found = struct.unpack_from(">ii", frame)
    assert (size, found) == (len(frame) - 4, correlation_id)
    if not CODED_APIS[api_key].is_flexible(version):
        return frame[8:]
    assert frame[8] == 0
    return frame[9:]


# ---- messages that are data

SCHEMA_MESSAGES: list[tuple[Message[Any], bool, range]] = [
    (metadata.REQUEST, True, versions_of(ApiKey.METADATA)),
    *(
        (message, is_request, range(api.version_min, api.version_max + 1))
        for api in (client_messages.PRODUCE, client_messages.FETCH, client_messages.METADATA)
        for message, is_request in ((api.request, True), (api.response, False))
    ),
    (offset_apis.LIST_OFFSETS_REQUEST, True, versions_of(ApiKey.LIST_OFFSETS, first=1)),
    (offset_apis.LIST_OFFSETS_RESPONSE, False, versions_of(ApiKey.LIST_OFFSETS, first=1)),
    (cluster_apis.FIND_COORDINATOR_REQUEST, True, versions_of(ApiKey.FIND_COORDINATOR)),
    (cluster_apis.FIND_COORDINATOR_RESPONSE, False, versions_of(ApiKey.FIND_COORDINATOR)),
    (api_versions.REQUEST, True, versions_of(ApiKey.API_VERSIONS)),
    (api_versions.RESPONSE, False, versions_of(ApiKey.API_VERSIONS)),
    (topic_apis.CREATE_TOPICS_REQUEST, True, versions_of(ApiKey.CREATE_TOPICS, first=2)),
    (topic_apis.CREATE_TOPICS_RESPONSE, False, versions_of(ApiKey.CREATE_TOPICS, first=2)),
    (topic_apis.DELETE_TOPICS_REQUEST, True, versions_of(ApiKey.DELETE_TOPICS, first=1)),
    (topic_apis.DELETE_TOPICS_RESPONSE, False, versions_of(ApiKey.DELETE_TOPICS, first=1)),
    (offset_apis.DELETE_RECORDS_REQUEST, True, versions_of(ApiKey.DELETE_RECORDS)),
    (offset_apis.DELETE_RECORDS_RESPONSE, False, versions_of(ApiKey.DELETE_RECORDS)),
    (offset_apis.OFFSET_FOR_LEADER_EPOCH_REQUEST, True, versions_of(ApiKey.OFFSET_FOR_LEADER_EPOCH, first=2)),
    (offset_apis.OFFSET_FOR_LEADER_EPOCH_RESPONSE, False, versions_of(ApiKey.OFFSET_FOR_LEADER_EPOCH, first=2)),
    (topic_apis.CREATE_PARTITIONS_REQUEST, True, versions_of(ApiKey.CREATE_PARTITIONS)),
    (topic_apis.CREATE_PARTITIONS_RESPONSE, False, versions_of(ApiKey.CREATE_PARTITIONS)),
    (config_apis.DESCRIBE_CONFIGS_REQUEST, True, versions_of(ApiKey.DESCRIBE_CONFIGS, first=1)),
    (config_apis.DESCRIBE_CONFIGS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_CONFIGS, first=1)),
    (config_apis.ALTER_CONFIGS_REQUEST, True, versions_of(ApiKey.ALTER_CONFIGS)),
    (config_apis.ALTER_CONFIGS_RESPONSE, False, versions_of(ApiKey.ALTER_CONFIGS)),
    (config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST, True, versions_of(ApiKey.INCREMENTAL_ALTER_CONFIGS)),
    (config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE, False, versions_of(ApiKey.INCREMENTAL_ALTER_CONFIGS)),
    (config_apis.LIST_CONFIG_RESOURCES_REQUEST, True, versions_of(ApiKey.LIST_CONFIG_RESOURCES)),
    (config_apis.LIST_CONFIG_RESOURCES_RESPONSE, False, versions_of(ApiKey.LIST_CONFIG_RESOURCES)),
    (cluster_apis.DESCRIBE_CLUSTER_REQUEST, True, versions_of(ApiKey.DESCRIBE_CLUSTER)),
    (cluster_apis.DESCRIBE_CLUSTER_RESPONSE, False, versions_of(ApiKey.DESCRIBE_CLUSTER)),
    (log_dir_apis.ALTER_REPLICA_LOG_DIRS_REQUEST, True, versions_of(ApiKey.ALTER_REPLICA_LOG_DIRS, first=1)),
    (log_dir_apis.ALTER_REPLICA_LOG_DIRS_RESPONSE, False, versions_of(ApiKey.ALTER_REPLICA_LOG_DIRS, first=1)),
    (log_dir_apis.DESCRIBE_LOG_DIRS_REQUEST, True, versions_of(ApiKey.DESCRIBE_LOG_DIRS, first=1)),
    (log_dir_apis.DESCRIBE_LOG_DIRS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_LOG_DIRS, first=1)),
    (reassignment_apis.ELECT_LEADERS_REQUEST, True, versions_of(ApiKey.ELECT_LEADERS)),
    (reassignment_apis.ELECT_LEADERS_RESPONSE, False, versions_of(ApiKey.ELECT_LEADERS)),
    (reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST, True, versions_of(ApiKey.ALTER_PARTITION_REASSIGNMENTS)),
    (reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_RESPONSE, False, versions_of(ApiKey.ALTER_PARTITION_REASSIGNMENTS)),
    (reassignment_apis.LIST_PARTITION_REASSIGNMENTS_REQUEST, True, versions_of(ApiKey.LIST_PARTITION_REASSIGNMENTS)),
    (reassignment_apis.LIST_PARTITION_REASSIGNMENTS_RESPONSE, False, versions_of(ApiKey.LIST_PARTITION_REASSIGNMENTS)),
    (cluster_apis.UNREGISTER_BROKER_REQUEST, True, versions_of(ApiKey.UNREGISTER_BROKER)),
    (cluster_apis.UNREGISTER_BROKER_RESPONSE, False, versions_of(ApiKey.UNREGISTER_BROKER)),
    (acl_apis.DESCRIBE_ACLS_REQUEST, True, versions_of(ApiKey.DESCRIBE_ACLS)),
    (acl_apis.DESCRIBE_ACLS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_ACLS)),
    (acl_apis.CREATE_ACLS_REQUEST, True, versions_of(ApiKey.CREATE_ACLS)),
    (acl_apis.CREATE_ACLS_RESPONSE, False, versions_of(ApiKey.CREATE_ACLS)),
    (acl_apis.DELETE_ACLS_REQUEST, True, versions_of(ApiKey.DELETE_ACLS)),
    (acl_apis.DELETE_ACLS_RESPONSE, False, versions_of(ApiKey.DELETE_ACLS)),
    (sasl_apis.SASL_HANDSHAKE_REQUEST, True, versions_of(ApiKey.SASL_HANDSHAKE)),
    (sasl_apis.SASL_HANDSHAKE_RESPONSE, False, versions_of(ApiKey.SASL_HANDSHAKE)),
    (sasl_apis.SASL_AUTHENTICATE_REQUEST, True, versions_of(ApiKey.SASL_AUTHENTICATE)),
    (sasl_apis.SASL_AUTHENTICATE_RESPONSE, False, versions_of(ApiKey.SASL_AUTHENTICATE)),
    (quota_apis.DESCRIBE_CLIENT_QUOTAS_REQUEST, True, versions_of(ApiKey.DESCRIBE_CLIENT_QUOTAS)),
    (quota_apis.DESCRIBE_CLIENT_QUOTAS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_CLIENT_QUOTAS)),
    (quota_apis.ALTER_CLIENT_QUOTAS_REQUEST, True, versions_of(ApiKey.ALTER_CLIENT_QUOTAS)),
    (quota_apis.ALTER_CLIENT_QUOTAS_RESPONSE, False, versions_of(ApiKey.ALTER_CLIENT_QUOTAS)),
    (sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST, True, versions_of(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)),
    (sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)),
    (sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST, True, versions_of(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)),
    (sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE, False, versions_of(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)),
    (token_apis.CREATE_DELEGATION_TOKEN_REQUEST, True, versions_of(ApiKey.CREATE_DELEGATION_TOKEN)),
    (token_apis.CREATE_DELEGATION_TOKEN_RESPONSE, False, versions_of(ApiKey.CREATE_DELEGATION_TOKEN)),
    (token_apis.RENEW_DELEGATION_TOKEN_REQUEST, True, versions_of(ApiKey.RENEW_DELEGATION_TOKEN)),
    (token_apis.RENEW_DELEGATION_TOKEN_RESPONSE, False, versions_of(ApiKey.RENEW_DELEGATION_TOKEN)),
    (token_apis.EXPIRE_DELEGATION_TOKEN_REQUEST, True, versions_of(ApiKey.EXPIRE_DELEGATION_TOKEN)),
    (token_apis.EXPIRE_DELEGATION_TOKEN_RESPONSE, False, versions_of(ApiKey.EXPIRE_DELEGATION_TOKEN)),
    (token_apis.DESCRIBE_DELEGATION_TOKEN_REQUEST, True, versions_of(ApiKey.DESCRIBE_DELEGATION_TOKEN)),
    (token_apis.DESCRIBE_DELEGATION_TOKEN_RESPONSE, False, versions_of(ApiKey.DESCRIBE_DELEGATION_TOKEN)),
    (topic_apis.DESCRIBE_TOPIC_PARTITIONS_REQUEST, True, versions_of(ApiKey.DESCRIBE_TOPIC_PARTITIONS)),
    (topic_apis.DESCRIBE_TOPIC_PARTITIONS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_TOPIC_PARTITIONS)),
    (group_offset_apis.OFFSET_COMMIT_REQUEST, True, versions_of(ApiKey.OFFSET_COMMIT, first=2)),
    (group_offset_apis.OFFSET_COMMIT_RESPONSE, False, versions_of(ApiKey.OFFSET_COMMIT, first=2)),
    (group_offset_apis.OFFSET_FETCH_REQUEST, True, versions_of(ApiKey.OFFSET_FETCH, first=1)),
    (group_offset_apis.OFFSET_FETCH_RESPONSE, False, versions_of(ApiKey.OFFSET_FETCH, first=1)),
    (group_apis.JOIN_GROUP_REQUEST, True, versions_of(ApiKey.JOIN_GROUP)),
    (group_apis.JOIN_GROUP_RESPONSE, False, versions_of(ApiKey.JOIN_GROUP)),
    (group_apis.HEARTBEAT_REQUEST, True, versions_of(ApiKey.HEARTBEAT)),
    (group_apis.HEARTBEAT_RESPONSE, False, versions_of(ApiKey.HEARTBEAT)),
    (group_apis.LEAVE_GROUP_REQUEST, True, versions_of(ApiKey.LEAVE_GROUP)),
    (group_apis.LEAVE_GROUP_RESPONSE, False, versions_of(ApiKey.LEAVE_GROUP)),
    (group_apis.SYNC_GROUP_REQUEST, True, versions_of(ApiKey.SYNC_GROUP)),
    (group_apis.SYNC_GROUP_RESPONSE, False, versions_of(ApiKey.SYNC_GROUP)),
    (group_apis.DESCRIBE_GROUPS_REQUEST, True, versions_of(ApiKey.DESCRIBE_GROUPS)),
    (group_apis.DESCRIBE_GROUPS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_GROUPS)),
    (group_apis.LIST_GROUPS_REQUEST, True, versions_of(ApiKey.LIST_GROUPS)),
    (group_apis.LIST_GROUPS_RESPONSE, False, versions_of(ApiKey.LIST_GROUPS)),
    (transaction_apis.INIT_PRODUCER_ID_REQUEST, True, versions_of(ApiKey.INIT_PRODUCER_ID)),
    (transaction_apis.INIT_PRODUCER_ID_RESPONSE, False, versions_of(ApiKey.INIT_PRODUCER_ID)),
    (transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST, True, versions_of(ApiKey.ADD_PARTITIONS_TO_TXN)),
    (transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, False, versions_of(ApiKey.ADD_PARTITIONS_TO_TXN)),
    (transaction_apis.ADD_OFFSETS_TO_TXN_REQUEST, True, versions_of(ApiKey.ADD_OFFSETS_TO_TXN)),
    (transaction_apis.ADD_OFFSETS_TO_TXN_RESPONSE, False, versions_of(ApiKey.ADD_OFFSETS_TO_TXN)),
    (transaction_apis.END_TXN_REQUEST, True, versions_of(ApiKey.END_TXN)),
    (transaction_apis.END_TXN_RESPONSE, False, versions_of(ApiKey.END_TXN)),
    (transaction_apis.WRITE_TXN_MARKERS_REQUEST, True, versions_of(ApiKey.WRITE_TXN_MARKERS, first=1)),
    (transaction_apis.WRITE_TXN_MARKERS_RESPONSE, False, versions_of(ApiKey.WRITE_TXN_MARKERS, first=1)),
    (transaction_apis.TXN_OFFSET_COMMIT_REQUEST, True, versions_of(ApiKey.TXN_OFFSET_COMMIT)),
    (transaction_apis.TXN_OFFSET_COMMIT_RESPONSE, False, versions_of(ApiKey.TXN_OFFSET_COMMIT)),
    (group_apis.DELETE_GROUPS_REQUEST, True, versions_of(ApiKey.DELETE_GROUPS)),
    (group_apis.DELETE_GROUPS_RESPONSE, False, versions_of(ApiKey.DELETE_GROUPS)),
    (group_offset_apis.OFFSET_DELETE_REQUEST, True, versions_of(ApiKey.OFFSET_DELETE)),
    (group_offset_apis.OFFSET_DELETE_RESPONSE, False, versions_of(ApiKey.OFFSET_DELETE)),
    (transaction_apis.DESCRIBE_PRODUCERS_REQUEST, True, versions_of(ApiKey.DESCRIBE_PRODUCERS)),
    (transaction_apis.DESCRIBE_PRODUCERS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_PRODUCERS)),
    (transaction_apis.DESCRIBE_TRANSACTIONS_REQUEST, True, versions_of(ApiKey.DESCRIBE_TRANSACTIONS)),
    (transaction_apis.DESCRIBE_TRANSACTIONS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_TRANSACTIONS)),
    (transaction_apis.LIST_TRANSACTIONS_REQUEST, True, versions_of(ApiKey.LIST_TRANSACTIONS)),
    (transaction_apis.LIST_TRANSACTIONS_RESPONSE, False, versions_of(ApiKey.LIST_TRANSACTIONS)),
    (streams_apis.STREAMS_GROUP_HEARTBEAT_REQUEST, True, versions_of(ApiKey.STREAMS_GROUP_HEARTBEAT)),
    (streams_apis.STREAMS_GROUP_HEARTBEAT_RESPONSE, False, versions_of(ApiKey.STREAMS_GROUP_HEARTBEAT)),
    (streams_apis.STREAMS_GROUP_DESCRIBE_REQUEST, True, versions_of(ApiKey.STREAMS_GROUP_DESCRIBE)),
    (streams_apis.STREAMS_GROUP_DESCRIBE_RESPONSE, False, versions_of(ApiKey.STREAMS_GROUP_DESCRIBE)),
    (share_apis.SHARE_GROUP_HEARTBEAT_REQUEST, True, versions_of(ApiKey.SHARE_GROUP_HEARTBEAT)),
    (share_apis.SHARE_GROUP_HEARTBEAT_RESPONSE, False, versions_of(ApiKey.SHARE_GROUP_HEARTBEAT)),
    (share_apis.SHARE_GROUP_DESCRIBE_REQUEST, True, versions_of(ApiKey.SHARE_GROUP_DESCRIBE)),
    (share_apis.SHARE_GROUP_DESCRIBE_RESPONSE, False, versions_of(ApiKey.SHARE_GROUP_DESCRIBE)),
    (share_apis.SHARE_FETCH_REQUEST, True, versions_of(ApiKey.SHARE_FETCH)),
    (share_apis.SHARE_FETCH_RESPONSE, False, versions_of(ApiKey.SHARE_FETCH)),
    (share_apis.SHARE_ACKNOWLEDGE_REQUEST, True, versions_of(ApiKey.SHARE_ACKNOWLEDGE)),
    (share_apis.SHARE_ACKNOWLEDGE_RESPONSE, False, versions_of(ApiKey.SHARE_ACKNOWLEDGE)),
    (share_apis.DESCRIBE_SHARE_GROUP_OFFSETS_REQUEST, True, versions_of(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)),
    (share_apis.DESCRIBE_SHARE_GROUP_OFFSETS_RESPONSE, False, versions_of(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)),
    (share_apis.ALTER_SHARE_GROUP_OFFSETS_REQUEST, True, versions_of(ApiKey.ALTER_SHARE_GROUP_OFFSETS)),
    (share_apis.ALTER_SHARE_GROUP_OFFSETS_RESPONSE, False, versions_of(ApiKey.ALTER_SHARE_GROUP_OFFSETS)),
    (share_apis.DELETE_SHARE_GROUP_OFFSETS_REQUEST, True, versions_of(ApiKey.DELETE_SHARE_GROUP_OFFSETS)),
    (share_apis.DELETE_SHARE_GROUP_OFFSETS_RESPONSE, False, versions_of(ApiKey.DELETE_SHARE_GROUP_OFFSETS)),
    (share_state_apis.INITIALIZE_SHARE_GROUP_STATE_REQUEST, True, versions_of(ApiKey.INITIALIZE_SHARE_GROUP_STATE)),
    (share_state_apis.INITIALIZE_SHARE_GROUP_STATE_RESPONSE, False, versions_of(ApiKey.INITIALIZE_SHARE_GROUP_STATE)),
    (share_state_apis.READ_SHARE_GROUP_STATE_REQUEST, True, versions_of(ApiKey.READ_SHARE_GROUP_STATE)),
    (share_state_apis.READ_SHARE_GROUP_STATE_RESPONSE, False, versions_of(ApiKey.READ_SHARE_GROUP_STATE)),
    (share_state_apis.WRITE_SHARE_GROUP_STATE_REQUEST, True, versions_of(ApiKey.WRITE_SHARE_GROUP_STATE)),
    (share_state_apis.WRITE_SHARE_GROUP_STATE_RESPONSE, False, versions_of(ApiKey.WRITE_SHARE_GROUP_STATE)),
    (share_state_apis.DELETE_SHARE_GROUP_STATE_REQUEST, True, versions_of(ApiKey.DELETE_SHARE_GROUP_STATE)),
    (share_state_apis.DELETE_SHARE_GROUP_STATE_RESPONSE, False, versions_of(ApiKey.DELETE_SHARE_GROUP_STATE)),
    (share_state_apis.READ_SHARE_GROUP_STATE_SUMMARY_REQUEST, True, versions_of(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY)),
    (share_state_apis.READ_SHARE_GROUP_STATE_SUMMARY_RESPONSE, False, versions_of(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY)),
    (consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_REQUEST, True, versions_of(ApiKey.CONSUMER_GROUP_HEARTBEAT)),
    (consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_RESPONSE, False, versions_of(ApiKey.CONSUMER_GROUP_HEARTBEAT)),
    (consumer_group_apis.CONSUMER_GROUP_DESCRIBE_REQUEST, True, versions_of(ApiKey.CONSUMER_GROUP_DESCRIBE)),
    (consumer_group_apis.CONSUMER_GROUP_DESCRIBE_RESPONSE, False, versions_of(ApiKey.CONSUMER_GROUP_DESCRIBE)),
]


@pytest.mark.parametrize(
    ("message", "is_request", "version"),
    [pytest.param(message, is_request, version, id=f"{message.name}-v{version}") for message, is_request, versions in SCHEMA_MESSAGES for version in versions],
)
@few
@given(st.data())
def test_a_message_means_the_same_to_kio(message: Message[Any], is_request: bool, version: int, data: st.DataObject) -> None:
    on_wire = data.draw(bodies(message.shape(version), version))
    body = message.widened(version, on_wire)
    encoded = message.encode(version, body)

    decode = kio_adapter.decode_request if is_request else kio_adapter.decode_response
    at_kio = decode(message.api.key, version, encoded)
    assert plain_kio(at_kio) == plain_ours(on_wire, version)
    tagged = tagged_ours(on_wire, version)
    assert tagged_kio(at_kio, set(tagged)) == tagged
    assert kio_adapter.encode(at_kio) == encoded
    assert message.decode(encoded, 0, len(encoded), version) == body


# ---- Produce


@pytest.mark.parametrize("version", versions_of(ApiKey.PRODUCE))
@few
@given(data=st.data())
def test_a_produce_request_of_kio_is_located(version: int, data: st.DataObject) -> None:
    # kio begins at version 3; the versions before differ by the missing transactional id only.
    request_class = kio_adapter.request_class(ApiKey.PRODUCE, max(version, 3))
    topic_class = kio_element(request_class, "topic_data")
    partition_class = kio_element(topic_class, "partition_data")
    transactional_id = data.draw(st.none() | TEXT) if version >= 3 else None
    acks, timeout_ms = data.draw(INT16), data.draw(INT32)
    topics = data.draw(st.lists(st.tuples(NAME, st.lists(st.tuples(INT32, st.none() | st.binary(max_size=300)), max_size=3)), max_size=3))
    request = request_class(
        transactional_id=transactional_id,
        acks=acks,
        timeout=datetime.timedelta(milliseconds=timeout_ms),
        topic_data=tuple(
            topic_class(name=name, partition_data=tuple(partition_class(index=index, records=records) for index, records in partitions))
            for name, partitions in topics
        ),
    )
    encoded = kio_adapter.encode(request)[2 if version < 3 else 0 :]
    # As in an arena: other bytes before and behind, and a buffer that can be written.
    arena = memoryview(bytearray(b"\x55" * 7 + encoded + b"\xaa" * 50))

    decoded = decode_produce(arena, 7, 7 + len(encoded), version)

    assert (decoded.acks, decoded.timeout_ms, decoded.transactional_id) == (acks, timeout_ms, transactional_id)
    found = [(part.topic, part.partition, bytes(arena[part.records_position : part.records_position + part.records_size])) for part in decoded.partitions]
    assert found == [(name, index, records or b"") for name, partitions in topics for index, records in partitions]


CURRENT_LEADER = st.none() | st.builds(CurrentLeader, INT32, INT32)
NODE_ENDPOINTS = st.lists(st.builds(NodeEndpoint, INT32, TEXT, INT32, st.none() | TEXT), max_size=2)

RECORD_ERRORS = st.lists(st.builds(RecordError, INT32, st.none() | TEXT), max_size=2).map(tuple)
TOPIC = st.sampled_from("abc")
PRODUCED = st.tuples(TOPIC, INT32, st.just(0), INT64, st.just(-1) | WALL_MS, INT64).map(lambda fields: ProduceResult(*fields))
REFUSED = st.tuples(TOPIC, INT32, FAILURE, st.just(-1), st.just(-1), INT64, st.none() | TEXT, RECORD_ERRORS, CURRENT_LEADER).map(
    lambda fields: ProduceResult(*fields)
)


@pytest.mark.parametrize("version", versions_of(ApiKey.PRODUCE, first=3))
@few
@given(results=st.lists(PRODUCED | REFUSED, max_size=5), throttle_time_ms=INT32, endpoints=NODE_ENDPOINTS)
def test_a_produce_response_means_the_same_to_kio(version: int, results: list[ProduceResult], throttle_time_ms: int, endpoints: list[NodeEndpoint]) -> None:
    frame = encode_produce_response(version, 42, results, throttle_time_ms, endpoints)
    response = kio_adapter.decode_response(ApiKey.PRODUCE, version, body_of(frame, version, ApiKey.PRODUCE, 42))

    assert response.throttle_time == datetime.timedelta(milliseconds=throttle_time_ms)
    assert [name.name for name in response.responses] == [name for i, name in enumerate(r.topic for r in results) if not i or results[i - 1].topic != name]
    partitions = [(topic.name, partition) for topic in response.responses for partition in topic.partition_responses]
    assert len(partitions) == len(results)
    for (name, found), result in zip(partitions, results, strict=True):
        # KAFKA_STORAGE_ERROR is sent in versions that know it.
        error_code = 6 if result.error_code == 56 and version < 4 else result.error_code
        assert (name, found.index, found.error_code, found.base_offset) == (result.topic, result.partition, error_code, result.base_offset)
        # kio shows −1 as None.
        assert (-1 if found.log_append_time is None else plain_kio(found.log_append_time)) == result.log_append_time_ms
        if version >= 5:
            assert found.log_start_offset == result.log_start_offset
        if version >= 8:
            assert found.error_message == result.error_message
            assert plain_kio(found.record_errors) == tuple(tuple(error) for error in result.record_errors)
        if version >= 10:
            assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (result.current_leader or (-1, -1))
    if version >= 10:
        assert plain_kio(response.node_endpoints) == tuple(tuple(endpoint) for endpoint in endpoints)


# ---- Fetch

FETCHED_PARTITIONS = st.lists(st.tuples(INT32, INT32, INT64, INT32, INT64, INT32), max_size=3)
FETCHED_TOPICS = st.lists(st.tuples(NAME, TOPIC_ID, FETCHED_PARTITIONS), max_size=3)
FORGOTTEN_TOPICS = st.lists(st.tuples(NAME, TOPIC_ID, st.lists(INT32, max_size=3)), max_size=2)
FETCH_NUMBERS = st.tuples(INT32, INT32, INT32, st.integers(-128, 127), INT32, INT32, INT32, INT64)


@pytest.mark.parametrize("version", versions_of(ApiKey.FETCH, first=4))
@few
@given(numbers=FETCH_NUMBERS, topics=FETCHED_TOPICS, forgotten=FORGOTTEN_TOPICS, rack=TEXT, cluster_id=st.none() | NAME)
def test_a_fetch_request_of_kio_is_understood(
    version: int, numbers: tuple[int, ...], topics: list[Any], forgotten: list[Any], rack: str, cluster_id: str | None
) -> None:
    max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, replica_id, replica_epoch = numbers
    request_class = kio_adapter.request_class(ApiKey.FETCH, version)
    topic_class = kio_element(request_class, "topics")
    partition_class = kio_element(topic_class, "partitions")
    forgotten_class = kio_element(request_class, "forgotten_topics_data") if version >= 7 else None
    extra = {}
    if version >= 15:
        replica_state_class: Any = next(field.type for field in dataclasses.fields(request_class) if field.name == "replica_state")
        extra["replica_state"] = replica_state_class(replica_id=replica_id, replica_epoch=replica_epoch)
    request = kio_message(
        request_class,
        replica_id=replica_id,
        max_wait=datetime.timedelta(milliseconds=max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        rack_id=rack,
        cluster_id=cluster_id,
        topics=tuple(
            kio_message(
                topic_class,
                topic=name,
                topic_id=uuid.UUID(bytes=bytes(topic_id)),
                partitions=tuple(
                    kio_message(
                        partition_class,
                        partition=partition,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=fetch_offset,
                        last_fetched_epoch=last_epoch,
                        log_start_offset=log_start,
                        partition_max_bytes=partition_max_bytes,
                    )
                    for partition, leader_epoch, fetch_offset, last_epoch, log_start, partition_max_bytes in partitions
                ),
            )
            for name, topic_id, partitions in topics
        ),
        forgotten_topics_data=tuple(
            kio_message(forgotten_class, topic=name, topic_id=uuid.UUID(bytes=bytes(topic_id)), partitions=tuple(partitions))
            for name, topic_id, partitions in forgotten
        )
        if version >= 7
        else None,
        **extra,
    )
    encoded = kio_adapter.encode(request)
    arena = memoryview(bytearray(b"\x55" * 3 + encoded + b"\xaa" * 50))

    decoded = decode_fetch(arena, 3, 3 + len(encoded), version)

    def named(name: str, topic_id: TopicId) -> tuple[str, TopicId]:
        return (name, NO_TOPIC_ID) if version < 13 else ("", topic_id)

    expected = [
        FetchPartition(
            *named(name, topic_id),
            partition,
            leader_epoch if version >= 9 else -1,
            fetch_offset,
            last_epoch if version >= 12 else -1,
            log_start if version >= 5 else -1,
            partition_max_bytes,
        )
        for name, topic_id, partitions in topics
        for partition, leader_epoch, fetch_offset, last_epoch, log_start, partition_max_bytes in partitions
    ]
    assert decoded.partitions == expected
    gone = [ForgottenPartition(*named(name, topic_id), partition) for name, topic_id, partitions in forgotten for partition in partitions]
    assert decoded.forgotten == (gone if version >= 7 else [])
    assert (decoded.max_wait_ms, decoded.min_bytes, decoded.max_bytes, decoded.isolation_level) == (max_wait_ms, min_bytes, max_bytes, isolation_level)
    assert (decoded.session_id, decoded.session_epoch) == ((session_id, session_epoch) if version >= 7 else (0, -1))
    assert (decoded.replica_id, decoded.replica_epoch) == (replica_id, replica_epoch if version >= 15 else -1)
    assert decoded.rack == (rack if version >= 11 else "")
    assert decoded.cluster_id == (cluster_id if version >= 12 else None)


FETCH_RESULT = st.builds(
    FetchPartitionResult,
    st.sampled_from(["a", "b"]),
    st.just(NO_TOPIC_ID),
    INT32,
    ERROR_CODE,
    INT64,
    INT64,
    INT64,
    st.none() | st.binary(max_size=300) | st.binary(max_size=300).map(lambda records: memoryview(records)),
    st.none() | st.lists(st.builds(AbortedTransaction, INT64, INT64), max_size=2).map(tuple),
    INT32,
    st.none() | st.builds(EpochEndOffset, INT32, INT64),
    CURRENT_LEADER,
)
TOPIC_IDS = {"a": TopicId(b"a" * 16), "b": TopicId(b"b" * 16)}


@pytest.mark.parametrize("version", versions_of(ApiKey.FETCH, first=4))
@few
@given(results=st.lists(FETCH_RESULT, max_size=5), numbers=st.tuples(ERROR_CODE, INT32, INT32), endpoints=NODE_ENDPOINTS)
def test_a_fetch_response_means_the_same_to_kio(
    version: int, results: list[FetchPartitionResult], numbers: tuple[int, int, int], endpoints: list[NodeEndpoint]
) -> None:
    results = [result._replace(topic_id=TOPIC_IDS[result.topic]) for result in results]
    error_code, session_id, throttle_time_ms = numbers
    frame = b"".join(encode_fetch_response(version, 7, error_code, session_id, results, throttle_time_ms, endpoints))  # type: ignore[arg-type]
    response = kio_adapter.decode_response(ApiKey.FETCH, version, body_of(frame, version, ApiKey.FETCH, 7))

    assert plain_kio(response.throttle_time) == throttle_time_ms
    if version >= 7:
        assert (response.error_code, response.session_id) == (error_code, session_id)
    partitions = [(topic, partition) for topic in response.responses for partition in topic.partitions]
    assert len(partitions) == len(results)
    for (topic, found), result in zip(partitions, results, strict=True):
        assert topic.topic == result.topic if version < 13 else topic.topic_id.bytes == result.topic_id
        error_code = 6 if result.error_code == 56 and version < 6 else result.error_code
        assert (found.partition_index, found.error_code, found.high_watermark) == (result.partition, error_code, result.high_watermark)
        assert found.last_stable_offset == result.last_stable_offset
        assert found.records == bytes(result.records or b"")  # type: ignore[arg-type]
        assert plain_kio(found.aborted_transactions) == (None if result.aborted_transactions is None else tuple(map(tuple, result.aborted_transactions)))
        if version >= 5:
            assert found.log_start_offset == result.log_start_offset
        if version >= 11:
            assert found.preferred_read_replica == result.preferred_read_replica
        if version >= 12:
            assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (result.diverging_epoch or (-1, -1))
            assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (result.current_leader or (-1, -1))
    if version >= 16:
        assert plain_kio(response.node_endpoints) == tuple(tuple(endpoint) for endpoint in endpoints)


# ---- Metadata

BROKER_IDS = st.lists(INT32, max_size=3).map(tuple)
METADATA_TOPIC = st.builds(
    metadata.MetadataTopic,
    NAME,
    st.lists(st.builds(metadata.MetadataPartition, INT32, INT32, INT32, BROKER_IDS, BROKER_IDS, BROKER_IDS, ERROR_CODE), max_size=3).map(tuple),
    TOPIC_ID,
    st.booleans(),
    ERROR_CODE,
    INT32,
)
METADATA_BROKERS = st.lists(st.builds(metadata.MetadataBroker, INT32, TEXT, INT32, st.none() | TEXT), max_size=2)


@pytest.mark.parametrize("version", versions_of(ApiKey.METADATA))
@few
@given(brokers=METADATA_BROKERS, cluster_id=st.none() | TEXT, controller_id=INT32, topics=st.lists(METADATA_TOPIC, max_size=3), throttle_time_ms=INT32)
def test_a_metadata_response_means_the_same_to_kio(
    version: int, brokers: list[Any], cluster_id: str | None, controller_id: int, topics: list[metadata.MetadataTopic], throttle_time_ms: int
) -> None:
    frame = metadata.encode_metadata_response(version, 9, brokers, cluster_id, controller_id, topics, throttle_time_ms)
    body = body_of(frame, version, ApiKey.METADATA, 9)
    response = kio_adapter.decode_response(ApiKey.METADATA, version, body)

    assert kio_adapter.encode(response) == body
    assert plain_kio(response.brokers) == tuple(tuple(broker)[: 4 if version >= 1 else 3] for broker in brokers)
    assert getattr(response, "cluster_id", cluster_id) == cluster_id
    assert getattr(response, "controller_id", controller_id) == controller_id
    assert plain_kio(getattr(response, "throttle_time", throttle_time_ms)) == throttle_time_ms
    assert len(response.topics) == len(topics)
    for found, topic in zip(response.topics, topics, strict=True):
        assert (found.error_code, found.name) == (topic.error_code, topic.name)
        assert getattr(found, "is_internal", topic.is_internal) == topic.is_internal
        assert getattr(found, "topic_authorized_operations", topic.authorized_operations) == topic.authorized_operations
        if version >= 10:
            assert (found.topic_id.bytes if found.topic_id else NO_TOPIC_ID) == topic.topic_id
        assert len(found.partitions) == len(topic.partitions)
        for part, partition in zip(found.partitions, topic.partitions, strict=True):
            assert (part.error_code, part.partition_index, part.leader_id) == (partition.error_code, partition.partition, partition.leader_id)
            assert (part.replica_nodes, part.isr_nodes) == (partition.replicas, partition.isr)
            assert getattr(part, "offline_replicas", partition.offline_replicas) == partition.offline_replicas
            assert getattr(part, "leader_epoch", partition.leader_epoch) == partition.leader_epoch
    kept = [metadata.encode_topic(version, topic) for topic in topics]
    assert metadata.encode_metadata_response(version, 9, brokers, cluster_id, controller_id, kept, throttle_time_ms) == frame
