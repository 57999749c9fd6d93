"""Configs of groups (Kafka's resource GROUP): what they are, and what each group has.

Pure. They are kept in one node of ZooKeeper, because few groups have any, and each box follows them by Kafka's notifications. A group
need not exist. What a group does not set comes from the box's settings. Bounds are the defaults of Kafka's `group.….min.…` and
`….max.…`. Weak: a group's start by duration (`by_duration`) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from appliance.base.config_numbers import parse_integer
from appliance.cluster.topic_configs import SHOWN_MAX
from appliance.cluster.znodes import DocumentUnreadable

GROUP_CONFIGS: Final = "/config/groups"
GROUPS_ENTITY: Final = "groups"
"""As notifications of changes name the node."""
GROUP_CONFIGS_BYTES_MAX: Final = 256 << 10
"""Of all groups: each box has them in its metadata image."""
GROUP_NAME_CHARACTERS_MAX: Final = 1_024
ISOLATION_LEVEL: Final = "share.isolation.level"
READ_COMMITTED: Final = "read_committed"
OFFSET_RESET: Final = "share.auto.offset.reset"


class GroupConfigRow(NamedTuple):
    """One config: bounds of a number, or choices of a text; `setting` gives the value that a group does not set."""

    name: str
    setting: str
    documentation: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    default: str = ""
    """Without a setting."""

    @property
    def type(self) -> str:
        return "string" if self.choices else "int"

    def problem(self, value: str) -> str | None:
        """Return why the config cannot have this value, or None."""
        shown = f"Invalid value {value[:SHOWN_MAX]} for configuration {self.name}: "
        if self.choices:
            return None if value in self.choices else f"{shown}allowed is {' or '.join(self.choices)}."
        number = parse_integer(value)
        return None if number is not None and self.low <= number <= self.high else f"{shown}allowed is {self.low} to {self.high}."


GROUP_CONFIG_ROWS: Final = {
    row.name: row
    for row in (
        GroupConfigRow("consumer.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms", "Heartbeat interval of members (KIP-848).", 5_000, 15_000),
        GroupConfigRow("consumer.session.timeout.ms", "group.consumer.session.timeout.ms", "Session timeout of members (KIP-848).", 45_000, 60_000),
        GroupConfigRow(OFFSET_RESET, "group.share.auto.offset.reset", "Where delivery begins in a new partition.", choices=("latest", "earliest")),
        GroupConfigRow("share.delivery.count.limit", "group.share.delivery.count.limit", "How often a record is delivered at most.", 2, 10),
        GroupConfigRow("share.heartbeat.interval.ms", "group.share.heartbeat.interval.ms", "Heartbeat interval of members of a share group.", 5_000, 15_000),
        GroupConfigRow(
            ISOLATION_LEVEL,
            "",
            "Whether records of open and aborted transactions are delivered.",
            choices=("read_uncommitted", READ_COMMITTED),
            default="read_uncommitted",
        ),
        GroupConfigRow(
            "share.partition.max.record.locks", "group.share.partition.max.record.locks", "How far delivery may be beyond what is done.", 100, 4_000
        ),
        GroupConfigRow("share.record.lock.duration.ms", "group.share.record.lock.duration.ms", "How long a member has a record.", 15_000, 60_000),
        GroupConfigRow("share.session.timeout.ms", "group.share.session.timeout.ms", "Session timeout of members of a share group.", 45_000, 60_000),
        GroupConfigRow(
            "streams.heartbeat.interval.ms", "group.streams.heartbeat.interval.ms", "Heartbeat interval of members of a streams group.", 5_000, 15_000
        ),
        GroupConfigRow(
            "streams.initial.rebalance.delay.ms", "group.streams.initial.rebalance.delay.ms", "How long a new streams group waits for members.", 0, 60_000
        ),
        GroupConfigRow("streams.num.standby.replicas", "group.streams.num.standby.replicas", "Standbys of each task that has state.", 0, 2),
        GroupConfigRow("streams.session.timeout.ms", "group.streams.session.timeout.ms", "Session timeout of members of a streams group.", 45_000, 60_000),
    )
}

GroupConfigs = Mapping[str, Mapping[str, str]]
"""Group → the configs that are set for it."""


def group_config_problem(config: Mapping[str, str], _stored: Mapping[str, str]) -> str | None:
    """Return why a group cannot have these configs, or None."""
    for name, value in sorted(config.items()):
        row = GROUP_CONFIG_ROWS.get(name)
        problem = f"Unknown group config name: {name[:SHOWN_MAX]}" if row is None else row.problem(value)
        if problem is not None:
            return problem
    return None


def group_number(configs: GroupConfigs, group_id: str, name: str, default: int) -> int:
    """Return the group's number, or `default`, also for a value that another program wrote and that is invalid."""
    value = configs.get(group_id, {}).get(name)
    if value is None or GROUP_CONFIG_ROWS[name].problem(value) is not None:
        return default
    return int(value)


def group_text(configs: GroupConfigs, group_id: str, name: str, default: str) -> str:
    """As `group_number`, of a text."""
    value = configs.get(group_id, {}).get(name)
    return default if value is None or GROUP_CONFIG_ROWS[name].problem(value) is not None else value


def encode_group_configs(configs: GroupConfigs) -> bytes:
    """Return the document of the node; groups without configs are left out."""
    return orjson.dumps({"version": 1, "groups": {group_id: dict(config) for group_id, config in sorted(configs.items()) if config}})


def decode_group_configs(data: bytes) -> dict[str, dict[str, str]]:
    """Inverse of `encode_group_configs`; nothing is an empty document. Raises DocumentUnreadable."""
    try:
        document = orjson.loads(data) if data else {"version": 1, "groups": {}}
    except orjson.JSONDecodeError as problem:
        raise DocumentUnreadable(f"znode {GROUP_CONFIGS} does not hold JSON: {problem}") from None
    groups = document.get("groups") if isinstance(document, dict) and document.get("version") == 1 else None
    if not isinstance(groups, dict) or not all(isinstance(config, dict) for config in groups.values()):
        raise DocumentUnreadable(f"znode {GROUP_CONFIGS} holds no configs of groups of version 1")
    return {group_id: {name: str(value) for name, value in config.items()} for group_id, config in groups.items()}
