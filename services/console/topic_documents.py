"""What the pages of topics and records show, as JSON, and what they change: through a client of
Kafka, in a thread of `KafkaWorkers`.

Each function takes a client and `Parameters`, and returns a document. Values are bounded here; a
longer one is cut, with its size. Weak: the size of a partition on a disk is of another moment than
its offsets.
"""

from __future__ import annotations

import base64
from typing import Any

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import INTERNAL_TOPICS, NO_LEADER, TopicPartition, topic_name_problem
from appliance.client.admin import (
    add_partitions,
    alter_topic_settings,
    create_topic,
    delete_topic,
    describe_topic,
    list_offsets,
    topic_configs,
)
from appliance.client.boxes import BoxContents, contents_of
from appliance.client.cluster import ClusterClient, TopicMetadata
from appliance.client.errors import ClientFailed
from appliance.client.fetch import RecordPage, read_page
from appliance.client.producer import BatchProducer, RecordProducer, new_identity
from appliance.client.trims import Limit, Trim, find_trims, trim_records
from appliance.protocol.config_apis import ConfigSource, DescribedConfig
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.records.record import Record
from services.console.parameters import NUMBER_MAX, Parameters, WrongParameter, content_of

RECORDS_MAX = 500
SHOWN_BYTES = 16 << 10
"""Of a value, key or header in a page of records; of one record alone `WHOLE_BYTES`."""
WHOLE_BYTES = 1 << 20
HEADERS_SHOWN = 100
DELIVERY_MS = 8_000
SIZES_MS = 2_000
"""Boxes are asked one after the other for sizes, which the page can do without."""
INT16_MAX = (1 << 15) - 1
NAMED_MAX = 20
SOURCES = {ConfigSource.TOPIC: "topic", ConfigSource.DEFAULT: "default"}
"""Where a value comes from; anything else is a setting of the box or of all boxes."""


def topic_of(given: Parameters) -> str:
    """Return the name of the topic. Raises WrongParameter for what cannot be one."""
    name = given.text("topic")
    if problem := topic_name_problem(name):
        raise WrongParameter(problem)
    return name


# ---- one topic


