"""The figures of the machine as records: each field with its kind of record and its meaning.
`docs/host-figures.md` has the same table.

One flat JSON document per device and interval, which Spark and other consumers can filter and plot
directly: `kind` says which fields are present. Values of an interval (rates, shares, counts) cover
the `interval_seconds` before `time`. Weak: stored records fix the names for ever; a new figure gets
a new name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CPU: Final = "cpu"
MEMORY: Final = "memory"
DISK: Final = "disk"
LOG_DIRECTORY: Final = "log_directory"
NETWORK: Final = "network"

TEXT: Final = "STRING"
WHOLE: Final = "BIGINT"
NUMBER: Final = "DOUBLE"
TIME: Final = "TIMESTAMP"


class HostField(NamedTuple):
    """One field of a record; `type` is its type in Spark SQL."""

    name: str
    type: str
    meaning: str


COMMON = (
    HostField("time", TIME, "end of the interval, UTC, ISO 8601 with milliseconds; the record's timestamp is the same"),
    HostField("host", TEXT, "name of the machine; the record's key as well"),
    HostField("broker_id", WHOLE, "id of the broker on it"),
    HostField("kind", TEXT, "what the record is about: cpu, memory, disk, log_directory, network"),
    HostField("device", TEXT, "which one: `all` for cpu and memory, a block device, a log directory by its Millrace name, a network interface"),
    HostField("interval_seconds", NUMBER, "how long the interval was"),
)

FIELDS: dict[str, tuple[HostField, ...]] = {
    CPU: (
        HostField("cpu_count", WHOLE, "processors"),
        HostField("user_percent", NUMBER, "of all processors: programs, nice ones included"),
        HostField("system_percent", NUMBER, "kernel, interrupts included"),
        HostField("iowait_percent", NUMBER, "idle while a disk was waited for"),
        HostField("steal_percent", NUMBER, "taken by the machine's host"),
        HostField("idle_percent", NUMBER, "idle"),
        HostField("load_1m", NUMBER, "load average of a minute"),
        HostField("load_5m", NUMBER, "of five"),
        HostField("load_15m", NUMBER, "of fifteen"),
    ),
    MEMORY: (
        HostField("total_bytes", WHOLE, "memory of the machine"),
        HostField("available_bytes", WHOLE, "what programs could still have without swapping"),
        HostField("page_cache_bytes", WHOLE, "file pages in memory, log segments for the most part"),
        HostField("dirty_bytes", WHOLE, "of these, what is not written to disk yet"),
        HostField("writeback_bytes", WHOLE, "what is on its way to a disk"),
        HostField("shared_memory_bytes", WHOLE, "tmpfs and /dev/shm: arenas among them"),
        HostField("swap_used_bytes", WHOLE, "what was swapped out"),
    ),
    DISK: (
        HostField("log_directories", TEXT, "Millrace names of the log directories on this device, with commas; empty if none"),
        HostField("read_bytes_per_second", NUMBER, "read from the device"),
        HostField("write_bytes_per_second", NUMBER, "written to it"),
        HostField("reads_per_second", NUMBER, "read requests"),
        HostField("writes_per_second", NUMBER, "write requests"),
        HostField("read_milliseconds", NUMBER, "how long a read took on average; 0 without any"),
        HostField("write_milliseconds", NUMBER, "how long a write took on average; 0 without any"),
        HostField("busy_percent", NUMBER, "share of the interval with a request under way"),
    ),
    LOG_DIRECTORY: (
        HostField("path", TEXT, "the directory"),
        HostField("free_bytes", WHOLE, "free space, as its log-writer saw it last"),
        HostField("size_bytes", WHOLE, "size of its file system"),
    ),
    NETWORK: (
        HostField("received_bytes_per_second", NUMBER, "received by the interface"),
        HostField("sent_bytes_per_second", NUMBER, "sent"),
        HostField("received_packets_per_second", NUMBER, "packets received"),
        HostField("sent_packets_per_second", NUMBER, "packets sent"),
        HostField("receive_errors", WHOLE, "damaged packets in the interval"),
        HostField("send_errors", WHOLE, "packets that could not be sent"),
        HostField("receive_drops", WHOLE, "packets that were dropped on arrival"),
        HostField("send_drops", WHOLE, "packets that were dropped before they left"),
    ),
}
"""Kind → the fields of its records besides the common ones."""

_EVERY = [*COMMON, *(field for fields in FIELDS.values() for field in fields)]
assert len({field.name for field in _EVERY}) == len(_EVERY), "a name has one meaning"


def spark_schema() -> str:
    """Return the schema for `from_json(CAST(value AS STRING), …)`."""
    return ", ".join(f"{field.name} {field.type}" for field in _EVERY)


def schema_page() -> str:
    """Return the tables of docs/host-figures.md."""
    sections = [("every record", COMMON), *((f"`kind` = `{kind}`", fields) for kind, fields in FIELDS.items())]
    lines = []
    for title, fields in sections:
        lines += [f"\n### {title[0].upper()}{title[1:]}\n" if title[0] != "`" else f"\n### {title}\n", "| field | type | meaning |", "|---|---|---|"]
        lines += [f"| `{field.name}` | {field.type} | {field.meaning} |" for field in fields]
    return "\n".join(lines) + "\n"
