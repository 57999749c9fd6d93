"""Which Kafka APIs this broker serves, in which versions, and from which version each is flexible (KIP-482).

This table is what ApiVersions advertises, what the header parser accepts and what README.md shows; owned by nobody,
changed by hand when an API is built. The versions are Kafka 3.9's, cut to what is built. Weak spot: a version named here
without a codec behind it is found by tests only (`tests/properties/test_protocol_codecs.py` walks the table).
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
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TOPIC_PARTITIONS = 75


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


SERVED_APIS: Final[dict[int, Api]] = {
    api.key.value: api
    for api in (
        Api(ApiKey.PRODUCE, "Produce", 0, 11, 9, "message sets of magic 0 and 1 before 3"),
        Api(ApiKey.FETCH, "Fetch", 0, 16, 12, "message sets of magic 0 and 1 before 4; topic ids from 13"),
        Api(ApiKey.LIST_OFFSETS, "ListOffsets", 0, 8, 6, "0 lists the first offsets of segments"),
        Api(ApiKey.METADATA, "Metadata", 0, 12, 9, ""),
        Api(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3, "several keys at once from 4"),
        Api(ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3, "the response header is always the old one"),
        Api(ApiKey.CREATE_TOPICS, "CreateTopics", 0, 7, 5, ""),
        Api(ApiKey.DELETE_TOPICS, "DeleteTopics", 0, 6, 4, "by topic id from 6"),
        Api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, 2, "answered when durable"),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 0, 4, 4, ""),
        Api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 0, 4, 4, "topics and this broker"),
        Api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2, "topics only; a broker's configs are read-only"),
        Api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 0, 4, 2, "an offline or hung disk is KAFKA_STORAGE_ERROR"),
        Api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2, ""),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1, "topics only; a broker's configs are read-only"),
        Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 1, 0, ""),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0, "in pages; Kafka serves it without ZooKeeper only"),
    )
}


def api_table() -> str:
    """The table of README.md, which a test holds against this module."""
    rows = ["| key | API | versions | flexible from | note |", "|---|---|---|---|---|"]
    rows += [f"| {api.key.value} | {api.name} | {api.version_min}-{api.version_max} | {api.flexible_since} | {api.note} |" for api in SERVED_APIS.values()]
    return "\n".join(rows) + "\n"