def topic_document(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Describe a topic: partitions with leader, in-sync replicas, offsets, sizes and disks; settings."""
    name = topic_of(given)
    described = describe_topic(cluster, name)
    contents = _contents(cluster, described.topic)
    partitions = []
    for metadata, start, end in described.partitions:
        key = name, metadata.partition
        sizes = {broker: known.sizes[key] for broker, known in contents.items() if key in known.sizes}
        partitions.append(
            {
                "partition": metadata.partition,
                "leader": metadata.leader,
                "leader_epoch": metadata.leader_epoch,
                "replicas": list(metadata.assigned_replicas),
                "isr": list(metadata.isr),
                "start_offset": start,
                "end_offset": end,
                "size_bytes": sizes.get(metadata.leader, max(sizes.values(), default=None)),
                "disks": {str(broker): known.paths[key] for broker, known in contents.items() if key in known.paths},
            }
        )
    settings, why_not = _settings(cluster, name)
    return {
        "topic": name,
        "id": str(described.topic.topic_id or ""),
        "is_internal": described.topic.is_internal or name in INTERNAL_TOPICS,
        "partitions": partitions,
        "settings": sorted(settings, key=lambda each: (each["source"] == "default", each["name"])),
        "settings_refused": why_not,
        "silent_boxes": sorted({replica for part in described.topic.partitions for replica in part.assigned_replicas} - contents.keys()),
    }


def _settings(cluster: ClusterClient, name: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the settings; or none, and why: a person may have the right to describe a topic without them."""
    try:
        return [_setting(config) for config in topic_configs(cluster, name, documented=True)], None
    except RequestRefused as refused:
        if refused.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        return [], refused.message


def _contents(cluster: ClusterClient, topic: TopicMetadata) -> dict[int, BoxContents]:
    """Return what each box reports of the topic; a box that does not answer is left out."""
    found = {}
    for broker in sorted({replica for part in topic.partitions for replica in part.assigned_replicas}):
        try:
            found[int(broker)] = contents_of(cluster, broker, topic, SIZES_MS)
        except (ClientFailed, RequestRefused):
            continue
    return found


def _setting(config: DescribedConfig) -> dict[str, Any]:
    source = SOURCES.get(ConfigSource(config.config_source), "box") if config.config_source > 0 else "default"
    return {
        "name": config.name,
        "value": None if config.is_sensitive else config.value,
        "source": source,
        "is_fixed": config.read_only,
        "documentation": config.documentation or "",
    }


def create(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Create a topic."""
    given.require_known("topic", "partitions", "replication_factor", "settings")
    name = topic_of(given)
    partitions, replicas = given.optional_number("partitions"), given.optional_number("replication_factor", INT16_MAX)
    create_topic(cluster, name, partitions=partitions, replication_factor=replicas, configs=given.texts("settings"))
    return {"topic": name}


def alter(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Set settings, take others back to their default, or add partitions."""
    given.require_known("topic", "set", "unset", "partitions")
    name, values, unset = topic_of(given), given.texts("set"), [str(each) for each in given.items("unset")]
    partitions = given.optional_number("partitions")
    known = {config.name for config in topic_configs(cluster, name)}
    if unknown := sorted({*values, *unset} - known):
        raise WrongParameter(f"topic {name} has no setting {unknown[0][:40]}")
    if not values and not unset and partitions is None:
        raise WrongParameter("nothing to change: give set, unset or partitions")
    if values or unset:
        alter_topic_settings(cluster, name, values, unset)
    if partitions is not None:
        add_partitions(cluster, name, partitions)
    return {"topic": name}


def trim(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Plan which records go, and with `execute` delete them."""
    given.require_known("topic", "partition", "offset", "time", "execute")
    name, offset = topic_of(given), given.optional_number("offset", NUMBER_MAX)
    time_ms = given.moment("time") if given.text("time", "") else None
    if (offset is None) == (time_ms is None):
        raise WrongParameter("give either offset or time")
    trims = find_trims(cluster, describe_topic(cluster, name), Limit(offset, time_ms), given.optional_number("partition"))
    if given.flag("execute"):
        _carry_out(cluster, name, trims)
    records = sum(each.new_start - each.start for each in trims)
    return {"topic": name, "time": time_ms, "trims": [each._asdict() for each in trims], "records": records}


def _carry_out(cluster: ClusterClient, name: str, trims: list[Trim]) -> None:
    """Trim; raise the first refusal, with what was done in spite of it."""
    refused = {key.partition: refusal for key, refusal in trim_records(cluster, name, trims).items()}
    if not refused:
        return
    number, refusal = min(refused.items())
    done = [each.partition for each in trims if each.new_start > each.start and each.partition not in refused]
    if not done:
        raise refusal
    words = f"the records of {_partitions(done)} are deleted, those of {_partitions(sorted(refused))} are not: partition {number}: {refusal.message}"
    raise RequestRefused(refusal.code, words)


def _partitions(numbers: list[int]) -> str:
    more = f" and {len(numbers) - NAMED_MAX} more" if len(numbers) > NAMED_MAX else ""
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:NAMED_MAX]))}{more}"


def delete(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Delete a topic; `confirm` must be its name."""
    given.require_known("topic", "confirm")
    name = topic_of(given)
    if given.text("confirm", "") != name:
        raise WrongParameter("confirm must be the name of the topic")
    if name in INTERNAL_TOPICS:
        raise WrongParameter(f"{name} is internal: the box keeps its own state there")
    delete_topic(cluster, name)
    return {"topic": name}


# ---- records


def records_document(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Return a page of a partition's records: from an offset, a time, the earliest, or the newest."""
    given.require_known("topic", "partition", "from", "offset", "time", "count", "whole")
    name, partition = topic_of(given), TopicPartition(given.text("topic"), given.number("partition", 0, high=1 << 30))
    way, count = given.choice("from", ("newest", "earliest", "offset", "time")), given.number("count", 50, 1, RECORDS_MAX)
    topic = cluster.topic(name, complete=False)
    led = next((each for each in topic.partitions if each.partition == partition.partition), None)
    if led is None:
        words = f"topic {name} has no partition {partition.partition}; it has {len(topic.partitions)}, counted from 0"
        raise RequestRefused(ErrorCode.INVALID_PARTITIONS, words)
    if led.leader == NO_LEADER:
        raise RequestRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition.partition} of topic {name} has no leader at the moment")
    start, end = (int(list_offsets(cluster, [partition], each)[partition].offset) for each in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    wanted = {"newest": end - count, "earliest": start, "offset": given.number("offset", start) if way == "offset" else 0}.get(way)
    if wanted is None:
        found = int(list_offsets(cluster, [partition], given.moment("time"))[partition].offset)
        wanted = found if found >= 0 else end
    first = min(max(wanted, start), end)
    whole = given.flag("whole")
    shown_bytes, count = (WHOLE_BYTES, 1) if whole else (SHOWN_BYTES, count)
    page = RecordPage(first, end, count, lambda record: record_document(record, shown_bytes))
    read_page(cluster, partition, page)
    return {
        "topic": name,
        "partition": partition.partition,
        "partitions": len(topic.partitions),
        "start_offset": start,
        "end_offset": end,
        "first_offset": first,
        "next_offset": page.next_offset,
        "records": page.records,
    }


def record_document(record: Record, shown_bytes: int) -> dict[str, Any]:
    """Return a record; what is longer than `shown_bytes` is cut."""
    sizes = [len(part or b"") for part in (record.key, record.value, *(value for _, value in record.headers))]
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "size_bytes": sum(sizes) + sum(len(name) for name, _ in record.headers),
        "key": _content(record.key, shown_bytes),
        "value": _content(record.value, shown_bytes),
        "headers": [[name[:SHOWN_BYTES], _content(value, min(shown_bytes, SHOWN_BYTES))] for name, value in record.headers[:HEADERS_SHOWN]],
        "headers_count": len(record.headers),
    }


def _content(content: bytes | None, shown_bytes: int) -> dict[str, Any] | None:
    """Return bytes as text if they are UTF-8, else in base 64."""
    if content is None:
        return None
    shown, size = content[:shown_bytes], {"size_bytes": len(content)}
    try:
        return {"text": shown.decode() if len(shown) == len(content) else _whole_characters(shown)} | size
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(shown).decode()} | size


def _whole_characters(shown: bytes) -> str:
    """Decode a text that was cut, without the part of a character at its end."""
    for cut in range(4):
        try:
            return shown[: len(shown) - cut].decode()
        except UnicodeDecodeError as problem:
            if problem.end < len(shown) - cut:
                raise
    return shown.decode()


def produce(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Write one record; return its partition and offset."""
    given.require_known("topic", "partition", "key", "value", "headers")
    name = topic_of(given)
    headers = []
    for item in given.items("headers"):
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
            raise WrongParameter("headers must be a list of [name, value]")
        headers.append((item[0], content_of(item[1], "the value of a header")))
    key, value = (content_of(given.get(part), part) for part in ("key", "value"))
    partition = given.optional_number("partition")
    topic = cluster.topic(name, complete=False)
    if partition is not None and partition >= len(topic.partitions):
        raise WrongParameter(f"topic {name} has no partition {partition}; it has {len(topic.partitions)}, counted from 0")
    batches = BatchProducer(cluster, new_identity(cluster), delivery_timeout_ms=DELIVERY_MS)
    producer = RecordProducer(batches, name, allow_auto_topic_creation=False)
    try:
        producer.send(value, key, headers=tuple(headers), partition=partition)
        producer.flush()
        written, end = next(iter(batches.ends.items()))
    finally:
        producer.close()
    return {"topic": name, "partition": written.partition, "offset": end - 1}
