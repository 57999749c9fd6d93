"""What clients see of the box of a stored release (`tests/golden/releases`), as JSON.

Records, offsets, configs, groups and transactions. Used by the capture and by the test, so both
read in the same way. `unpack` and `listening_anywhere` prepare a stored box for a start. Weak spot:
what no client can see (producer state, the replay journal of ingest) is not described here; only
the archive has it.
"""

from __future__ import annotations

import base64
import re
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, OffsetSpec, ResourceType

from lab.foreign_clients import Read
from lab.raw_coordination import RawCoordination
from lab.running_box import Address

RELEASES: Final = Path(__file__).parent.parent / "golden" / "releases"
Place = tuple[str, int]
"""Topic and partition."""
STATE_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
SECONDS: Final = 30
NO_OFFSET: Final = -1001
"""librdkafka's word for a partition without a committed offset."""

SETTINGS: Final[Mapping[str, int]] = {
    "group.initial.rebalance.delay.ms": 0,
    "ingest.syslog.partitions": 2,
    "log.cleaner.backoff.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 500,
    "log.retention.ms": -1,
    "offsets.retention.minutes": 2**31 - 1,
    "offsets.topic.num.partitions": 4,
    "transaction.max.timeout.ms": 2**31 - 1,
    "transaction.state.log.num.partitions": 4,
}
"""Of a captured box. Nothing expires: an archive is opened years after its capture."""


def unpack(archive: Path, directory: Path) -> None:
    """The directories of a stored box: `d0`, `d1` and `state`."""
    with tarfile.open(archive) as stored:
        stored.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has Python 3.11.2, without it
        stored.extractall(directory)


def listening_anywhere(table: str) -> str:
    """An ingest table with port 0 (any free port) for each of its own listeners."""
    return re.sub(r"(?m)^(listen \S+ \S+ \S+ )(\S*):\d+", r"\1\2:0", table)


# --- records


def record_as_json(record: Read) -> list[object]:
    headers = [[name, _text(value)] for name, value in record.headers]
    return [
        record.offset,
        _text(record.value),
        _text(record.key),
        headers,
        record.timestamp,
        record.timestamp_type,
    ]


def record_of_json(stored: list[Any]) -> Read:
    offset, value, key, headers, timestamp, kind = stored
    return Read(
        offset,
        bytes_of(value),
        bytes_of(key),
        tuple((name, bytes_of(content)) for name, content in headers),
        timestamp,
        kind,
    )


def records_of_json(stored: Iterable[list[Any]]) -> list[Read]:
    return [record_of_json(record) for record in stored]


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def read_partitions(bootstrap: str, places: Iterable[Place], isolation_level: str = "read_uncommitted") -> dict[Place, list[Read]]:
    """Every record from the log start offset to the end that this isolation level may read."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    more = {"enable.partition.eof": True, "auto.offset.reset": "error", "isolation.level": isolation_level}
    consumer = Consumer({**settings, **more, "fetch.wait.max.ms": 10})
    found: dict[Place, list[Read]] = {place: [] for place in places}
    unfinished = set(found)
    with closing(consumer):
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in found])
        while unfinished:
            message = consumer.poll(SECONDS)
            assert message is not None, f"no end of {sorted(unfinished)} in {SECONDS} s"
            place = (message.topic() or "", message.partition() or 0)
            if error := message.error():
                if error.name() != "_PARTITION_EOF":
                    raise KafkaException(error)
                unfinished.discard(place)
                continue
            kind, timestamp = message.timestamp()
            headers: Any = message.headers() or ()
            offset, value, key = message.offset() or 0, message.value(), message.key()
            found[place].append(Read(offset, value, key, tuple(headers), timestamp, kind - 1))
    return found


# --- what a box has


def describe_topics(bootstrap: str) -> dict[str, Any]:
    """Each topic but the state topics: its own configs, and its partitions.

    Of a partition: log start offset, high watermark, all records, and `committed`, the offsets of those that
    a reader of committed records gets, unless it gets all.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = admin.list_topics(timeout=SECONDS).topics
    places = [(name, number) for name in topics if name not in STATE_TOPICS for number in topics[name].partitions]
    earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]  # no type declared
    starts, ends = offsets_of(admin, places, earliest), offsets_of(admin, places, latest)
    records = read_partitions(bootstrap, places)
    committed = read_partitions(bootstrap, places, "read_committed")
    described: dict[str, Any] = {}
    for name, number in sorted(places):
        topic = described.setdefault(name, {"configs": topic_configs(admin, name), "partitions": []})
        found = records[name, number]
        partition: dict[str, Any] = {
            "log_start_offset": starts[name, number],
            "high_watermark": ends[name, number],
        }
        partition["records"] = [record_as_json(record) for record in found]
        if committed[name, number] != found:
            partition["committed"] = [record.offset for record in committed[name, number]]
        topic["partitions"].append(partition)
    return described


def offsets_of(admin: AdminClient, places: Iterable[Place], at: OffsetSpec) -> dict[Place, int]:
    """By ListOffsets, for readers of uncommitted records."""
    asked = {TopicPartition(*place): at for place in places}
    answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=SECONDS)
    return {(place.topic, place.partition): answer.result(SECONDS).offset for place, answer in answers.items()}


def topic_configs(admin: AdminClient, topic: str) -> dict[str, str]:
    """Those that were set for the topic itself."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(SECONDS)
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}


def dynamic_broker_configs(admin: AdminClient) -> dict[str, str]:
    """Those that were set for the broker while it ran."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(SECONDS)
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source == ConfigSource.DYNAMIC_BROKER_CONFIG.value}


def describe_groups(bootstrap: str) -> dict[str, Any]:
    """Type (`classic`, `consumer`) and committed `[offset, metadata]` by `TOPIC-PARTITION` of each group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = sorted(
        admin.list_consumer_groups(request_timeout=SECONDS).result().valid or [],
        key=lambda each: each.group_id,
    )
    types = {group.group_id: group.type.name.lower() for group in listed}
    return {name: {"type": kind, "offsets": group_offsets(admin, name)} for name, kind in types.items()}


def group_offsets(admin: AdminClient, group_id: str) -> dict[str, list[Any]]:
    """What a group committed; also for a group that has no members."""
    asked = [ConsumerGroupTopicPartitions(group_id)]
    (answered,) = admin.list_consumer_group_offsets(asked, require_stable=False, request_timeout=SECONDS).values()
    found = sorted(answered.result().topic_partitions or [], key=lambda each: (each.topic, each.partition))
    return {f"{each.topic}-{each.partition}": [each.offset, each.metadata or ""] for each in found if each.offset != NO_OFFSET}


def describe_zookeeper_offsets(kafka: Address, committed: Mapping[str, Iterable[str]]) -> dict[str, dict[str, int]]:
    """What OffsetFetch 0 answers for partition 0 of each topic of these groups."""
    client = RawCoordination(kafka)
    with closing(client):
        return {group_id: {topic: _without_error(client.committed_in_zookeeper(group_id, topic)) for topic in topics} for group_id, topics in committed.items()}


def _without_error(answer: tuple[int, int]) -> int:
    code, offset = answer
    assert code == 0, f"OffsetFetch 0: error {code}"
    return offset


def describe_transactions(bootstrap: str) -> dict[str, str]:
    """The state of each transactional id."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    with closing(admin):
        listed = [found for each in admin.list_transactions().values() for found in each]
    return dict(sorted((found.transactional_id, str(getattr(found.state, "value", found.state))) for found in listed))
