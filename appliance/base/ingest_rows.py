"""The settings of ingest as rows: what syslog lines become, and limits for all senders.

Options of single listeners are keys of the tables `[[ingest.listener]]` (`appliance/senders/sender_tables.py`).
"""

from __future__ import annotations

from appliance.base.setting_row import GIB, HOUR, KIB, MIB, SECOND, SettingRow

INGEST_ROWS = (
    SettingRow("ingest.syslog.topic", "syslog", "", "topic that syslog lines go to", ""),
    SettingRow("ingest.syslog.partitions", 4, "", "partitions of that topic when ingest creates it", "files and table rows", 1, 10_000),
    SettingRow(
        "ingest.topic.replication.factor",
        3,
        "",
        "replicas of the topics that boxes make by themselves, for syslog and their own figures; fewer while there are fewer boxes",
        "space and network",
        1,
        16,
    ),
    SettingRow("ingest.syslog.key", "host", "", "what a syslog record's key is", "", choices=("host", "app", "none")),
    SettingRow("ingest.syslog.time.zone", "UTC", "", "zone of RFC 3164 times, which name none: UTC or a name such as Europe/Berlin", ""),
    SettingRow(
        "ingest.syslog.max.message.bytes", 64 * KIB, "bytes", "longest syslog message; the rest is cut off and marked", "memory per connection", 480, 8 * MIB
    ),
    SettingRow("ingest.batch.bytes", 64 * KIB, "bytes", "size at which a batch is sent", "memory per partition", 1024, 16 * MIB),
    SettingRow("ingest.batch.ms", 10, "ms", "age at which a batch is sent", "lines are readable later", 0, 60 * SECOND),
    SettingRow(
        "ingest.replay.ms", 600 * SECOND, "ms", "how long ingest knows a unit that it stored, and so a replay of it", "memory of ingest", SECOND, 24 * HOUR
    ),
    SettingRow("ingest.replay.entries.max", 200_000, "units", "how many stored units ingest knows at most", "150 bytes each", 1000, 10_000_000),
    SettingRow(
        "ingest.spool.bytes",
        GIB,
        "bytes",
        "what one ingest keeps in the state directory while no leader can be reached; 0: nothing, senders wait at once",
        "space in the state directory",
        0,
        1024 * GIB,
    ),
    SettingRow(
        "ingest.connection.window.bytes",
        4 * MIB,
        "bytes",
        "what one connection may have under way unacknowledged; above it is not read",
        "memory per connection",
        64 * KIB,
        GIB,
    ),
    SettingRow(
        "ingest.unfinished.bytes",
        256 * MIB,
        "bytes",
        "what all connections of one ingest may hold together of frames and requests that are not whole; above it large ones are read one after the other",
        "memory of ingest",
        16 * MIB,
        1024 * GIB,
    ),
    SettingRow(
        "ingest.held.bytes",
        64 * MIB,
        "bytes",
        "what one ingest may hold back until it is known whether it is a replay of what is stored or under way; above it senders are told to come again",
        "memory of ingest",
        MIB,
        1024 * GIB,
    ),
    SettingRow(
        "ingest.decompressed.bytes.max",
        64 * MIB,
        "bytes",
        "largest content of a compressed frame or request; a larger one is refused",
        "memory per connection",
        MIB,
        GIB,
    ),
    SettingRow(
        "ingest.sender.silent.ms",
        300 * SECOND,
        "ms",
        "a sender that was not heard for so long is told as silent",
        "a sender that fell silent is told later",
        SECOND,
        24 * HOUR,
    ),
)
