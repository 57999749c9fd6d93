"""The metadata image: what every process of the box knows about brokers, topics, leaders and
configs.

Owned by the controller, which alone writes it (`write_image`: a rename on tmpfs, so a reader sees
the old file or the new one); read by acceptors, ingests and log-writers. It contains what should
be; the rows of the partition tables contain what is (`ARCHITECTURE.md`, "Life of a topic"), and the
image never contains a row. Weak: it is written and read whole, and the reader computes the
difference. So one change costs in proportion to all topics (2 ms per 1,000 partitions).

The generation grows with every change of content and continues over restarts of the controller.
Topics appear when all their partitions have states, and disappear before their directories do.
`config` of a topic is its effective configuration as far as it differs from Kafka's defaults.

File: header `>4sHHQII` (magic, format version, 0, generation, payload bytes, CRC-32C of generation
and payload), then JSON.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.model import INTERNAL_TOPICS, LeaderEpoch, TopicId
from appliance.cluster.topic_configs import TOPIC_CONFIG_ROWS
from appliance.records.crc32c import crc32c

IMAGE_MAGIC = b"MRIM"
IMAGE_FORMAT_VERSION = 5
IMAGE_HEADER = struct.Struct(">4sHHQII")
assert IMAGE_HEADER.size == 4 + 2 + 2 + 8 + 4 + 4
_MAX_MESSAGE_BYTES = TOPIC_CONFIG_ROWS["max.message.bytes"]
_GENERATION = struct.Struct(">Q")


class ImageUnreadable(MillraceError):
    """The bytes are no image of this format version, or they are damaged."""


class BrokerImage(NamedTuple):
    """A registered broker. `host` and `port` are those for other boxes, `endpoints` (listener name,
    host, port) those for clients; without any, all have the same. `epoch` is its broker epoch.
    """

    id: int
    host: str
    port: int
    rack: str | None = None
    epoch: int = -1
    endpoints: tuple[tuple[str, str, int], ...] = ()

    def at(self, listener: str) -> tuple[str, int] | None:
        """Return host and port for clients of a listener; None if the broker does not have it.

        An empty name stands for the box itself.
        """
        if not self.endpoints or not listener:
            return self.host, self.port
        return next(((host, port) for name, host, port in self.endpoints if name == listener), None)


class PartitionImage(NamedTuple):
    """The leader and replicas of a partition.

    `disk` is the disk that holds it on this box, None elsewhere. `moving_to` is the disk to which
    it is being moved; meanwhile its log is not compacted. `partition_epoch` is the version of its
    state.
    """

    leader: int
    leader_epoch: LeaderEpoch
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    disk: str | None = None
    moving_to: str | None = None
    partition_epoch: int = 0

    def may_lie_on(self, disk: str) -> bool:
        """Whether a log on this disk can be the partition's: another one is an orphan."""
        return self.disk is None or disk in (self.disk, self.moving_to)


class TopicImage(NamedTuple):
    """One topic.

    `config` is in effect for it (its own configs before the broker's), as far as it differs from
    Kafka's defaults. `config_generation` grows with each change of its own configs.
    """

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    config: dict[str, str]
    is_internal: bool = False
    config_generation: int = 0

    @property
    def max_message_bytes(self) -> int:
        """The largest record batch in bytes. The settings file does not count: `config` has what follows from it."""
        return int(self.config.get(_MAX_MESSAGE_BYTES.name, _MAX_MESSAGE_BYTES.default))


class ImageDifference(NamedTuple):
    """What a reader has to read again; names are sorted."""

    created: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    brokers_changed: bool

    @property
    def is_empty(self) -> bool:
        return not (self.created or self.changed or self.deleted or self.brokers_changed)


