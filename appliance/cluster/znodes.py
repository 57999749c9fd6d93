"""Paths and JSON documents of the ZooKeeper tree: Kafka 3.9's, and ours under `/millrace`.

Pure: bytes in, values out, and back. Only the controller uses it in production. Documents are
written exactly as Kafka 3.9 in ZooKeeper mode writes them, so that its tools can read the tree. All
versions are read that Kafka 3.9 reads. Weak: unknown keys are lost when a document is written back,
as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from appliance.base.errors import MillraceError
from appliance.base.model import LeaderEpoch, TopicId

# --- Kafka's paths -----------------------------------------------------------------------------------------------------

PERSISTENT_PATHS = (
    "/consumers",
    "/brokers/ids",
    "/brokers/topics",
    "/config/changes",
    "/admin/delete_topics",
    "/brokers/seqid",
    "/isr_change_notification",
    "/latest_producer_id_block",
    "/log_dir_event_notification",
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)
"""Created empty by every broker at its start, with their parents."""

CLUSTER = "/cluster"
CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
DELETE_TOPICS = "/admin/delete_topics"
CONFIG_TOPICS = "/config/topics"
CONFIG_BROKERS = "/config/brokers"
DEFAULT_BROKER = "<default>"
"""In the place of a broker id: all brokers."""
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "config_change_"


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}"


def topic_partitions_path(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    return f"{CONFIG_TOPICS}/{topic}"


def broker_config_path(name: str) -> str:
    """`name`: a broker id, or `DEFAULT_BROKER`."""
    return f"{CONFIG_BROKERS}/{name}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


# --- our own paths -----------------------------------------------------------------------------------------------------

MILLRACE_BROKERS = "/millrace/brokers"


def box_path(broker_id: int) -> str:
    """The box that owns a broker id, and its directories."""
    return f"{MILLRACE_BROKERS}/{broker_id}"


def placements_path(broker_id: int) -> str:
    return f"{MILLRACE_BROKERS}/{broker_id}/topics"


def placement_path(broker_id: int, topic: str) -> str:
    """Which directory of the broker holds which partition of the topic."""
    return f"{MILLRACE_BROKERS}/{broker_id}/topics/{topic}"


def parents_first(paths: tuple[str, ...]) -> list[str]:
    """Return every path with all its parents, each once, a parent before its children."""
    ordered: dict[str, None] = {}
    for path in paths:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            ordered["/" + "/".join(parts[:depth])] = None
    return list(ordered)


# --- documents ---------------------------------------------------------------------------------------------------------


class DocumentUnreadable(MillraceError):
    """A znode's content is no version of its document."""


