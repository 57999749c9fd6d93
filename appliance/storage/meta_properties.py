"""`meta.properties`, the identity of a log directory, and `partition.metadata`, of a partition.

Kafka's two small text formats. Weak spot: Java's escapes in property files (`\\u0041`, continued
lines) are not decoded; Kafka never writes them here.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.model import TopicId
from appliance.storage import file_io
from appliance.storage.segment_files import PARTITION_METADATA

META_PROPERTIES = "meta.properties"
DIRECTORY_ID = "directory.id"


class MetaProperties(NamedTuple):
    """None where the file does not say."""

    version: int
    broker_id: int | None
    cluster_id: str | None
    others: tuple[tuple[str, str], ...] = ()
    """Further keys, `directory.id` among them; written back as they were."""

    @property
    def directory_id(self) -> str:
        """The id of the directory itself (22 characters, as a topic's), or "" before it has one."""
        return dict(self.others).get(DIRECTORY_ID, "")

    def encode(self) -> bytes:
        lines = ["#", f"version={self.version}"]
        if self.broker_id is not None:
            lines.append(f"broker.id={self.broker_id}")
        if self.cluster_id is not None:
            lines.append(f"cluster.id={self.cluster_id}")
        lines += [f"{key}={value}" for key, value in self.others]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, content: bytes) -> MetaProperties:
        """Raises `ValueError` for what is not a properties file of a ZooKeeper broker."""
        values = {}
        for line in content.decode().splitlines():
            line = line.strip()
            if line and line[0] not in "#!":
                key, equals, value = line.partition("=")
                if not equals:
                    raise ValueError(f"the line {line!r} is not key=value")
                values[key.strip()] = value.strip()
        version = int(values.pop("version", "0"))
        if version != 0:
            raise ValueError(f"version {version} belongs to a KRaft cluster, version 0 is expected")
        broker_id = values.pop("broker.id", None)
        cluster_id = values.pop("cluster.id", None)
        return cls(version, None if broker_id is None else int(broker_id), cluster_id, tuple(values.items()))


def encode_partition_metadata(topic_id: TopicId) -> bytes:
    return f"version: 0\ntopic_id: {topic_id}".encode()


def read_topic_id(directory: str) -> TopicId | None:
    """The topic id of a partition directory; None without a `partition.metadata`. Raises `ValueError` for a broken one."""
    try:
        content = file_io.read_file(f"{directory}/{PARTITION_METADATA}")
    except FileNotFoundError:
        return None
    fields = dict(line.partition(": ")[::2] for line in content.decode().splitlines())
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError(f"{directory}/{PARTITION_METADATA} does not name a topic id")
    return TopicId.from_text(fields["topic_id"])
