"""A broker's configs as DescribeConfigs shows them, and those that can be set while it runs. Pure.

*Static* configs are the box's settings, its options, and constants. They are built once, because a
box reads its settings at its start, and are read-only. Kafka's configs of features that do not
exist here are left out; of the others, only what is true of this box is shown.

*Dynamic* configs (KIP-226) are kept as in Kafka in `/config/brokers/N`, and for all brokers in
`/config/brokers/<default>`; a broker's own value has priority. Of Kafka's, the throttles of
replication and of moves between disks, number and rate of connections, and the settings that
topics fall back to can be set. Two are ours: the brokers that get no new replicas, and the protected age
of segments.

Weak: a setting whose line in the settings file equals the default is shown as a default. A dynamic
list is set as a whole, so of two concurrent changes one may be overwritten. A copy that is under
way keeps its throttle.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.base.config_numbers import parse_integer
from appliance.base.setting_row import INT32_MAX, SettingRow, SettingValue
from appliance.base.setting_rows import SETTING_ROWS
from appliance.base.settings import Box, default_settings, relation_problems, setting_problem
from appliance.cluster.topic_configs import SEGMENT_BYTES_MIN, SHOWN_MAX, TOPIC_CONFIG_ROWS


class BrokerConfig(NamedTuple):
    """One config of this broker.

    `default` None: it has none. Those of type password are sensitive.
    """

    name: str
    type: str
    value: str | None
    default: str | None
    documentation: str

    @property
    def is_default(self) -> bool:
        return self.value == self.default


ALWAYS: Final = (
    BrokerConfig("alter.config.policy.class.name", "class", None, None, "A class that may refuse changes of configs; there is none."),
    BrokerConfig("broker.id.generation.enable", "boolean", "false", "false", "Whether ZooKeeper gives out broker ids; it does not."),
    BrokerConfig("client.quota.callback.class", "class", None, None, "A class that sets quotas; there is none."),
    BrokerConfig("compression.type", "string", "producer", "producer", "The codec in which batches are stored: the one in which they were sent."),
    BrokerConfig("control.plane.listener.name", "string", None, None, "A listener of its own for the controller; there is none."),
    BrokerConfig("create.topic.policy.class.name", "class", None, None, "A class that may refuse topics; there is none."),
    BrokerConfig("delegation.token.secret.key", "password", None, None, "The secret of delegation tokens; there are none."),
    BrokerConfig("inter.broker.protocol.version", "string", "3.9-IV0", "3.9-IV0", "The version of Kafka whose metadata ZooKeeper holds."),
    BrokerConfig("log.preallocate", "boolean", "false", "false", "Whether segment files are made at their full size."),
    BrokerConfig("max.connections.per.ip.overrides", "string", "", "", "Other limits for some addresses; there are none."),
    BrokerConfig("metric.reporters", "list", "", "", "Classes that report metrics; counters are in shared memory instead."),
    BrokerConfig("num.recovery.threads.per.data.dir", "int", "1", "1", "Threads that recover the logs of one directory; one process does."),
    BrokerConfig("sasl.jaas.config", "password", None, None, "Credentials for SASL; there is none."),
    BrokerConfig("security.inter.broker.protocol", "string", "PLAINTEXT", "PLAINTEXT", "The protocol between brokers."),
    BrokerConfig("ssl.keystore.password", "password", None, None, "The password of the key store; keys are PEM files without one."),
    BrokerConfig("ssl.truststore.password", "password", None, None, "The password of the trust store; PEM files have none."),
    BrokerConfig("zookeeper.set.acl", "boolean", "false", "false", "Whether nodes in ZooKeeper are protected by ACLs."),
)


_TOPIC_TYPES: Final = {setting: row.type for row in TOPIC_CONFIG_ROWS.values() for setting in row.broker_settings}
"""Types of settings that are texts here and doubles or lists in Kafka, from the topic configs that
fall back to them.
"""

SECRET: Final = frozenset({"alerts.url"})
"""Settings that may have a password."""

NULL_AT_ZERO: Final = frozenset({"log.retention.ms", "log.retention.minutes", "log.roll.ms", "log.roll.jitter.ms"})
"""Settings whose 0 means unset, which Kafka shows as null."""


def broker_configs(box: Box) -> dict[str, BrokerConfig]:
    """Return every config of this broker by name, sorted."""
    rows = [_from_setting(row, box.setting(row.name)) for row in SETTING_ROWS.values()]
    configs = [*ALWAYS, *rows, *_from_options(box)]  # what `listeners` resolves to goes before its row
    return {config.name: config for config in sorted(configs, key=lambda config: config.name)}


def _from_options(box: Box) -> tuple[BrokerConfig, ...]:
    broker_id = str(box.broker_id)
    paths = ",".join(disk.path for disk in box.disks)
    listeners = box.kafka_listeners
    listen = ",".join(_endpoint(each.name, each.address, each.port) for each in listeners)
    advertised = ",".join(_endpoint(*each.endpoint) for each in listeners)
    return (
        BrokerConfig("advertised.listeners", "string", advertised, None, "The addresses that clients connect to (--advertise)."),
        BrokerConfig("broker.id", "int", broker_id, None, "The id of this broker."),
        BrokerConfig("node.id", "int", broker_id, None, "The id of this broker, by its newer name."),
        BrokerConfig("listeners", "string", listen, None, "What the broker listens on (--listen, --kafka-port)."),
        BrokerConfig("log.dirs", "string", paths, None, "The log directories, one for each disk (--data)."),
        BrokerConfig("log.dir", "string", box.disks[0].path if box.disks else None, None, "The first log directory."),
        BrokerConfig("zookeeper.connect", "string", box.zookeeper, None, "The ZooKeeper servers (--zookeeper); the embedded one's address unless named."),
    )


def _endpoint(name: str, host: str, port: int) -> str:
    return f"{name}://{f'[{host}]' if ':' in host else host}:{port}"


def _from_setting(row: SettingRow, value: SettingValue) -> BrokerConfig:
    documentation = row.meaning[:1].upper() + row.meaning[1:]
    if row.unit:
        documentation += f" ({row.unit})"
    if row.larger_costs:
        documentation += f"; a larger value costs: {row.larger_costs}"
    shown, default = (None if each == "" or (row.name in NULL_AT_ZERO and each == 0) else _text(each) for each in (value, row.default))
    return BrokerConfig(row.name, _type(row), shown, default, f"{documentation}. Allowed: {row.allowed}.")


def _type(row: SettingRow) -> str:
    if row.name in SECRET:
        return "password"
    if isinstance(row.default, bool):
        return "boolean"
    if isinstance(row.default, int):
        return "long" if row.high > INT32_MAX else "int"
    return _TOPIC_TYPES.get(row.name, "string")


def _text(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
DYNAMIC_TOPIC_DEFAULTS: Final = (
    "log.cleaner.delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleanup.policy",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "log.index.interval.bytes",
    "log.index.size.max.bytes",
    "log.message.timestamp.type",
    "log.retention.bytes",
    "log.retention.ms",
    "log.retention.protected.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "log.segment.bytes",
    "log.segment.delete.delay.ms",
    "message.max.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
"""Settings that topics fall back to and that Kafka 4 lets be altered while a broker runs
(`DynamicLogConfig`, `LogCleaner`), and ours."""
CONNECTIONS_MAX: Final = "max.connections"
CREATION_RATE: Final = "max.connection.creation.rate"
"""Both of each acceptor."""
_DYNAMIC_SETTINGS: Final = (*DYNAMIC_TOPIC_DEFAULTS, CONNECTIONS_MAX, CREATION_RATE)
NOT_ZERO: Final = frozenset({"log.retention.ms", "log.roll.ms"})
"""Of them, those whose 0 means unset in the settings file, and that Kafka lets be 1 or more, or
-1."""
DYNAMIC_BROKER_CONFIGS: Final = {
    **{name: BrokerConfig(name, "long", str(NO_LIMIT), str(NO_LIMIT), meaning) for name, meaning in _MEANINGS.items()},
    CLOSED: BrokerConfig(CLOSED, "list", "", "", _CLOSED_MEANING),
    **{name: _from_setting(SETTING_ROWS[name], SETTING_ROWS[name].default) for name in _DYNAMIC_SETTINGS},
}


def dynamic_settings(config: Mapping[str, str]) -> dict[str, SettingValue]:
    """Return the settings among a broker's dynamic configs, as values; those that another tool
    wrote and that are invalid are left out.
    """
    values = {name: _setting_value(SETTING_ROWS[name], config[name]) for name in _DYNAMIC_SETTINGS if name in config}
    return {name: value for name, value in values.items() if value is not None and setting_problem(SETTING_ROWS[name], value) is None}


def _setting_value(row: SettingRow, text: str) -> SettingValue | None:
    if isinstance(row.default, bool):
        return {"true": True, "false": False}.get(text.strip().lower())
    if row.name == "log.cleanup.policy":
        return ",".join(sorted({part.strip() for part in text.split(",")}))
    return parse_integer(text) if isinstance(row.default, int) else text


def dynamic_config_problem(
    config: Mapping[str, str], stored: Mapping[str, str] = MappingProxyType({}), settings: Mapping[str, SettingValue] = MappingProxyType({})
) -> str | None:
    """Return why a broker cannot have these configs, or None. `settings` are those of its file."""
    problem = next((found for name in sorted(config) if (found := _dynamic_problem(name, config[name], stored.get(name))) is not None), None)
    if problem is not None:
        return problem
    # Intervals of flushes need a policy in the settings file only: as configs of topics they stand for themselves.
    changed = {name: value for name, value in dynamic_settings(config).items() if not name.startswith("log.flush.")}
    before = relation_problems({**default_settings(), **settings})
    return next((found for found in relation_problems({**default_settings(), **settings, **changed}) if found not in before), None)


def _dynamic_problem(name: str, value: str, stored: str | None) -> str | None:
    """Return why this one config cannot have `value`, or None; `stored` is its present value."""
    if name not in DYNAMIC_BROKER_CONFIGS:
        return f"Cannot update these configs dynamically: {name}."
    if name == CLOSED:
        if not all(part.strip().isdigit() for part in value.split(",") if part.strip()):
            return f"Invalid value {value} for configuration {name}: must be a list of broker ids."
    elif name in _DYNAMIC_SETTINGS:
        row = SETTING_ROWS[name]
        number = _setting_value(row, value)
        if number is None or setting_problem(row, number) is not None or (number == 0 and name in NOT_ZERO):
            without_zero = ", not 0" if name in NOT_ZERO else ""
            return f"Invalid value {value[:SHOWN_MAX]} for configuration {name}: allowed is {row.allowed}{without_zero}."
        if name == "log.segment.bytes" and value != stored and int(number) < SEGMENT_BYTES_MIN:
            return f"Invalid value {value} for configuration {name}: value must be at least {SEGMENT_BYTES_MIN}."
    elif not value.strip().isdigit() or int(value) > NO_LIMIT:
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
