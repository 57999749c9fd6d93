"""Configs of a broker that can be set while it runs (KIP-226): names, what they mean, what they may be.

Kept in `/config/brokers/N`, and for all brokers in `/config/brokers/<default>`, as Kafka keeps them; one's own go before those for all. Pure.
Of Kafka's many only the throttles of replication and of moves between disks; one is our own: which brokers get no new replicas. Everything else is read at the
start. Weak spots: a list is set as a whole, so of two who change it at the same moment one may have to look again; a copy that is under way keeps its throttle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.cluster.broker_configs import BrokerConfig

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
MOVE_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
CLOSED: Final = "replica.closed.brokers"
NO_LIMIT: Final = 2**63 - 1

_MEANINGS: Final = {
    LEADER_RATE: "Bytes per second that this broker sends to followers of throttled replicas that are not in sync; set while it runs only.",
    FOLLOWER_RATE: "Bytes per second that this broker fetches for throttled replicas that are not in sync; set while it runs only.",
    MOVE_RATE: "Bytes per second that are copied to each disk to which partitions are moved; while it runs it can be made less than the settings say.",
}
_CLOSED_MEANING: Final = (
    "Ids of brokers that get no replicas unless they are named, because they are being emptied; set for all brokers, while they run only (millrace box drain)."
)
DYNAMIC_BROKER_CONFIGS: Final = {
    **{name: BrokerConfig(name, "long", str(NO_LIMIT), str(NO_LIMIT), meaning) for name, meaning in _MEANINGS.items()},
    CLOSED: BrokerConfig(CLOSED, "list", "", "", _CLOSED_MEANING),
}


def dynamic_config_problem(config: Mapping[str, str]) -> str | None:
    """Why a broker cannot have these, or None."""
    for name, value in sorted(config.items()):
        if name not in DYNAMIC_BROKER_CONFIGS:
            return f"Cannot update these configs dynamically: {name}."
        if name == CLOSED:
            if not all(part.strip().isdigit() for part in value.split(",") if part.strip()):
                return f"Invalid value {value} for configuration {name}: must be a list of broker ids."
            continue
        if not value.strip().isdigit() or int(value) > NO_LIMIT:
            return f"Invalid value {value} for configuration {name}: must be a whole number of bytes per second, at least 0."
    return None


def replication_rate(config: Mapping[str, str], name: str) -> int | None:
    """Bytes per second, or None: no limit. What other tools wrote and is no number is none."""
    value = config.get(name, "").strip()
    return int(value) if value.isdigit() and int(value) < NO_LIMIT else None


def closed_brokers(for_all: Mapping[str, str]) -> frozenset[int]:
    """Which brokers get no new replicas, by what is set for all brokers."""
    return frozenset(int(part) for part in for_all.get(CLOSED, "").split(",") if part.strip().isdigit())
