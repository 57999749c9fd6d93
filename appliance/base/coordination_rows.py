"""The settings of groups and transactions; `setting_rows` lists them. Names and defaults are
Kafka's.

The exception is `group.initial.rebalance.delay.ms`: it usually runs twice, and with Kafka's 3 s a
group of 100 would not settle within 5 s. Weak: what a state topic was created with (its number of
partitions) stays, whatever is set later.

The settings of the replica-fetcher; `setting_rows` lists them. Names and defaults are Kafka's,
except for the arena.

Weak: a batch larger than the arena could never be copied, so `Box.replica_arena_bytes` may exceed
the setting.
"""

from __future__ import annotations

from appliance.base.setting_row import GIB, HOUR, INT32_MAX, INT64_MAX, KIB, MIB, SECOND, SettingRow

MINUTE = 60 * SECOND
_DAY_MINUTES = 24 * 60

GROUP_ROWS = (
    SettingRow("group.min.session.timeout.ms", 6 * SECOND, "ms", "shortest session timeout that a member may ask for", "dead members stay longer", 1),
    SettingRow("group.max.session.timeout.ms", 30 * MINUTE, "ms", "longest session timeout that a member may ask for", "dead members may stay longer", 1),
    SettingRow(
        "group.initial.rebalance.delay.ms",
        2 * SECOND,
        "ms",
        "how long a new group waits for more members before its first rebalance, and once more if some came",
        "slower first records",
    ),
    SettingRow("group.max.size", 10_000, "members", "most members of one group (Kafka: no bound)", "memory, longer rebalances", 1),
    SettingRow(
        "max.groups",
        20_000,
        "",
        "most groups that this box coordinates; a further one is refused with POLICY_VIOLATION",
        "memory of the coordinator, about 3 KB for a group",
        1,
    ),
    SettingRow(
        "coordinator.heap.bytes",
        GIB,
        "bytes",
        "private memory above which the coordinator refuses what would grow: new groups, members, offsets, transactional ids; what is there goes on",
        "memory that hostile clients can take; its unit has 2 GiB (MemoryMax)",
        64 * MIB,
        64 * GIB,
    ),
    SettingRow(
        "group.consumer.session.timeout.ms", 45 * SECOND, "ms", "session timeout of members of the new protocol (KIP-848)", "dead members stay longer", 1
    ),
    SettingRow(
        "group.consumer.heartbeat.interval.ms", 5 * SECOND, "ms", "heartbeat interval that members of the new protocol are given", "slower rebalances", 1
    ),
    SettingRow("group.consumer.max.size", 10_000, "members", "most members of one group of the new protocol (Kafka: no bound)", "memory, longer rebalances", 1),
    SettingRow(
        "group.consumer.regex.max",
        1_000,
        "",
        "most regular expressions by which the members of all groups on this box subscribe to topics; a further one gets INVALID_REGULAR_EXPRESSION",
        "memory and CPU",
        1,
        100_000,
    ),
    SettingRow(
        "group.consumer.migration.policy",
        "bidirectional",
        "",
        "whether a live group may go from the classic to the new protocol (upgrade), back (downgrade), both or neither",
        "",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    SettingRow("group.share.session.timeout.ms", 45 * SECOND, "ms", "session timeout of members of share groups (KIP-932)", "dead members stay longer", 1),
    SettingRow("group.share.heartbeat.interval.ms", 5 * SECOND, "ms", "heartbeat interval that members of share groups are given", "slower assignments", 1),
    SettingRow("group.share.max.size", 200, "members", "most members of one share group", "memory", 1, 1_000),
    SettingRow("group.share.max.share.sessions", 2_000, "", "most share sessions on this box", "memory", 1, 100_000),
    SettingRow(
        "group.share.delivery.count.limit", 5, "", "how often a share group is given a record that no member accepts", "bad records stay longer", 2, 100
    ),
    SettingRow(
        "group.share.record.lock.duration.ms",
        30 * SECOND,
        "ms",
        "how long a member of a share group has a record before another member may get it",
        "records of dead members come later",
        1 * SECOND,
        HOUR,
    ),
    SettingRow(
        "group.share.partition.max.record.locks",
        2_000,
        "records",
        "how far a share group may be in a partition beyond the first record that is not done",
        "memory, larger state records",
        100,
        4_000,
    ),
    SettingRow(
        "group.share.auto.offset.reset",
        "latest",
        "",
        "where a share group begins in a partition that is new to it; Kafka has this as the group's share.auto.offset.reset",
        "",
        choices=("latest", "earliest"),
    ),
    SettingRow("share.coordinator.state.topic.num.partitions", 50, "", "partitions of __share_group_state, when it is made", "files and table rows", 1, 10_000),
    SettingRow(
        "share.coordinator.state.topic.replication.factor",
        3,
        "",
        "replicas of __share_group_state; fewer while there are fewer boxes",
        "space and network",
        1,
        16,
    ),
    SettingRow(
        "share.coordinator.state.topic.min.isr",
        2,
        "",
        "replicas of __share_group_state that must be in sync; no more than it has",
        "share groups wait more often",
        1,
        16,
    ),
    SettingRow("share.coordinator.state.topic.segment.bytes", 100 * MIB, "bytes", "segment size of __share_group_state", "slower loads", 16 * KIB),
    SettingRow("group.streams.session.timeout.ms", 45 * SECOND, "ms", "session timeout of members of streams groups (KIP-1071)", "dead members stay longer", 1),
    SettingRow("group.streams.heartbeat.interval.ms", 5 * SECOND, "ms", "heartbeat interval that members of streams groups are given", "slower rebalances", 1),
    SettingRow(
        "group.streams.max.size", 1_000, "members", "most members (threads) of one streams group (Kafka: no bound)", "memory, longer rebalances", 1, 10_000
    ),
    SettingRow("group.streams.num.standby.replicas", 0, "", "standbys of each task that has state", "space and network of the application", 0, 2),
    SettingRow(
        "group.streams.initial.rebalance.delay.ms",
        3 * SECOND,
        "ms",
        "how long a new streams group waits for more members before its tasks are assigned",
        "slower first records",
    ),
    SettingRow("offset.metadata.max.bytes", 4 * KIB, "bytes", "longest text that may go with a committed offset", "memory", 0),
    SettingRow("offsets.retention.minutes", 7 * _DAY_MINUTES, "minutes", "how long offsets outlive the last member of their group", "memory", 1),
    SettingRow("offsets.retention.check.interval.ms", 10 * MINUTE, "ms", "time between two looks for expired offsets", "they stay longer", 1, INT64_MAX),
    SettingRow("offsets.commit.timeout.ms", 5 * SECOND, "ms", "how long a commit may wait for its replicas", "clients wait longer for an error", 1),
    SettingRow("offsets.topic.num.partitions", 50, "", "partitions of __consumer_offsets, when it is made", "files and table rows", 1, 10_000),
    SettingRow("offsets.topic.replication.factor", 3, "", "replicas of __consumer_offsets; fewer while there are fewer boxes", "space and network", 1, 16),
    SettingRow("offsets.topic.segment.bytes", 100 * MIB, "bytes", "segment size of __consumer_offsets", "slower loads", 16 * KIB),
    SettingRow("coordinator.arena.bytes", 16 * MIB, "bytes", "shared memory for state records on their way to the log-writers", "memory", 4 * MIB, 256 * MIB),
)

TRANSACTION_ROWS = (
    SettingRow(
        "transaction.partition.verification.enable",
        True,
        "",
        "ask a transaction's coordinator before its first batch in a partition is taken, so that none is left hanging (KIP-890)",
        "",
    ),
    SettingRow(
        "transaction.max.timeout.ms", 15 * MINUTE, "ms", "longest transaction that a producer may ask for", "read_committed consumers may wait longer", 1
    ),
    SettingRow(
        "max.transactional.ids",
        50_000,
        "",
        "most transactional ids that this box coordinates; a further one is refused with POLICY_VIOLATION",
        "memory of the coordinator, about 1 KB for an id",
        1,
    ),
    SettingRow("transactional.id.expiration.ms", 7 * _DAY_MINUTES * MINUTE, "ms", "how long an unused transactional id is remembered", "memory", 1),
    SettingRow(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10 * SECOND,
        "ms",
        "time between two looks for transactions that take too long",
        "they last longer",
        1,
    ),
    SettingRow(
        "transaction.remove.expired.transaction.cleanup.interval.ms", 60 * MINUTE, "ms", "time between two looks for expired transactional ids", "memory", 1
    ),
    SettingRow("transaction.state.log.num.partitions", 50, "", "partitions of __transaction_state, when it is made", "files and table rows", 1, 10_000),
    SettingRow(
        "transaction.state.log.replication.factor", 3, "", "replicas of __transaction_state; fewer while there are fewer boxes", "space and network", 1, 16
    ),
    SettingRow(
        "transaction.state.log.min.isr", 2, "", "replicas of __transaction_state that must be in sync; no more than it has", "fewer transactions succeed", 1, 16
    ),
    SettingRow("transaction.state.log.segment.bytes", 100 * MIB, "bytes", "segment size of __transaction_state", "slower loads", 16 * KIB),
    SettingRow("producer.id.block.size", 1_000, "", "producer ids that are leased from ZooKeeper at once", "ids lost with a coordinator", 1),
)


REPLICA_ROWS = (
    SettingRow(
        "replica.fetcher.arena.bytes",
        64 * MIB,
        "bytes",
        "shared memory for batches on their way from other boxes to the log-writers; at least twice socket.request.max.bytes",
        "memory, taken when the cluster has another box",
        4 * MIB,
        64 * GIB,
    ),
    SettingRow("replica.fetch.max.bytes", MIB, "bytes", "most that is fetched of one partition at once", "others of that leader wait longer", KIB, INT32_MAX),
    SettingRow(
        "replica.fetch.response.max.bytes",
        10 * MIB,
        "bytes",
        "most that is fetched of one leader at once; never more than a quarter of the arena",
        "arena space for each leader",
        64 * KIB,
        INT32_MAX,
    ),
    SettingRow(
        "replica.fetch.wait.max.ms",
        500,
        "ms",
        "how long a leader may keep a fetch for which it has nothing",
        "high watermarks of followers lag",
        1,
        60 * SECOND,
    ),
    SettingRow("replica.fetch.min.bytes", 1, "bytes", "what a leader waits for before it answers a fetch", "acks=all waits longer", 1, INT32_MAX),
    SettingRow(
        "replica.fetch.backoff.ms",
        1 * SECOND,
        "ms",
        "longest pause after an error of a partition; the first is 20 ms, and each doubles it",
        "partitions with trouble lag",
        20,
        HOUR,
    ),
    SettingRow(
        "replica.socket.timeout.ms", 30 * SECOND, "ms", "how long a leader may take for an answer", "a leader that hangs is asked anew later", SECOND, HOUR
    ),
)
