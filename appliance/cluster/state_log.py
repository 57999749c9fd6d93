"""The state topics of the coordinators, `__consumer_offsets`, `__transaction_state` and
`__share_group_state`: the log that keeps their state, and how they are created.

`StateLog` is the port between the rules of groups and transactions and the coordinator process,
which owns it. A state topic is a compacted topic; a group or a transactional id belongs to one of
its partitions by Kafka's hash. A coordinator's memory follows the log: a refused append changes
nothing in memory. The controller creates the topics when a coordinator or a client needs one.
Created while few boxes are alive, they have few replicas, and get more when boxes are added
(`topic_copies`).

Weak: one batch per append; a caller with many small records collects them first.
`min.insync.replicas` keeps its first value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import AUDIT_TOPIC, ProducerId
from appliance.base.settings import Box
from appliance.cluster.placement import TopicCreation
from appliance.cluster.topic_configs import segment_bytes_config

OnAppended = Callable[[ErrorCode], None]
"""NONE if every in-sync replica has the records, else the error. Called once, never from within
`append`.
"""


class StateRecord(NamedTuple):
    """One record of a state topic; a tombstone if it has no value."""

    key: bytes
    value: bytes | None


class ProducerIdentity(NamedTuple):
    """The producer of a transaction's batch."""

    producer_id: ProducerId
    producer_epoch: int


class LoadedRecord(NamedTuple):
    """One record as a load reads it.

    `is_commit` is None for records; a transaction's marker has its decision there, and no key and
    value.
    """

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    producer: ProducerIdentity | None = None
    """Set for records and markers of transactions."""
    is_commit: bool | None = None


class StateLog(Protocol):
    """Appends to the partitions of one state topic that this box leads."""

    def append(
        self, partition: int, records: Sequence[StateRecord], on_appended: OnAppended, *, producer: ProducerIdentity | None = None, timeout_ms: int = 5_000
    ) -> None:
        """Append one batch, in the order of calls; with `producer` it belongs to that producer's
        transaction.

        REQUEST_TIMED_OUT after `timeout_ms`: then it is unknown whether the log has the batch.
        """


def partition_of(name: str, partitions: int) -> int:
    """Return the partition of a group or a transactional id: Java's `String.hashCode`, made
    positive as Kafka's `Utils.abs` does, modulo the partitions.
    """
    value = 0
    for unit in _utf16_units(name):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _utf16_units(name: str) -> Sequence[int]:
    encoded = name.encode("utf-16-be", "surrogatepass")
    return [encoded[at] << 8 | encoded[at + 1] for at in range(0, len(encoded), 2)]


OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_TOPIC: Final = "__share_group_state"
AUDIT_PARTITIONS: Final = 8
"""Each box writes to one that it leads."""
AUDIT_REPLICAS: Final = 3
AUDIT_CONFIGS: Final = {"cleanup.policy": "delete", "retention.ms": str(90 * 24 * 3600 * 1000), "retention.bytes": str(256 << 20), "min.insync.replicas": "1"}
"""`retention.bytes` is for each partition."""


def internal_topic(name: str, box: Box, live_brokers: int) -> TopicCreation | None:
    """Return how to create `name`, or None if it is no internal topic."""
    if name == OFFSETS_TOPIC:
        replicas = min(box.integer("offsets.topic.replication.factor"), live_brokers)
        offsets_segments = segment_bytes_config(box.integer("offsets.topic.segment.bytes"))
        offsets_configs = (("cleanup.policy", "compact"), ("compression.type", "producer"), offsets_segments)
        return TopicCreation(name, box.integer("offsets.topic.num.partitions"), max(1, replicas), (), offsets_configs)
    if name == TRANSACTIONS_TOPIC:
        replicas = max(1, min(box.integer("transaction.state.log.replication.factor"), live_brokers))
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(box.integer("transaction.state.log.min.isr"), replicas)),
            "unclean.leader.election.enable": "false",
        }
        name_of_size, size_bytes = segment_bytes_config(box.integer("transaction.state.log.segment.bytes"))
        configs[name_of_size] = size_bytes
        return TopicCreation(name, box.integer("transaction.state.log.num.partitions"), replicas, (), tuple(configs.items()))
    if name == SHARE_TOPIC:
        share_segments = segment_bytes_config(box.integer("share.coordinator.state.topic.segment.bytes"))
        replicas = max(1, min(box.integer("share.coordinator.state.topic.replication.factor"), live_brokers))
        share_isr = str(min(box.integer("share.coordinator.state.topic.min.isr"), replicas))
        share_configs = (("cleanup.policy", "compact"), ("compression.type", "producer"), ("min.insync.replicas", share_isr), share_segments)
        return TopicCreation(name, box.integer("share.coordinator.state.topic.num.partitions"), replicas, (), share_configs)
    if name == AUDIT_TOPIC:
        replicas = max(1, min(AUDIT_REPLICAS, live_brokers))
        return TopicCreation(name, AUDIT_PARTITIONS, replicas, (), tuple(AUDIT_CONFIGS.items()))
    return None
