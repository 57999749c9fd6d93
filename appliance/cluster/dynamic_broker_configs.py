"""The broker configs that can be set while a broker runs (KIP-226): names, meanings, valid values.
Pure.

As in Kafka they are kept in `/config/brokers/N`, and for all brokers in
`/config/brokers/<default>`; a broker's own value has priority. Of Kafka's, only the throttles of
replication and of moves between disks exist here. One is ours: the brokers that get no new
replicas. All other configs are read at the start. Weak: a list is set as a whole, so of two
concurrent changes one may be overwritten. A copy that is under way keeps its throttle.
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
    """Return why a broker cannot have these configs, or None."""
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
    """Return bytes per second, or None for no limit. A value that is no number, from another tool,
    is no limit.
    """
    value = config.get(name, "").strip()
    return int(value) if value.isdigit() and int(value) < NO_LIMIT else None


def closed_brokers(for_all: Mapping[str, str]) -> frozenset[int]:
    """Return the brokers that get no new replicas, from the configs for all brokers."""
    return frozenset(int(part) for part in for_all.get(CLOSED, "").split(",") if part.strip().isdigit())
