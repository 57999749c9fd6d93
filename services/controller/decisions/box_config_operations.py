"""Read and change the configs that are set on a broker while it runs. Each box does this,
controller or not.

Weak: configs that Kafka's tools write there and this box does not know are kept and have no effect.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.znodes import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES,
    DEFAULT_BROKER,
    broker_config_path,
    decode_config,
    encode_config,
    encode_config_change,
)
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.config_changes import ConfigChange
from services.controller.zookeeper.operation import Operation, Publish
from services.controller.zookeeper.requests import BadVersion, Create, MultiFailed, NodeExists, SetData

ATTEMPTS_MAX = 5


def load_box_configs(cluster: Cluster) -> Operation[None]:
    """Load the configs of this broker, and those of all brokers."""
    found = {}
    for name in (DEFAULT_BROKER, str(cluster.broker_id)):
        path = broker_config_path(name)
        node = yield from broker_registry.read(path)
        found[name] = decode_config(path, node.data) if node is not None and node.data else {}
    cluster.dynamic_configs = found


def alter_box_config(cluster: Cluster, name: str, change: ConfigChange, validate_only: bool) -> Operation[None]:
    """Change the configs of this broker, or of all brokers (`DEFAULT_BROKER`). Raises
    RequestRefused.
    """
    path = broker_config_path(name)
    for _attempt in range(ATTEMPTS_MAX):
        node = yield from broker_registry.read(path)
        current = decode_config(path, node.data) if node is not None and node.data else {}
        config = change(current)
        if validate_only or config == current:
            return
        data = encode_config(config)
        write = Create(path, data) if node is None else SetData(path, data, node.version)
        notification = Create(f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}", encode_config_change(f"brokers/{name}"), sequence=True)
        try:
            yield from cluster.own_writes().guard((write, notification))
        except MultiFailed as refused:
            if isinstance(refused.cause, BadVersion | NodeExists):
                continue  # another box wrote it between our read and our write: read again
            raise
        cluster.dynamic_configs[name] = config
        yield Publish()
        return
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "the configs were changed by others at the same time; try again")
