"""Every setting of a broker as a row: name, default, bounds, unit, meaning, and what a larger value
costs (STYLE.md, habit 12).

The reference page is made from these rows, and `appliance.base.settings` refuses what is outside
their bounds. Names are Kafka's own wherever Kafka has the setting. Weak spot: bounds are per row;
relations between rows are checked in `settings.relation_problems`.
"""

from __future__ import annotations

from appliance.base.coordination_rows import GROUP_ROWS, REPLICA_ROWS, TRANSACTION_ROWS
from appliance.base.ingest_rows import INGEST_ROWS
from appliance.base.network_rows import NETWORK_ROWS
from appliance.base.setting_row import GIB, HOUR, INT32_MAX, INT64_MAX, KIB, MIB, SECOND, SettingRow

_TOPIC_ROWS = (
    SettingRow("num.partitions", 1, "", "partitions of a topic that is created without saying how many", "files and table rows", 1, 10_000),
    SettingRow("default.replication.factor", 1, "", "replicas of a topic that is created without saying how many", "space and network", 1, 16),
    SettingRow(
        "auto.create.topics.enable",
        True,
        "",
        "create a topic when a client first names it. If it is not set: true on a box that listens on a loopback address only, otherwise false",
        "any client that reaches the box fills it with topics",
    ),
    SettingRow(
        "max.topics",
        5_000,
        "",
        "most topics in the cluster, internal ones not counted; a further one is refused with POLICY_VIOLATION",
        "ZooKeeper's heap, about 4 KB for a topic (zookeeper.heap.mb)",
        1,
        1_000_000,
    ),
    SettingRow(
        "max.partitions.per.box",
        20_000,
        "",
        "most replicas on one box; a topic or partition that would exceed them is refused with POLICY_VIOLATION",
        "descriptors, table rows, and about 1 KB of ZooKeeper's heap for a partition",
        1,
        1_000_000,
    ),
    SettingRow("delete.topic.enable", True, "", "allow topics to be deleted", ""),
    SettingRow("min.insync.replicas", 1, "", "replicas that must be in sync for acks=all", "fewer writes succeed when replicas are down", 1, 16),
    SettingRow(
        "replica.lag.time.max.ms",
        10 * SECOND,
        "ms",
        "a follower that has not caught up with its leader for so long is taken out of the in-sync set; acks=all waits for it until then "
        "(Kafka's 30 s is as long as clients wait for an answer). A box that is gone is out at once",
        "acks=all waits longer for a replica that hangs",
        500,
        HOUR,
    ),
    SettingRow(
        "replica.selector.class",
        "org.apache.kafka.common.replica.LeaderSelector",
        "",
        "from which replica consumers read: the leader, or one in their own rack (client.rack and broker.rack), which the leader sends them to",
        "",
        choices=("org.apache.kafka.common.replica.LeaderSelector", "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    ),
    SettingRow("message.max.bytes", 1_048_588, "bytes", "largest record batch", "arena space for one request", 0, 256 * MIB),
    SettingRow("log.message.downconversion.enable", True, "", "convert records for clients that read older formats only", ""),
    SettingRow("log.message.timestamp.type", "CreateTime", "", "whose clock stamps records", "", choices=("CreateTime", "LogAppendTime")),
    SettingRow(
        "unclean.leader.election.enable",
        False,
        "",
        "let a replica that was not in sync lead when no other can: what it lacks is lost",
        "",
    ),
    SettingRow("auto.leader.rebalance.enable", True, "", "let leadership return by itself to the first replica of each partition", ""),
    SettingRow("leader.imbalance.check.interval.seconds", 300, "s", "pause between two checks of the leaderships", "leadership returns later", 1, INT32_MAX),
    SettingRow(
        "leader.imbalance.per.broker.percentage",
        10,
        "%",
        "a box gets its leaderships back when it lacks more than this share of them",
        "boxes that came back lead less for longer",
        0,
        100,
    ),
)

_LOG_ROWS = (
    SettingRow(
        "log.segment.bytes", GIB, "bytes", "a segment is closed before it grows beyond this", "coarser retention, longer recovery scans", 16 * KIB, INT32_MAX
    ),
    SettingRow(
        "log.roll.hours",
        168,
        "hours",
        "a segment is closed when its first record is this old; a topic's segment.ms goes before it",
        "coarser retention",
        1,
        INT32_MAX,
    ),
    SettingRow("log.roll.ms", 0, "ms", "the same in ms, before log.roll.hours; 0 is not set", "coarser retention", 0, INT64_MAX),
    SettingRow(
        "log.roll.jitter.hours",
        0,
        "hours",
        "at most so much earlier is a segment closed, each log at a time of its own, so that not all roll at once; a topic's segment.jitter.ms goes before it",
        "segments of different length",
        0,
        INT32_MAX,
    ),
    SettingRow("log.roll.jitter.ms", 0, "ms", "the same in ms, before log.roll.jitter.hours; 0 is not set", "segments of different length", 0, INT64_MAX),
    SettingRow("log.index.interval.bytes", 4096, "bytes", "log bytes between two index entries", "longer scans per look-up", 0, INT32_MAX),
    SettingRow("log.index.size.max.bytes", 10 * MIB, "bytes", "largest index of a segment", "page cache", 4 * KIB, INT32_MAX),
    SettingRow(
        "log.flush.policy",
        "os",
        "",
        "when appended records are synced to the disk: os (when the system pleases, and at recovery points), interval (see the next two), "
        "ack (before they are acknowledged); a topic's flush.messages and flush.ms go before it",
        "",
        choices=("os", "interval", "ack"),
    ),
    SettingRow(
        "log.flush.interval.messages", INT64_MAX, "records", "with policy interval: a log is synced when it has so many new ones", "more lost", 1, INT64_MAX
    ),
    SettingRow("log.flush.interval.ms", INT64_MAX, "ms", "with policy interval: a log is synced when its oldest new one is so old", "more lost", 0, INT64_MAX),
    SettingRow(
        "log.flush.offset.checkpoint.interval.ms", 60 * SECOND, "ms", "time between two recovery-point rounds", "longer recovery after a power cut", 100, HOUR
    ),
    SettingRow(
        "log.scrub.bytes.per.second",
        4 * MIB,
        "bytes",
        "how fast closed segments of a disk are read to find damage; 0: never (4 MiB/s are 350 GB a day)",
        "reads on every disk, day and night",
        0,
        GIB,
    ),
    SettingRow(
        "log.scrub.interval.ms",
        168 * HOUR,
        "ms",
        "pause between two such passes over a disk",
        "damage stays unknown for longer",
        0,
        INT64_MAX,
    ),
    SettingRow(
        "log.flush.unflushed.bytes",
        200 * MIB,
        "bytes",
        "unflushed bytes of a disk that start a recovery-point round early",
        "longer recovery after a power cut",
        MIB,
        64 * GIB,
    ),
    SettingRow(
        "log.disk.deadline.ms", 3 * SECOND, "ms", "a disk that keeps a write waiting for so long is hung", "clients of a hung disk wait longer", 100, HOUR
    ),
    SettingRow(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        INT64_MAX,
        "bytes/s",
        "how fast a partition that is moved to another disk is copied, for each disk that partitions are moved to",
        "less of both disks for producers and consumers while a move lasts",
        1,
        INT64_MAX,
    ),
    SettingRow("log.disk.probe.interval.ms", SECOND, "ms", "time between two probes of a disk that is written to", "faults are noticed later", 100, HOUR),
)

_RETENTION_ROWS = (
    SettingRow(
        "log.cleanup.policy",
        "delete",
        "",
        "what becomes of old records: they are deleted, or compacted so that the last of each key stays; a topic's cleanup.policy goes before it",
        "",
        choices=("delete", "compact", "compact,delete"),
    ),
    SettingRow(
        "log.retention.hours", 168, "hours", "how long records are kept; -1 is for ever; a topic's retention.ms goes before it", "space", -1, 10_000_000
    ),
    SettingRow("log.retention.minutes", 0, "minutes", "the same in minutes, before log.retention.hours; 0 is not set", "space", -1, INT32_MAX),
    SettingRow("log.retention.ms", 0, "ms", "the same in ms, before log.retention.minutes; 0 is not set", "space", -1, INT64_MAX),
    SettingRow("log.retention.bytes", -1, "bytes", "bytes of a partition that are kept; -1 is no limit", "space", -1, INT64_MAX),
    SettingRow(
        "log.retention.protected.ms",
        0,
        "ms",
        "segments younger than this are never deleted for free space; writes are refused instead (topics: millrace.retention.protected.ms)",
        "a full disk refuses writes",
        0,
        INT64_MAX,
    ),
    SettingRow(
        "log.retention.check.interval.ms", 300 * SECOND, "ms", "time between two looks for what is too old or too much", "old records go later", 100, 24 * HOUR
    ),
    SettingRow(
        "log.segment.delete.delay.ms",
        60 * SECOND,
        "ms",
        "time that a deleted segment's files stay, so that open reads can finish",
        "space is free later",
        0,
        INT64_MAX,
    ),
    SettingRow(
        "log.disk.reserve.bytes",
        GIB,
        "bytes",
        "with less than this free on a disk its oldest closed segments are deleted, whatever their topics' retention says, except protected ones; 0 is never",
        "old records go earlier on a full disk",
        0,
        INT64_MAX,
    ),
    SettingRow("log.disk.reserve.percent", 5, "% of the disk", "the reserve is at most this, which counts on small disks", "the same", 0, 50),
)

_MEMORY_ROWS = (
    SettingRow(
        "acceptor.arena.bytes", 128 * MIB, "bytes", "shared memory in which one acceptor receives requests", "memory, taken at the start", 4 * MIB, 64 * GIB
    ),
    SettingRow(
        "acceptor.heap.bytes",
        128 * MIB,
        "bytes",
        "what one acceptor keeps for all its clients outside of the arena: requests that are incomplete or wait, replies that are not taken",
        "memory that hostile clients can take",
        16 * MIB,
        64 * GIB,
    ),
    SettingRow(
        "log.reader.arena.bytes",
        32 * MIB,
        "bytes",
        "shared memory into which one disk's log-reader reads what is not in the page cache",
        "memory, taken while cold data is read",
        4 * MIB,
        16 * GIB,
    ),
    SettingRow("ingest.arena.bytes", 64 * MIB, "bytes", "shared memory in which one ingest builds batches", "memory, taken at the start", 2 * MIB, 64 * GIB),
    SettingRow("channel.ring.entries", 1024, "entries", "descriptors under way between two processes; a power of two", "128 bytes each", 16, 65_536),
    SettingRow(
        "disk.budget.bytes", 48 * MIB, "bytes", "arena space that one source may have under way to one disk", "a slow disk holds more memory", MIB, 64 * GIB
    ),
)

_PRODUCER_ROWS = (
    SettingRow(
        "producer.id.expiration.ms",
        24 * HOUR,
        "ms",
        "silence after which a partition forgets a producer's sequences, so that a retry of what it sent before is written twice",
        "memory of the log-writers, larger producer snapshots",
        1,
        INT32_MAX,
    ),
)

_BOX_ROWS = (
    SettingRow(
        "host.figures.interval.ms",
        10 * SECOND,
        "ms",
        "how often the machine's own figures (processors, memory, disks, network) are written to a topic; 0: never",
        "coarser figures",
        0,
        HOUR,
    ),
    SettingRow("host.figures.topic", "millrace-host", "", "the topic that they go to; the console creates it, with a week's retention", ""),
    SettingRow(
        "zookeeper.session.timeout.ms", 1500, "ms", "silence after which ZooKeeper gives a broker up", "later fail-over, fewer false alarms", 500, 600 * SECOND
    ),
    SettingRow(
        "alerts.url",
        "",
        "",
        "where the console sends alarms that begin or end: an Alertmanager (http://HOST:9093/api/v2/alerts) or another HTTP server, which gets "
        "Alertmanager's JSON for webhooks; with user and password before an @. Empty: nowhere",
        "",
    ),
    SettingRow(
        "http.details.allowed.networks",
        "127.0.0.0/8, ::1",
        "",
        "networks from which the console searches records and shows paths of disks, process ids and the release; users of a proxy have its address",
        "more users learn them",
    ),
    SettingRow(
        "http.allowed.hosts",
        "",
        "",
        "names, separated by commas, by which the console and the HTTP listeners may be addressed, beside IP addresses, localhost, the host name of the "
        "machine, listen and advertise; requests for other names are refused with 421, because a web page could have made its name lead here",
        "",
    ),
    SettingRow(
        "http.role.viewer",
        "",
        "",
        "users that may look at the console, as far as access control entries allow, separated by semicolons: User:alice;User:bob (User:* are all); "
        "if any role has users, the console asks for a login",
        "more users see the box",
    ),
    SettingRow(
        "http.role.operator",
        "",
        "",
        "users that may also write and delete records, change groups, abort transactions and drain disks in the console",
        "more users change records",
    ),
    SettingRow("http.role.admin", "", "", "users that may also create, alter and delete topics in the console", "more users change topics"),
    SettingRow(
        "http.proxy.user.header",
        "",
        "",
        "the header in which a proxy (of OpenID Connect) names the user of the console that it has authenticated; it must replace what clients send",
        "",
    ),
    SettingRow(
        "http.proxy.networks",
        "",
        "",
        "networks, separated by commas, of the proxies of the console; only they name users, addresses (X-Forwarded-For) and HTTPS (X-Forwarded-Proto)",
        "programs there can be any user of the console",
    ),
    SettingRow(
        "read.without.zookeeper.max.ms",
        7 * 24 * HOUR,
        "ms",
        "consumers of replicated partitions are served for so long while ZooKeeper does not answer, up to the high watermark that was reached",
        "consumers of a leader that was replaced while it was cut off read an old end of the log for longer",
        0,
        365 * 24 * HOUR,
    ),
    SettingRow("broker.rack", "", "", "where the box stands: replicas of a partition are spread over racks, and consumers may read from their own", ""),
    SettingRow("zookeeper.tick.ms", 100, "ms", "unit of time of the embedded ZooKeeper; sessions end at a tick", "slower fail-over", 50, 10 * SECOND),
    SettingRow(
        "zookeeper.sync.limit",
        6,
        "ticks",
        "silence after which a member of an ensemble that the boxes run together gives its leader up, and the leader a member",
        "slower fail-over of the ensemble; a smaller one gives up members whose disk is slow",
        2,
        1000,
    ),
    SettingRow("zookeeper.init.limit", 100, "ticks", "time in which a member of that ensemble must have taken over the tree", "slower second tries", 5, 10_000),
    SettingRow(
        "zookeeper.digest.file",
        "",
        "",
        "file (mode 0600) with USER:PASSWORD for an ensemble that --zookeeper names; nodes are then created with ACLs for this user",
        "",
    ),
    SettingRow(
        "zookeeper.auth.required",
        True,
        "",
        "the ZooKeeper of the boxes' own admits only sessions with credentials, and its nodes have ACLs; false only while boxes get their secret one by one",
        "",
    ),
    SettingRow(
        "zookeeper.ssl.client.enable",
        False,
        "",
        "this box connects to ZooKeeper with TLS, and its own member to the others",
        "",
    ),
    SettingRow("zookeeper.ssl.keystore.location", "", "", "PEM file with the key and certificate of this box for ZooKeeper (millrace cluster certificate)", ""),
    SettingRow("zookeeper.ssl.truststore.location", "", "", "PEM file with the authorities that certificates of ZooKeeper servers and boxes come from", ""),
    SettingRow(
        "zookeeper.server.tls",
        "off",
        "",
        "the ZooKeeper of the boxes' own takes connections in clear text (off), also with TLS and a certificate (accepted), or only so (required); "
        "with required, old consumers that keep their groups in ZooKeeper cannot connect",
        "",
        choices=("off", "accepted", "required"),
    ),
    SettingRow(
        "zookeeper.allowed.addresses",
        "",
        "",
        "addresses and networks (10.0.0.0/24), separated by commas, that reach the ZooKeeper of the boxes' own under systemd beside the members: "
        "boxes without a member, old consumers",
        "",
    ),
    SettingRow("zookeeper.heap.mb", 64, "MiB", "Java heap of the embedded ZooKeeper, which takes a connection for every 4 MiB", "memory", 32, 16_384),
    SettingRow(
        "log.severity",
        "info",
        "",
        "the least severity that processes report; `MILLRACE_LOG_LEVEL` goes before it",
        "",
        choices=("critical", "error", "warning", "notice", "info", "debug"),
    ),
    SettingRow(
        "watchdog.timeout.ms",
        30 * SECOND,
        "ms",
        "a process whose heartbeat is older than this is killed and restarted",
        "a hung process is noticed later",
        1 * SECOND,
        HOUR,
    ),
)

_DISK_PRIORITY_ROWS = (
    SettingRow(
        "log.writer.pinning",
        True,
        "",
        "on more than four cores, each log-writer runs on a core of its own (the n-th disk on the n-th core, round and round)",
        "",
    ),
    SettingRow("log.writer.io.class", "best-effort:2", "", "a log-writer's place in its disk's queue: realtime:0-7, best-effort:0-7 or idle", ""),
    SettingRow("log.reader.io.class", "best-effort:5", "", "a log-reader's place in its disk's queue", ""),
    SettingRow("disk.io.classes", "none", "", 'what holds for both on single disks instead, as in "d0=idle,d3=best-effort:7"', ""),
)

_CLEANER_ROWS = (
    SettingRow("log.cleaner.enable", True, "", "compact the logs of topics whose cleanup.policy says so", ""),
    SettingRow(
        "log.cleaner.backoff.ms", 15 * SECOND, "ms", "time between two looks for a log of a disk that is due", "logs are compacted later", 100, 24 * HOUR
    ),
    SettingRow(
        "log.cleaner.dedupe.buffer.size",
        128 * MIB,
        "bytes",
        "memory for the keys of one run, 24 bytes each and a tenth more; a log with more takes several runs",
        "memory, for each disk while a run lasts",
        MIB,
        64 * GIB,
    ),
    SettingRow(
        "log.cleaner.min.cleanable.ratio", "0.5", "", "share of a log, from 0 to 1, that must be uncompacted before it is compacted", "logs stay larger"
    ),
    SettingRow(
        "log.cleaner.delete.retention.ms", 24 * HOUR, "ms", "grace in which readers can still see a tombstone or a transaction marker", "space", 0, INT64_MAX
    ),
    SettingRow("log.cleaner.min.compaction.lag.ms", 0, "ms", "shortest time that a record stays uncompacted", "logs stay larger", 0, INT64_MAX),
    SettingRow("log.cleaner.max.compaction.lag.ms", INT64_MAX, "ms", "longest time that a record stays uncompacted", "old values stay longer", 1, INT64_MAX),
)

_SEARCH_ROWS = (
    SettingRow("search.processes.max", 2, "", "searches that run at the same time; 0: none is allowed", "CPU and disk time, search.memory.bytes each", 0, 64),
    SettingRow("search.threads", 2, "", "partitions that one search reads at the same time", "CPU, disk time, and about 20 MB each", 1, 64),
    SettingRow("search.memory.bytes", 512 * MIB, "bytes", "memory of one search process; a search that needs more fails", "", 128 * MIB, 64 * GIB),
    SettingRow(
        "search.disk.bytes.per.second", 0, "bytes/s", "mean rate at which one search reads segments; 0: no limit", "disk time of other readers", 0, INT64_MAX
    ),
    SettingRow(
        "search.summaries",
        "searched",
        "",
        "topics whose sealed segments get a summary by which searches skip them: those searched in the last 7 days, all, or none",
        "10 to 25 s of CPU for 1 GB at the lowest priority, once, and their space",
        choices=("off", "searched", "all"),
    ),
    SettingRow("search.summaries.data.percent", 2, "%", "largest summary, in percent of its segment", "space; fewer segments are read for nothing", 1, 20),
    SettingRow("search.duration.max.ms", 30 * 60 * SECOND, "ms", "longest search; it then ends with what it has found", "", SECOND, 24 * HOUR),
)

_TABLE_ROWS = (
    SettingRow(
        "tables.locations",
        "",
        "",
        "directories (or s3://BUCKET/PATH), separated by commas, at or below which topics may be kept as tables (topic config millrace.table.location); "
        "without one, no topic can, and no process for it runs",
        "clients that may alter topic configs make the box write there",
    ),
    SettingRow(
        "tables.properties.file",
        "",
        "",
        "file (mode 0600) with lines NAME=VALUE: S3 (AWS_ACCESS_KEY_ID, …), and the catalog of Iceberg tables by pyiceberg's names (type, uri, credential, …) "
        "and `namespace`; without one, SQLite in the state directory. It is read for each commit",
        "the tabler reaches the network",
    ),
    SettingRow(
        "tables.compaction.commits",
        100,
        "commits",
        "after so many commits, small files of a table are merged if there are half as many, and files that no version of the last week has are removed; "
        "0: never",
        "more small files, which make queries slow",
        0,
        100_000,
    ),
)

GROUPS: dict[str, tuple[SettingRow, ...]] = {
    "Topics": _TOPIC_ROWS,
    "Logs": _LOG_ROWS,
    "Retention": _RETENTION_ROWS,
    "Compaction": _CLEANER_ROWS,
    "Disks": _DISK_PRIORITY_ROWS,
    "Producers": _PRODUCER_ROWS,
    "Replication": REPLICA_ROWS,
    "Network": NETWORK_ROWS,
    "Memory": _MEMORY_ROWS,
    "Ingestion": INGEST_ROWS,
    "Groups": GROUP_ROWS,
    "Transactions": TRANSACTION_ROWS,
    "Search": _SEARCH_ROWS,
    "Tables": _TABLE_ROWS,
    "Box": _BOX_ROWS,
}
"""Title on the reference page → rows."""

SETTING_ROWS: dict[str, SettingRow] = {row.name: row for rows in GROUPS.values() for row in rows}
