"""Kafka's notifications of changed configs under `/config/changes`: who changes an entity's configs leaves one, every broker looks.

Operations on ZooKeeper, owned by the controller process. Notifications older than fifteen minutes are removed by whoever looks, as in Kafka. Weak
spot: their age is the ZooKeeper server's clock against ours; a wrong clock removes them early (a broker that was away longer reads everything anew
anyway) or late.
"""

from __future__ import annotations

from appliance.cluster.znodes import CONFIG_CHANGES, DocumentUnreadable, decode_config_change
from services.controller.zookeeper.operation import Operation
from services.controller.zookeeper.requests import Delete, Get, GetChildren, NoNode

AGE_MAX_MS = 15 * 60 * 1000
_TOPICS = "topics/"


def list_config_changes() -> Operation[set[str]]:
    """Names of the notifications that are there; the next change of the list is told."""
    names = yield GetChildren(CONFIG_CHANGES, True)
    return set(names)


def topic_named_by(entity: str | None) -> str | None:
    """The topic that a notification about `entity` is about; None for others."""
    return entity.removeprefix(_TOPICS) if entity is not None and entity.startswith(_TOPICS) else None


def entity_named_by(notification: str) -> Operation[str | None]:
    """What a notification is about (`topics/T`, `brokers/N`); None for one that cannot be read."""
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
    """Remove what every broker had time to see, oldest first."""
    for name in sorted(names):
        path = f"{CONFIG_CHANGES}/{name}"
        try:
            node = yield Get(path)
            if now_ms - node.created_ms <= AGE_MAX_MS:
                return
            yield Delete(path)
        except NoNode:
            continue  # another broker was quicker
