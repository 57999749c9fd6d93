"""How the coordinators' topics `__consumer_offsets` and `__transaction_state` are created: Kafka's
configs.

Pure; used by the controller, which creates them when a coordinator or a client needs one. Created
while few boxes are alive, they have few replicas, and get more when boxes are added
(`topic_copies`). Weak: `min.insync.replicas` keeps its first value.
"""

from __future__ import annotations

from typing import Final

from appliance.base.settings import Box
from appliance.cluster.placement import TopicCreation

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"


def internal_topic(name: str, box: Box, live_brokers: int) -> TopicCreation | None:
    """Return how to create `name`, or None if it is no internal topic."""
    if name == OFFSETS_TOPIC:
        replicas = min(box.integer("offsets.topic.replication.factor"), live_brokers)
        configs = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(box.integer("offsets.topic.segment.bytes"))}
        return TopicCreation(name, box.integer("offsets.topic.num.partitions"), max(1, replicas), (), tuple(configs.items()))
    if name == TRANSACTIONS_TOPIC:
        replicas = max(1, min(box.integer("transaction.state.log.replication.factor"), live_brokers))
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(box.integer("transaction.state.log.min.isr"), replicas)),
            "segment.bytes": str(box.integer("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        }
        return TopicCreation(name, box.integer("transaction.state.log.num.partitions"), replicas, (), tuple(configs.items()))
    return None
