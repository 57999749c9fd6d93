"""What the page of settings and audit shows, as JSON: through a client of Kafka, in a thread of
`KafkaWorkers`.

Settings are those that a box describes itself (DescribeConfigs), which hides secret ones. Audit events
are the last of each partition of `__millrace_audit`, which exists with an authorizer. Weak: a setting whose
line in the file equals the default is shown as a default; a filter reads the last events only.
"""

from __future__ import annotations

from typing import Any

import orjson

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import AUDIT_TOPIC, NO_LEADER, BrokerId, TopicPartition
from appliance.client.admin import describe_configs, list_offsets
from appliance.client.cluster import ClusterClient
from appliance.client.fetch import RecordPage, read_page
from appliance.protocol.config_apis import ConfigSource, DescribedConfig, ResourceToDescribe, ResourceType
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.records.record import Record
from services.console.parameters import INT32_MAX, Parameters

SOURCES = {
    ConfigSource.DYNAMIC_BROKER: "dynamic, this box",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "dynamic, all boxes",
    ConfigSource.STATIC_BROKER: "file",
    ConfigSource.DEFAULT: "default",
}
SCANNED_MAX = 500
"""Events of each partition that are looked at."""
EVENTS_SHOWN = 300
EVENT_BYTES = 16 << 10


def settings_document(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Return the settings of a box in effect, with their sources; without `box` of the one with the lowest id."""
    given.require_known("box")
    brokers = sorted(cluster.metadata([]).brokers)
    if not brokers:
        raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is registered at the moment")
    box = given.number("box", brokers[0], 0, INT32_MAX)
    configs = describe_configs(cluster, BrokerId(box), ResourceToDescribe(ResourceType.BROKER, str(box)), f"read the settings of box {box}", documented=True)
    return {"box": box, "boxes": brokers, "settings": [_setting(config) for config in sorted(configs, key=lambda config: config.name)]}


def _setting(config: DescribedConfig) -> dict[str, Any]:
    source = SOURCES.get(ConfigSource(config.config_source), "") if config.config_source > 0 else "default"
    below = [synonym for synonym in config.synonyms if synonym.source != config.config_source]
    return {
        "name": config.name,
        "value": None if config.is_sensitive else config.value,
        "is_hidden": config.is_sensitive,
        "source": source,
        "instead_of": None if config.is_sensitive or not below else below[0].value,
        "is_fixed": config.read_only,
        "documentation": config.documentation or "",
    }


def audit_document(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Return the last audit events whose text contains `contains`, of kind `event` if given; the latest first."""
    given.require_known("contains", "event")
    contained, kind = given.text("contains", "").lower(), given.text("event", "")
    topic = cluster.metadata([AUDIT_TOPIC]).topics.get(AUDIT_TOPIC)
    if topic is None or topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return {"exists": False, "events": [], "count": 0, "scanned": 0, "kinds": [], "missing": []}
    if topic.error != ErrorCode.NONE:
        raise RequestRefused(ErrorCode(topic.error), f"could not read {AUDIT_TOPIC}: {ErrorCode(topic.error).name}")
    led = [TopicPartition(AUDIT_TOPIC, each.partition) for each in topic.partitions if each.leader != NO_LEADER]
    starts, ends = (list_offsets(cluster, led, moment) for moment in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    events: list[dict[str, Any]] = []
    for partition in led:
        events += _last_events(cluster, partition, int(starts[partition].offset), int(ends[partition].offset))
    events.sort(key=lambda event: -event["time_ms"])
    wanted = [event for event in events if kind in ("", event["event"]) and contained in event["text"].lower()]
    return {
        "exists": True,
        "events": wanted[:EVENTS_SHOWN],
        "count": len(wanted),
        "scanned": len(events),
        "kinds": sorted({event["event"] for event in events}),
        "missing": sorted({each.partition for each in topic.partitions} - {partition.partition for partition in led}),
    }


def _last_events(cluster: ClusterClient, partition: TopicPartition, start: int, end: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    offset = max(start, end - SCANNED_MAX)
    while offset < end:
        page = RecordPage(offset, end, SCANNED_MAX - len(found), _event)
        read_page(cluster, partition, page)
        found += page.records
        if page.next_offset <= offset or len(found) >= SCANNED_MAX:
            break
        offset = page.next_offset
    return found


def _event(record: Record) -> dict[str, Any]:
    """Return an event; one that this release cannot read has its text alone."""
    text = (record.value or b"")[:EVENT_BYTES].decode(errors="replace")
    try:
        read = orjson.loads(record.value or b"")
    except orjson.JSONDecodeError:
        read = {}
    known = read if isinstance(read, dict) else {}
    shown = {name: str(known.get(name, "")) for name in ("event", "principal", "client", "listener", "resource", "outcome")}
    time_ms, times = known.get("time_ms"), known.get("times")
    return shown | {
        "time_ms": time_ms if isinstance(time_ms, int) else record.timestamp,
        "broker": str(known.get("broker", "")),
        "times": times if isinstance(times, int) else 1,
        "details": known.get("details") or ({} if known else text),
        "text": text,
    }
