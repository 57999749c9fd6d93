"""The settings of ingest as rows: what syslog lines become, and limits for all senders.

Options of single listeners are keys of the tables `[[ingest.listener]]`
(`appliance/senders/sender_tables.py`).
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
        "replicas of topics that boxes create by themselves, for senders and their own figures; fewer while there are fewer boxes",
        "space and network",
        1,
        16,
    ),
    SettingRow("ingest.syslog.key", "host", "", "what the key of a record is taken from", "", choices=("host", "app", "none")),
    SettingRow("ingest.syslog.time.zone", "UTC", "", "zone of RFC 3164 times, which name none: UTC or a name such as Europe/Berlin", ""),
    SettingRow(
        "ingest.syslog.max.message.bytes", 64 * KIB, "bytes", "longest syslog message; the rest is cut off and marked", "memory per connection", 480, 8 * MIB
    ),
    SettingRow("ingest.batch.bytes", 64 * KIB, "bytes", "size at which a batch is sent", "memory per partition", 1024, 16 * MIB),
    SettingRow("ingest.batch.ms", 10, "ms", "age at which a batch is sent", "lines are readable later", 0, 60 * SECOND),
    SettingRow(
        "ingest.replay.ms",
        600 * SECOND,
        "ms",
        "how long ingest remembers a stored chunk or request, to recognise a repeat",
        "memory of ingest",
        SECOND,
        24 * HOUR,
    ),
    SettingRow(
        "ingest.replay.entries.max", 200_000, "units", "how many stored chunks and requests ingest remembers at most", "150 bytes each", 1000, 10_000_000
    ),
    SettingRow(
        "ingest.spool.bytes",
        GIB,
        "bytes",
        "largest spool of one ingest in the state directory, used while no leader can be reached; 0: no spool, senders wait",
        "space in the state directory",
        0,
        1024 * GIB,
    ),
    SettingRow(
        "ingest.connection.window.bytes",
        4 * MIB,
        "bytes",
        "most unacknowledged bytes of one connection; above this it is not read",
        "memory per connection",
        64 * KIB,
        GIB,
    ),
    SettingRow(
        "ingest.unfinished.bytes",
        256 * MIB,
        "bytes",
        "incomplete frames and requests of all connections of one ingest together; above this large ones are read one after the other",
        "memory of ingest",
        16 * MIB,
        1024 * GIB,
    ),
    SettingRow(
        "ingest.held.bytes",
        64 * MIB,
        "bytes",
        "repeated records that one ingest holds until the outcome of the first copy is known; above this further ones are refused, and senders send again",
        "memory of ingest",
        MIB,
        1024 * GIB,
    ),
    SettingRow(
        "ingest.decompressed.bytes.max",
        16 * MIB,
        "bytes",
        "largest content of a compressed frame or request; a larger one is refused, and so is one of more than 16 MiB and 32 times its compressed size",
        "memory per connection",
        MIB,
        GIB,
    ),
    SettingRow(
        "ingest.sender.bytes.per.second",
        64 * MIB,
        "bytes/s",
        "most bytes that one listener takes from one address, decompressed; then the sender waits, HTTP answers 429, datagrams are dropped; 0: no limit",
        "one sender fills the disks sooner",
        0,
        1024 * GIB,
    ),
    SettingRow(
        "ingest.sender.records.per.second",
        250_000,
        "records/s",
        "most records that one listener takes from one address, as above; a relay of many senders is one address; 0: no limit",
        "one sender fills the disks sooner",
        0,
        1_000_000_000,
    ),
    SettingRow(
        "ingest.listener.bytes.per.second", 0, "bytes/s", "most bytes that one listener takes from all senders, as above; 0: no limit", "", 0, 1024 * GIB
    ),
    SettingRow(
        "ingest.listener.records.per.second", 0, "records/s", "most records that one listener takes from all senders; 0: no limit", "", 0, 1_000_000_000
    ),
    SettingRow(
        "tls.handshakes.per.second",
        50,
        "handshakes/s",
        "most TLS handshakes that one listener of an ingest begins with one address; further connections wait; 0: no limit",
        "time of ingest for one sender",
        0,
        1_000_000,
    ),
    SettingRow(
        "ingest.sender.silent.ms",
        300 * SECOND,
        "ms",
        "a sender without a record for so long is reported as silent",
        "a silent sender is reported later",
        SECOND,
        24 * HOUR,
    ),
)
