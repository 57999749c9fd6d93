"""Changes of the configs of a topic or a broker: the decision, and Kafka's notifications of changes
under `/config/changes`.

The decision is pure; the controller applies a change to what ZooKeeper holds at that moment, so two
concurrent changes do not overwrite each other. The rules are Kafka's. A program that changes
configs creates a notification; each controller process reads new ones, and removes those older than
fifteen minutes, as Kafka does.

Weak: for a bad value Kafka 3.9 with ZooKeeper returns INVALID_REQUEST; this returns INVALID_CONFIG,
as Kafka without ZooKeeper does. A notification's age compares the ZooKeeper server's clock with
ours; with a wrong clock it is removed late, or early, and a broker that was away reads everything
again anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.broker_configs import BrokerConfig
from appliance.cluster.topic_configs import TOPIC_CONFIG_ROWS, TopicConfigRow, topic_config_problem
from appliance.cluster.znodes import CONFIG_CHANGES, DocumentUnreadable, decode_config_change
from services.controller.zookeeper.operation import Operation
from services.controller.zookeeper.requests import Delete, Get, GetChildren, NoNode

SET, DELETE, APPEND, SUBTRACT = range(4)
_OPERATIONS = {APPEND: "append", SUBTRACT: "subtract"}

ConfigChange: TypeAlias = Callable[[Mapping[str, str]], dict[str, str]]
"""From the current configs to the new ones; raises `RequestRefused`."""

ConfigProblem: TypeAlias = Callable[[Mapping[str, str], Mapping[str, str]], str | None]
"""From the new configs and the current ones to the reason why the new ones are refused."""


class ConfigOperation(NamedTuple):
    """One config and what to do with it, by IncrementalAlterConfigs' numbers."""

    name: str
    operation: int
    value: str | None = None


def refuse_bad_names_and_nulls(operations: Sequence[ConfigOperation]) -> None:
    """Raise RequestRefused for duplicate names, null values and unknown operations."""
    counts = Counter(operation.name for operation in operations)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {', '.join(twice)}")
    nulls = [operation.name for operation in operations if operation.value is None and operation.operation != DELETE]
    if nulls:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    unknown = [operation for operation in operations if operation.operation not in (SET, DELETE, APPEND, SUBTRACT)]
    if unknown:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Unknown operations type {unknown[0].operation} for {unknown[0].name}")


def altered(
    broker: Mapping[str, str],
    operations: Sequence[ConfigOperation],
    problem: ConfigProblem = topic_config_problem,
    rows: Mapping[str, TopicConfigRow | BrokerConfig] = TOPIC_CONFIG_ROWS,
) -> ConfigChange:
    """Return a change that applies each operation; a list that is not set starts as the broker's."""

    def change(current: Mapping[str, str]) -> dict[str, str]:
        config = dict(current)
        for name, operation, value in operations:
            if operation == DELETE:
                config.pop(name, None)
            elif operation == SET:
                config[name] = value or ""
            else:
                config[name] = _changed_list({**broker, **config}, rows.get(name), name, operation, value or "")
        return _checked(config, current, problem)

    return change


def replaced(wanted: Mapping[str, str], problem: ConfigProblem = topic_config_problem) -> ConfigChange:
    """Return a change that sets exactly these configs."""
    return lambda current: _checked(dict(wanted), current, problem)


def _changed_list(config: Mapping[str, str], row: TopicConfigRow | BrokerConfig | None, name: str, operation: int, value: str) -> str:
    if row is None:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if row.type != "list":
        raise RequestRefused(ErrorCode.INVALID_CONFIG, f"Config value {_OPERATIONS[operation]} is not allowed for config key: {name}")
    elements = _elements(config.get(name, row.default or ""))
    given = _elements(value)
    if operation == APPEND:
        return ",".join(elements + [element for element in given if element not in elements])
    return ",".join(element for element in elements if element not in given)


def _elements(text: str) -> list[str]:
    return [element.strip() for element in text.split(",") if element.strip()]


def _checked(config: dict[str, str], current: Mapping[str, str], problem_of: ConfigProblem) -> dict[str, str]:
    problem = problem_of(config, current)
    if problem is not None:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, problem)
    return config


AGE_MAX_MS = 15 * 60 * 1000
_TOPICS = "topics/"


def list_config_changes() -> Operation[set[str]]:
    """Return the names of all notifications, and set a watch on the list."""
    names = yield GetChildren(CONFIG_CHANGES, True)
    return set(names)


def topic_named_by(entity: str | None) -> str | None:
    """Return the topic of an entity such as `topics/T`; None for other entities."""
    return entity.removeprefix(_TOPICS) if entity is not None and entity.startswith(_TOPICS) else None


def entity_named_by(notification: str) -> Operation[str | None]:
    """Return the entity of a notification (`topics/T`, `brokers/N`); None if it cannot be read."""
    path = f"{CONFIG_CHANGES}/{notification}"
    try:
        node = yield Get(path)
    except NoNode:
        return None
    try:
        return decode_config_change(path, node.data)
    except DocumentUnreadable:
        return None


def remove_old_config_changes(names: set[str], now_ms: int) -> Operation[None]:
    """Remove the notifications that every broker has had time to read, oldest first."""
    for name in sorted(names):
        path = f"{CONFIG_CHANGES}/{name}"
        try:
            node = yield Get(path)
            if now_ms - node.created_ms <= AGE_MAX_MS:
                return
            yield Delete(path)
        except NoNode:
            continue  # another broker removed it first
