"""The content of each page as one JSON document, bounded for any number of partitions, topics
and groups. Pure.

Weak: the busiest topics and groups are listed, the rest is counted; `millrace top` and `/metrics`
have all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from appliance.base.model import INTERNAL_TOPICS
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.runtime.ensemble_checks import open_listeners
from appliance.senders.ingest_figures import IngestFigures, document_of
from services.console.activity import DISK_TIMED, Between
from services.console.alarm import Alarm, AlarmEvent, AlarmWatch
from services.console.box_sample import SUPERVISOR, BoxSample, ProcessSample
from services.console.console_groups import GroupLag, GroupsSample
from services.console.disk_sample import DiskSample
from services.console.figures import TopicFigures
from services.console.person_rights import ALL, Visible

TOPICS_SHOWN = 30
TOPICS_LISTED = 2_000
GROUPS_SHOWN = 30
SENDERS_SHOWN = 500
GROUP_TOPICS_SHOWN = 3
EVENTS_SHOWN = 20
ALARMS_SHOWN = 300
HIDDEN = "(hidden)"
"""Instead of a name that a person may not see."""


def overview(sample: BoxSample, between: Between, groups: GroupsSample, events: list[AlarmEvent], version: str, visible: Visible = ALL) -> dict[str, Any]:
    """Return the document; `between` covers the last seconds up to `sample`. Of topics and groups it names
    the visible ones."""
    box = sample.box
    topics = between.after.topics
    shown_groups = sorted((group for group in groups.groups if visible.has_group(group.group)), key=lambda group: (-group.records, group.group))
    return {
        "now_ms": sample.wall_ms,
        "version": version,
        "box": box.box,
        "broker_id": box.broker_id,
        "kafka": ", ".join(f"{host}:{port}" for _, host, port in (listener.endpoint for listener in box.kafka_listeners)),
        "open_listeners": open_listeners(box),
        "started_ms": box.started_wall_ms,
        "missing": sample.missing,
        "seconds": round(between.seconds, 1),
        "rates": {
            "received_bytes": between.rate("log_writer.bytes"),
            "sent_bytes": between.rate("fetch.range_bytes"),
            "records": between.rate("log_writer.records"),
            "syslog_lines": between.rate("ingest.received"),
            "produce_requests": between.rate("produce.requests"),
            "fetch_requests": between.rate("fetch.requests"),
        },
        "latency": {name: between.latency(f"{name}.latency_us")._asdict() for name in ("produce", "fetch")},
        "connections": sample.total("acceptor.connections"),
        "senders": sample.total("ingest.connections"),
        "syslog": _ledger(sample),
        "memory_bytes": sum(process.pss_bytes or 0 for process in sample.processes),
        "cpu_percent": between.cpu_percent_of_all(),
        "processes": [_process(process, sample, between) for process in sample.processes],
        "disks": [_disk(disk.name, disk.path, sample, between) for disk in box.disks],
        "topics": _topics(between, visible),
        "topics_count": len(topics),
        "partitions_count": sum(topic.partitions for topic in topics.values()),
        "not_served_count": sum(topic.not_served for topic in topics.values()),
        "groups": [_group(group, visible) for group in shown_groups[:GROUPS_SHOWN]],
        "groups_count": len(groups.groups) + groups.left_out,
        "alarms": [_event(event, visible) for event in events[:EVENTS_SHOWN]],
    }


def _ledger(sample: BoxSample) -> dict[str, int]:
    """Return the sum of all ingest processes: received = stored + duplicate + lost + in flight."""
    names = {"received": "received", "stored": "stored", "duplicate": "duplicate", "lost": "counted", "refused": "refused", "kernel_drops": "kernel_drops"}
    sums = {name: sample.total(f"ingest.{counter}") for name, counter in names.items()}
    in_flight = sums["received"] - sums["stored"] - sums["duplicate"] - sums["lost"]
    return sums | {"in_flight": max(in_flight, 0), "silent_senders": sample.senders.silent}


def _process(process: ProcessSample, sample: BoxSample, between: Between) -> dict[str, Any]:
    cost = process.cost
    return {
        "name": process.name,
        "state": process.state,
        "pid": process.pid,
        "started_ms": process.started_wall_ms,
        "restarts": _restarts(process.name, sample),
        "cpu_percent": between.cpu_percent(process.name, process.pid),
        "pss_bytes": process.pss_bytes,
        "resident_bytes": cost.resident_bytes if cost is not None else None,
    }


def _restarts(name: str, sample: BoxSample) -> int:
    """Return the restarts in its own counter or that of the supervisor: a JVM has none."""
    own, supervisor = sample.counters.get(name), sample.counters.get(SUPERVISOR)
    starts = own.values.get("runtime.starts", 0) if own is not None else 0
    restarts = supervisor.values.get(f'supervisor.restarts{{process="{name}"}}', 0) if supervisor is not None else 0
    return max(starts - 1, restarts, 0)


def disk_document(name: str, path: str, sample: BoxSample) -> dict[str, Any]:
    """Return a disk at the moment of a sample, without rates and latencies."""
    look: DiskSample = sample.disks[name]
    writer, controller = sample.counters.get(f"log-writer@{name}"), sample.counters.get("controller")
    values = writer.values if writer is not None else {}
    return {
        "name": name,
        "path": path,
        "state": look.state,
        "is_fenced": look.is_fenced,
        "recent_fences": values.get("disk.fences_of_late", 0),
        "is_draining": bool(controller is not None and controller.values.get(f'controller.disk_draining{{disk="{name}"}}')),
        "free_bytes": values.get("disk.free_bytes"),
        "size_bytes": values.get("disk.total_bytes"),
        "partitions": len(look.partitions),
        "recovery_done_bytes": look.recovery_done_bytes,
        "recovery_bytes": look.recovery_total_bytes,
    }


def _disk(name: str, path: str, sample: BoxSample, between: Between) -> dict[str, Any]:
    latencies = {
        f"{what}_{percentile}": value for what, label in DISK_TIMED.items() for percentile, value in between.disk_latency(name, label)._asdict().items()
    }
    return disk_document(name, path, sample) | {"written_bytes_per_s": between.disk_rate(name)} | latencies


def _topics(between: Between, visible: Visible) -> list[dict[str, Any]]:
    """Return the topics: those with problems first, then the busiest, then by name."""
    rated = []
    for topic in between.after.topics.values():
        if not visible.has_topic(topic.name):
            continue
        records, received, sent = between.topic_rates(topic.name)
        rated.append(((-topic.not_served, -received - sent, -records, topic.name), topic, (records, received, sent)))
    rated.sort(key=lambda row: row[0])
    names = ("records_per_s", "received_bytes_per_s", "sent_bytes_per_s")
    return [topic._asdict() | dict(zip(names, rates)) for _, topic, rates in rated[:TOPICS_SHOWN]]


def topic_list(image: MetadataImage, between: Between, contained: str = "", with_internal: bool = False, visible: Visible = ALL) -> dict[str, Any]:
    """Return the topics whose names contain a text, by name, internal ones only if asked; `count`
    includes those left out. Records, bytes and rates are those of this box."""
    topics = sorted(
        topic
        for topic in between.after.topics.values()
        if contained in topic.name and topic.name in image.topics and (with_internal or topic.name not in INTERNAL_TOPICS) and visible.has_topic(topic.name)
    )
    listed = [_listed(topic, image.topics[topic.name], between) for topic in topics[:TOPICS_LISTED]]
    return {"topics": listed, "count": len(topics), "boxes": len(image.brokers)}


def _listed(topic: TopicFigures, known: TopicImage, between: Between) -> dict[str, Any]:
    records, received, sent = between.topic_rates(topic.name)
    return topic._asdict() | {
        "is_internal": topic.name in INTERNAL_TOPICS,
        "replicas": max((len(partition.replicas) for partition in known.partitions), default=0),
        "under_replicated": sum(len(partition.isr) < len(partition.replicas) for partition in known.partitions),
        "leaderless": sum(partition.leader < 0 for partition in known.partitions),
        "records_per_s": records,
        "received_bytes_per_s": received,
        "sent_bytes_per_s": sent,
    }


def senders_document(figures: IngestFigures, silent_limit_ms: int) -> dict[str, Any]:
    """Return the content of the page of senders: the silent ones first, then the busiest;
    `senders_count` includes those left out."""
    document = document_of(figures, with_senders=True)
    silent = {known.host for known in figures.silent}
    del document["silent"]
    senders = sorted(document["senders"], key=lambda each: (each["host"] not in silent, -each["received"], each["host"]))
    return document | {
        "now_ms": figures.now_ms,
        "senders": [each | {"is_silent": each["host"] in silent} for each in senders[:SENDERS_SHOWN]],
        "senders_count": len(senders),
        "silent_count": len(silent),
        "silent_limit_ms": silent_limit_ms,
    }


def _group(group: GroupLag, visible: Visible) -> dict[str, Any]:
    topics = [topic.topic for topic in group.topics if visible.has_topic(topic.topic)]
    return {
        "group": group.group,
        "state": group.state,
        "records": group.records,
        "partitions": group.partitions,
        "topics": topics[:GROUP_TOPICS_SHOWN],
        "topics_count": len(group.topics),
    }


def alarms_document(watch: AlarmWatch, alarms: Sequence[Alarm], now_ms: int, visible: Visible = ALL) -> dict[str, Any]:
    """Return the content of the page of alarms: what lasts, what ended, and each alarm with its runbook. Texts name
    the visible topics and groups."""
    events = watch.events
    present = [event for event in events if event.ended_wall_ms is None]
    past = events[len(present) :]
    firing = {event.alarm.name for event in present}
    return {
        "now_ms": now_ms,
        "present": [_event(event, visible) for event in present[:ALARMS_SHOWN]],
        "present_count": len(present),
        "past": [_event(event, visible) for event in past[:ALARMS_SHOWN]],
        "past_count": len(past),
        "alarms": [
            {
                "name": alarm.name,
                "severity": alarm.severity,
                "meaning": alarm.meaning,
                "check": alarm.check,
                "act": alarm.act,
                "is_firing": alarm.name in firing,
                "is_checked": alarm.condition is not None,
            }
            for alarm in alarms
        ],
    }


def _event(event: AlarmEvent, visible: Visible) -> dict[str, Any]:
    alarm = event.alarm
    return {
        "name": alarm.name,
        "severity": alarm.severity,
        "words": event.words if visible == ALL else _visible_words(event, visible),
        "meaning": alarm.meaning,
        "runbook": alarm.runbook,
        "began_ms": event.began_wall_ms,
        "ended_ms": event.ended_wall_ms,
    }


def _visible_words(event: AlarmEvent, visible: Visible) -> str:
    """Return the text of an alarm, with `HIDDEN` for what a person may not see. Of an alarm that this release does
    not have the text is not known to be without names: it is left out."""
    if event.alarm.condition is None:
        return HIDDEN
    sees = {"topic": visible.has_topic, "group": visible.has_group}
    shown = {name: value for name, value in event.labels if name not in sees or sees[name](value)}
    return event.alarm.words.format_map(defaultdict(lambda: HIDDEN, shown))
