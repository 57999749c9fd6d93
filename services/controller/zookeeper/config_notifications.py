"""Kafka's notifications of changed configs under `/config/changes`, which every broker watches.

A program that changes the configs of a topic or broker creates a notification there. Each
controller process reads new ones, and removes those older than fifteen minutes, as Kafka does.
Weak: their age compares the ZooKeeper server's clock with ours. With a wrong clock they are removed
late, or early; a broker that was away reads everything again anyway.
"""

from __future__ import annotations

from appliance.cluster.znodes import CONFIG_CHANGES, DocumentUnreadable, decode_config_change
from services.controller.zookeeper.operation import Operation
from services.controller.zookeeper.requests import Delete, Get, GetChildren, NoNode

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
