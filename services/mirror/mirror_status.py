"""What a mirror says about itself: a JSON document in a file, figures for Prometheus beside it, and a table of both for people.

The mirror writes both files every few seconds, each by rename. A document that is three intervals old is of a
mirror that hangs or has ended; readers say so. The `.prom` file is for node_exporter's textfile collector.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from services.mirror.mirror import Mirror
from services.mirror.source import COPYING, MirroredPartition

STALE_INTERVALS = 3
PARTITION_FIGURES = (
    ("lag_records", "gauge", "Offsets of the source partition that are not in the target yet; -1: unknown.", "lag"),
    ("position", "gauge", "Offset of the source partition up to which the target has all.", "position"),
    ("records_total", "counter", "Records copied by this process.", "records"),
    ("bytes_total", "counter", "Bytes of batches copied by this process.", "bytes"),
    ("skipped_offsets_total", "counter", "Offsets that the source had deleted before they were copied.", "skipped_offsets"),
    ("source_changes_total", "counter", "Deletions, re-creations and truncations of the source partition.", "source_changes"),
    ("refusals_total", "counter", "Rounds that failed because the target refused this partition.", "refusals"),
)
"""Name, type, meaning, key in the document."""


def status_document(mirror: Mirror, started_ms: int, is_running: bool = True) -> dict[str, Any]:
    return {
        "mirror": mirror.options.name,
        "is_running": is_running,
        "pid": os.getpid(),
        "started_ms": started_ms,
        "updated_ms": mirror.clock.wall_ms(),
        "interval_ms": mirror.options.status_ms,
        "problem": mirror.problem,
        "rounds": mirror.rounds,
        "failed_rounds": mirror.failed_rounds,
        "sources": [
            {
                "name": source.name,
                "cluster_id": source.cluster_id,
                "problem": source.problem,
                "failures": source.failures,
                "translated_offsets": source.translated_offsets,
                "group_problem": source.group_problem,
                "left_out": [each._asdict() for each in source.left_out],
                "partitions": [_partition(each) for _, each in sorted(source.partitions.items())],
            }
            for source in mirror.sources
        ],
    }


def _partition(partition: MirroredPartition) -> dict[str, Any]:
    return {
        "topic": partition.source.topic,
        "partition": partition.source.partition,
        "target_topic": partition.target.topic,
        "state": partition.state,
        "problem": partition.problem,
        "position": partition.position,
        "end_offset": partition.end_offset,
        "lag": partition.lag,
        "records": partition.records,
        "bytes": partition.bytes,
        "rebuilt_batches": partition.rebuilt_batches,
        "aborted_records": partition.aborted_records,
        "skipped_offsets": partition.skipped_offsets,
        "source_changes": partition.source_changes,
        "refusals": partition.refusals,
    }


def write_status(path: str, document: dict[str, Any]) -> None:
    """Write the document, and the figures for Prometheus beside it. Raises OSError."""
    _replace(path, json.dumps(document, separators=(",", ":")) + "\n")
    _replace(os.path.splitext(path)[0] + ".prom", prometheus_text(document))


def _replace(path: str, text: str) -> None:
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, 0o644)  # for node_exporter, whatever the umask
        file.write(text)
    os.replace(f"{path}.new", path)


def prometheus_text(document: dict[str, Any]) -> str:
    """Return the document in Prometheus's text format."""
    name = document["mirror"]
    lines: list[str] = []

    def figure(suffix: str, kind: str, meaning: str, rows: list[tuple[dict[str, object], object]]) -> None:
        lines.extend((f"# HELP millrace_mirror_{suffix} {meaning}", f"# TYPE millrace_mirror_{suffix} {kind}"))
        for labels, value in rows:
            text = ",".join(f'{label}="{_escaped(str(content))}"' for label, content in {"mirror": name, **labels}.items())
            lines.append(f"millrace_mirror_{suffix}{{{text}}} {value}")

    sources = document["sources"]
    partitions = [(source["name"], each) for source in sources for each in source["partitions"]]
    figure("updated_timestamp_seconds", "gauge", "When these figures were written.", [({}, document["updated_ms"] / 1000)])
    figure("target_up", "gauge", "1 unless the last attempt to write to the target failed.", [({}, int(not document["problem"]))])
    figure("rounds_total", "counter", "Transactions committed on the target.", [({}, document["rounds"])])
    figure("failed_rounds_total", "counter", "Transactions that were given up.", [({}, document["failed_rounds"])])
    figure(
        "source_up", "gauge", "1 unless the last attempt to ask the source failed.", [({"source": each["name"]}, int(not each["problem"])) for each in sources]
    )
    figure("source_failures_total", "counter", "Failed attempts to ask the source.", [({"source": each["name"]}, each["failures"]) for each in sources])
    figure("left_out_topics", "gauge", "Selected topics that are not copied.", [({"source": each["name"]}, len(each["left_out"])) for each in sources])
    states = Counter((source, each["state"]) for source, each in partitions)
    rows: list[tuple[dict[str, object], object]] = [({"source": source, "state": state}, count) for (source, state), count in sorted(states.items())]
    figure("partitions", "gauge", "Partitions by state: copying, retrying, stopped, gone.", rows)
    for suffix, kind, meaning, key in PARTITION_FIGURES:
        figure(suffix, kind, meaning, [({"source": source, "topic": each["topic"], "partition": each["partition"]}, each[key]) for source, each in partitions])
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def status_text(document: dict[str, Any], now_ms: int) -> str:
    """Return the table that `millrace mirror status` prints."""
    age_ms = now_ms - document["updated_ms"]
    is_stale = age_ms > STALE_INTERVALS * document["interval_ms"]
    state = f"running (pid {document['pid']})"
    if not document["is_running"]:
        state = f"ended {age_ms // 1000} s ago"
    elif is_stale:
        state = f"no news for {age_ms // 1000} s: it was killed, or hangs"
    lines = [f"mirror {document['mirror']}: {state}; {document['rounds']} rounds, {document['failed_rounds']} failed"]
    if document["problem"]:
        lines.append(f"  target: {document['problem']}")
    for source in document["sources"]:
        lines.append(f"source {source['name']}: {source['problem'] or 'reading'}")
        lines += [f"  {source['group_problem']}"] if source["group_problem"] else []
        lines += [f"  topic {each['topic']} is not copied: {each['reason']}" for each in source["left_out"]]
        rows = [("  PARTITION", "TARGET TOPIC", "STATE", "POSITION", "LAG", "RECORDS")]
        for each in source["partitions"]:
            lag = "?" if each["lag"] < 0 else str(each["lag"])
            name = f"  {each['topic']}-{each['partition']}"
            rows.append((name, each["target_topic"], each["state"], str(each["position"]), lag, str(each["records"])))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        problems = [each for each in source["partitions"] if each["problem"]]
        lines += [f"  {each['topic']}-{each['partition']}: {each['problem']}" for each in problems]
    return "\n".join(lines)


def has_problem(document: dict[str, Any], now_ms: int) -> bool:
    """Return whether the mirror, one of its sources or one of its partitions needs attention."""
    if not document["is_running"] or now_ms - document["updated_ms"] > STALE_INTERVALS * document["interval_ms"] or document["problem"]:
        return True
    return any(source["problem"] or any(each["state"] != COPYING for each in source["partitions"]) for source in document["sources"])