class MetadataImage:
    """One state of the cluster; immutable."""

    __slots__ = ("_reachable", "box_config", "brokers", "cluster_id", "controller_id", "generation", "group_configs", "topics", "topics_by_id")

    def __init__(
        self,
        generation: int,
        cluster_id: str,
        controller_id: int,
        brokers: dict[int, BrokerImage],
        topics: dict[str, TopicImage],
        box_config: dict[str, str] | None = None,
        group_configs: dict[str, dict[str, str]] | None = None,
    ) -> None:
        self.generation = generation
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.brokers = brokers
        self.topics = topics
        self.box_config = box_config or {}
        """Configs that are set on this box while it runs (`DYNAMIC_BROKER_CONFIGS`)."""
        self.group_configs = group_configs or {}
        """Group → its configs (`GROUP_CONFIG_ROWS`)."""
        self._reachable: dict[str, dict[int, BrokerImage]] = {}
        self.topics_by_id: dict[TopicId, TopicImage] = {topic.topic_id: topic for topic in topics.values()}

    @classmethod
    def empty(cls) -> MetadataImage:
        return cls(0, "", -1, {}, {})

    def is_in_place(self, disk: str, topic_id: bytes, partition: int) -> bool:
        """Whether a row of this disk may be the replica of its partition; True for an unknown one."""
        topic = self.topics_by_id.get(TopicId(topic_id))
        return topic is None or partition >= len(topic.partitions) or topic.partitions[partition].may_lie_on(disk)

    def brokers_at(self, listener: str) -> dict[int, BrokerImage]:
        """Return the brokers that have a listener, each with its host and port there."""
        brokers = self._reachable.get(listener)
        if brokers is None:
            found = {broker.id: (broker, broker.at(listener)) for broker in self.brokers.values()}
            brokers = {each: broker._replace(host=at[0], port=at[1]) for each, (broker, at) in found.items() if at is not None}
            self._reachable[listener] = brokers
        return brokers

    def encode(self) -> bytes:
        """Return the image as its file holds it."""
        payload = orjson.dumps(
            {
                "cluster_id": self.cluster_id,
                "controller_id": self.controller_id,
                "brokers": [list(broker) for broker in self.brokers.values()],
                "box_config": self.box_config,
                "group_configs": self.group_configs,
                "topics": [[topic.name, str(topic.topic_id), topic.config, topic.config_generation, topic.partitions] for topic in self.topics.values()],
            },
            default=list,
        )
        return IMAGE_HEADER.pack(IMAGE_MAGIC, IMAGE_FORMAT_VERSION, 0, self.generation, len(payload), _checksum(self.generation, payload)) + payload

    @classmethod
    def decode(cls, encoded: bytes, former: MetadataImage | None = None) -> MetadataImage:
        """Return the image in `encoded`. Raises ImageUnreadable.

        Topics and partitions that equal those in `former` are the same objects.
        """
        if len(encoded) < IMAGE_HEADER.size:
            raise ImageUnreadable(f"a metadata image has at least {IMAGE_HEADER.size} bytes, this one has {len(encoded)}")
        magic, version, _, generation, size_bytes, checksum = IMAGE_HEADER.unpack_from(encoded)
        payload = encoded[IMAGE_HEADER.size :]
        if magic != IMAGE_MAGIC or version != IMAGE_FORMAT_VERSION:
            raise ImageUnreadable(f"not a metadata image of format version {IMAGE_FORMAT_VERSION}: {magic!r} version {version}")
        if len(payload) != size_bytes or _checksum(generation, payload) != checksum:
            raise ImageUnreadable(f"the metadata image of generation {generation} is damaged")
        document = orjson.loads(payload)
        brokers = {row[0]: _decode_broker(row) for row in document["brokers"]}
        known = former.topics if former is not None else {}
        topics = {row[0]: _decode_topic(row, known.get(row[0])) for row in document["topics"]}
        return cls(generation, document["cluster_id"], document["controller_id"], brokers, topics, document["box_config"], document.get("group_configs"))


def _checksum(generation: int, payload: bytes) -> int:
    return crc32c(payload, crc32c(_GENERATION.pack(generation)))


def _decode_broker(row: list[Any]) -> BrokerImage:
    broker = BrokerImage._make(row)
    return broker._replace(endpoints=tuple((name, host, port) for name, host, port in broker.endpoints))


def _decode_topic(row: list[Any], former: TopicImage | None) -> TopicImage:
    name, topic_id, config, config_generation, rows = row
    known = former.partitions if former is not None else ()
    partitions = tuple(_decode_partition(fields, known[number] if number < len(known) else None) for number, fields in enumerate(rows))
    topic = TopicImage(name, TopicId.from_text(topic_id), partitions, config, name in INTERNAL_TOPICS, config_generation)
    return former if former is not None and topic == former else topic


def _decode_partition(fields: list[Any], former: PartitionImage | None) -> PartitionImage:
    fields[2], fields[3] = tuple(fields[2]), tuple(fields[3])
    return former if former is not None and former == tuple(fields) else PartitionImage._make(fields)


def difference(old: MetadataImage, new: MetadataImage) -> ImageDifference:
    """Return what changed from `old` to `new`. A topic that was deleted and created again (another
    id) is `changed`.
    """
    created = tuple(sorted(new.topics.keys() - old.topics.keys()))
    deleted = tuple(sorted(old.topics.keys() - new.topics.keys()))
    changed = tuple(sorted(name for name, topic in new.topics.items() if name in old.topics and old.topics[name] != topic))
    brokers_changed = old.brokers != new.brokers or old.controller_id != new.controller_id or old.cluster_id != new.cluster_id
    brokers_changed = brokers_changed or old.box_config != new.box_config or old.group_configs != new.group_configs
    return ImageDifference(created, changed, deleted, brokers_changed)


def write_image(path: str, image: MetadataImage) -> None:
    """Replace the image file: readers see all of the old one or all of the new one."""
    temporary = f"{path}.tmp"
    Path(temporary).write_bytes(image.encode())
    os.replace(temporary, path)


def read_image(path: str, former: MetadataImage | None = None) -> MetadataImage | None:
    """Return the box's image, or None before the controller's first one. Raises ImageUnreadable.
    `former`: as for `decode`.
    """
    try:
        encoded = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    return MetadataImage.decode(encoded, former)


class ImageView(Protocol):
    """A component that holds an image."""

    image: MetadataImage

    def set_image(self, image: MetadataImage) -> None: ...


class ImageFollower:
    """Read the image in the turn after a notification, and pass it to the process's view.

    Owned by one acceptor, ingest, coordinator or replica-fetcher. If a file cannot be read, the
    error is logged and the last image stays in use. `is_stale`: there may be a newer image than the
    view's.
    """

    def __init__(self, layout: BoxLayout, view: ImageView, log: Logger) -> None:
        self._path = layout.image_file
        self._view = view
        self._log = log
        self.is_stale = True

    def on_changed(self, _generation: int) -> None:
        """The controller has published an image."""
        self.is_stale = True

    def load(self) -> MetadataImage | None:
        """Read the image; return it if it is a new one."""
        self.is_stale = False
        try:
            image = read_image(self._path, self._view.image)
        except ImageUnreadable as error:
            self._log.error(f"could not read the metadata image: {error}; continuing with the last one")
            return None
        if image is None or image.generation == self._view.image.generation:
            return None
        self._view.set_image(image)
        return image
