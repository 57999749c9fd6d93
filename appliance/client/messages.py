"""The APIs that the client calls: their messages, and the versions of them that it speaks.

Most messages are the broker's own schemas (`appliance/protocol`), read and written in the other
direction. The broker packs Produce, Fetch and Metadata by hand, because they are hot there; their
client side is a schema here. Pure. The tests compare every version of every request and response with
kio. Weak spot: a response is decoded as a whole, so a fetch response is in memory twice.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from appliance.base.errors import ProtocolViolation
from appliance.base.model import NO_TOPIC_ID, TopicId
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
    streams_apis,
    topic_apis,
    transaction_apis,
)
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, BYTES, INT8, INT16, INT32, INT64, STRING, UUID, ArrayOf, Field, Message
from appliance.protocol.wire import MALFORMED, NO_TAGGED_FIELDS, malformed, skip_tagged_fields, write_string

Asked = TypeVar("Asked", bound=tuple[Any, ...])
Answered = TypeVar("Answered", bound=tuple[Any, ...])

ELEMENTS_MAX: Final = 10_000_000
"""Array elements in one response: the metadata of a million partitions with three replicas. More is an error, not a client without memory."""


class ClientApi(NamedTuple, Generic[Asked, Answered]):
    """One API and the versions of it that this client speaks."""

    request: Message[Asked]
    response: Message[Answered]
    version_min: int
    version_max: int

    @property
    def key(self) -> int:
        return self.request.api.key.value

    @property
    def name(self) -> str:
        return self.request.api.name

    def is_flexible(self, version: int) -> bool:
        return self.request.api.is_flexible(version)


# ---- Produce


class BatchToProduce(NamedTuple):
    partition: Annotated[int, Field(INT32)]
    records: Annotated[bytes | bytearray, Field(BYTES)]


class TopicToProduce(NamedTuple):
    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[BatchToProduce, ...], Field(ArrayOf(BatchToProduce))]


class ClientProduceRequest(NamedTuple):
    transactional_id: Annotated[str | None, Field(STRING, nullable_since=0)]
    acks: Annotated[int, Field(INT16)]
    timeout_ms: Annotated[int, Field(INT32)]
    topics: Annotated[tuple[TopicToProduce, ...], Field(ArrayOf(TopicToProduce))]


class RejectedRecord(NamedTuple):
    batch_index: Annotated[int, Field(INT32)]
    message: Annotated[str | None, Field(STRING, nullable_since=0)]


class PartitionOfProduce(NamedTuple):
    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)]
    base_offset: Annotated[int, Field(INT64)]
    log_append_time_ms: Annotated[int, Field(INT64)] = -1
    log_start_offset: Annotated[int, Field(INT64, since=5)] = -1
    record_errors: Annotated[tuple[RejectedRecord, ...], Field(ArrayOf(RejectedRecord), since=8)] = ()
    error_message: Annotated[str | None, Field(STRING, since=8, nullable_since=8)] = None


class TopicOfProduce(NamedTuple):
    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[PartitionOfProduce, ...], Field(ArrayOf(PartitionOfProduce))]


class ClientProduceResponse(NamedTuple):
    topics: Annotated[tuple[TopicOfProduce, ...], Field(ArrayOf(TopicOfProduce))]
    throttle_time_ms: Annotated[int, Field(INT32)] = 0


# ---- Fetch


class PartitionToFetch(NamedTuple):
    partition: Annotated[int, Field(INT32)]
    current_leader_epoch: Annotated[int, Field(INT32, since=9)] = -1
    fetch_offset: Annotated[int, Field(INT64)] = 0
    last_fetched_epoch: Annotated[int, Field(INT32, since=12)] = -1
    log_start_offset: Annotated[int, Field(INT64, since=5)] = -1
    max_bytes: Annotated[int, Field(INT32)] = 1 << 20


class TopicToFetch(NamedTuple):
    """A topic by its name, from version 13 on by its id."""

    topic: Annotated[str, Field(STRING, until=12)] = ""
    topic_id: Annotated[TopicId, Field(UUID, since=13)] = NO_TOPIC_ID
    partitions: Annotated[tuple[PartitionToFetch, ...], Field(ArrayOf(PartitionToFetch))] = ()


class TopicToForget(NamedTuple):
    topic: Annotated[str, Field(STRING, until=12)] = ""
    topic_id: Annotated[TopicId, Field(UUID, since=13)] = NO_TOPIC_ID
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()


class ClientFetchRequest(NamedTuple):
    replica_id: Annotated[int, Field(INT32)] = -1
    max_wait_ms: Annotated[int, Field(INT32)] = 500
    min_bytes: Annotated[int, Field(INT32)] = 1
    max_bytes: Annotated[int, Field(INT32)] = 1 << 20
    isolation_level: Annotated[int, Field(INT8)] = 0
    session_id: Annotated[int, Field(INT32, since=7)] = 0
    session_epoch: Annotated[int, Field(INT32, since=7)] = -1
    topics: Annotated[tuple[TopicToFetch, ...], Field(ArrayOf(TopicToFetch))] = ()
    forgotten: Annotated[tuple[TopicToForget, ...], Field(ArrayOf(TopicToForget), since=7)] = ()
    rack_id: Annotated[str, Field(STRING, since=11)] = ""


class AbortedProducer(NamedTuple):
    producer_id: Annotated[int, Field(INT64)]
    first_offset: Annotated[int, Field(INT64)]


class PartitionOfFetch(NamedTuple):
    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)]
    high_watermark: Annotated[int, Field(INT64)]
    last_stable_offset: Annotated[int, Field(INT64)] = -1
    log_start_offset: Annotated[int, Field(INT64, since=5)] = -1
    aborted_transactions: Annotated[tuple[AbortedProducer, ...] | None, Field(ArrayOf(AbortedProducer), nullable_since=0)] = None
    preferred_read_replica: Annotated[int, Field(INT32, since=11)] = -1
    records: Annotated[bytes | None, Field(BYTES, nullable_since=0)] = None


class TopicOfFetch(NamedTuple):
    topic: Annotated[str, Field(STRING, until=12)] = ""
    topic_id: Annotated[TopicId, Field(UUID, since=13)] = NO_TOPIC_ID
    partitions: Annotated[tuple[PartitionOfFetch, ...], Field(ArrayOf(PartitionOfFetch))] = ()


class ClientFetchResponse(NamedTuple):
    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16, since=7)] = 0
    session_id: Annotated[int, Field(INT32, since=7)] = 0
    topics: Annotated[tuple[TopicOfFetch, ...], Field(ArrayOf(TopicOfFetch))] = ()


# ---- Metadata


class BrokerOfMetadata(NamedTuple):
    node_id: Annotated[int, Field(INT32)]
    host: Annotated[str, Field(STRING)]
    port: Annotated[int, Field(INT32)]
    rack: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class PartitionOfMetadata(NamedTuple):
    error_code: Annotated[int, Field(INT16)]
    partition: Annotated[int, Field(INT32)]
    leader_id: Annotated[int, Field(INT32)]
    leader_epoch: Annotated[int, Field(INT32, since=7)] = -1
    replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()
    isr: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()
    offline_replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32), since=5)] = ()


class TopicOfMetadata(NamedTuple):
    error_code: Annotated[int, Field(INT16)]
    name: Annotated[str | None, Field(STRING, nullable_since=12)]
    topic_id: Annotated[TopicId, Field(UUID, since=10)] = NO_TOPIC_ID
    is_internal: Annotated[bool, Field(BOOL)] = False
    partitions: Annotated[tuple[PartitionOfMetadata, ...], Field(ArrayOf(PartitionOfMetadata))] = ()
    authorized_operations: Annotated[int, Field(INT32, since=8)] = metadata.OPERATIONS_NOT_ASKED


class ClientMetadataResponse(NamedTuple):
    throttle_time_ms: Annotated[int, Field(INT32, since=3)] = 0
    brokers: Annotated[tuple[BrokerOfMetadata, ...], Field(ArrayOf(BrokerOfMetadata))] = ()
    cluster_id: Annotated[str | None, Field(STRING, since=2, nullable_since=2)] = None
    controller_id: Annotated[int, Field(INT32)] = -1
    topics: Annotated[tuple[TopicOfMetadata, ...], Field(ArrayOf(TopicOfMetadata))] = ()
    authorized_operations: Annotated[int, Field(INT32, since=8, until=10)] = metadata.OPERATIONS_NOT_ASKED


# ---- the APIs

PRODUCE = ClientApi(Message(ApiKey.PRODUCE, "Produce request", ClientProduceRequest), Message(ApiKey.PRODUCE, "Produce response", ClientProduceResponse), 3, 9)
FETCH = ClientApi(Message(ApiKey.FETCH, "Fetch request", ClientFetchRequest), Message(ApiKey.FETCH, "Fetch response", ClientFetchResponse), 4, 12)
FETCH_BY_ID = FETCH._replace(version_min=13, version_max=13)
"""Topics have ids instead of names, so a topic that was created anew is never taken for the former one (KIP-516)."""
LIST_OFFSETS = ClientApi(offset_apis.LIST_OFFSETS_REQUEST, offset_apis.LIST_OFFSETS_RESPONSE, 1, 7)
METADATA = ClientApi(metadata.REQUEST, Message(ApiKey.METADATA, "Metadata response", ClientMetadataResponse), 1, 12)
OFFSET_COMMIT = ClientApi(group_offset_apis.OFFSET_COMMIT_REQUEST, group_offset_apis.OFFSET_COMMIT_RESPONSE, 2, 8)
OFFSET_FETCH = ClientApi(group_offset_apis.OFFSET_FETCH_REQUEST, group_offset_apis.OFFSET_FETCH_RESPONSE, 8, 8)
FIND_COORDINATOR = ClientApi(cluster_apis.FIND_COORDINATOR_REQUEST, cluster_apis.FIND_COORDINATOR_RESPONSE, 4, 4)
DESCRIBE_GROUPS = ClientApi(group_apis.DESCRIBE_GROUPS_REQUEST, group_apis.DESCRIBE_GROUPS_RESPONSE, 1, 5)
LIST_GROUPS = ClientApi(group_apis.LIST_GROUPS_REQUEST, group_apis.LIST_GROUPS_RESPONSE, 0, 5)
API_VERSIONS = ClientApi(api_versions.REQUEST, api_versions.RESPONSE, 0, 3)
CREATE_TOPICS = ClientApi(topic_apis.CREATE_TOPICS_REQUEST, topic_apis.CREATE_TOPICS_RESPONSE, 4, 7)
"""From version 4 on -1 means the broker's default number of partitions and of replicas."""
DELETE_TOPICS = ClientApi(topic_apis.DELETE_TOPICS_REQUEST, topic_apis.DELETE_TOPICS_RESPONSE, 1, 5)
DELETE_RECORDS = ClientApi(offset_apis.DELETE_RECORDS_REQUEST, offset_apis.DELETE_RECORDS_RESPONSE, 0, 2)
INIT_PRODUCER_ID = ClientApi(transaction_apis.INIT_PRODUCER_ID_REQUEST, transaction_apis.INIT_PRODUCER_ID_RESPONSE, 2, 4)
ADD_PARTITIONS_TO_TXN = ClientApi(transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST, transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, 0, 3)
"""Versions from 4 on are for brokers."""
ADD_OFFSETS_TO_TXN = ClientApi(transaction_apis.ADD_OFFSETS_TO_TXN_REQUEST, transaction_apis.ADD_OFFSETS_TO_TXN_RESPONSE, 0, 3)
END_TXN = ClientApi(transaction_apis.END_TXN_REQUEST, transaction_apis.END_TXN_RESPONSE, 0, 3)
"""From version 5 on every end raises the producer's epoch (KIP-890)."""
WRITE_TXN_MARKERS = ClientApi(transaction_apis.WRITE_TXN_MARKERS_REQUEST, transaction_apis.WRITE_TXN_MARKERS_RESPONSE, 1, 1)
TXN_OFFSET_COMMIT = ClientApi(transaction_apis.TXN_OFFSET_COMMIT_REQUEST, transaction_apis.TXN_OFFSET_COMMIT_RESPONSE, 0, 3)
DESCRIBE_CONFIGS = ClientApi(config_apis.DESCRIBE_CONFIGS_REQUEST, config_apis.DESCRIBE_CONFIGS_RESPONSE, 1, 4)
DESCRIBE_LOG_DIRS = ClientApi(log_dir_apis.DESCRIBE_LOG_DIRS_REQUEST, log_dir_apis.DESCRIBE_LOG_DIRS_RESPONSE, 1, 4)
CREATE_PARTITIONS = ClientApi(topic_apis.CREATE_PARTITIONS_REQUEST, topic_apis.CREATE_PARTITIONS_RESPONSE, 0, 3)
DELETE_GROUPS = ClientApi(group_apis.DELETE_GROUPS_REQUEST, group_apis.DELETE_GROUPS_RESPONSE, 0, 2)
ELECT_LEADERS = ClientApi(reassignment_apis.ELECT_LEADERS_REQUEST, reassignment_apis.ELECT_LEADERS_RESPONSE, 1, 2)
INCREMENTAL_ALTER_CONFIGS = ClientApi(config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST, config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE, 0, 1)
ALTER_PARTITION_REASSIGNMENTS = ClientApi(
    reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST, reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_RESPONSE, 0, 0
)
LIST_PARTITION_REASSIGNMENTS = ClientApi(reassignment_apis.LIST_PARTITION_REASSIGNMENTS_REQUEST, reassignment_apis.LIST_PARTITION_REASSIGNMENTS_RESPONSE, 0, 0)
DESCRIBE_CLUSTER = ClientApi(cluster_apis.DESCRIBE_CLUSTER_REQUEST, cluster_apis.DESCRIBE_CLUSTER_RESPONSE, 0, 1)
DESCRIBE_PRODUCERS = ClientApi(transaction_apis.DESCRIBE_PRODUCERS_REQUEST, transaction_apis.DESCRIBE_PRODUCERS_RESPONSE, 0, 0)
UNREGISTER_BROKER = ClientApi(cluster_apis.UNREGISTER_BROKER_REQUEST, cluster_apis.UNREGISTER_BROKER_RESPONSE, 0, 0)
DESCRIBE_ACLS = ClientApi(acl_apis.DESCRIBE_ACLS_REQUEST, acl_apis.DESCRIBE_ACLS_RESPONSE, 1, 3)
CREATE_ACLS = ClientApi(acl_apis.CREATE_ACLS_REQUEST, acl_apis.CREATE_ACLS_RESPONSE, 1, 3)
DELETE_ACLS = ClientApi(acl_apis.DELETE_ACLS_REQUEST, acl_apis.DELETE_ACLS_RESPONSE, 1, 3)
DESCRIBE_CLIENT_QUOTAS = ClientApi(quota_apis.DESCRIBE_CLIENT_QUOTAS_REQUEST, quota_apis.DESCRIBE_CLIENT_QUOTAS_RESPONSE, 0, 1)
ALTER_CLIENT_QUOTAS = ClientApi(quota_apis.ALTER_CLIENT_QUOTAS_REQUEST, quota_apis.ALTER_CLIENT_QUOTAS_RESPONSE, 0, 1)
SASL_HANDSHAKE = ClientApi(sasl_apis.SASL_HANDSHAKE_REQUEST, sasl_apis.SASL_HANDSHAKE_RESPONSE, 1, 1)
SASL_AUTHENTICATE = ClientApi(sasl_apis.SASL_AUTHENTICATE_REQUEST, sasl_apis.SASL_AUTHENTICATE_RESPONSE, 0, 2)
DESCRIBE_USER_SCRAM_CREDENTIALS = ClientApi(sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE, 0, 0)
ALTER_USER_SCRAM_CREDENTIALS = ClientApi(sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE, 0, 0)
DESCRIBE_TRANSACTIONS = ClientApi(transaction_apis.DESCRIBE_TRANSACTIONS_REQUEST, transaction_apis.DESCRIBE_TRANSACTIONS_RESPONSE, 0, 0)
LIST_TRANSACTIONS = ClientApi(transaction_apis.LIST_TRANSACTIONS_REQUEST, transaction_apis.LIST_TRANSACTIONS_RESPONSE, 0, 1)
STREAMS_GROUP_DESCRIBE = ClientApi(streams_apis.STREAMS_GROUP_DESCRIBE_REQUEST, streams_apis.STREAMS_GROUP_DESCRIBE_RESPONSE, 0, 0)
SHARE_GROUP_DESCRIBE = ClientApi(share_apis.SHARE_GROUP_DESCRIBE_REQUEST, share_apis.SHARE_GROUP_DESCRIBE_RESPONSE, 1, 1)
DESCRIBE_SHARE_GROUP_OFFSETS = ClientApi(share_apis.DESCRIBE_SHARE_GROUP_OFFSETS_REQUEST, share_apis.DESCRIBE_SHARE_GROUP_OFFSETS_RESPONSE, 1, 1)
CONSUMER_GROUP_DESCRIBE = ClientApi(consumer_group_apis.CONSUMER_GROUP_DESCRIBE_REQUEST, consumer_group_apis.CONSUMER_GROUP_DESCRIBE_RESPONSE, 0, 0)

