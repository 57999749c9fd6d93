"""Kafka's APIs: which of them have a codec here and which are served, and in which versions.

`SERVED_APIS` is what ApiVersions advertises, what the header parser accepts and what README.md shows.
`CODED_APIS` also has the APIs with a codec but without a handler (`NOT_YET_SERVED`: remove the key when you
add the handler). Each row says from which version the API is flexible (KIP-482). Weak spot: only tests notice
a version without a codec (`tests/properties/test_protocol_codecs.py` walks the table).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class ApiKey(IntEnum):
    """The API keys this project has something to say about."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Api(NamedTuple):
    """One API: versions are inclusive."""

    key: ApiKey
    name: str
    version_min: int
    version_max: int
    flexible_since: int
    note: str

    def serves(self, version: int) -> bool:
        return self.version_min <= version <= self.version_max

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_since


NEVER_FLEXIBLE: Final = 1_000
"""Larger than each version."""

CODED_APIS: Final[dict[int, Api]] = {
    api.key.value: api
    for api in (
        Api(ApiKey.PRODUCE, "Produce", 0, 12, 9, "message sets of magic 0 and 1 before 3; 12 adds partitions to transactions"),
        Api(ApiKey.FETCH, "Fetch", 0, 17, 12, "message sets of magic 0 and 1 before 4; topic ids from 13"),
        Api(ApiKey.LIST_OFFSETS, "ListOffsets", 0, 9, 6, "0 lists the first offsets of segments"),
        Api(ApiKey.METADATA, "Metadata", 0, 12, 9, ""),
        Api(ApiKey.OFFSET_COMMIT, "OffsetCommit", 0, 9, 8, "commit times of 1 and retention of 2 to 4 are read"),
        Api(ApiKey.OFFSET_FETCH, "OffsetFetch", 0, 9, 6, "several groups at once from 8"),
        Api(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3, "several keys at once from 4"),
        Api(ApiKey.JOIN_GROUP, "JoinGroup", 0, 9, 6, ""),
        Api(ApiKey.HEARTBEAT, "Heartbeat", 0, 4, 4, ""),
        Api(ApiKey.LEAVE_GROUP, "LeaveGroup", 0, 5, 4, "several members at once from 3"),
        Api(ApiKey.SYNC_GROUP, "SyncGroup", 0, 5, 4, ""),
        Api(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5, ""),
        Api(ApiKey.LIST_GROUPS, "ListGroups", 0, 5, 3, ""),
        Api(ApiKey.SASL_HANDSHAKE, "SaslHandshake", 0, 1, NEVER_FLEXIBLE, "after 0 the tokens are frames without headers"),
        Api(ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3, "the response header is always the old one"),
        Api(ApiKey.CREATE_TOPICS, "CreateTopics", 0, 7, 5, ""),
        Api(ApiKey.DELETE_TOPICS, "DeleteTopics", 0, 6, 4, "by topic id from 6"),
        Api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, 2, "answered when durable, and followers that live have followed"),
        Api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2, ""),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 0, 4, 4, ""),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3, "several transactions at once from 4, for brokers"),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, 3, ""),
        Api(ApiKey.END_TXN, "EndTxn", 0, 5, 3, "0-4: the abort of what was never begun is answered NONE (Kafka: INVALID_TXN_STATE)"),
        Api(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", 0, 2, 1, "the version of the transaction from 2 (KIP-1228)"),
        Api(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, 3, ""),
        Api(ApiKey.DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2, "SECURITY_DISABLED without authorizer.class.name"),
        Api(ApiKey.CREATE_ACLS, "CreateAcls", 1, 3, 2, "as DescribeAcls; resources that ZooKeeper can name"),
        Api(ApiKey.DELETE_ACLS, "DeleteAcls", 1, 3, 2, "as DescribeAcls"),
        Api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 0, 4, 4, "topics, this broker, groups"),
        Api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2, "topics, groups; of a broker what can be altered while it runs"),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 0, 2, 2, "answered when the order is durable"),
        Api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 0, 4, 2, "an offline or hung disk is KAFKA_STORAGE_ERROR"),
        Api(ApiKey.SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2, "SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN"),
        Api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2, ""),
        Api(ApiKey.CREATE_DELEGATION_TOKEN, "CreateDelegationToken", 1, 3, 2, "DELEGATION_TOKEN_AUTH_DISABLED without delegation.token.secret.key.file"),
        Api(ApiKey.RENEW_DELEGATION_TOKEN, "RenewDelegationToken", 1, 2, 2, "as CreateDelegationToken"),
        Api(ApiKey.EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken", 1, 2, 2, "as CreateDelegationToken"),
        Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken", 1, 3, 2, "as CreateDelegationToken"),
        Api(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, 2, ""),
        Api(ApiKey.ELECT_LEADERS, "ElectLeaders", 0, 2, 2, "preferred, and unclean by order"),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1, "topics, groups; of a broker what can be altered while it runs"),
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 0, 0, "answered when the order stands"),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0, ""),
        Api(ApiKey.OFFSET_DELETE, "OffsetDelete", 0, 0, NEVER_FLEXIBLE, ""),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1, "of users, client ids, addresses"),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1, 1, "as DescribeClientQuotas"),
        Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0, 0, ""),
        Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", 0, 0, 0, ""),
        Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 1, 0, ""),
        Api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0, ""),
        Api(ApiKey.UNREGISTER_BROKER, "UnregisterBroker", 0, 0, 0, "a box that is stopped and in sync nowhere; Kafka serves it without ZooKeeper only"),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0, ""),
        Api(ApiKey.LIST_TRANSACTIONS, "ListTransactions", 0, 1, 0, ""),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0, ""),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0, ""),
        Api(
            ApiKey.LIST_CONFIG_RESOURCES,
            "ListConfigResources",
            0,
            1,
            0,
            "topics, brokers, and groups with configs; 0 lists client metrics, of which there are none",
        ),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0, "in pages; Kafka serves it without ZooKeeper only"),
        Api(ApiKey.SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat", 1, 1, 0, ""),
        Api(ApiKey.SHARE_GROUP_DESCRIBE, "ShareGroupDescribe", 1, 1, 0, ""),
        Api(ApiKey.SHARE_FETCH, "ShareFetch", 1, 2, 0, ""),
        Api(ApiKey.SHARE_ACKNOWLEDGE, "ShareAcknowledge", 1, 2, 0, ""),
        Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, "InitializeShareGroupState", 0, 0, 0, "for brokers, as the next four"),
        Api(ApiKey.READ_SHARE_GROUP_STATE, "ReadShareGroupState", 0, 0, 0, ""),
        Api(ApiKey.WRITE_SHARE_GROUP_STATE, "WriteShareGroupState", 0, 1, 0, "all that a leader knows, joined with what is known"),
        Api(ApiKey.DELETE_SHARE_GROUP_STATE, "DeleteShareGroupState", 0, 0, 0, ""),
        Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "ReadShareGroupStateSummary", 0, 1, 0, ""),
        Api(ApiKey.STREAMS_GROUP_HEARTBEAT, "StreamsGroupHeartbeat", 0, 0, 0, "KIP-1071; no member warms up, as in Kafka 4.2"),
        Api(ApiKey.STREAMS_GROUP_DESCRIBE, "StreamsGroupDescribe", 0, 0, 0, ""),
        Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsets", 0, 1, 0, ""),
        Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsets", 0, 0, 0, ""),
        Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "DeleteShareGroupOffsets", 0, 0, 0, ""),
    )
}
"""Every API that this package can read and write."""

SHARE_STATE_KEYS: Final = frozenset(
    {
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""Requests to share coordinators, which only brokers send (KIP-932)."""

NOT_YET_SERVED: Final[frozenset[ApiKey]] = frozenset()
"""APIs with a codec and without a handler."""

SERVED_APIS: Final[dict[int, Api]] = {key: api for key, api in CODED_APIS.items() if key not in NOT_YET_SERVED}
"""The APIs that ApiVersions advertises."""


def api_table() -> str:
    """The table of README.md, which a test holds against this module."""
    rows = ["| key | API | versions | flexible from | note |", "|---|---|---|---|---|"]
    for api in CODED_APIS.values():
        flexible = "never" if api.flexible_since == NEVER_FLEXIBLE else str(api.flexible_since)
        note = api.note if api.key in SERVED_APIS else f"coded, not served; {api.note}".rstrip("; ")
        rows.append(f"| {api.key.value} | {api.name} | {api.version_min}-{api.version_max} | {flexible} | {note} |")
    return "\n".join(rows) + "\n"
