"""Check that a log directory may be used: its lock, and the broker and cluster that it belongs to.

The log-writer calls it when it opens the directory. `runtime/preflight.py` reports before the start
what can be known then, with the names of the command's options. `meta.properties` and
`partition.metadata` are Kafka's two small text formats. Weak spots: on the first start of a box with a
ZooKeeper ensemble no cluster id is known, and only the broker id keeps directories of another cluster
out; Java's escapes in property files (`\\u0041`, continued lines) are not decoded, and Kafka never
writes them here.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.errors import ConfigurationProblems
from appliance.base.model import TopicId
from appliance.storage import checkpoints, file_io
from appliance.storage.segment_files import PARTITION_METADATA

META_PROPERTIES = "meta.properties"
DIRECTORY_ID = "directory.id"


class MetaProperties(NamedTuple):
    """The content of `meta.properties`; a missing key is None."""

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
        """Return the file's text."""
        lines = ["#", f"version={self.version}"]
        if self.broker_id is not None:
            lines.append(f"broker.id={self.broker_id}")
        if self.cluster_id is not None:
            lines.append(f"cluster.id={self.cluster_id}")
        lines += [f"{key}={value}" for key, value in self.others]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, content: bytes) -> MetaProperties:
        """Parse the file's text.

        Raises `ValueError` unless it is a properties file of a ZooKeeper broker (version 0).
        """
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
    """Return the text of `partition.metadata`."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def read_topic_id(directory: str) -> TopicId | None:
    """Return the topic id of a partition directory; None without `partition.metadata`.

    Raises `ValueError` if it is broken, OSError.
    """
    try:
        content = file_io.read_file(f"{directory}/{PARTITION_METADATA}")
    except FileNotFoundError:
        return None
    fields = dict(line.partition(": ")[::2] for line in content.decode().splitlines())
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError(f"{directory}/{PARTITION_METADATA} does not name a topic id")
    return TopicId.from_text(fields["topic_id"])


LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
PROBE_FILE = ".millrace-probe"
"""4 KiB that the log-writer writes again and again, to see whether the disk answers."""
GENERATION = ".millrace-generation"
"""Which start of a log-writer used the directory last."""
KNOWN_NAMES = frozenset(
    {
        LOCK_FILE,
        CLEAN_SHUTDOWN_MARKER,
        META_PROPERTIES,
        checkpoints.RECOVERY_POINTS,
        checkpoints.HIGH_WATERMARKS,
        checkpoints.LOG_START_OFFSETS,
        "cleaner-offset-checkpoint",
        "segments-checkpoint",
        "remote-log-index-cache",
        "lost+found",
        PROBE_FILE,
        GENERATION,
    }
)


def lock_holder(fd: int) -> str:
    """Describe the process whose id is in the lock file."""
    text = file_io.pread_all(fd, 0, 32).decode("ascii", "replace").strip()
    return f"process {text}" if text.isdigit() else "another process (of Kafka, perhaps)"


def read_identity(path: str) -> MetaProperties | None:
    """Return the content of `meta.properties`; None if there is none.

    Raises `ValueError`, OSError.
    """
    try:
        return MetaProperties.decode(file_io.read_file(f"{path}/{META_PROPERTIES}"))
    except FileNotFoundError:
        return None


def identity_problems(path: str, identity: MetaProperties, broker_id: int | None, cluster_id: str | None) -> list[str]:
    """Return a message for each id in `meta.properties` that differs from ours.

    None as our id matches any.
    """
    problems = []
    if broker_id is not None and identity.broker_id not in (None, broker_id):
        problems.append(f"{path} belongs to broker {identity.broker_id}, this is broker {broker_id}; name another directory or change broker.id")
    if cluster_id is not None and identity.cluster_id not in (None, cluster_id):
        problems.append(f"{path} belongs to cluster {identity.cluster_id}, this is cluster {cluster_id}; name another directory or its ZooKeeper")
    return problems


def claim_identity(path: str, broker_id: int | None, cluster_id: str | None, new_directory_id: str = "") -> MetaProperties:
    """Check `meta.properties` against our ids and add those that it lacks.

    A directory keeps its first directory id, by which the controller recognises the disk under any
    name and path. Raises `ConfigurationProblems`, OSError.
    """
    try:
        known = read_identity(path)
    except ValueError as problem:
        raise ConfigurationProblems([f"{path}/{META_PROPERTIES}: {problem}; this is not a log directory of this kind of broker"]) from None
    identity = known or MetaProperties(0, None, None)
    problems = identity_problems(path, identity, broker_id, cluster_id)
    if problems:
        raise ConfigurationProblems(problems)
    wanted = identity._replace(
        broker_id=identity.broker_id if broker_id is None else broker_id,
        cluster_id=identity.cluster_id if cluster_id is None else cluster_id,
    )
    if new_directory_id and not wanted.directory_id:
        wanted = wanted._replace(others=(*wanted.others, (DIRECTORY_ID, new_directory_id)))
    if wanted != known:
        file_io.replace_file(f"{path}/{META_PROPERTIES}", wanted.encode())
    return wanted