CORRELATION_ID = Struct(">i")
_REQUEST_HEAD = Struct(">ihhi")
"""size, API key, version, correlation id"""


def encode_request(api: ClientApi[Asked, Any], version: int, correlation_id: int, client_id: str, body: Asked) -> bytes:
    """Return the whole frame: size, header, body."""
    client = write_string(client_id) + (NO_TAGGED_FIELDS if api.is_flexible(version) else b"")
    encoded = api.request.encode(version, body)
    size_bytes = _REQUEST_HEAD.size - CORRELATION_ID.size + len(client) + len(encoded)
    return b"".join((_REQUEST_HEAD.pack(size_bytes, api.key, version, correlation_id), client, encoded))


def decode_response(api: ClientApi[Any, Answered], version: int, frame: bytes) -> Answered:
    """Return the body of a response `frame` (without its size). Raises ProtocolViolation."""
    position = CORRELATION_ID.size
    # ApiVersions has the old response header in every version, so that a client that asked in a version too new can read the error.
    if api.is_flexible(version) and api.key != ApiKey.API_VERSIONS:
        try:
            position = skip_tagged_fields(frame, position, len(frame))
        except MALFORMED as error:
            raise malformed("response header", version, error) from error
    if position > len(frame):
        raise ProtocolViolation("client_response", "a response header ends inside its tagged fields")
    return api.response.decode(frame, position, len(frame), version, len(frame), ELEMENTS_MAX)