def _load(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise DocumentUnreadable(f"znode {path} does not hold JSON: {problem}") from None
    if not isinstance(document, dict):
        raise DocumentUnreadable(f"znode {path} does not hold a JSON object")
    return document


def encode_cluster_id(cluster_id: str) -> bytes:
    return orjson.dumps({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(_field(CLUSTER_ID, _load(CLUSTER_ID, data), "id"))


class BrokerRegistration(NamedTuple):
    """`/brokers/ids/N`, written as version 5. `endpoints` are `(listener name, host, port)`."""

    broker_id: int
    endpoints: tuple[tuple[str, str, int], ...]
    security_protocols: dict[str, str]
    rack: str | None
    timestamp_ms: int

    def encode(self) -> bytes:
        plaintext = next(((host, port) for name, host, port in self.endpoints if self.security_protocols.get(name) == "PLAINTEXT"), (None, -1))
        document: dict[str, Any] = {
            "version": 5,
            "host": plaintext[0],
            "port": plaintext[1],
            "endpoints": [f"{name}://{_bracketed(host)}:{port}" for name, host, port in self.endpoints],
            "listener_security_protocol_map": self.security_protocols,
            "jmx_port": -1,
            "timestamp": str(self.timestamp_ms),
            "features": {},
        }
        if self.rack is not None:
            document["rack"] = self.rack
        return orjson.dumps(document)

    @classmethod
    def decode(cls, broker_id: int, data: bytes) -> BrokerRegistration:
        path = broker_path(broker_id)
        document = _load(path, data)
        if document.get("version", 0) < 1:
            raise DocumentUnreadable(f"znode {path} has version {document.get('version')}, expected 1 or more")
        if document["version"] == 1:
            endpoints: tuple[tuple[str, str, int], ...] = (("PLAINTEXT", str(_field(path, document, "host")), int(_field(path, document, "port"))),)
        else:
            endpoints = tuple(_parse_endpoint(path, text) for text in _field(path, document, "endpoints"))
        protocols = document.get("listener_security_protocol_map") or {name: name for name, _, _ in endpoints}
        return cls(broker_id, endpoints, protocols, document.get("rack"), int(document.get("timestamp", -1)))

    def peer_endpoint(self, listener: str, protocol: str = "PLAINTEXT") -> tuple[str, int] | None:
        """Return host and port for other boxes: of the listener with this name, or of the first one
        with `protocol`; None without either."""
        named = next(((host, port) for name, host, port in self.endpoints if name == listener), None)
        return named or next(((host, port) for name, host, port in self.endpoints if self.security_protocols.get(name) == protocol), None)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _parse_endpoint(path: str, text: str) -> tuple[str, str, int]:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdigit():
        raise DocumentUnreadable(f"znode {path} has an endpoint {text!r}, expected LISTENER://host:port")
    return name.upper(), host.strip("[]"), int(port)


class TopicAssignment(NamedTuple):
    """`/brokers/topics/T`, written as version 3.

    `topic_id` is None only in documents of versions 1 and 2.
    """

    topic_id: TopicId | None
    partitions: dict[int, tuple[int, ...]]
    adding_replicas: dict[int, tuple[int, ...]]
    removing_replicas: dict[int, tuple[int, ...]]

    @classmethod
    def new(cls, topic_id: TopicId, partitions: dict[int, tuple[int, ...]]) -> TopicAssignment:
        return cls(topic_id, partitions, {}, {})

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "version": 3,
                "topic_id": str(self.topic_id),
                "partitions": _by_partition_text(self.partitions),
                "adding_replicas": _by_partition_text(self.adding_replicas),
                "removing_replicas": _by_partition_text(self.removing_replicas),
            }
        )

    @classmethod
    def decode(cls, topic: str, data: bytes) -> TopicAssignment:
        path = topic_path(topic)
        document = _load(path, data)
        text = document.get("topic_id")
        return cls(
            TopicId.from_text(text) if text else None,
            _by_partition(_field(path, document, "partitions")),
            _by_partition(document.get("adding_replicas", {})),
            _by_partition(document.get("removing_replicas", {})),
        )


def _by_partition_text(replicas: dict[int, tuple[int, ...]]) -> dict[str, list[int]]:
    return {str(partition): list(ids) for partition, ids in sorted(replicas.items())}


def _by_partition(document: dict[str, list[int]]) -> dict[int, tuple[int, ...]]:
    return {int(partition): tuple(ids) for partition, ids in document.items()}


class PartitionState(NamedTuple):
    """`…/partitions/P/state`. The znode's data version is the partition epoch, on which each update
    is conditional.
    """

    leader: int
    leader_epoch: LeaderEpoch
    controller_epoch: int
    isr: tuple[int, ...]
    leader_recovery_state: int = 0

    def encode(self) -> bytes:
        document: dict[str, Any] = {
            "version": 1,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "controller_epoch": self.controller_epoch,
            "isr": list(self.isr),
        }
        if self.leader_recovery_state:
            document["leader_recovery_state"] = self.leader_recovery_state
        return orjson.dumps(document)

    @classmethod
    def decode(cls, path: str, data: bytes) -> PartitionState:
        document = _load(path, data)
        return cls(
            int(_field(path, document, "leader")),
            LeaderEpoch(int(_field(path, document, "leader_epoch"))),
            int(_field(path, document, "controller_epoch")),
            tuple(_field(path, document, "isr")),
            int(document.get("leader_recovery_state", 0)),
        )


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return orjson.dumps({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> int:
    """Return the broker id of the controller."""
    return int(_field(CONTROLLER, _load(CONTROLLER, data), "brokerid"))


def encode_config(config: dict[str, str]) -> bytes:
    return orjson.dumps({"version": 1, "config": config})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    config = _load(path, data).get("config", {})
    if not isinstance(config, dict):
        raise DocumentUnreadable(f"znode {path} holds no object of configs")
    return {str(name): str(value) for name, value in config.items()}


def encode_config_change(entity_path: str) -> bytes:
    """Return the notification that the configs of an entity (`topics/T`) have changed."""
    return orjson.dumps({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    """Return the entity whose configs have changed, as a path below `/config`.

    Version 1 has type and name apart.
    """
    document = _load(path, data)
    if document.get("version") == 1:
        return f"{_field(path, document, 'entity_type')}/{_field(path, document, 'entity_name')}"
    return str(_field(path, document, "entity_path"))


class BoxRecord(NamedTuple):
    """`/millrace/brokers/N`: the identity of the box that owns broker id N, its directories (id →
    disk name), and the ids of those that are being drained.

    `is_fenced`: no box elects it or adds it to an in-sync set. A box is fenced during its
    controlled shutdown, and after its start until its disks have reported what they lost.

    `generation`: a number that the box raises while it runs, first in its state directory. If that
    has a smaller one, the box was restored from a copy.
    """

    box_id: str
    directories: dict[str, str]
    draining: tuple[str, ...] = ()
    is_fenced: bool = False
    generation: int = 0

    def encode(self) -> bytes:
        document: dict[str, Any] = {"version": 1, "box_id": self.box_id, "directories": self.directories}
        if self.draining:
            document["draining"] = list(self.draining)
        if self.is_fenced:
            document["fenced"] = True
        if self.generation:
            document["generation"] = self.generation
        return orjson.dumps(document)

    @classmethod
    def decode(cls, path: str, data: bytes) -> BoxRecord:
        document = _load(path, data)
        draining, is_fenced = tuple(document.get("draining", ())), bool(document.get("fenced", False))
        generation = int(document.get("generation", 0))
        return cls(str(_field(path, document, "box_id")), dict(document.get("directories", {})), draining, is_fenced, generation)


class MoveOrder(NamedTuple):
    """A partition is to be moved to another directory of the same broker.

    `throttle`: bytes per second of its copy, None: the box's setting.
    """

    directory_id: str
    throttle: int | None = None


class DirectoryAssignment(NamedTuple):
    """`/millrace/brokers/N/topics/T`: partition → directory id on that broker, and the moves
    ordered.

    `is_deleted`: the topic was deleted while the box was away, and the box is to delete its part.
    """

    topic_id: TopicId
    directories: dict[int, str]
    moves: Mapping[int, MoveOrder] = MappingProxyType({})
    is_deleted: bool = False

    def encode(self) -> bytes:
        directories = {str(partition): directory for partition, directory in sorted(self.directories.items())}
        document: dict[str, Any] = {"version": 1, "topic_id": str(self.topic_id), "partitions": directories}
        if self.moves:
            document["moves"] = {str(partition): list(order) for partition, order in sorted(self.moves.items())}
        if self.is_deleted:
            document["deleted"] = True
        return orjson.dumps(document)

    @classmethod
    def decode(cls, path: str, data: bytes) -> DirectoryAssignment:
        document = _load(path, data)
        return cls(
            TopicId.from_text(str(_field(path, document, "topic_id"))),
            {int(partition): str(directory) for partition, directory in _field(path, document, "partitions").items()},
            {int(partition): MoveOrder(str(order[0]), order[1]) for partition, order in document.get("moves", {}).items()},
            bool(document.get("deleted", False)),
        )


def _field(path: str, document: dict[str, Any], name: str) -> Any:
    try:
        return document[name]
    except KeyError:
        raise DocumentUnreadable(f"znode {path} has no field {name!r}") from None
